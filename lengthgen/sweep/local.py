"""A sweep on this machine: a queue of `lengthgen train` processes, each with its cores or GPUs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from lengthgen import pipeline
from lengthgen.data.objective import objective_of
from lengthgen.data.windows import TrainingWindows
from lengthgen.errors import Stopped, UserError
from lengthgen.model.build import create
from lengthgen.runs import devices
from lengthgen.runs.distributed import ALONE
from lengthgen.runs.signals import StopRequest
from lengthgen.sweep.grid import Point
from lengthgen.sweep.states import PointState, counted, pending, state_of, states_of
from lengthgen.training.step import batch_of, check_finite, fresh_state, launch_step, loss_of

SECONDS_BETWEEN_POLLS = 0.2
Say = Callable[[str], None]


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
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(names.split(","))[: len(gpus)] if names else gpus


def slots(
    cores: int, machine_gpus: Sequence[str], *, jobs: int | None, gpus: int | None, n_points: int
) -> list[Slot]:
    """Returns the places for runs: the machine's GPUs if it has any, else its cores.

    A run has `gpus` processes (one by default), each with a GPU or, on a CPU, a core: two runs of
    one thread each finish sooner than two runs of two threads one after the other. `jobs` sets the
    number of runs at a time: more than there is room for share GPUs, and fewer have more cores
    each. Raises UserError if a run needs more GPUs than there are.
    """
    each, n_gpus = gpus or 1, len(machine_gpus)
    if n_gpus and each > n_gpus:
        raise UserError(f"--gpus: {each} requested for one run, {n_gpus} in this machine")
    groups = [tuple(machine_gpus[i : i + each]) for i in range(0, n_gpus - each + 1, each)]
    places = groups if n_gpus else [()] * max(1, cores // each)
    n = min(jobs or len(places), max(1, n_points))
    return [Slot(max(1, cores // (n * each)), places[i % len(places)]) for i in range(n)]


class Child(NamedTuple):
    """A point at work: its place and its process."""

    point: Point
    slot: Slot
    process: subprocess.Popen[bytes]


def run(
    points: Sequence[Point], free: list[Slot], *, gpus: int | None, say: Say
) -> dict[str, PointState]:
    """Runs what is left of the points, each in a process; returns the states of all of them then.

    A failed point never stops the others; what another process works on is left to it. The first
    Ctrl-C (or SIGTERM, SIGUSR2, SIGHUP) lets the runs checkpoint and stop, a second one kills them.
    Raises Stopped after that.
    """
    states, stop = states_of(points), StopRequest()
    waiting, children = pending(points, states), list[Child]()

    def change(point: Point, state: PointState) -> None:
        states[point.run_id] = state
        say(f"{point.title}: {state.state}" + (f": {state.reason}" if state.reason else ""))

    with stop.listening():
        while (waiting or children) and not stop.received:
            while waiting and free:
                children.append(_start(waiting.pop(0), free.pop(0), gpus=gpus))
                change(children[-1].point, PointState("running"))
            for child in [child for child in children if child.process.poll() is not None]:
                children.remove(child)
                free.append(child.slot)
                change(child.point, _ended(child))
            time.sleep(SECONDS_BETWEEN_POLLS)
        if not stop.received:
            return states
        say("stopping; Ctrl-C again kills at once")
        try:
            _end(children, signal.SIGTERM)
        except KeyboardInterrupt:
            _end(children, signal.SIGKILL)
    for child in children:
        change(child.point, _ended(child))
    name = signal.Signals(stop.received).name
    message = f"stopped by {name}: {counted(states)}; the same command continues"
    raise Stopped(message, exit_code=128 + stop.received)


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
    with (point.run_dir / "console.txt").open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "lengthgen", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return Child(point, slot, process)


def _end(children: Sequence[Child], kind: signal.Signals) -> None:
    """Sends a signal to the processes and waits for their ends; those of torchrun follow."""
    for child in children:
        if child.process.poll() is None:
            os.killpg(child.process.pid, kind)
    for child in children:
        child.process.wait()


def _ended(child: Child) -> PointState:
    """Returns the state of a point whose process has ended."""
    code, run = child.process.returncode, state_of(child.point)
    if code == 0 or run.state in ("running", "diverged", "killed", "stopped"):
        return run  # running: in another process by now
    if code < 0:  # before the run began
        return PointState("killed", f"by {signal.Signals(-code).name}")
    printed = (child.point.run_dir / "console.txt").read_text("utf-8", errors="replace").rstrip()
    last_line = printed.rpartition("\n")[2].removeprefix("error: ")
    return PointState("failed", last_line or f"exit code {code}")


def seconds_per_step(point: Point, slot: Slot, *, say: Say) -> float:
    """Returns the seconds of the second training step of a point, in this process."""
    runtime = point.config.runtime
    device = devices.device_of(runtime, ALONE)
    threads = runtime.threads or slot.threads
    devices.prepare(runtime.model_copy(update={"threads": threads}), device)
    corpus = pipeline.prepare(point.config, {}, say=say)
    model = create(point.config, vocab_size=corpus.vocab_size)
    state = fresh_state(point.config, model, device=device)
    windows = TrainingWindows(corpus, objective_of(point.config).window_targets)
    loss = loss_of(state, ranks=ALONE, compiled=devices.compiles(runtime, device))
    began = 0.0
    for _ in range(2):
        began = time.perf_counter()
        launch_step(state, batch_of(state, windows, ranks=ALONE), ranks=ALONE, loss=loss)
        check_finite(state, ALONE)
    return time.perf_counter() - began
