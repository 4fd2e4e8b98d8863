"""Checks a GPU before long runs: the numbers of every scheme, then speed and memory.

    python scripts/gpu_check.py --out gpu.csv
    python scripts/gpu_check.py --device cpu --quick --schemes rope,kerple    # the script itself

Numbers are compared with the same weights in fp64 on the CPU:

forward    final hidden states, fp32, at T and 4 T: largest difference, at most FORWARD
gradient   of every parameter, trained biases included, at T: norm of the difference over the norm
           of the gradient (or a thousandth of the largest one), at most GRADIENT; plain, with
           activation checkpointing, and without variants under torch.compile
bf16       loss of a training step: relative difference, at most BF16, and finite gradients
kernel     FlexAttention and SDPA under a trained table of distances: output and gradients, the same
           norms and limits
processes  the loss after some steps of 2 processes (NCCL) and of 1: relative, at most PROCESSES

Speed is of whole optimizer steps on random tokens, in tokens per second. MFU is tokens/s times
(6 N + 12 L D T) over the dense bf16 rate of the GPU's data sheet: N parameters (the embedding once,
as the head), L layers, D width, T tokens. Rows appear as they are measured; what stands in --out
is not measured again. Exit code 1 if a number is out of bounds.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from lengthgen import compose, devices
from lengthgen.batches import training_windows
from lengthgen.bench import ALONE, random_corpus
from lengthgen.config import Config, from_words
from lengthgen.kernels import flex
from lengthgen.model import Transformer, create, with_parts
from lengthgen.train import forward_of, fresh_state, train_step

# fp32 on a CPU stays below 1.2e-4 and 3e-5 under every scheme. TF32 and bf16 do not.
FORWARD, GRADIENT, BF16, PROCESSES = 5e-4, 5e-4, 2e-2, 1e-4
PEAK = {  # flop/s; the first name that is part of the GPU's
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "RTX 4090": 165e12,
}
VOCAB = 64
SMALL = [
    *("model.d_model=64", "model.n_layers=2", "model.n_heads=4", "model.d_ff=128"),
    *("model.init_std=0.2", "train.precision=fp32", "eval.lengths=[1024]"),
    *("eval.reference_variants=[]", "runtime.wandb=off"),
]
SETTINGS = {
    "": [],
    "activation checkpointing": ["runtime.activation_checkpointing=true"],
    "4 micro-batches": ["runtime.micro_batch={quarter}"],
    "compiled": ["runtime.compile=true"],
    "compiled, activation checkpointing": [
        "runtime.compile=true",
        "runtime.activation_checkpointing=true",
    ],
}
Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v and the table


class Found(NamedTuple):
    """A number, None if there is none to be had here, and a remark."""

    value: float | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A number that is still to be measured; without a limit it is only reported."""

    check: str
    case: str
    limit: float | None
    measure: Callable[[], Found]

    def row(self) -> dict[str, str]:
        """Measures, and returns the columns of the output."""
        verdict = "n/a"
        try:
            found = self.measure()
        except Exception as error:  # whatever it is, the next check is worth as much
            line = (str(error).splitlines() or [""])[0]
            found, verdict = Found(None, f"{type(error).__name__}: {line}"), "FAIL"
        if found.value is not None:
            verdict = ""
            if self.limit is not None:
                verdict = "ok" if found.value <= self.limit else "FAIL"
        return {
            "check": self.check,
            "case": self.case,
            "value": "" if found.value is None else f"{found.value:.4g}",
            "limit": "" if self.limit is None else f"{self.limit:g}",
            "verdict": verdict,
            "note": found.note,
        }


# Schemes


def every_scheme(asked: str | None) -> Iterator[tuple[str, str | None]]:
    """Yields (scheme, variant) of the schemes asked for; rope with those that any scheme takes."""
    for name in compose.choices("scheme", config_dir=None) if asked is None else asked.split(","):
        variants = configuration(f"scheme={name}", *SMALL).scheme.variants
        shared = compose.choices("variant", config_dir=None) if name == "rope" else []
        for variant in (None, *variants, *shared):
            yield name, variant


def configuration(*overrides: str) -> Config:
    return from_words(overrides, config_dir=None, plugins=[])


def model_of(scheme: tuple[str, str | None], T: int, *more: str) -> Transformer:
    """Returns a small model whose parts have moved off their initial values."""
    name, variant = scheme
    sizes = [f"train.length={T}", f"train.batch_tokens={T}"]
    config = configuration(f"scheme={name}", *SMALL, *sizes, *more)
    model = create(config, vocab_size=VOCAB)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter += 0.3 * torch.rand(parameter.shape, generator=generator)
        model.scheme.project()
    if variant is not None:
        model.scheme = with_parts(model, config, config.variant(variant))
    return model


def hidden(model: Callable[..., Tensor], tokens_BT: Tensor) -> Tensor:
    return model(tokens_BT, generator=torch.Generator().manual_seed(0))


def some_tokens(length: int) -> Tensor:
    return torch.randint(VOCAB, (2, length), generator=torch.Generator().manual_seed(0))


def forward_error(
    scheme: tuple[str, str | None], T: int, length: int, device: torch.device
) -> Found:
    model = model_of(scheme, T).eval()
    reason = model.scheme.undefined_at(length)
    if reason is not None:
        return Found(None, reason)
    with torch.no_grad():
        want = hidden(model.double(), some_tokens(length))
        got = hidden(model_of(scheme, T).eval().to(device), some_tokens(length).to(device))
    return Found(float((got.double().cpu() - want).abs().max()))


def gradients(
    scheme: tuple[str, str | None],
    T: int,
    device: torch.device,
    *more: str,
    double: bool = False,
    bf16: bool = False,
    compiled: bool = False,
) -> tuple[float, dict[str, Tensor]]:
    """Returns the mean loss of a batch and its gradients, in fp64 on the CPU."""
    model = model_of(scheme, T, *more).to(device)
    model = model.double() if double else model
    if compiled:
        torch.compiler.reset()
    tokens_BT = some_tokens(T).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        x_BTD = hidden(torch.compile(model) if compiled else model, tokens_BT)
        loss = model.nats(x_BTD, tokens_BT).mean()
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()))
    return float(loss.detach()), {
        key: g.double().cpu() for key, g in zip(named, found, strict=True)
    }


def gradient_error(
    scheme: tuple[str, str | None],
    T: int,
    device: torch.device,
    *more: str,
    compiled: bool = False,
) -> Found:
    _, want = gradients(scheme, T, torch.device("cpu"), double=True)
    _, got = gradients(scheme, T, device, *more, compiled=compiled)
    return worst(got, want)


def worst(got: dict[str, Tensor], want: dict[str, Tensor]) -> Found:
    """Returns the largest relative difference of norms, and of what."""
    least = 1e-3 * max(float(x.norm()) for x in want.values())
    errors = {
        key: float((got[key] - x).norm() / x.norm().clamp(min=least)) for key, x in want.items()
    }
    finite = all(bool(x.isfinite().all()) for x in got.values())
    key = max(errors, key=lambda key: errors[key])
    return Found(errors[key] if finite else float("inf"), key)


def bf16_error(scheme: tuple[str, str | None], T: int, device: torch.device) -> Found:
    want, _ = gradients(scheme, T, torch.device("cpu"), double=True)
    got, found = gradients(scheme, T, device, bf16=True)
    if not all(bool(g.isfinite().all()) for g in found.values()):
        return Found(float("inf"), "a gradient is not finite")
    return Found(abs(got - want) / want)


def of_schemes(asked: argparse.Namespace, device: torch.device, T: int) -> Iterator[Check]:
    for scheme in every_scheme(asked.schemes):
        ways: list[tuple[str, float, Callable[[], Found]]] = [
            (f"forward {L}", FORWARD, partial(forward_error, scheme, T, L, device))
            for L in (T, 4 * T)
        ]
        gradient = partial(gradient_error, scheme, T, device)
        checkpointed = SETTINGS["activation checkpointing"]
        ways += [
            ("gradient", GRADIENT, gradient),
            ("gradient, checkpointed", GRADIENT, partial(gradient, *checkpointed)),
            ("bf16", BF16, partial(bf16_error, scheme, T, device)),
        ]
        if asked.compile and scheme[1] is None:
            ways.append(("gradient, compiled", GRADIENT, partial(gradient, compiled=True)))
        case = " + ".join(filter(None, scheme))
        for name, limit, measure in ways:
            yield Check(check=name, case=case, limit=limit, measure=measure)


# Kernels


def exact(q: Tensor, k: Tensor, v: Tensor, table_HS: Tensor) -> Tensor:
    return dense_mask(table_HS, q).add(q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def dense_mask(table_HS: Tensor, q: Tensor) -> Tensor:
    i = torch.arange(q.shape[2], device=q.device)
    far = i[:, None] - i
    return table_HS[:, far.clamp(min=0)].masked_fill(far < 0, -torch.inf)


def sdpa(q: Tensor, k: Tensor, v: Tensor, table_HS: Tensor) -> Tensor:
    mask = dense_mask(table_HS, q).to(q.dtype)[None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def flexed(attention: Callable[..., Tensor]) -> Attention:
    return lambda q, k, v, table: flex(
        table, q, k, v, scale=q.shape[-1] ** -0.5, attention=attention
    )


def kernel_error(
    way: Callable[[], Attention], T: int, width: int, dtype: torch.dtype, device: torch.device
) -> Found:
    draws = torch.Generator().manual_seed(0)
    shapes = [(2, 4, T, width)] * 3 + [(4, T)]  # the table is in fp32 whatever q, k and v are
    leaves = [torch.randn(shape, generator=draws) for shape in shapes]
    leaves = [*(x.to(dtype) for x in leaves[:3]), leaves[3]]
    weight = torch.randn(shapes[0], generator=draws)

    def found(attention: Attention, inputs: list[Tensor]) -> dict[str, Tensor]:
        inputs = [x.requires_grad_() for x in inputs]
        out = attention(inputs[0], inputs[1], inputs[2], inputs[3])
        of = torch.autograd.grad((out * weight.to(out)).sum(), inputs)
        named = zip(("out", "q", "k", "v", "table"), (out.detach(), *of), strict=True)
        return {name: x.double().cpu() for name, x in named}

    torch.compiler.reset()
    got = found(way(), [x.clone().to(device) for x in leaves])
    return worst(got, found(exact, [x.double() for x in leaves]))


def of_kernels(device: torch.device, T: int) -> Iterator[Check]:
    ways: dict[str, Callable[[], Attention]] = {"SDPA with a mask": lambda: sdpa}
    if device.type == "cuda":  # on a CPU it has no backward pass
        ways["FlexAttention"] = lambda: flexed(flex_attention)
        ways["FlexAttention, compiled"] = lambda: flexed(torch.compile(flex_attention))
    for name, way in ways.items():
        for dtype, limit in ((torch.float32, GRADIENT), (torch.bfloat16, BF16)):
            for length, width in ((T, 64), (T + T // 2 + 1, 16), (T, 128)):
                case = f"{str(dtype)[6:]}, {length} x {width}"
                measure = partial(kernel_error, way, length, width, dtype, device)
                yield Check(check=f"kernel {name}", case=case, limit=limit, measure=measure)


# Processes and speed


def processes_error() -> Found:
    if torch.cuda.device_count() < 2:
        return Found(None, f"{torch.cuda.device_count()} GPUs; needs 2")
    words = ["scheme=kerple", *SMALL, "corpus=synthetic", "train.length=128", "train.tokens=81920"]
    words += ["train.batch_tokens=4096", "runtime.device=cuda", "runtime.log_every=1"]
    losses: list[float] = []
    for more in ([], ["--gpus", "2"]):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "lengthgen", "train", *words, *more]
            subprocess.run([*command, f"runtime.root={folder}"], check=True, capture_output=True)
            [log] = Path(folder).glob("*/train.jsonl")
            losses.append(json.loads(log.read_text().splitlines()[-1])["train/loss"])
    return Found(abs(losses[1] / losses[0] - 1))


def tokens_per_s(config: Config, vocab_size: int, steps: int, device: torch.device) -> Found:
    """Returns the speed of a whole step; MFU and the most memory that was held in the note."""
    on_cuda = device.type == "cuda"
    torch.compiler.reset()
    torch.cuda.empty_cache()
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    windows = training_windows(random_corpus(config, vocab_size), config.train.length)
    state = fresh_state(config, vocab_size=vocab_size, device=device)
    forward = forward_of(state, compiled=config.runtime.compile)
    seconds: list[float] = []
    for _ in range(3 + steps):  # the first ones compile and allocate
        began = time.perf_counter()
        train_step(state, windows, config, device=device, ranks=ALONE, forward=forward)
        if on_cuda:
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    speed = config.train.batch_tokens / median(seconds[3:])
    N = sum(p.numel() for p in state.model.parameters())
    L, D, T = config.model.n_layers, config.model.d_model, config.train.length
    gpu = torch.cuda.get_device_name(device) if on_cuda else ""
    peak = next((peak for name, peak in PEAK.items() if name in gpu), None)
    mfu = "n/a" if peak is None else f"{speed * (6 * N + 12 * L * D * T) / peak:.3f}"
    held = f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB" if on_cuda else "n/a"
    return Found(speed, f"{N / 1e6:.0f}M parameters, MFU {mfu}, memory {held}")


def of_speed(asked: argparse.Namespace, device: torch.device) -> Iterator[Check]:
    length, batch, vocab_size, steps = (64, 8, 512, 1) if asked.quick else (1024, 32, 50304, 10)
    precision = "bf16" if device.type == "cuda" else "fp32"
    for model in asked.models.split(","):
        for scheme in ("kerple",) if asked.quick else ("rope", "alibi", "kerple"):
            for name, more in SETTINGS.items():
                if "compiled" in name and not asked.compile:
                    continue
                config = configuration(
                    *(f"scheme={scheme}", f"model={model}", f"train.precision={precision}"),
                    *(f"train.length={length}", f"train.batch_tokens={length * batch}"),
                    *(one.format(quarter=batch // 4) for one in more),
                )
                measure = partial(tokens_per_s, config, vocab_size, steps, device)
                case = ", ".join(filter(None, (model, scheme, precision, name)))
                yield Check(check="tokens/s", case=case, limit=None, measure=measure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--schemes", metavar="S,...", help="all if left out")
    parser.add_argument("--models", metavar="M,...", default="base,alibi", help="for the speed")
    parser.add_argument("--quick", action="store_true", help="short texts, nothing compiled")
    parser.add_argument("--out", type=Path, metavar="FILE.csv")
    asked = parser.parse_args()
    asked.compile = not asked.quick
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: there is no GPU in this machine; --device cpu checks the script itself")
    device = torch.device(asked.device)
    devices.prepare(configuration(*(["runtime.threads=1"] if asked.quick else [])).runtime, device)
    T = 32 if asked.quick else 128
    done = list(csv.DictReader(asked.out.open())) if asked.out and asked.out.exists() else []
    known = {(row["check"], row["case"]) for row in done if row["verdict"] != "FAIL"}
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{gpu}, PyTorch {torch.__version__}", flush=True)
    n_failed = 0
    processes = Check(check="processes", case="2 and 1", limit=PROCESSES, measure=processes_error)
    checks = [*of_schemes(asked, device, T), *of_kernels(device, T), processes]
    for check in [*checks, *of_speed(asked, device)]:
        if (check.check, check.case) in known:
            continue
        row = check.row()
        n_failed += row["verdict"] == "FAIL"
        print(
            f"{row['check']:32} {row['case']:44} {row['value']:>10} {row['limit']:>7} "
            f"{row['verdict']:5} {row['note']}",
            flush=True,
        )
        if asked.out:
            write(asked.out, row)
    print(f"{n_failed} out of bounds")
    sys.exit(1 if n_failed else 0)


def write(path: Path, row: dict[str, str]) -> None:
    begun = path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if not begun:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
