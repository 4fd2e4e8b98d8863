"""All signal handlers: how a signal ends training, a sweep, a task of Slurm, or any other work."""

import signal
import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lengthgen.errors import Stopped

# Slurm and torchrun send the first two; Windows has SIGTERM and SIGINT alone.
BY_NAME = ("SIGTERM", "SIGUSR2", "SIGHUP", "SIGINT")
ENDING: list[signal.Signals] = [getattr(signal, n) for n in BY_NAME if hasattr(signal, n)]
SCHEDULER = [kind for kind in ENDING if kind.name in BY_NAME[:2]]


@contextmanager
def handled(kinds: Iterable[signal.Signals], handler: Any) -> Generator[None]:
    """Handles signals while the block lasts; only the main thread can, so that others do not."""
    if threading.current_thread() is not threading.main_thread():
        kinds = ()
    before = {kind: signal.signal(kind, handler) for kind in kinds}
    try:
        yield
    finally:
        for kind, previous in before.items():
            signal.signal(kind, previous)


@contextmanager
def interruptible() -> Generator[None]:
    """Raises Stopped at once if SIGTERM or SIGUSR2 comes while the block lasts.

    For all work but training, which has a step to finish first: what is written is written whole.
    Ctrl-C raises KeyboardInterrupt. A signal that has another handler already keeps it.
    """
    kinds = [kind for kind in SCHEDULER if signal.getsignal(kind) is signal.SIG_DFL]

    def stop(number: int, frame: FrameType | None) -> None:
        if isinstance(sys.exception(), Stopped):  # training, which had a step to finish, is ending
            return
        for kind in kinds:  # a scheduler and torchrun both pass it on
            signal.signal(kind, signal.SIG_IGN)
        name = signal.Signals(number).name
        message = f"stopped by {name}; rerun to resume"
        raise Stopped(message, exit_code=128 + number)

    ctrl_c = [signal.SIGINT] if callable(signal.getsignal(signal.SIGINT)) else []
    with handled(ctrl_c, signal.default_int_handler), handled(kinds, stop):
        yield


@contextmanager
def held_back() -> Generator[None]:
    """Holds signals back from this process, and from those that it starts, until the block ends."""
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # of this thread; a child inherits it
    try:
        with handled(ENDING, hold):  # what another thread was given
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number in held:
            signal.raise_signal(number)


class StopRequest:
    """Notes the first of SIGTERM, SIGUSR2, SIGHUP or Ctrl-C in `received`; a second Ctrl-C kills.

    Other signals may come twice: a scheduler and torchrun both pass them on.
    """

    received = 0

    @contextmanager
    def listening(self) -> Generator[None]:
        """Listens while the block lasts; what is ignored, as SIGHUP by nohup, stays ignored."""

        def note(number: int, frame: FrameType | None) -> None:
            self.received = self.received or number
            if number == signal.SIGINT:
                signal.signal(number, signal.default_int_handler)

        with handled([k for k in ENDING if signal.getsignal(k) != signal.SIG_IGN], note):
            yield
