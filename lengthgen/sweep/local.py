"""A sweep on this machine: a queue of `lengthgen train` processes, each with its cores or GPUs."""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from lengthgen.errors import Stopped, UserError
from lengthgen.runs import status
from lengthgen.runs.signals import StopRequest, interruptible
from lengthgen.sweep.grid import Point
from lengthgen.sweep.states import BUSY, PointState, counted, pending, state_of, states_of

SECONDS_BETWEEN_POLLS = 0.2
SECONDS_BETWEEN_POLLS_ELSEWHERE = 5.0


class Slot(NamedTuple):
    """A place for one run: CPU threads of each of its processes; its GPUs, none on a CPU."""

    threads: int
    gpus: tuple[str, ...]


def gpus_for(points: Sequence[Point]) -> tuple[str, ...]:
    """Returns the GPUs that the points may use, as CUDA_VISIBLE_DEVICES names them."""
    if all(point.config.runtime.device == "cpu" for point in points):
        return ()
    if torch.backends.mps.is_available():  # one, whatever it is called
        return ("0",)
    gpus = tuple(str(i) for i in range(torch.cuda.device_count()))
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(named.split(","))[: len(gpus)] if gpus and named is not None else gpus


def slots(
    cores: int,
    machine_gpus: Sequence[str],
    *,
    jobs: int | None,
    gpus: int | None,
    per_gpu: int,
    n_points: int,
) -> list[Slot]:
    """Returns the places for runs: the machine's GPUs if it has any, else its cores.

    With GPUs: `gpus` of them (one by default) for a run, and `per_gpu` runs on each. On a CPU one
    process takes one core: two runs of one thread each finish sooner than two runs of two threads
    one after the other. `jobs` sets the number of runs at a time; cores are divided among them.
    Raises UserError if a run needs what the machine does not have.
    """
    each, there = gpus or 1, len(machine_gpus)
    if per_gpu > 1 and (not there or each > 1):
        why = "runs of several GPUs do not share them" if there else "there is no GPU to share"
        raise UserError(f"--per-gpu: {why}; drop it")
    if there and each > there:
        raise UserError(f"--gpus: {each} requested for one run, {there} in this machine")
    groups = [tuple(machine_gpus[i : i + each]) for i in range(0, there - each + 1, each)]
    places = groups * per_gpu if there else [()] * max(jobs or 0, cores // each, 1)
    if jobs is not None and jobs > len(places):
        raise UserError(
            f"--jobs: the GPUs here have room for {len(places)} runs, not {jobs}; give --jobs "
            f"{len(places)}, or --per-gpu for runs that share a GPU"
        )
    n = min(jobs or len(places), max(1, n_points))
    return [Slot(max(1, cores // (n * each)), place) for place in places[:n]]


class Child(NamedTuple):
    """A point at work: its place, its process, and the file that this prints into."""

    point: Point
    slot: Slot
    process: subprocess.Popen[bytes]
    console: Path


def run(
    points: Sequence[Point], free: list[Slot], *, gpus: int | None, say: Callable[[str], None]
) -> dict[str, PointState]:
    """Runs what is left of the points, each in a process; returns the states of all of them then.

    A failed point never stops the others. A point that another process works on is waited for, and
    run here if it does not end well there. Every change of a state is said. The first Ctrl-C (or
    SIGTERM, SIGUSR2, SIGHUP) lets the runs checkpoint and stop, a second Ctrl-C kills them. Raises
    Stopped after that.
    """
    states, stop = states_of(points), StopRequest()
    waiting, children = pending(points, states), list[Child]()
    elsewhere = [p for p in points if states[p.run_id].state in BUSY]
    polled = time.monotonic()

    def change(point: Point, state: PointState) -> None:
        if state != states[point.run_id]:
            states[point.run_id] = state
            say(f"{point.title}: {state.state}" + (f": {state.reason}" if state.reason else ""))

    with stop.listening():
        while not stop.received and (children or waiting or elsewhere):
            here = sum(_is_here(point) for point in elsewhere)
            while waiting and len(free) > here:
                child = _start(waiting.pop(0), free.pop(0), gpus=gpus)
                children.append(child)
                change(child.point, PointState("running"))
            for child in [child for child in children if child.process.poll() is not None]:
                children.remove(child)
                free.append(child.slot)
                change(child.point, _ended(child))
                elsewhere += [child.point] * (states[child.point.run_id].state in BUSY)
            if elsewhere and time.monotonic() - polled > SECONDS_BETWEEN_POLLS_ELSEWHERE:
                now = states_of(elsewhere)
                for point in elsewhere:
                    change(point, now[point.run_id])
                waiting += pending(elsewhere, states)
                elsewhere = [p for p in elsewhere if states[p.run_id].state in BUSY]
                polled = time.monotonic()
            time.sleep(SECONDS_BETWEEN_POLLS)
        if stop.received:
            say("stopping; Ctrl-C again kills at once")
            _stop(children)
            for child in children:
                change(child.point, _ended(child))
            raise Stopped(
                f"stopped by {signal.Signals(stop.received).name}: {counted(states)}; "
                "the same command continues",
                exit_code=128 + stop.received,
            )
    return states


def _is_here(point: Point) -> bool:
    """True if a process of this machine works on the point, and takes a slot."""
    if not point.run_dir.is_dir():
        return False
    run = status.read_status(point.run_dir, run=point.run_id)
    return run.state == "running" and run.host == platform.node()


def _start(point: Point, slot: Slot, *, gpus: int | None) -> Child:
    """Starts a point in a session of its own, so that the terminal's Ctrl-C is not sent to it.

    It writes to a file itself, without a pipe: it goes on if the sweep is killed.
    """
    arguments = list(point.arguments)
    if point.config.runtime.threads is None:
        arguments.append(f"runtime.threads={slot.threads}")
    if gpus is not None and gpus > 1:
        arguments += ["--gpus", str(gpus)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(slot.threads), "TERM": "dumb"}
    if slot.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
    point.run_dir.mkdir(parents=True, exist_ok=True)
    console = point.run_dir / "console.txt"
    with console.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "lengthgen", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return Child(point, slot, process, console)


def _stop(children: Sequence[Child]) -> None:
    """Lets the runs checkpoint and stop, or kills them at Ctrl-C; torchrun's processes follow."""
    try:
        _signal(children, signal.SIGTERM)
    except KeyboardInterrupt:
        _signal(children, signal.SIGKILL)


def _signal(children: Sequence[Child], kind: signal.Signals) -> None:
    """Sends a signal to the processes, and waits for their ends."""
    for child in children:
        if child.process.poll() is None:
            os.killpg(child.process.pid, kind)
    for child in children:
        child.process.wait()


def _ended(child: Child) -> PointState:
    """Returns the state of a point whose process has ended."""
    code, run = child.process.returncode, state_of(child.point)
    number = -code if code < 0 else code - 128
    if code == 0 or run.state in ("running", "diverged"):  # running: in another process by now
        return run
    if number in {*signal.Signals}:
        name = signal.Signals(number).name
        return PointState("killed" if number == signal.SIGKILL else "stopped", f"by {name}")
    return PointState("failed", _last_line(child.console) or f"exit code {code}")


def _last_line(console: Path) -> str:
    """Returns the last line that was printed and is not blank, without the word error."""
    with suppress(OSError):
        printed = console.read_text(encoding="utf-8", errors="replace").rstrip()
        return printed.rpartition("\n")[2].strip().removeprefix("error: ")
    return ""


@interruptible()
def seconds_per_step(point: Point, slot: Slot) -> float | None:
    """Returns the seconds of the second step of a point, trained for that in a folder of its own.

    None if the point ends before it.
    """
    with tempfile.TemporaryDirectory() as folder:
        cache = point.config.runtime.cache_dir
        own = [f"runtime.root={folder}", f"runtime.cache={cache}", "runtime.wandb=off"]
        words = [*point.arguments, *own, "runtime.log_every=1", f"runtime.threads={slot.threads}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "lengthgen", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                for path in Path(folder).glob("*/train.jsonl"):
                    lines = path.read_text().splitlines(keepends=True)
                    if len(lines) > 1 and lines[1].endswith("\n"):
                        rate = json.loads(lines[1])["train/tokens_per_s"]
                        return point.config.train.batch_tokens / rate
                time.sleep(SECONDS_BETWEEN_POLLS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None
