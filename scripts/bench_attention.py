"""Times the training kernels of attention side by side.

    python scripts/bench_attention.py

Forward and backward at T = 512 with the heads of model=tiny, as ratios to fused SDPA without any
bias, measured in turn in one process. `lengthgen bench` measures whole schemes.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthgen.attention import TRAIN_BLOCK, blocked
from lengthgen.compose import compose
from lengthgen.config import Config, from_plain
from lengthgen.devices import prepare
from lengthgen.schemes import Ctx, Scheme
from lengthgen.schemes.kerple import Kerple

BATCH, ROUNDS = 8, 15


def configuration(scheme: str) -> Config:
    return from_plain(compose([f"scheme={scheme}", "model=tiny"], config_dir=None))


def training_kernels(dtype: torch.dtype) -> None:
    """Prints forward+backward of each kernel, in ms and relative to SDPA."""
    config = configuration("nope")
    T, H, K = config.train.length, config.model.n_heads, config.model.d_head
    q, k, v = (torch.randn(BATCH, H, T, K, dtype=dtype, requires_grad=True) for _ in range(3))
    tokens, x = torch.zeros(BATCH, T, dtype=torch.long), torch.zeros(BATCH, T, 1)
    c = Ctx.of_call(config.shape, tokens, x, training=True, generator=None)
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


def main() -> None:
    prepare(configuration("nope").runtime, torch.device("cpu"))
    for dtype in (torch.float32, torch.bfloat16):
        training_kernels(dtype)


if __name__ == "__main__":
    main()
