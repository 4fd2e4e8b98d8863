"""What a scheme costs: parameters, speed of training, decoding, evaluation, memory; against none.

Every ratio is of two things that took turns in one process, since a machine's speed drifts. The
baseline is the same model without positional parts. Weights and tokens are random.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lengthgen.config.schema import Config, from_plain, to_plain
from lengthgen.data.corpora import Split, TokenizedCorpus
from lengthgen.model.build import create
from lengthgen.model.kv_cache import forward_cached
from lengthgen.model.transformer import Transformer
from lengthgen.runs import devices
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress
from lengthgen.training.step import (
    State,
    batch_of,
    check_finite,
    fresh_state,
    launch_step,
    loss_of,
    windows_of,
)

MIB = 2**20
DECODED = 64  # tokens that are decoded behind a text of T


class Speed(NamedTuple):
    """Tokens per second, and that divided by the baseline's."""

    tokens_per_s: float
    relative: float


class Evaluated(NamedTuple):
    """One window of a length: its speed, and the most memory it took beyond the loaded model."""

    length: int
    speed: Speed | None
    mib: float | None
    skipped: str | None


class Cost(NamedTuple):
    """All that is measured of one scheme."""

    scheme: str
    parameters: int
    train: Speed
    decode: Speed | None  # None where the scheme has no value past T
    evaluated: list[Evaluated]


def costs(
    configs: Sequence[Config],
    lengths: Sequence[int],
    *,
    rounds: int,
    vocab_size: int,
    show: Progress,
) -> Iterator[Cost]:
    """Yields the cost of each configuration's scheme, measured in a fresh process per number."""
    for config in configs:
        config.refuse_arch("bench")
        show.start(f"bench {config.scheme.name}", 2 + len(lengths), unit="measurements")
        parameters, train = _in_own_process(_training, config, rounds, vocab_size)
        show.advance(1)
        decode = _in_own_process(_decoding, config, rounds, vocab_size)
        show.advance(1)
        evaluated: list[Evaluated] = []
        for length in lengths:
            try:
                evaluated.append(_in_own_process(_evaluation, config, length, rounds, vocab_size))
            except BrokenProcessPool:
                reason = "out of memory: the process was killed"
                evaluated.append(Evaluated(length, None, None, reason))
            show.advance(1)
        show.finish()
        yield Cost(config.scheme.name, parameters, train, decode, evaluated)


def table(found: Sequence[Cost], lengths: Sequence[int], *, train_length: int) -> list[list[str]]:
    """Returns head and rows: tokens per second, ratios to no scheme (x), MiB of a window."""
    head = ["scheme", "parameters"]
    for what in ("train", "decode"):
        head += [f"{what} tok/s at {train_length:,}", "x"]
    for length in lengths:
        head += [f"eval tok/s at {length:,}", "x", "MiB"]
    rows = [head]
    for cost in found:
        row = [cost.scheme, f"{cost.parameters:,}", *_speed(cost.train), *_speed(cost.decode)]
        for window in cost.evaluated:
            row += [*_speed(window.speed), "n/a" if window.mib is None else f"{window.mib:,.0f}"]
        rows.append(row)
    return rows


def _speed(speed: Speed | None) -> list[str]:
    if speed is None:
        return ["n/a", "n/a"]
    return [f"{speed.tokens_per_s:,.0f}", f"{speed.relative:.2f}"]


def _in_own_process(measure: Callable[..., Any], config: Config, *arguments: object) -> Any:
    """Returns the result of `measure`, run in a process of its own: the memory peak is its own."""
    # Its server imports torch once, and starts no thread.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent) as pool:
        return pool.submit(measure, to_plain(config), *arguments).result()


def _end_with_parent() -> None:
    """Ends this process when the one that requested the measurement ends, however that happens."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a process of a pool has a parent"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _training(plain: dict[str, Any], rounds: int, vocab_size: int) -> tuple[int, Speed]:
    """Returns the scheme's parameters, and the speed of whole optimizer steps."""
    config = from_plain(plain)
    device = _prepared(config)
    compiled = devices.compiles(config.runtime, device)
    state, step = training_step(config, vocab_size, device, compiled=compiled)
    _, plain_step = training_step(_without_parts(config), vocab_size, device, compiled=compiled)
    seconds, plain_seconds = _alternating([step, plain_step], rounds, device)
    parameters = sum(p.numel() for p in state.model.scheme.parameters())
    return parameters, Speed(config.train.batch_tokens / seconds, plain_seconds / seconds)


def training_step(
    config: Config, vocab_size: int, device: torch.device, *, compiled: bool
) -> tuple[State, Callable[[], object]]:
    """Returns a fresh training state on random tokens, and a call that does its next step."""
    windows = windows_of(config, random_corpus(config, vocab_size))
    state = fresh_state(config, create(config, vocab_size=vocab_size), device=device)
    loss = loss_of(state, ranks=ALONE, compiled=compiled)

    def step() -> None:
        launch_step(state, batch_of(state, windows, ranks=ALONE), ranks=ALONE, loss=loss)
        check_finite(state, ALONE)

    return state, step


def random_tokens(length: int, vocab_size: int, device: torch.device) -> Tensor:
    """Returns the tokens of one text, [1, length]."""
    draws = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size, (1, length), generator=draws).to(device)


def _decoding(plain: dict[str, Any], rounds: int, vocab_size: int) -> Speed | None:
    """Returns the speed of tokens that are decoded one by one behind a text of T tokens."""
    config = from_plain(plain)
    device = _prepared(config)
    T, precision = config.train.length, config.eval.precision
    model = create(config, vocab_size=vocab_size).to(device).eval()
    if model.scheme.unsupported_reason(T + DECODED):
        return None
    tokens = random_tokens(T, vocab_size, device)

    def decoder(model: Transformer) -> Callable[[], object]:
        prompt = forward_cached(model, tokens, None, seed=0, precision=precision)

        def decode() -> int:
            cache = prompt
            for _ in range(DECODED):
                next_BN = cache.logits_BV.argmax(-1, keepdim=True)
                cache = forward_cached(model, next_BN, cache, seed=0, precision=precision)
            return int(cache.logits_BV.argmax())

        return decode

    bare = create(_without_parts(config), vocab_size=vocab_size).to(device).eval()
    seconds, plain_seconds = _alternating([decoder(model), decoder(bare)], rounds, device)
    return Speed(DECODED / seconds, plain_seconds / seconds)


@torch.inference_mode()
def _evaluation(plain: dict[str, Any], length: int, rounds: int, vocab_size: int) -> Evaluated:
    """Returns speed and memory of one window with the configuration's number of targets."""
    config = from_plain(plain)
    device = _prepared(config)
    model = create(config, vocab_size=vocab_size).to(device).eval()
    reason = model.scheme.unsupported_reason(length)
    if reason:
        return Evaluated(length, None, None, reason)
    tokens = random_tokens(length, vocab_size, device)

    def scoring(model: Transformer, tokens: Tensor) -> Callable[[], object]:
        n = min(config.eval.targets, tokens.shape[1])

        def score() -> float:
            generator = torch.Generator().manual_seed(0)
            bf16 = config.eval.precision == "bf16"
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                x_BTD = model(tokens, n_last=n, generator=generator)
                return float(model.token_nll(x_BTD, tokens[:, -n:]).sum())

        return score

    scoring(model, tokens[:, : -(-config.train.length // 8)])()  # allocators and thread pools
    before = devices.peak_memory(device)
    score = scoring(model, tokens)
    score()
    added = max(0, devices.peak_memory(device) - before) / MIB
    bare = create(_without_parts(config), vocab_size=vocab_size).to(device).eval()
    few = max(1, rounds * config.train.length // length)  # long windows average noise themselves
    seconds, plain_seconds = _alternating([score, scoring(bare, tokens)], few, device)
    return Evaluated(length, Speed(length / seconds, plain_seconds / seconds), added, None)


def _alternating(
    calls: Sequence[Callable[[], object]], rounds: int, device: torch.device
) -> list[float]:
    """Returns the median seconds of each call; they take turns, after one warm-up round."""
    taken: list[list[float]] = [[] for _ in calls]
    for round_ in range(rounds + 1):
        for call, seconds in zip(calls, taken, strict=True):
            took = devices.seconds_of(call, device)
            if round_:
                seconds.append(took)
    return [median(seconds) for seconds in taken]


def _prepared(config: Config) -> torch.device:
    device = devices.device_of(config.runtime, ALONE)
    devices.prepare(config.runtime, device)
    return device


def _without_parts(config: Config) -> Config:
    """Returns the configuration of the baseline."""
    scheme = config.scheme.model_copy(update={"parts": {}, "layers": None})
    return config.model_copy(update={"scheme": scheme})


def random_corpus(config: Config, vocab_size: int) -> TokenizedCorpus:
    """Returns one document of random tokens, long enough for a few steps."""
    n = 8 * config.train.batch_tokens
    tokens = np.random.Generator(np.random.Philox(0)).integers(vocab_size, size=n)
    split = Split(
        tokens=tokens.astype(np.uint32), offsets=np.array([0, n]), names=["random tokens"]
    )
    return TokenizedCorpus(
        name="random",
        train=split,
        validation=split,
        vocab_size=vocab_size,
        bos_id=None,
        packed=False,
        token_bytes=np.ones(vocab_size, dtype=np.int64),
        fingerprint="random",
        tokenizer_path=Path(),
        meta={},
    )
