"""Times training steps on a CPU under the settings lengthgen chooses and those it does not.

    python scripts/bench_cpu.py

Each setting runs in a process of its own, in turn and twice around: OpenMP threads that spin or
sleep at barriers, with the machine idle and with one busy process beside it; and the allocator as
it is or told to keep freed memory. Ratios are to the libraries' defaults on the idle machine.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from statistics import median

STEPS = 8
SETTINGS = {
    "libraries' own defaults": {},
    "+ allocator keeps memory": {"KEEP": "1"},
    "+ GOMP_SPINCOUNT=1000": {"KEEP": "1", "GOMP_SPINCOUNT": "1000"},
    "+ OMP_WAIT_POLICY=passive": {"KEEP": "1", "OMP_WAIT_POLICY": "passive"},
}


def steps() -> None:
    """Prints the median seconds of a training step of tiny with ALiBi: the body of a process."""
    import torch

    from lengthgen.config.compose import compose
    from lengthgen.config.schema import from_plain
    from lengthgen.model.build import create
    from lengthgen.runs.devices import keep_freed_memory, micro_batch
    from lengthgen.training.optim import adamw

    if os.environ.get("KEEP"):
        keep_freed_memory()
    config = from_plain(compose(["scheme=alibi", "model=tiny"], config_dir=None))
    model = create(config, vocab_size=4096)
    optimizer = adamw(model, config.train)
    tokens = torch.randint(4096, (config.train.batch, config.train.length))
    size = micro_batch(config.runtime, torch.device("cpu"), config.train.length)
    taken: list[float] = []
    for _ in range(STEPS):
        began = time.perf_counter()
        for part in tokens.split(size):
            with torch.autocast("cpu", torch.bfloat16):
                nats = model.token_nll(model(part), part).sum()
            (nats / tokens.numel()).backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(time.perf_counter() - began)
    print(median(taken[1:]))


def spin() -> None:
    """Keeps one core busy until killed."""
    while True:
        pass


def measured(setting: dict[str, str], *, busy: int) -> float:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    beside = [multiprocessing.Process(target=spin, daemon=True) for _ in range(busy)]
    for process in beside:
        process.start()
    done = subprocess.run(
        [sys.executable, __file__, "--steps"],
        env={**environment, **setting},
        capture_output=True,
        text=True,
        check=True,
    )
    for process in beside:
        process.kill()
        process.join()
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().steps:
        steps()
        return
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(2):
        for name, setting in SETTINGS.items():
            for busy in (0, 1):
                found.setdefault((name, busy), []).append(measured(setting, busy=busy))
    base = min(found["libraries' own defaults", 0])
    print(f"{'setting':30} {'idle':>16} {'one busy process':>20}")
    for name in SETTINGS:
        idle, loaded = (min(found[name, busy]) for busy in (0, 1))
        print(f"{name:30} {idle:8.3f} s {idle / base:5.2f}x {loaded:12.3f} s {loaded / base:5.2f}x")


if __name__ == "__main__":
    main()
