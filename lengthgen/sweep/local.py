"""A sweep on this machine: a queue of processes, each in a slot of cores or GPUs."""

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lengthgen.errors import Stopped, UserError
from lengthgen.files import open_regular
from lengthgen.runs import status
from lengthgen.runs.signals import SweepStop
from lengthgen.runs.status import Status
from lengthgen.sweep.dashboard import Dashboard
from lengthgen.sweep.grid import Point
from lengthgen.sweep.resources import Slot
from lengthgen.sweep.states import BUSY, PointState, counted, pending, state_of, states_of
from lengthgen.terminal import clock

SECONDS_BETWEEN_POLLS = 0.2
SECONDS_BETWEEN_POLLS_ELSEWHERE = 5.0  # with one call of squeue
BYTES_READ = 4096


class Console(NamedTuple):
    """What a run prints, from byte `begin` of a file on.

    The run writes to the file itself, without a pipe: it continues if the sweep is killed.
    """

    path: Path
    begin: int

    def last(self) -> str:
        """Returns the last line that is not blank."""
        with suppress(OSError), open_regular(self.path) as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self.begin, end - BYTES_READ))
            lines = file.read().decode(errors="replace").splitlines()
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""


@dataclass(frozen=True, kw_only=True)
class Child:
    """A running point: its process, what that prints, and the status of the run before."""

    point: Point
    slot: Slot
    process: subprocess.Popen[bytes]
    console: Console
    before: Status
    began: float = field(default_factory=time.monotonic)


def run(
    points: Sequence[Point], slots: Sequence[Slot], *, gpus: int | None, dashboard: Dashboard
) -> dict[str, PointState]:
    """Runs what is left of the points, each in a process; returns the states of all of them then.

    A failed point never stops the others. A point that another process works on is waited for. The
    first Ctrl-C (or SIGTERM, SIGUSR2, SIGHUP) lets the runs checkpoint and stop, a second kills
    them. Raises Stopped after that.
    """
    queue, stop = _Queue(points, slots, gpus=gpus, dashboard=dashboard), SweepStop()
    with stop.listening():
        try:
            while queue.running or (queue.is_unfinished and not stop.count):
                if stop.count:
                    queue.stop(kill=stop.count > 1)
                else:
                    queue.start_some()
                queue.collect()
                dashboard.show(
                    queue.states, {c.point.run_id: c.console.last() for c in queue.running}
                )
                time.sleep(SECONDS_BETWEEN_POLLS)
        except BaseException:  # a bug: what the runs have is kept
            queue.stop(kill=False)
            raise
    if stop.count:
        raise Stopped(
            f"stopped by {signal.Signals(stop.number).name}: {counted(queue.states)}; "
            "the same command continues",
            exit_code=128 + stop.number,
        )
    return queue.states


class _Queue:
    """Which points wait, run here or elsewhere, and which slots are free."""

    def __init__(
        self,
        points: Sequence[Point],
        slots: Sequence[Slot],
        *,
        gpus: int | None,
        dashboard: Dashboard,
    ) -> None:
        self.states = states_of(points)
        self.running: list[Child] = []
        self._waiting = pending(points, self.states)
        self._free = list(slots)
        self._gpus, self._dashboard = gpus, dashboard
        self._stopping = False
        self._wait_for([p for p in points if self.states[p.run_id].state in BUSY])

    @property
    def is_unfinished(self) -> bool:
        return bool(self.running or self._waiting or self._elsewhere)

    def start_some(self) -> None:
        """Fills the free slots."""
        while self._waiting and len(self._free) > self._taken:
            point = self._waiting.pop(0)
            try:
                child = _start(point, self._free[0], gpus=self._gpus)
            except OSError as error:
                self._settle(point, PointState("failed", f"cannot be started: {error}"), "")
                continue
            self._free.pop(0)
            self.running.append(child)
            self.states[point.run_id] = PointState("running")
            if not self._dashboard.is_live:
                self._dashboard.say(f"{point.title}: running")

    def collect(self) -> None:
        """Notes how processes ended, here and elsewhere."""
        for child in [child for child in self.running if child.process.poll() is not None]:
            self.running.remove(child)
            self._free.append(child.slot)
            ended = _ended(child, stopping=self._stopping)
            when = f" after {clock(time.monotonic() - child.began)}"
            if ended.state in BUSY:
                self._wait_for([*self._elsewhere, child.point])
                when = " elsewhere"
            self._settle(child.point, ended, when)
        if not self._elsewhere or time.monotonic() < self._next_poll:
            return
        found = states_of(self._elsewhere)
        ended = [p for p in self._elsewhere if found[p.run_id].state not in BUSY]
        for point in ended:
            self._settle(point, found[point.run_id], " elsewhere")
        self._waiting += pending(ended, found)
        self._wait_for([p for p in self._elsewhere if p not in ended])

    def _wait_for(self, points: Sequence[Point]) -> None:
        """Waits for points that run elsewhere; those on this machine take slots, too."""
        self._elsewhere = points
        self._taken = sum(_status(p).host == platform.node() for p in points)
        self._next_poll = time.monotonic() + SECONDS_BETWEEN_POLLS_ELSEWHERE

    def stop(self, *, kill: bool) -> None:
        """Lets the runs checkpoint and stop, once, or kills them with all their processes."""
        if not self._stopping:
            n = len(self.running)
            self._dashboard.say(f"stopping {n} run{'s' * (n > 1)}; Ctrl-C again kills at once")
        for child in self.running:
            if child.process.poll() is not None:
                continue
            if kill:
                kill_with_children(child.process.pid)
            elif not self._stopping:
                child.process.terminate()  # torchrun passes it on to its own processes
        self._stopping = True

    def _settle(self, point: Point, found: PointState, when: str) -> None:
        self.states[point.run_id] = found
        because = f": {found.reason}" if found.reason else ""
        self._dashboard.say(f"{point.title}: {found.state}{when}{because}")


def _start(point: Point, slot: Slot, *, gpus: int | None) -> Child:
    """Starts a point in a session of its own, so that the terminal's Ctrl-C is not sent to it."""
    arguments = list(point.arguments)
    if point.config.runtime.threads is None:
        arguments.append(f"runtime.threads={slot.threads}")
    if gpus is not None and gpus > 1:
        arguments += ["--gpus", str(gpus)]
    threads = str(slot.threads)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "COLUMNS": "200", "TERM": "dumb"}
    if slot.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
    point.run_dir.mkdir(parents=True, exist_ok=True)
    path = point.run_dir / "console.txt"
    with path.open("ab") as file:
        console, before = Console(path, file.tell()), _status(point)
        process = subprocess.Popen(
            [sys.executable, "-m", "lengthgen", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return Child(point=point, slot=slot, process=process, console=console, before=before)


def _ended(child: Child, *, stopping: bool) -> PointState:
    """Returns the state of a point whose process has ended; writes it if the process did not."""
    code, point = child.process.returncode, child.point
    found = state_of(point)
    written = found.state != "killed" and _status(point) != child.before
    if code == 0 or found.state in ("done", "running") or written:
        return found
    by = next((kind for kind in signal.Signals if kind in (-code, code - 128)), None)
    last = child.console.last()
    if by is None:
        ended = Status("failed", reason=last.removeprefix("error: ") or f"exit code {code}")
    elif stopping and by != signal.SIGKILL:
        ended = Status("stopped", reason=f"stopped by {by.name}")
    else:
        ended = Status("killed", reason=f"killed by {by.name}")
    try:
        status.write(point.run_dir, ended, run=point.run_id)
    except UserError as error:
        if by is None and not last.startswith("error: "):  # a full disk prevents it here, too
            ended = ended._replace(reason=str(error))
    return PointState(ended.state, ended.reason)


def _status(point: Point) -> Status:
    return status.read_status(point.run_dir, run=point.run_id)


def kill_with_children(pid: int) -> None:
    """Kills a process with all that it started: torchrun's processes have sessions of their own."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):  # without /proc its process group alone
        with suppress(OSError):  # it has ended
            parent = path.read_text(errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(path.parent.name))
    family = [pid]
    for member in family:
        family += children.get(member, [])
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for member in family:
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
