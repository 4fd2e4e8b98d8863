"""What schemes cost: parameters, tokens per second and memory, relative to no positions (nope).

    python scripts/bench_schemes.py [--schemes rope,alibi] [--lengths 512,4096] [KEY=VALUE ...]
    python scripts/bench_schemes.py --cpu --against CHECKOUT runtime.threads=1

Prints a Markdown table. train: whole optimizer steps; decode: 64 tokens behind a text of T; each
length: one window that is scored, and the most MiB it took beyond the loaded model. Every ratio x
is of two things that took turns in one process, since a machine's speed drifts; a process per
scheme. Weights and tokens are random. --cpu counts CPU seconds, on a machine that does other work;
--against measures each scheme in another checkout too.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from lengthgen.config import conf
from lengthgen.config.schema import Config
from lengthgen.experiment import Experiment, resolve
from lengthgen.model.build import create
from lengthgen.model.kv_cache import forward_cached
from lengthgen.model.transformer import Transformer
from lengthgen.runs import devices
from lengthgen.runs.distributed import ALONE
from lengthgen.schemes import Design
from lengthgen.training.optim import optimizers_of

HERE = Path(__file__).resolve().parents[1]
DECODED = 64  # tokens that are decoded behind a text of T
MIB = 2**20

Clock = Callable[[], float]


def in_turn(
    calls: Sequence[Callable[[], object]], rounds: int, *, clock: Clock = time.perf_counter
) -> list[list[float]]:
    """Returns the seconds of each call in each round, after one round that does not count.

    A call ends with a number on the host, so that a GPU has finished.
    """
    taken: list[list[float]] = [[] for _ in calls]
    for round_ in range(rounds + 1):
        for call, seconds in zip(calls, taken, strict=True):
            began = clock()
            call()
            if round_:
                seconds.append(clock() - began)
    return taken


def trainer(model: Transformer, config: Config, tokens_BT: Tensor) -> Callable[[], object]:
    """Returns a call that does one optimizer step in fp32."""
    optimizers = optimizers_of(model, config.train)
    draws = torch.Generator()

    def step() -> float:
        x_BTD = model.train()(tokens_BT, generator=draws)
        (model.sum_token_nll(x_BTD, tokens_BT) / tokens_BT.numel()).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        model.scheme.clamp_parameters()
        return float(norm)

    return step


def decoder(model: Transformer, tokens_BT: Tensor) -> Callable[[], object]:
    """Returns a call that decodes tokens one by one behind a text."""
    prompt = forward_cached(model.eval(), tokens_BT, None, seed=0, precision="fp32")

    def decode() -> int:
        cache = prompt
        for _ in range(DECODED):
            next_BN = cache.logits_BV.argmax(-1, keepdim=True)
            cache = forward_cached(model, next_BN, cache, seed=0, precision="fp32")
        return int(cache.logits_BV.argmax())

    return decode


def scorer(model: Transformer, tokens_BT: Tensor, n_targets: int) -> Callable[[], object]:
    """Returns a call that scores the last tokens of one window."""
    n = min(n_targets, tokens_BT.shape[1])

    @torch.inference_mode()
    def score() -> float:
        x_BTD = model.eval()(tokens_BT, n_last=n, generator=torch.Generator())
        return float(model.token_nll(x_BTD, tokens_BT[:, -n:]).sum())

    return score


def measure(experiment: Experiment, lengths: Sequence[int], rounds: int, clock: Clock) -> list[str]:
    """Returns the cells of a scheme: parameters, then speed and ratio of each thing, and MiB."""
    config = experiment.config
    device = devices.device_of(config.runtime, ALONE)
    devices.prepare(config.runtime, device)
    vocab_size, T = config.corpus.vocab_size, config.train.length
    none = Design(shape=config.shape)
    bare = create(Transformer, config, none, vocab_size=vocab_size)
    models = [m.to(device) for m in (experiment.create(vocab_size=vocab_size), bare)]
    scheme = models[0].scheme

    def tokens(batch: int, length: int) -> Tensor:
        draws = torch.Generator().manual_seed(0)
        return torch.randint(vocab_size, (batch, length), generator=draws).to(device)

    def speed(calls: Sequence[Callable[[], object]], n_tokens: int, n_rounds: int) -> list[str]:
        own, plain = map(median, in_turn(calls, n_rounds, clock=clock))
        return [f"{n_tokens / own:,.0f}", f"{plain / own:.2f}"]

    windows: list[str] = []  # first, since the peak of memory only grows
    for length in lengths:
        if scheme.unsupported_reason(length):
            windows += ["n/a"] * 3
            continue
        calls = [scorer(model, tokens(1, length), config.eval.targets) for model in models]
        scorer(models[0], tokens(1, -(-T // 8)), 1)()  # allocators and thread pools
        before = devices.peak_memory(device)
        calls[0]()
        mib = max(0, devices.peak_memory(device) - before) / MIB
        windows += [*speed(calls, length, max(1, rounds * T // length)), f"{mib:,.0f}"]
    cells = [f"{sum(p.numel() for p in scheme.parameters()):,}"]
    batch, text = tokens(config.train.batch, T), tokens(1, T)
    cells += speed([trainer(m, config, batch) for m in models], batch.numel(), rounds)
    if scheme.unsupported_reason(T + DECODED):
        return [*cells, "n/a", "n/a", *windows]
    return [*cells, *speed([decoder(m, text) for m in models], DECODED, rounds), *windows]


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--schemes", default=",".join(conf.choices("scheme", config_dir=None)))
    parser.add_argument("--lengths", default="512,2048,16384")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    asked = parser.parse_args()
    lengths = [int(length) for length in asked.lengths.split(",")]
    if asked.alone:
        words = [f"scheme={asked.schemes}", *asked.overrides]
        clock = time.process_time if asked.cpu else time.perf_counter
        print(row([asked.alone, *measure(resolve(words), lengths, asked.rounds, clock)]))
        return
    head = ["scheme", "parameters", "train tok/s", "x", "decode tok/s", "x"]
    head += [f"{c} {n:,}" for n in lengths for c in ("tok/s at", "x", "MiB")]
    print(row(head), row(["---"] + ["--:"] * (len(head) - 1)), sep="\n", flush=True)
    checkouts = {"": HERE} | ({" (other)": asked.against.resolve()} if asked.against else {})
    for scheme in asked.schemes.split(","):
        options = ["--schemes", scheme, "--lengths", asked.lengths, "--rounds", str(asked.rounds)]
        options += ["--cpu"] * asked.cpu
        for of, checkout in checkouts.items():
            command = [sys.executable, __file__, "--alone", scheme + of, *options]
            environment = {**os.environ, "PYTHONPATH": str(checkout)}
            done = subprocess.run([*command, *asked.overrides], env=environment, check=False)
            if done.returncode:
                print(f"{scheme}{of}: it failed, or memory was not enough", file=sys.stderr)


if __name__ == "__main__":
    main()
