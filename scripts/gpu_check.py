"""Checks a GPU before long runs: the numbers of every scheme, then speed and memory.

    python scripts/gpu_check.py --out gpu.csv --limit 510
    python scripts/gpu_check.py --device cpu --quick --schemes rope,kerple    # the script itself

In the order of what is learned for a second of it; each row appears, and is written to --out, as
it is measured, and what stands there is not measured again. Exit code 1 if a number is out of
bounds.

no wait    training steps between two looks, under CUDA's own check: number of waits, at most 0
tokens/s   of whole optimizer steps on random tokens, with and without torch.compile. MFU is that
           times (6 N + 12 L D T) over the dense bf16 rate of the GPU's data sheet: N parameters
           (the embedding once, as the head), L layers, D width, T tokens
group      gradients in a group of one process (NCCL) and without: largest difference, at most 0
kernel     FlexAttention and SDPA under a trained table of distances: output and gradients, norm of
           the difference over the norm, at most GRADIENT; at most BF16 in bf16
forward    final hidden states, fp32, at T and 4 T: largest difference to the same weights in fp64
           on the CPU, at most FORWARD
gradient   of every parameter, trained biases included, at T: norm of the difference over the norm
           of the gradient (or a thousandth of the largest one), at most GRADIENT; plain and with
           activation checkpointing, and under torch.compile for the schemes COMPILED
bf16       loss of a training step: relative difference, at most BF16, and finite gradients
"""

import argparse
import csv
import gc
import io
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where lengthgen is not installed

from lengthgen.config import compose
from lengthgen.config.schema import Config, from_overrides
from lengthgen.files import replace_file
from lengthgen.model import kernels
from lengthgen.model.build import create, generator_of, with_parts
from lengthgen.model.transformer import Transformer
from lengthgen.runs import devices
from lengthgen.runs.distributed import ALONE, Ranks
from lengthgen.training.step import (
    Batch,
    Loss,
    MicroBatch,
    check_finite,
    fresh_state,
    launch_step,
    loss_of,
)

# fp32 on a CPU stays below 1.2e-4 and 3e-5 under every scheme. TF32 and bf16 do not.
FORWARD, GRADIENT, BF16 = 5e-4, 5e-4, 2e-2
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
CHECKPOINTED = "runtime.activation_checkpointing=true"
COMPILED = ("rope", "t5", "kerple", "fox", "shaw")  # one of each way through attention
SIX = ("rope", "sinusoidal", "t5", "alibi", "nope", "kerple")
SPEEDS = {  # of a model: the schemes, by whether they are compiled
    "tiny": {False: ("rope", "kerple"), True: ("rope", "kerple")},
    "small": {False: ("rope", "kerple"), True: ("rope", "alibi", "t5", "kerple")},
    "medium": {False: ("rope",), True: ("rope", "kerple")},
}
Chosen = tuple[str, str | None]  # scheme and variant
Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v and the table


class Result(NamedTuple):
    """A number, None if there is none to be had here, and a remark."""

    value: float | None
    note: str = ""


class Check(NamedTuple):
    """A number that is still to be measured; without a limit it is only reported."""

    check: str
    case: str
    measure: Callable[[], Result]
    limit: float | None = None

    def row(self) -> dict[str, str]:
        """Measures, and returns the columns of the output."""
        try:
            value, note = self.measure()
            verdict = "n/a" if value is None else ""
            if value is not None and self.limit is not None:
                verdict = "ok" if value <= self.limit else "FAIL"
        except Exception as error:  # whatever it is, the next check is worth as much
            line = (str(error).splitlines() or [""])[0]
            value, note, verdict = None, f"{type(error).__name__}: {line}", "FAIL"
        return {
            "check": self.check,
            "case": self.case,
            "value": "" if value is None else f"{value:.4g}",
            "limit": "" if self.limit is None else f"{self.limit:g}",
            "verdict": verdict,
            "note": note,
        }


# Schemes


def every_scheme(asked: str | None) -> Iterator[Chosen]:
    """Yields (scheme, variant) of the schemes asked for; rope with those that any scheme takes."""
    for name in compose.choices("scheme", config_dir=None) if asked is None else asked.split(","):
        variants = configuration(f"scheme={name}", *SMALL).scheme.variants
        shared = [*compose.choices("variant", config_dir=None)] if name == "rope" else []
        for variant in (None, *variants, *shared):
            yield name, variant


def configuration(*overrides: str) -> Config:
    return from_overrides(overrides, config_dir=None, plugins=[])


def model_of(scheme: Chosen, T: int, *more: str) -> Transformer:
    """Returns a small model whose parts have moved off their initial values."""
    name, variant = scheme
    sizes = [f"train.length={T}", f"train.batch_tokens={T}"]
    config = configuration(f"scheme={name}", *SMALL, *sizes, *more)
    model = create(config, vocab_size=VOCAB)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter += 0.3 * torch.rand(parameter.shape, generator=generator)
        model.scheme.clamp_parameters()
    if variant is not None:
        model.scheme = with_parts(model, config, config.variant(variant))
    return model


def hidden(model: Callable[..., Tensor], tokens_BT: Tensor) -> Tensor:
    return model(tokens_BT, generator=torch.Generator().manual_seed(0))


def some_tokens(*shape: int, vocab_size: int = VOCAB) -> Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(0))


def forward_error(scheme: Chosen, T: int, length: int, device: torch.device) -> Result:
    model, tokens_BT = model_of(scheme, T).eval(), some_tokens(2, length)
    reason = model.scheme.unsupported_reason(length)
    if reason is not None:
        return Result(None, reason)
    with torch.no_grad():
        want = hidden(model.double(), tokens_BT)
        got = hidden(model_of(scheme, T).eval().to(device), tokens_BT.to(device))
    return Result(float((got.double().cpu() - want).abs().max()))


def gradients(
    scheme: Chosen,
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
    tokens_BT = some_tokens(2, T).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        x_BTD = hidden(kernels.compiled(model) if compiled else model, tokens_BT)
        loss = model.token_nll(x_BTD, tokens_BT).mean()
    names, parameters = zip(*model.named_parameters(), strict=True)
    grads = (g.double().cpu() for g in torch.autograd.grad(loss, parameters))
    return float(loss.detach()), dict(zip(names, grads, strict=True))


@cache
def wanted(scheme: Chosen, T: int) -> tuple[float, dict[str, Tensor]]:
    return gradients(scheme, T, torch.device("cpu"), double=True)


def gradient_error(
    scheme: Chosen, T: int, device: torch.device, *more: str, compiled: bool = False
) -> Result:
    return worst(gradients(scheme, T, device, *more, compiled=compiled)[1], wanted(scheme, T)[1])


def worst(got: dict[str, Tensor], want: dict[str, Tensor]) -> Result:
    """Returns the largest relative difference of norms, and of what."""
    least = 1e-3 * max(float(x.norm()) for x in want.values())
    errors = {
        key: float((got[key] - x).norm() / x.norm().clamp(min=least)) for key, x in want.items()
    }
    finite = all(bool(x.isfinite().all()) for x in got.values())
    key = max(errors, key=lambda key: errors[key])
    return Result(errors[key] if finite else float("inf"), key)


def bf16_error(scheme: Chosen, T: int, device: torch.device) -> Result:
    want, _ = wanted(scheme, T)
    got, grads = gradients(scheme, T, device, bf16=True)
    if not all(bool(g.isfinite().all()) for g in grads.values()):
        return Result(float("inf"), "a gradient is not finite")
    return Result(abs(got - want) / want)


def of_schemes(asked: argparse.Namespace, device: torch.device, T: int) -> Iterator[Check]:
    for scheme in every_scheme(asked.schemes):
        case = " + ".join(filter(None, scheme))
        for L in (T, 4 * T):
            measure = partial(forward_error, scheme, T, L, device)
            yield Check(f"forward {L}", case, measure, FORWARD)
        gradient = partial(gradient_error, scheme, T, device)
        yield Check("gradient", case, gradient, GRADIENT)
        yield Check("gradient, checkpointed", case, partial(gradient, CHECKPOINTED), GRADIENT)
        yield Check("bf16", case, partial(bf16_error, scheme, T, device), BF16)
        if not asked.quick and case in COMPILED:
            both = partial(gradient, CHECKPOINTED, compiled=True)
            yield Check("gradient, compiled", case, partial(gradient, compiled=True), GRADIENT)
            yield Check("gradient, compiled and checkpointed", case, both, GRADIENT)


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


def flex_of(q: Tensor, k: Tensor, v: Tensor, table_HS: Tensor) -> Tensor:
    return kernels.flex(table_HS, q, k, v, scale=q.shape[-1] ** -0.5)


def kernel_error(
    attention: Attention, T: int, width: int, dtype: torch.dtype, device: torch.device
) -> Result:
    draws = torch.Generator().manual_seed(0)
    shapes = [(2, 4, T, width)] * 3 + [(4, T)]  # the table is in fp32 whatever q, k and v are
    leaves = [torch.randn(shape, generator=draws) for shape in shapes]
    leaves = [*(x.to(dtype) for x in leaves[:3]), leaves[3]]
    weight = torch.randn(shapes[0], generator=draws)

    def computed(attention: Attention, inputs: list[Tensor]) -> dict[str, Tensor]:
        q, k, v, table = (x.requires_grad_() for x in inputs)
        out = attention(q, k, v, table)
        grads = torch.autograd.grad((out * weight.to(out)).sum(), (q, k, v, table))
        named = zip(("out", "q", "k", "v", "table"), (out.detach(), *grads), strict=True)
        return {name: x.double().cpu() for name, x in named}

    torch.compiler.reset()
    got = computed(attention, [x.clone().to(device) for x in leaves])
    return worst(got, computed(exact, [x.double() for x in leaves]))


def of_kernels(device: torch.device, T: int) -> Iterator[Check]:
    attentions: dict[str, Attention] = {"SDPA with a mask": sdpa}
    if device.type == "cuda":  # on a CPU it has no backward pass
        attentions["FlexAttention"] = flex_of
    for name, attention in attentions.items():
        for dtype, limit in ((torch.float32, GRADIENT), (torch.bfloat16, BF16)):
            for length, width in ((T, 64), (T + T // 2 + 1, 16), (T, 128)):
                case = f"{str(dtype)[6:]}, {length} x {width}"
                measure = partial(kernel_error, attention, length, width, dtype, device)
                yield Check(f"kernel {name}", case, measure, limit)


# Training steps


class Steps:
    """Training steps on random tokens, on the device."""

    def __init__(self, config: Config, vocab_size: int, device: torch.device) -> None:
        torch.compiler.reset()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        self.state = fresh_state(config, create(config, vocab_size=vocab_size), device=device)
        self.loss = loss_of(self.state, ranks=ALONE)
        self.tokens_BT = some_tokens(config.train.batch, config.train.length, vocab_size=vocab_size)
        self.size = devices.micro_batch(config.runtime, device, config.train.length)

    def run(self, n: int) -> float:
        """Launches n steps, waits for them, and returns the seconds."""
        began = time.perf_counter()
        self.launch(n)
        check_finite(self.state, ALONE)
        if self.state.device.type == "cuda":
            torch.cuda.synchronize(self.state.device)
        return time.perf_counter() - began

    def launch(self, n: int) -> None:
        for _ in range(n):
            tokens_BT = devices.to_device(self.tokens_BT, self.state.device)
            batch = Batch([micro_batch(x) for x in tokens_BT.split(self.size)], tokens_BT.numel())
            launch_step(self.state, batch, ranks=ALONE, loss=self.loss)


def micro_batch(tokens_BT: Tensor) -> MicroBatch:
    """Returns rows that are to be learned as they stand, each the beginning of a text."""
    rows_B = torch.arange(len(tokens_BT), device=tokens_BT.device)
    return MicroBatch(tokens_BT, tokens_BT, rows_B, rows_B >= 0)


def no_wait(config: Config, device: torch.device) -> Result:
    steps = Steps(config, VOCAB, device)
    steps.run(2)
    if device.type != "cuda":
        return Result(None, "CUDA alone can tell")
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps.launch(2)
    except RuntimeError as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/torch/" not in frame.filename][-1]
        return Result(1, f"{Path(own.filename).name}:{own.lineno}: {own.line}")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Result(0)


def precision(device: torch.device) -> str:
    return "bf16" if device.type == "cuda" else "fp32"


def of_steps(asked: argparse.Namespace, device: torch.device, T: int) -> Iterator[Check]:
    for scheme in (asked.schemes or ",".join(SIX)).split(","):
        config = configuration(
            *(f"scheme={scheme}", *SMALL, f"train.precision={precision(device)}"),
            *(f"train.length={T}", f"train.batch_tokens={4 * T}", "runtime.compile=false"),
        )
        no_waits = 0.0 if scheme in SIX else None  # masks and positions of some depend on values
        yield Check("no wait", f"{scheme}, step", partial(no_wait, config, device), no_waits)


def tokens_per_s(config: Config, vocab_size: int, steps: int, device: torch.device) -> Result:
    """Returns the speed of whole steps; MFU and the most memory that was held in the note."""
    running = Steps(config, vocab_size, device)
    first = running.run(1)  # compiles and allocates
    running.run(2)
    speed = steps * config.train.batch_tokens / min(running.run(steps) for _ in range(3))
    N = sum(p.numel() for p in running.state.model.parameters())
    note = f"{N / 1e6:.0f}M parameters, first step {first:.0f} s"
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
        L, D, T = config.model.n_layers, config.model.d_model, config.train.length
        peak = next((peak for name, peak in PEAK.items() if name in gpu), float("nan"))
        note += f", MFU {speed * (6 * N + 12 * L * D * T) / peak:.3f}"
        note += f", {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB"
    return Result(speed, note)


def of_speed(asked: argparse.Namespace, device: torch.device) -> Iterator[Check]:
    length, batch, vocab_size, steps = (64, 8, 512, 1) if asked.quick else (512, 128, 8192, 10)
    for model in asked.models.split(","):
        speeds = {False: ("kerple",)} if asked.quick else SPEEDS.get(model, SPEEDS["medium"])
        for compiled, scheme in [(c, name) for c, names in speeds.items() for name in names]:
            config = configuration(
                *(f"scheme={scheme}", f"model={model}", f"train.precision={precision(device)}"),
                *(f"train.length={length}", f"train.batch_tokens={length * batch}"),
                f"runtime.compile={str(compiled).lower()}",
            )
            case = f"{model}, {scheme}, {precision(device)}" + ", compiled" * compiled
            measure = partial(tokens_per_s, config, vocab_size, steps, device)
            yield Check("tokens/s", case, measure)


def group_error(device: torch.device) -> Result:
    """Returns the difference that a group of one process makes; sums are then what goes in."""
    config = configuration("scheme=kerple", *SMALL, "train.length=128", "runtime.compile=false")
    state = fresh_state(config, create(config, vocab_size=VOCAB), device=device)
    micro = micro_batch(some_tokens(2, 128).to(device))
    store = torch.distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        grads: list[list[Tensor]] = []
        for loss in (Loss(state), loss_of(state, ranks=Ranks(rank=0, world_size=2, local_rank=0))):
            state.model.zero_grad(set_to_none=True)
            loss(micro, generator=generator_of("step", config.seed, 0)).backward()
            grads.append([p.grad.clone() for p in state.model.parameters() if p.grad is not None])
        del loss  # as the last owner of the group it would wait for a thread that waits for it
        gc.collect()
        return Result(max(float((a - b).abs().max()) for a, b in zip(*grads, strict=True)))
    finally:
        torch.distributed.destroy_process_group()


def every_check(asked: argparse.Namespace, device: torch.device) -> Iterator[Check]:
    """Yields the checks in the order of what is learned for a second of them."""
    T = 32 if asked.quick else 128
    yield from of_steps(asked, device, T)
    yield from of_speed(asked, device)
    yield Check("group", "1 process", partial(group_error, device), 0.0)
    yield from of_kernels(device, T)
    yield from of_schemes(asked, device, T)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--schemes", metavar="S,...", help="all if left out")
    parser.add_argument("--models", metavar="M,...", default=",".join(SPEEDS), help="for the speed")
    parser.add_argument("--quick", action="store_true", help="short texts, nothing compiled")
    parser.add_argument("--out", type=Path, metavar="FILE.csv")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="begin no check after these")
    asked = parser.parse_args()
    began = time.monotonic()
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: there is no GPU in this machine; --device cpu checks the script itself")
    device = torch.device("cuda", 0) if asked.device == "cuda" else torch.device("cpu")
    devices.prepare(configuration(*(["runtime.threads=1"] if asked.quick else [])).runtime, device)
    text = asked.out.read_text() if asked.out and asked.out.exists() else ""
    rows = [row for row in csv.DictReader(text.splitlines()) if row["verdict"] != "FAIL"]
    known = {(row["check"], row["case"]) for row in rows}
    todo = [c for c in every_check(asked, device) if (c.check, c.case) not in known]
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{gpu}, PyTorch {torch.__version__}", flush=True)
    while todo and (asked.limit is None or time.monotonic() - began <= asked.limit):
        row = todo.pop(0).row()
        rows.append(row)
        print(line(row), flush=True)
        if asked.out:
            write(asked.out, rows)
    failed = [row for row in rows if row["verdict"] == "FAIL"]
    print(f"\n{gpu}: {len(rows)} checks in {time.monotonic() - began:.0f} s")
    for row in (*(row for row in rows if row["check"] in ("no wait", "tokens/s")), *failed):
        print(line(row))
    if todo:
        print(f"{len(todo)} checks are left; rerun to resume")
    print(f"{len(failed)} out of bounds")
    sys.exit(1 if failed else 0)


def line(row: dict[str, str]) -> str:
    return (
        f"{row['check']:32} {row['case']:44} {row['value']:>10} {row['limit']:>7} "
        f"{row['verdict']:5} {row['note']}"
    )


def write(path: Path, rows: list[dict[str, str]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue().encode())


if __name__ == "__main__":
    main()
