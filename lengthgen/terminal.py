"""The display of long work: a bar on a terminal, else a plain line every few seconds."""

import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from lengthgen.escaping import visible


class Screen(Console):
    """Stderr, whose reader may end (`| tee log` on Ctrl-C) or disk be full: work continues.

    A line that is not [markup] or coloured by guess, and is broken by the terminal alone.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__(
            file=file or sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        self.is_jupyter = False  # each line would be an output of its own in a notebook

    @property
    def is_live(self) -> bool:
        """True where lines that were written can be renewed."""
        return self.is_terminal and not self.is_dumb_terminal and not self.quiet

    def on_broken_pipe(self) -> None:
        """Prints nothing from now on; rich would end the program."""
        self.quiet = True

    def show_cursor(self, show: bool = True) -> bool:
        """Leaves the cursor as it is: Ctrl-C may end the program before it is shown again."""
        return False

    def __exit__(self, *error: Any) -> None:
        """Writes what was printed, as all of rich does at its end, if it can be written."""
        with suppress(OSError):
            super().__exit__(*error)


class Progress:
    """Shows how far a task is, its latest numbers and the time left; on stderr, main rank only.

    Standard output stays free for tables. One task at a time: start() ends the one before. Without
    a terminal it writes a plain line every few seconds.
    """

    def __init__(
        self, *, is_main: bool, file: TextIO | None = None, seconds_between_lines: float = 5.0
    ) -> None:
        self._console = Screen(file)
        self._console.quiet = not is_main
        self._seconds_between_lines = seconds_between_lines
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def say(self, message: str) -> None:
        """Writes a line, above the bar if there is one."""
        self._console.print(visible(message, keep="\n\t"))

    def start(self, task: str, total: int, unit: str = "tokens", *, done: int = 0) -> None:
        """Begins a task of `total` units, of which `done` were finished by an earlier process.

        Of units without a name, their percentage is shown alone.
        """
        self.finish()
        self._unit, self._done_at_start = unit, done
        self._fields: dict[str, float | str] = {}
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            get_time=lambda: time.monotonic(),
        )
        self._bar.add_task(visible(task), total=total, completed=done, numbers="")
        self._has_bar = self._console.is_live
        if self._has_bar:
            self._bar.start()
        else:
            self._line()

    def advance(self, amount: int, **fields: float | str) -> None:
        """Adds finished units; fields such as loss=5.1 or tokens_per_s=2e4 stay until replaced."""
        if self._bar is None:
            return
        self._fields |= fields
        (task,) = self._bar.tasks
        done = min(task.completed + amount, task.total or 0)
        self._bar.update(task.id, completed=done, numbers=_numbers(self._fields))
        if not self._has_bar and time.monotonic() - self._shown >= self._seconds_between_lines:
            self._line()

    def finish(self) -> None:
        """Ends the task; without a terminal, its last line is always written."""
        if self._bar is not None and self._has_bar:
            self._bar.stop()
        elif self._bar is not None and self._shown_done != self._bar.tasks[0].completed:
            self._line()
        self._bar = None

    def _line(self) -> None:
        assert self._bar is not None
        (task,) = self._bar.tasks
        self._shown, self._shown_done = time.monotonic(), task.completed
        progress = f"{task.completed:,}/{task.total:,} {self._unit}"
        if not self._unit:
            progress = f"{task.percentage:.0f}%"
        parts = [f"{task.description}: {progress}", str(task.fields["numbers"])]
        gained, left, seconds = task.completed - self._done_at_start, task.remaining, task.elapsed
        if gained and left:
            parts.append(f"{clock((seconds or 0) * left / gained)} left")
        elif gained:
            parts.append(f"in {clock(seconds or 0)}")
        self._console.print("  ".join(filter(None, parts)))


class Board:
    """Shows how far other processes are; on a terminal in lines that are renewed in place.

    Without one it writes them every `seconds_between_lines`.
    """

    def __init__(self, file: TextIO | None = None, seconds_between_lines: float = 60.0) -> None:
        self._screen = Screen(file)
        self._seconds_between_lines = seconds_between_lines
        self._shown = time.monotonic()
        live = Live(console=self._screen, auto_refresh=False, transient=True)
        self._live = live if self._screen.is_live else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, message: str) -> None:
        """Writes a line that stays, above those that are renewed."""
        self._screen.print(visible(message, keep="\n\t"))

    def show(self, lines: Sequence[str]) -> None:
        """Renews the lines; each is cut at the width of the terminal."""
        text = "\n".join(map(visible, lines))
        if self._live:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif time.monotonic() - self._shown >= self._seconds_between_lines:
            self._shown = time.monotonic()
            self._screen.print(text)


def share_told(line: str) -> float | None:
    """Returns the share from 0 to 1 that a line of Progress says is done; None if it says none."""
    if told := re.search(r": ([\d,]+)/([\d,]+) ", line):
        done, total = (int(number.replace(",", "")) for number in told.groups())
        return done / total
    told = re.search(r": +(\d+)%", line)
    return int(told[1]) / 100 if told else None


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


def duration(seconds: float) -> str:
    """Returns an estimate with its units, two at most: 40 s, 12 min, 3 h 5 min, 2 days 4 h."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if not minutes:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} day{'s' * (hours >= 48)} {hours % 24} h"


def millions(tokens: float) -> str:
    """Returns a number of tokens as 12M, 1.5M; below a million whole, with commas."""
    return f"{tokens / 1e6:.3g}M" if tokens >= 1e6 else f"{tokens:,.0f}"


def from_here(path: Path) -> str:
    """Returns a path as it is typed here: relative to the working directory if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
