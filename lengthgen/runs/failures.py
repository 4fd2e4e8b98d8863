"""The failure of a process of several: what it reports, and how it ends. torch is not imported."""

import json
import os
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from lengthgen.errors import Stopped, UserError, first_line

SECONDS_TO_END = 5.0  # that a rank leaves to rank 0 to report, and to torchrun to terminate it


class FailureReport(NamedTuple):
    """What a process that fails leaves to the others; `text` is for stderr."""

    rank: int
    reason: str
    text: str
    exit_code: int


class RankFailed(UserError):
    """Another process of the run has failed; without a report it was lost."""

    def __init__(self, message: str, *, report: FailureReport | None) -> None:
        super().__init__(message)
        self.report = report


class Ended(NamedTuple):
    """How a process ends: what it writes to stderr, if anything, and its exit code."""

    text: str | None
    exit_code: int


def end(error: Exception, text: str, exit_code: int) -> Ended:
    """Returns how this process of several ends with an error that alone would end it as given.

    torchrun terminates all when the first one ends, and takes that one for the failed one: a
    process that is not to report waits for it. An error before the processes are connected is
    reported by rank 0 too, if it has ended by then.
    """
    rank, seconds = int(os.environ["RANK"]), SECONDS_TO_END * by_torchrun()
    if isinstance(error, RankFailed) and error.report is None:
        if rank == 0 and not by_torchrun():
            return Ended(text, exit_code)
        time.sleep(seconds)
        return Ended(None, exit_code)
    if isinstance(error, RankFailed) and error.report is not None:
        text, exit_code, reports = error.report.text, error.report.exit_code, True
    elif rank == 0 or isinstance(error, Stopped):
        reports = rank == 0
    else:
        time.sleep(seconds)
        text, reports = report_of(error, rank).text, by_torchrun()
    _write_error_file(text)
    return Ended(text if reports else None, exit_code)


def report_of(error: Exception, rank: int) -> FailureReport:
    """Returns the report of a process on its error; that of a bug begins with the traceback."""
    by = f"rank {rank}: " if rank else ""
    if isinstance(error, Stopped):
        return FailureReport(rank, str(error), str(error), error.exit_code)
    if isinstance(error, UserError):
        return FailureReport(rank, str(error), f"error: {by}{error}", 2)
    reason = f"{type(error).__name__}: {first_line(error)}"
    trace = "".join(traceback.format_exception(error))
    return FailureReport(rank, reason, f"{trace}error: {by}{reason}", 1)


def by_torchrun() -> bool:
    """True if torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _write_error_file(text: str) -> None:
    """Writes what torchrun shows of a process that failed, in the format of its `record`."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is not None:
        message = {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}
        Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")
