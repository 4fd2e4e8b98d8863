"""A sweep on this machine: a queue of `lengthgen train` processes, each with its cores or GPUs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from lengthgen.data.windows import TrainingWindows
from lengthgen.errors import Say, Stopped, UserError
from lengthgen.evaluation.evaluator import seconds_needed
from lengthgen.runs import devices, status
from lengthgen.runs.distributed import ALONE
from lengthgen.runs.signals import StopRequest
from lengthgen.sweep.grid import Point
from lengthgen.sweep.states import SETTLED, PointState, counted, pending, state_of, states_of
from lengthgen.terminal import Progress, duration, from_here, share_told
from lengthgen.training.step import batch_of, check_finite, fresh_state, launch_step, loss_function

SECONDS_BETWEEN_POLLS = 0.2
TRAINING = 0.75  # of a run's time, about; the rest is its evaluation
Show = Callable[[Sequence[str]], None]
Process = subprocess.Popen[bytes]


class Slot(NamedTuple):
    """A place for one run: CPU threads of each of its processes; its GPUs, none on a CPU."""

    threads: int
    gpus: tuple[str, ...]


class Child(NamedTuple):
    """A process at work on a point, in a slot; `before`: when its status was written last."""

    process: Process
    point: Point
    slot: Slot
    before: int


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

    A run has `gpus` processes (one by default), each with a GPU or, on a CPU, a core. More `jobs`
    than there is room for share GPUs; fewer have more cores each.
    """
    each, n_gpus = gpus or 1, len(machine_gpus)
    if n_gpus and each > n_gpus:
        raise UserError(f"--gpus: {each} requested for one run, {n_gpus} in this machine")
    groups = [tuple(machine_gpus[i : i + each]) for i in range(0, n_gpus - each + 1, each)]
    places = groups or [()] * max(1, cores // each)
    n = min(jobs or len(places), n_points)
    return [Slot(max(1, cores // (n * each)), places[i % len(places)]) for i in range(n)]


def run(
    points: Sequence[Point],
    free: list[Slot],
    *,
    gpus: int | None,
    say: Say,
    show: Show = lambda lines: None,
) -> dict[str, PointState]:
    """Runs what is left of the points, each in a process; returns the states of all of them then.

    `show` gets a line on each run at work, and one on all of them, a few times a second. The first
    Ctrl-C (or SIGTERM, SIGUSR2, SIGHUP) lets the runs checkpoint and stop, a second one kills them.
    Raises Stopped after that.
    """
    states, stop = states_of(points), StopRequest()
    waiting, at_work = pending(points, states), list[Child]()
    began, n_pending = time.monotonic(), len(waiting)

    def change(point: Point, state: PointState) -> None:
        states[point.run_id] = state
        say(f"{point.title}: {state.state}" + (f": {state.reason}" if state.reason else ""))

    def end(kind: signal.Signals) -> None:
        for process, *_ in at_work:
            if process.poll() is None:
                os.killpg(process.pid, kind)
        for process, *_ in at_work:
            process.wait()

    with stop.listening():
        while (waiting or at_work) and not stop.received:
            while waiting and free:
                point = waiting.pop(0)
                state = state_of(point)  # by now: another sweep may have run it
                if state.is_pending:
                    try:
                        at_work.append(_start(point, free[0], gpus=gpus))
                        del free[0]
                        state = PointState("running")
                    except OSError as error:
                        where = error.filename or "a process"
                        why = f"{where}: cannot be begun ({error.strerror})"
                        state = PointState("failed", why)
                change(point, state)
            for child in [child for child in at_work if child.process.poll() is not None]:
                at_work.remove(child)
                free.append(child.slot)
                change(child.point, _end_of(child))
            n_left = len(waiting) + len(at_work)
            show(_lines(at_work, states, n_pending, n_left, time.monotonic() - began))
            time.sleep(SECONDS_BETWEEN_POLLS)
        if not stop.received:
            return states
        say("stopping; Ctrl-C again kills at once")
        try:
            end(signal.SIGTERM)
        except KeyboardInterrupt:
            end(signal.SIGKILL)
    for child in at_work:
        change(child.point, _end_of(child))
    name = signal.Signals(stop.received).name
    message = f"stopped by {name}: {counted(states)}; rerun to resume"
    raise Stopped(message, exit_code=128 + stop.received)


def _start(point: Point, slot: Slot, *, gpus: int | None) -> Child:
    """Starts a point in a session of its own, which goes on if the sweep is killed."""
    words = [*point.submission, *(["--gpus", str(gpus)] if (gpus or 1) > 1 else [])]
    if point.config.runtime.threads is None:
        words.append(f"runtime.threads={slot.threads}")
    env = {**os.environ, "OMP_NUM_THREADS": str(slot.threads), "TERM": "dumb"}
    if slot.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
    point.run_dir.mkdir(parents=True, exist_ok=True)
    before = status.written_ns(point.run_dir)
    command, none = [sys.executable, "-P", "-m", "lengthgen", *words], subprocess.DEVNULL
    with (point.run_dir / "console.txt").open("wb") as file:
        process = Process(
            command, env=env, start_new_session=True, stdin=none, stdout=file, stderr=file
        )
    return Child(process, point, slot, before)


def _lines(
    at_work: Sequence[Child],
    states: dict[str, PointState],
    n_pending: int,
    n_left: int,
    seconds: float,
) -> list[str]:
    """Returns the newest line of each run at work, and how far all of them are.

    `n_pending` points were to be run `seconds` ago, of which `n_left` are not at their end.
    """
    newest = [_newest_line(child.point) for child in at_work]
    done = n_pending - n_left + sum(map(_share_done, newest))
    settled = sum(state.state in SETTLED for state in states.values())
    total = f"{settled} of {len(states)} points done"
    if done > 0:
        total += f", about {duration(seconds * (n_pending - done) / done)} left"
    if at_work:
        total += f"; follow one in {from_here(at_work[0].point.run_dir / 'console.txt')}"
    lines = zip(at_work, newest, strict=True)
    return [*(f"{child.point.title}: {line}" for child, line in lines), total]


def _newest_line(point: Point) -> str:
    with (point.run_dir / "console.txt").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
        return file.read().decode("utf-8", "replace").rstrip().rpartition("\n")[2]


def _share_done(line: str) -> float:
    """Returns the share of a run, its evaluation included, that is done by its newest line."""
    share = share_told(line) or 0.0
    if line.startswith("train "):
        return TRAINING * share
    return TRAINING + (1 - TRAINING) * share if line.startswith("evaluate ") else 0.0


def _end_of(child: Child) -> PointState:
    """Returns the state of a point whose process has ended."""
    code, point, run = child.process.returncode, child.point, state_of(child.point)
    has_reported = status.written_ns(point.run_dir) != child.before
    if code == 0 or run.state == "running":  # in another process by now
        return run
    if has_reported and run.state in ("diverged", "killed", "stopped"):
        return run
    if code < 0:  # before it reported
        return PointState("killed", f"by {signal.Signals(-code).name}")
    printed = (point.run_dir / "console.txt").read_text("utf-8", errors="replace").rstrip()
    last_line = printed.rpartition("\n")[2].removeprefix("error: ")
    return PointState("failed", last_line or f"exit code {code}")


class Expected(NamedTuple):
    """The seconds that runs take, about."""

    preparation: float
    training: float
    evaluation: float


def expected(points: Sequence[Point], slot: Slot, *, say: Say) -> Expected:
    """Returns about how long what points lack takes, one after the other.

    A step and a window of each recipe are measured; its seeds take as long.
    """
    measured, every = dict[tuple[str, str], Expected](), list[Expected]()
    for point in points:
        key = point.config.recipe, point.config.evaluation_id
        if key not in measured:
            of_recipe = measured[key] = expected_of(point, slot, say=say)
            took = f"{of_recipe.training:.3g} s a step, evaluation {duration(of_recipe.evaluation)}"
            say(f"{point.title}: {took}")
        done = status.checkpoint_folders(point.run_dir)[-1:]
        left = point.config.train.steps - sum(map(status.step_of, done))
        every.append(measured[key]._replace(training=left * measured[key].training))
    return Expected(*map(sum, zip(*every, strict=True)))


def expected_of(point: Point, slot: Slot, *, say: Say) -> Expected:
    """Returns how long a point takes in this process before its first step, the second step, and
    its evaluation.
    """
    config, begun, began = point.config, time.perf_counter(), 0.0
    runtime = config.runtime.model_copy(update={"threads": config.runtime.threads or slot.threads})
    device = devices.device_of(runtime, ALONE)
    devices.prepare(runtime, device)
    opened, objective = point.experiment.opened(say=say), point.experiment.objective
    corpus = opened.corpus
    windows = TrainingWindows(corpus, objective.window_targets)
    model = point.experiment.create(vocab_size=corpus.vocab_size)
    state = fresh_state(config, objective, model, device=device)
    loss = loss_function(state, ranks=ALONE)
    for _ in range(2):
        began = time.perf_counter()
        launch_step(state, batch_of(state, windows, ranks=ALONE), ranks=ALONE, loss=loss)
        check_finite(state, ALONE)
    ended = time.perf_counter()
    scored = opened.scored(model.eval(), ranks=ALONE, show=Progress(is_main=False))
    return Expected(began - begun, ended - began, seconds_needed(scored))
