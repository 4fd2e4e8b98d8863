"""All signal handlers: how a signal ends training, a sweep, a task of Slurm, or any other work."""

import ctypes
import os
import signal
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from lengthgen.errors import Stopped

SCHEDULER = (signal.SIGTERM, signal.SIGUSR2)  # what Slurm and torchrun send
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
INTERRUPTED = "interrupted; the same command continues with what is done"


def stop_with_parent() -> None:
    """Sends SIGTERM to this process when the process that started it ends; on Linux alone."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))


class _Signalled(KeyboardInterrupt):
    """Raised wherever a signal finds the process, so that nothing takes it for an error."""


@contextmanager
def handled(kinds: Iterable[signal.Signals], handler: Any) -> Generator[None]:
    before = {kind: signal.signal(kind, handler) for kind in kinds}
    try:
        yield
    finally:
        for kind, previous in before.items():
            signal.signal(kind, previous)


def end_at_once(number: int, frame: FrameType | None) -> None:
    """Handles Ctrl-C before the work begins: libraries swallow KeyboardInterrupt at their import.

    Files are written aside and renamed, so that the program may end at any moment.
    """
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):
            os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(128 + number)


@contextmanager
def interruptible() -> Generator[None]:
    """Raises Stopped at once if SIGTERM or SIGUSR2 comes while the block lasts.

    For all work but training, which has a step to finish first: what is written is written whole.
    Ctrl-C raises KeyboardInterrupt. A signal that has another handler already keeps it.
    """
    kinds = [kind for kind in SCHEDULER if signal.getsignal(kind) is signal.SIG_DFL]
    exit_code = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal exit_code
        exit_code = 128 + number
        for kind in kinds:  # a scheduler and torchrun both pass it on
            signal.signal(kind, signal.SIG_IGN)
        name = signal.Signals(number).name
        raise _Signalled(f"stopped by {name}; the same command continues with what is done")

    ctrl_c = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is end_at_once else []
    with handled(ctrl_c, signal.default_int_handler), handled(kinds, stop):
        try:
            yield
        except _Signalled as signalled:
            raise Stopped(str(signalled), exit_code=exit_code) from None


class StopRequest:
    """Notes the first of SIGTERM, SIGUSR2, SIGHUP or Ctrl-C in `received`; a second Ctrl-C kills.

    Other signals may come twice: a scheduler and torchrun both pass them on.
    """

    received = 0

    @contextmanager
    def listening(self) -> Generator[None]:
        """Listens while the block lasts; what is ignored, as SIGHUP by nohup, stays ignored."""
        kinds = (*SCHEDULER, signal.SIGHUP, signal.SIGINT)

        def note(number: int, frame: FrameType | None) -> None:
            self.received = self.received or number
            if number == signal.SIGINT:
                signal.signal(number, signal.default_int_handler)

        with handled([k for k in kinds if signal.getsignal(k) != signal.SIG_IGN], note):
            yield
