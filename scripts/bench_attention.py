"""Times attention side by side: the training kernels, and schemes that no fused kernel takes.

    python scripts/bench_attention.py [training] [evaluation]

training      forward and backward at T = 512 with the heads of model=tiny, as ratios to fused SDPA
              without any bias
evaluation    attention of one layer of model=tiny over a window of 4k and of 16k tokens, without a
              gradient, on one thread; parts moved off their initial values, T = 512

    / rope    CPU time over that of RoPE, which is fused SDPA and a rotation
    / bound   over the scheme's own lower bound: per block of 128 queries, with all keys up to its
              last one, the products Q K^T and W V and one softmax between them; for Transformer-XL
              a third product, of the queries with a row per distance
    MiB       peak memory of that call in a process of its own, beyond what held its inputs

Ratios are medians over rounds in which all take turns in one process.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthgen.config.compose import compose
from lengthgen.config.schema import Config, from_plain
from lengthgen.model.attention import EAGER_BLOCK, TRAIN_BLOCK, attend, blocked
from lengthgen.runs.devices import prepare
from lengthgen.schemes import AttentionContext, Scheme, build
from lengthgen.schemes.bias.kerple import Kerple

BATCH, ROUNDS = 8, 15
LENGTHS = {4096: 5, 16384: 3}  # tokens, and rounds
SCHEMES = ("fire", "fox", "cope", "shaw", "transformer_xl", "ssmax")
PRODUCTS = {"transformer_xl": 3}  # else 2


def configuration(scheme: str) -> Config:
    return from_plain(compose([f"scheme={scheme}", "model=tiny"], config_dir=None))


def training_kernels(dtype: torch.dtype) -> None:
    """Prints forward+backward of each kernel, in ms and relative to SDPA."""
    config = configuration("nope")
    T, H, K = config.train.length, config.model.n_heads, config.model.d_head
    q, k, v = (torch.randn(BATCH, H, T, K, dtype=dtype, requires_grad=True) for _ in range(3))
    tokens, x = torch.zeros(BATCH, T, dtype=torch.long), torch.zeros(BATCH, T, 1)
    c = AttentionContext.of_call(config.shape, tokens, x, training=True, generator=None)
    part = Kerple(config.shape, share_layers=True)
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


def main() -> None:
    asked = sys.argv[1:] or ["training", "evaluation"]
    if "training" in asked:
        prepare(configuration("nope").runtime, torch.device("cpu"))
        for dtype in (torch.float32, torch.bfloat16):
            training_kernels(dtype)
    if "evaluation" in asked:
        for length, rounds in LENGTHS.items():
            evaluation(length, rounds)


if __name__ == "__main__":
    main()
