"""The display of long work: a bar on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from lengthgen.escaping import visible

_SECONDS_BETWEEN_LINES = 5.0


class Screen(Console):
    """Stderr, whose reader may end (`| tee log` on Ctrl-C) or disk be full: work continues.

    A line that is not [markup] or coloured by guess, and is broken by the terminal alone.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__(
            file=file or sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True
        )

    def on_broken_pipe(self) -> None:
        """Prints nothing from now on; rich would end the program."""
        self.quiet = True

    def show_cursor(self, show: bool = True) -> bool:
        """Leaves the cursor as it is: Ctrl-C may end the program before it is shown again."""
        return False

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Writes what was printed, as all of rich does at its end, if it can be written."""
        with suppress(OSError):
            super().__exit__(exc_type, exc_value, traceback)


class Progress:
    """Shows how far a task is, its latest numbers and the time left; on stderr, main rank only.

    Standard output stays free for tables. One task at a time: start() ends the one before.
    """

    def __init__(
        self,
        *,
        is_main: bool,
        file: TextIO | None = None,
        seconds_between_lines: float = _SECONDS_BETWEEN_LINES,
    ) -> None:
        self._console = Screen(file)
        self._console.quiet = not is_main
        self._seconds_between_lines = seconds_between_lines
        self._bar: Bar | None = None
        self._bar_task = TaskID(0)
        self._task: str | None = None
        self._unit = ""
        self._total = self._done = self._done_at_start = 0
        self._fields: dict[str, float | str] = {}
        self._started = self._shown = 0.0
        self._shown_done: int | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def say(self, message: str) -> None:
        """Writes a line, above the bar if there is one."""
        self._console.print(visible(message, keep="\n\t"))

    def start(self, task: str, total: int, unit: str = "tokens", *, done: int = 0) -> None:
        """Begins a task of `total` units, of which `done` were finished by an earlier process."""
        self.finish()
        self._task = task = visible(task)
        self._total, self._unit = total, unit
        self._done = self._done_at_start = done
        self._fields = {}
        self._started = time.monotonic()
        self._shown_done = None
        screen = self._console
        if screen.is_terminal and not screen.is_dumb_terminal and not screen.quiet:
            self._bar = _bar(self._console)
            self._bar.start()
            self._bar_task = self._bar.add_task(task, total=total, completed=done, numbers="")
        else:
            self._line()

    def advance(self, amount: int, **fields: float | str) -> None:
        """Adds finished units; fields such as loss=5.1 or tokens_per_s=2e4 stay until replaced."""
        if self._task is None:
            return
        self._done = min(self._done + amount, self._total)
        self._fields |= fields
        if self._bar is not None:
            self._bar.update(self._bar_task, completed=self._done, numbers=_numbers(self._fields))
        elif time.monotonic() - self._shown >= self._seconds_between_lines:
            self._line()

    def finish(self) -> None:
        """Ends the task; without a terminal, its last line is always written."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif self._task is not None and self._shown_done != self._done:
            self._line()
        self._task = None

    def _line(self) -> None:
        self._shown, self._shown_done = time.monotonic(), self._done
        progress = f"{self._task}: {self._done:,}/{self._total:,} {self._unit}"
        parts = [progress, _numbers(self._fields)]
        gained, seconds = self._done - self._done_at_start, self._shown - self._started
        if gained and self._done < self._total:
            parts.append(f"{clock(seconds * (self._total - self._done) / gained)} left")
        elif gained:
            parts.append(f"in {clock(seconds)}")
        self._console.print("  ".join(filter(None, parts)))


def _bar(screen: Screen) -> Bar:
    """Returns rich's bar with the columns of a run."""
    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeRemainingColumn(),
        console=screen,
    )


def _numbers(fields: dict[str, float | str]) -> str:
    """Returns the fields as "loss 5.10  21,000 tokens/s"."""
    parts: list[str] = []
    for name, value in fields.items():
        if isinstance(value, str):
            parts.append(f"{name} {visible(value)}")
        elif name.endswith("_per_s"):
            parts.append(f"{value:,.0f} {name.removesuffix('_per_s')}/s")
        else:
            parts.append(f"{name} {value:#.4g}")
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """Returns a duration as 0:07, 12:30 or 3:05:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def from_here(path: Path) -> str:
    """Returns a path as it is typed here: relative to the working directory if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
