"""The display of a running sweep: one live table on a terminal, else a line per change."""

import time
from collections.abc import Mapping, Sequence
from typing import Self, TextIO

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lengthgen.escaping import visible
from lengthgen.sweep.grid import Point
from lengthgen.sweep.states import PointState, counted
from lengthgen.terminal import Screen

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_TABLES = 0.5
ON_TOP = ("running", "failed", "killed", "diverged", "stopped", "queued", "trained", "new", "done")
COLOURS = {"done": "green", "running": "cyan", "failed": "red", "diverged": "red", "killed": "red"}


class Dashboard:
    """Shows the points of a sweep, their states and the last line of those that run; on stderr."""

    def __init__(self, points: Sequence[Point], *, file: TextIO | None = None) -> None:
        self._points = points
        self._console = Screen(file)
        self._live: Live | None = None
        if self._console.is_live:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_live(self) -> bool:
        """True if there is a table that is always up to date."""
        return self._live is not None

    def say(self, message: str) -> None:
        """Writes a line, above the table if there is one."""
        self._console.print(visible(message, keep="\n\t"))

    def show(self, states: Mapping[str, PointState], lines: Mapping[str, str]) -> None:
        """Shows the states and what each running point printed last, both by run id."""
        now = time.monotonic()
        if self._live is not None:
            if now - self._shown >= SECONDS_BETWEEN_TABLES:
                self._live.update(self._table(states, lines), refresh=True)
                self._shown = now
        elif now - self._shown >= SECONDS_BETWEEN_LINES:
            self.say(counted(states))
            for point in self._points:
                if lines.get(point.run_id):
                    self.say(f"  {point.title}: {lines[point.run_id]}")
            self._shown = now

    def _table(self, states: Mapping[str, PointState], lines: Mapping[str, str]) -> Group:
        """Returns all points; where the terminal is too low for them, first those that run."""
        height = max(1, self._console.height - 4)
        shown = list(self._points)
        if len(shown) > height:
            shown.sort(key=lambda p: ON_TOP.index(states[p.run_id].state))
        table = Table(*(list(self._points[0].varied) or ["run"]), "state", box=None, expand=True)
        for column in table.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        table.add_column("", ratio=1)  # takes what is left, and gives way first
        for point in shown[:height]:
            found = states[point.run_id]
            last = visible(lines.get(point.run_id) or found.reason or "")
            state = Text(found.state, style=COLOURS.get(found.state, ""))
            message = Text(last, no_wrap=True, overflow="ellipsis")
            table.add_row(*(point.varied.values() or [point.run_id]), state, message)
        return Group(table, Text(counted(states)))
