"""Times the attention of schemes that no fused kernel takes, side by side.

    python scripts/bench_attention.py

One layer of model=tiny reads a window of 4k and of 16k tokens, without a gradient, on one thread;
parts are moved off their initial values, T = 512.

/ rope    CPU time over that of RoPE, which is fused SDPA and a rotation
/ bound   over the scheme's own lower bound: per block of 128 queries, with all keys up to its last
          one, the products Q K^T and W V and one softmax between them; for Transformer-XL a third
          product, of the queries with a row per distance
MiB       peak memory of that call in a process of its own, beyond what held its inputs

Ratios are medians over rounds in which all take turns in one process.
"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from lengthgen.config.compose import compose
from lengthgen.config.schema import Config, from_plain
from lengthgen.model.attention import EAGER_BLOCK, attend
from lengthgen.runs.devices import prepare
from lengthgen.schemes import AttentionContext, build

LENGTHS = {4096: 5, 16384: 3}  # tokens, and rounds
SCHEMES = ("fire", "fox", "cope", "shaw", "transformer_xl", "ssmax")
PRODUCTS = {"transformer_xl": 3}  # else 2


def configuration(scheme: str) -> Config:
    return from_plain(compose([f"scheme={scheme}", "model=tiny"], config_dir=None))


def window(scheme: str, length: int) -> Callable[[], Tensor]:
    """Returns a call of the attention of one layer over random queries, keys and values."""
    config = configuration(scheme)
    prepare(config.runtime, torch.device("cpu"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parts = build(config.scheme.parts, layers=None, shape=config.shape, plugins=config.plugins)
    for parameter in parts.parameters():
        parameter.data += 0.3 * torch.rand_like(parameter)
    parts.clamp_parameters()
    q, k, v, x = random_inputs(config, length)
    tokens = torch.zeros(1, length, dtype=torch.long)
    c = AttentionContext.of_call(config.shape, tokens, x, training=False, generator=None)
    return lambda: attend(parts.layers[0], q, k, v, c)


def random_inputs(config: Config, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns queries, keys and values as a model has them, [1, H, S, K], and inputs [1, S, D]."""
    H, K = config.model.n_heads, config.model.d_head
    q, k, v = torch.randn(1, length, 3 * H * K).chunk(3, dim=-1)
    q, k, v = (part.unflatten(-1, (H, K)).transpose(1, 2) for part in (q, k, v))
    return q, k, v, torch.randn(1, length, config.model.d_model)


def bound(length: int, *, products: int) -> Callable[[], Tensor]:
    """Returns a call of the products and softmax of every block, without anything else."""
    q, k, v = (
        x.flatten(0, 1).contiguous() for x in random_inputs(configuration("nope"), length)[:3]
    )

    def run() -> Tensor:
        out: list[Tensor] = []
        for lo in range(0, length, EAGER_BLOCK):
            hi = min(lo + EAGER_BLOCK, length)
            q_blk, k_blk = q[:, lo:hi], k[:, :hi].transpose(1, 2)
            for _ in range(products - 2):
                torch.matmul(q_blk, k_blk)
            out.append((q_blk @ k_blk).softmax(-1) @ v[:, :hi])
        return torch.cat(out, dim=1)

    return run


@torch.inference_mode()
def mebibytes(scheme: str, length: int) -> float:
    """Returns the peak memory of the call, beyond what this process took before."""
    window(scheme, 512)()  # allocators
    call, before = window(scheme, length), peak_kib()
    call()
    return (peak_kib() - before) / 1024


def peak_kib() -> int:
    """Returns the most memory that this program held so far; Linux alone says it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line for line in lines if line.startswith("VmHWM")]
    return int(peak.split()[1])


@torch.inference_mode()
def evaluation(length: int, rounds: int) -> None:
    """Prints time and memory of every scheme at this length."""
    names = ("rope", *SCHEMES)
    memory: dict[str, float] = {}
    for name in names:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            memory[name] = pool.submit(mebibytes, name, length).result()
    calls = {name: window(name, length) for name in names}
    for products in (2, 3):
        calls[f"{products} products"] = bound(length, products=products)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds + 1):
        for name, call in calls.items():
            began = time.process_time()
            call()
            if round_:  # the first one warms up
                times[name].append(time.process_time() - began)

    def ratio(name: str, base: str) -> str:
        return f"{median(a / b for a, b in zip(times[name], times[base], strict=True)):.2f}"

    print(f"\n| one layer, {length} tokens | / rope | / bound | MiB |\n|---|--:|--:|--:|")
    for name in names:
        own = f"{PRODUCTS.get(name, 2)} products"
        print(f"| {name} | {ratio(name, 'rope')} | {ratio(name, own)} | {memory[name]:.0f} |")


if __name__ == "__main__":
    for tokens, rounds in LENGTHS.items():
        evaluation(tokens, rounds)
