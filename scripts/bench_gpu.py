"""Prints tokens/s of whole optimizer steps on random tokens, MFU and memory of a GPU.

    python scripts/bench_gpu.py scheme=rope,kerple model=small,medium runtime.compile=true,false

MFU is the speed times (6 N + 12 L D T) over the dense bf16 rate of the GPU's data sheet, with N
parameters (the embedding once, as the head), L layers, D width, T tokens.
"""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where lengthgen is not installed

from lengthgen.config.overrides import expand_grid
from lengthgen.experiment import Experiment, resolve
from lengthgen.runs import devices
from lengthgen.runs.distributed import ALONE
from lengthgen.training.step import (
    Batch,
    MicroBatch,
    check_finite,
    fresh_state,
    launch_step,
    loss_function,
)

PEAK = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "RTX 4090": 165e12}
USUAL = ["train.length=512", "train.batch_tokens=65536", "train.precision=bf16"]
VOCAB, STEPS = 8192, 10


def measured(experiment: Experiment, device: torch.device) -> str:
    """Returns tokens/s, the best of three times ten steps, and what they take."""
    config = experiment.config
    torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    model = experiment.create(vocab_size=VOCAB)
    state = fresh_state(config, experiment.objective, model, device=device)
    loss, T = loss_function(state, ranks=ALONE), config.train.length
    tokens_BT = torch.randint(VOCAB, (config.train.batch, T), device=device)
    rows_B = torch.arange(len(tokens_BT), device=device)
    size = devices.micro_batch(config.runtime, device, T)
    parts = zip(tokens_BT.split(size), rows_B.split(size), strict=True)
    batch = Batch([MicroBatch(x, x, rows, rows >= 0) for x, rows in parts], tokens_BT.numel())

    def seconds(n: int) -> float:
        began = time.perf_counter()
        for _ in range(n):
            launch_step(state, batch, ranks=ALONE, loss=loss)
        check_finite(state, ALONE)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    first = seconds(1)  # compiles and allocates
    speed = STEPS * config.train.batch_tokens / min(seconds(STEPS) for _ in range(3))
    line = f"{speed:>12,.0f} tokens/s, first step {first:.0f} s"
    if device.type == "cuda":
        gpu, N = (
            torch.cuda.get_device_name(device),
            sum(p.numel() for p in state.model.parameters()),
        )
        flops = 6 * N + 12 * config.model.n_layers * config.model.d_model * T
        peak = next((peak for name, peak in PEAK.items() if name in gpu), float("nan"))
        line += f", MFU {speed * flops / peak:.3f}"
        line += f", {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB"
    return line


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    print(torch.cuda.get_device_name(device) if cuda else "CPU", torch.__version__)
    given = {word.partition("=")[0] for word in sys.argv[1:]}
    usual = [word for word in USUAL if word.partition("=")[0] not in given]
    for words in expand_grid([*usual, *sys.argv[1:]], config_dir=None):
        experiment = resolve(words)
        devices.prepare(experiment.config.runtime, device)
        print(f"{' '.join(words[len(usual) :]):60} {measured(experiment, device)}", flush=True)


if __name__ == "__main__":
    main()
