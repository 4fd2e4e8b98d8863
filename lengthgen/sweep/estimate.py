"""How long the rest of a sweep will take, from a measured step of every kind of point."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from lengthgen.benchmark import random_tokens, training_step
from lengthgen.config.schema import Config, TaskCorpus, from_plain, to_plain
from lengthgen.data.spans import Endpoint
from lengthgen.evaluation import plan, protocols
from lengthgen.evaluation.scored_text import Cell, Example
from lengthgen.model.build import create
from lengthgen.model.transformer import Transformer
from lengthgen.runs import devices, status
from lengthgen.runs.distributed import ALONE
from lengthgen.sweep.grid import Point


class Pace(NamedTuple):
    """Seconds per token: of training; of a scored window of C tokens, which is first + rest C."""

    train: float
    first: float
    rest: float


def estimate(points: Sequence[Point], *, threads: int, processes: int) -> dict[str, float] | None:
    """Returns the seconds that each point will take, by run id; None if they cannot be measured.

    One optimizer step on one micro-batch and two scored windows are measured for every kind of
    point, in a process of its own, alone on the machine and with random weights: the number is
    good to a factor of two or so. Work is taken to divide evenly among a point's processes.
    """
    kinds = {_kind(point.config): point.config for point in points}
    request = json.dumps([threads, [to_plain(config) for config in kinds.values()]])
    # Whatever a point's model does, here it costs no more than the estimate.
    command = [sys.executable, "-m", "lengthgen.sweep.estimate"]
    began = time.perf_counter()
    ran = subprocess.run(command, input=request, capture_output=True, text=True, check=False)
    try:
        busy, *measurements = json.loads(ran.stdout.rpartition("\n")[2])
    except ValueError:
        return None
    start = time.perf_counter() - began - busy  # of a process with everything imported
    paces = dict(zip(kinds, (Pace(*measured) for measured in measurements), strict=True))
    return {p.run_id: start + work(p, paces[_kind(p.config)]) / processes for p in points}


def makespan(seconds: Sequence[float], n_slots: int) -> float:
    """Returns when the last of some tasks ends that start in order, each in the slot free first."""
    free = [0.0] * n_slots
    for duration in seconds:
        free[free.index(min(free))] += duration
    return max(free)


def work(point: Point, pace: Pace) -> float:
    """Returns the seconds of what is left of a point at this pace, in one process."""
    config = point.config
    steps = max(0, config.train.steps - status.last_step(point.run_dir))
    tokens = steps * config.train.batch_tokens
    scored = sum(
        length * (pace.first + pace.rest * length)
        for cell in plan.cells(config)
        for length in _windows(cell, config)
    )
    return tokens * pace.train + scored


def _windows(cell: Cell, config: Config) -> list[int]:
    """Returns the lengths of the windows of a cell, in as many long documents as endpoints.

    Tests of a task are as much longer than T as their length is than L.
    """
    wanted = config.eval
    longest = max(wanted.lengths)
    reach = max(wanted.reach, longest)
    ends = [Endpoint(document, longest + reach) for document in range(wanted.endpoints)]
    tests: list[Example] = []
    if isinstance(config.corpus, TaskCorpus):
        task, T = config.corpus.task, config.train.length
        n_tokens = -(-T * cell.length // task.length)
        tests = [Example(cell.length, i, n_tokens, 1) for i in range(task.examples_per_length)]
    text = plan.scored_text(
        config, endpoints=ends, max_context=reach, blocks=wanted.blocks, examples=tests
    )
    return [span.length for span in protocols.named(cell.protocol).windows(cell.length, text)]


def _kind(config: Config) -> str:
    """Returns what a step's cost depends on."""
    plain: Mapping[str, Any] = config.model_dump(mode="json")
    train = {key: plain["train"][key] for key in ("length", "batch_tokens", "precision")}
    runtime = {key: plain["runtime"][key] for key in ("device", "micro_batch", "compile")}
    kind = [plain["scheme"]["parts"], plain["scheme"]["layers"], plain["model"], train, runtime]
    return json.dumps([*kind, plain["corpus"]["vocab_size"]], sort_keys=True)


def _main() -> None:
    """Writes the paces of the configurations on standard input to standard output."""
    threads, configs = json.load(sys.stdin)
    began = time.perf_counter()
    paces = [_measured(plain, threads) for plain in configs]
    json.dump([time.perf_counter() - began, *paces], sys.stdout)


def _measured(plain: dict[str, Any], threads: int) -> Pace:
    config = from_plain(plain)
    device = devices.device_of(config.runtime, ALONE)
    runtime = config.runtime.model_copy(update={"threads": config.runtime.threads or threads})
    devices.prepare(runtime, device)
    T = config.train.length
    batch = min(config.train.batch, devices.micro_batch(runtime, device, T))
    small = config.train.model_copy(update={"batch_tokens": batch * T, "lr": 1e-9})
    config = config.model_copy(update={"train": small})
    vocab_size = config.corpus.vocab_size
    compiled = runtime.compile or False  # not by default: it takes a minute
    _, step = training_step(config, vocab_size, device, compiled=compiled)
    step()  # allocators, thread pools, compilation
    train_seconds = devices.seconds_of(step, device) / (batch * T)
    model = create(config, vocab_size=vocab_size).to(device).eval()
    per_token = [_scored(model, length, vocab_size, device) / length for length in (T, 4 * T)]
    rest = max(0.0, (per_token[1] - per_token[0]) / (3 * T))
    return Pace(train_seconds, max(0.0, per_token[0] - rest * T), rest)


@torch.inference_mode()
def _scored(model: Transformer, length: int, vocab_size: int, device: torch.device) -> float:
    """Returns the seconds of one window whose last token is scored; 0 where there is no value."""
    if model.scheme.unsupported_reason(length):
        return 0.0
    tokens = random_tokens(length, vocab_size, device)
    starts = model.answer_starts(tokens)

    def score() -> None:
        model(tokens, n_last=1, generator=torch.Generator().manual_seed(0), **starts)

    score()
    return devices.seconds_of(score, device)


if __name__ == "__main__":
    _main()
