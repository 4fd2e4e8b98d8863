"""A signal ends what is at work, in time, once, and is not taken for an error."""

import os
import signal
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from commands import run

from lengthgen.errors import Stopped
from lengthgen.runs import signals, status
from lengthgen.runs.signals import StopRequest


def stop(*kinds: signal.Signals) -> None:
    """Sends signals to this process, the later ones while it is on its way out."""
    with ExitStack() as stack:
        for kind in reversed(kinds[1:]):
            stack.callback(os.kill, os.getpid(), kind)
        os.kill(os.getpid(), kinds[0])
        raise AssertionError("not stopped")


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGUSR2], ids=str)
def test_a_signal_ends_work_at_once_with_its_exit_code(kind: signal.Signals) -> None:
    @signals.interruptible()
    def work() -> None:
        with suppress(Exception):  # which it is not taken for
            stop(kind)

    with pytest.raises(Stopped, match=f"stopped by {kind.name}; rerun to resume") as caught:
        work()
    assert caught.value.exit_code == 128 + kind
    assert signal.getsignal(kind) is signal.SIG_DFL


def test_work_of_another_thread_has_no_handlers() -> None:
    with ThreadPoolExecutor() as pool, StopRequest().listening():
        before = [signal.getsignal(kind) for kind in signals.ENDING]
        work = signals.interruptible()(StopRequest().listening()(lambda: before))
        assert pool.submit(work).result() == [signal.getsignal(kind) for kind in signals.ENDING]


STOPPED = """
import itertools, os, signal
from lengthgen import __main__
from lengthgen.cli import app
from lengthgen.data.tokenizer import train_tokenizer
from lengthgen.runs import signals

def texts():
    os.kill(os.getpid(), signal.SIGTERM)
    yield from itertools.repeat("ab" * 100_000)

def train(**_):
    train_tokenizer(texts(), vocab_size=300, say=len)

app.app = signals.interruptible()(train)
__main__.main()
"""


def test_the_program_ends_by_its_signal_whatever_a_library_does_in_a_thread() -> None:
    ran = run("-c", STOPPED)
    assert (ran.code, ran.err) == (143, "stopped by SIGTERM; rerun to resume\n")


@pytest.fixture
def heard() -> Generator[list[int]]:
    """The numbers of SIGUSR2, which has a handler; SIGHUP is ignored as by nohup."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: numbers.append(number))
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield numbers
    signal.signal(signal.SIGUSR2, before)
    signal.signal(signal.SIGHUP, hangup)


def test_a_signal_that_comes_again_does_not_disturb_what_is_still_written(tmp_path: Path) -> None:
    work = status.record_status(tmp_path, run="rope", evaluation_id="abc")(stop)
    with pytest.raises(Stopped):
        signals.interruptible()(work)(signal.SIGTERM, signal.SIGTERM, signal.SIGUSR2)
    state, reason, *_ = status.read_status(tmp_path, run="rope")
    assert state == "stopped"
    assert str(reason).startswith("stopped by SIGTERM")


def test_a_signal_that_comes_again_leaves_the_words_of_the_end_that_is_under_way() -> None:
    @signals.interruptible()
    def work() -> None:
        with ExitStack() as stack:
            stack.callback(os.kill, os.getpid(), signal.SIGTERM)
            raise Stopped("stopped by SIGTERM after step 5", exit_code=143)

    with pytest.raises(Stopped, match="after step 5"):
        work()


def test_a_signal_may_come_twice_but_a_second_interrupt_kills() -> None:
    stop = StopRequest()
    with stop.listening():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_has_a_handler_or_is_ignored_as_by_nohup_stays_so(heard: list[int]) -> None:
    with signals.interruptible():
        os.kill(os.getpid(), signal.SIGUSR2)
    assert heard == [signal.SIGUSR2]
    heard.clear()
    stop = StopRequest()
    with stop.listening():
        for kind in (signal.SIGHUP, signal.SIGUSR2, signal.SIGTERM):
            os.kill(os.getpid(), kind)
    assert (stop.received, heard) == (signal.SIGUSR2, [])
