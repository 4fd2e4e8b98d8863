"""Times the attention kernels side by side, and long evaluations of every scheme.

    python scripts/bench_attention.py                     # both tables
    python scripts/bench_attention.py --lengths 4096,16384

Training kernels: forward and backward at T = 512 with the heads of model=tiny, as ratios to fused
SDPA without any bias, measured in turn in one process. Evaluation: one window of model=tiny with
256 scored targets in a process of its own per scheme and length; memory is what the window added to
the process's peak.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthgen.attention import TRAIN_BLOCK, blocked
from lengthgen.compose import choices, compose
from lengthgen.config import Config, from_plain
from lengthgen.devices import device_of, prepare
from lengthgen.model import create
from lengthgen.ranks import Ranks
from lengthgen.schemes import Ctx, Part, Scheme, Shape

BATCH, ROUNDS, TARGETS, VOCAB = 8, 15, 256, 4096
ALONE = Ranks(rank=0, world_size=1, local_rank=0)


class LearnedLog(Part):
    """-r1 log(1 + r2 distance) with learned r1, r2 per head: a bias that costs something."""

    distance_only = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.r1 = nn.Parameter(torch.rand(shape.n_heads, 1, 1))
        self.r2 = nn.Parameter(torch.rand(shape.n_heads, 1, 1))

    def bias(self, c: Ctx) -> Tensor:
        return -self.r1 * torch.log1p(self.r2 * c.distance())


def configuration(scheme: str) -> Config:
    return from_plain(compose([f"scheme={scheme}", "model=tiny"], config_dir=None))


def training_kernels(dtype: torch.dtype) -> None:
    """Prints forward+backward of each kernel, in ms and relative to SDPA."""
    config = configuration("nope")
    T, H, K = config.train.length, config.model.n_heads, config.model.d_head
    q, k, v = (torch.randn(BATCH, H, T, K, dtype=dtype, requires_grad=True) for _ in range(3))
    tokens, x = torch.zeros(BATCH, T, dtype=torch.long), torch.zeros(BATCH, T, 1)
    c = Ctx.of_call(config.shape, tokens, x, training=True, generator=None)
    part = LearnedLog(config.shape)
    plain = Scheme({}, layers=None, n_layers=1).layers[0]
    biased = Scheme({"learned": part}, layers=None, n_layers=1).layers[0]
    later = torch.ones(T, T, dtype=torch.bool).triu(1)

    def whole_bias() -> Tensor:
        return part.bias(c).masked_fill(later, -torch.inf)

    def dense(added: Tensor) -> Tensor:
        logits = q @ k.transpose(-1, -2) * K**-0.5 + added
        return logits.softmax(-1).to(dtype) @ v

    hidden = torch.zeros(T, T).masked_fill(later, -torch.inf)
    kernels: dict[str, Callable[[], Tensor]] = {
        "SDPA, no bias": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "blocked, no bias": lambda: blocked(plain, q, k, v, c, block=TRAIN_BLOCK),
        "dense softmax, no bias": lambda: dense(hidden),
        "blocked, learned bias": lambda: blocked(biased, q, k, v, c, block=TRAIN_BLOCK),
        "SDPA, learned bias as mask": lambda: F.scaled_dot_product_attention(
            q, k, v, attn_mask=whole_bias().to(dtype)
        ),
        "dense softmax, learned bias": lambda: dense(whole_bias()),
    }
    times: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(ROUNDS):
        for name, kernel in kernels.items():
            began = time.perf_counter()
            kernel().sum().backward()
            times[name].append(time.perf_counter() - began)
    base = median(times["SDPA, no bias"])
    print(f"\nforward + backward, {dtype}, {BATCH} windows of {T}, {H} heads of {K}")
    for name, taken in times.items():
        print(f"  {name:30} {1e3 * median(taken):8.2f} ms   {median(taken) / base:5.2f} x SDPA")


def one_evaluation(scheme: str, length: int) -> None:
    """Prints seconds and MiB of one window, as JSON: the body of a process of its own."""
    config = configuration(scheme)
    prepare(config.runtime, device_of(config.runtime, ALONE))
    model = create(config, vocab_size=VOCAB).eval()
    reason = model.scheme.undefined_at(length)
    if reason:
        print(json.dumps({"skipped": reason}))
        return
    tokens = torch.randint(VOCAB, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        model.nats(model(tokens[:, :512], n_last=TARGETS), tokens[:, :TARGETS])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        model.nats(model(tokens, n_last=TARGETS), tokens[:, -TARGETS:])
        seconds = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "mib": (after - before) / 1024, "peak": after / 1024}))


def evaluations(lengths: list[int]) -> None:
    """Prints time and memory of one window of every scheme at every length."""
    print("\nevaluation of one window, model=tiny, fp32, untrained weights")
    print(
        f"  {'scheme':20} {'length':>7} {'seconds':>9} {'x nope':>7} {'added MiB':>10} {'peak':>6}"
    )
    schemes = choices("scheme", config_dir=None)
    for length in lengths:
        base = 0.0
        for scheme in sorted(schemes, key=lambda name: (name != "nope", name)):
            asked = [sys.executable, __file__, "--one", scheme, str(length)]
            done = subprocess.run(asked, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
            if "skipped" in found:
                print(f"  {scheme:20} {length:7} {found['skipped']}")
                continue
            base = base or found["seconds"]
            print(
                f"  {scheme:20} {length:7} {found['seconds']:9.2f} {found['seconds'] / base:7.2f} "
                f"{found['mib']:10.0f} {found['peak']:6.0f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lengths", default="4096,16384,65536")
    parser.add_argument("--one", nargs=2, metavar=("SCHEME", "LENGTH"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one_evaluation(asked.one[0], int(asked.one[1]))
        return
    config = configuration("nope")
    prepare(config.runtime, torch.device("cpu"))
    for dtype in (torch.float32, torch.bfloat16):
        training_kernels(dtype)
    evaluations([int(length) for length in asked.lengths.split(",")])


if __name__ == "__main__":
    main()
