"""The numbers of a GPU against fp64 on the CPU: pytest -m gpu. A few schemes run without one too.

Errors are relative norms of differences. fp32 on a CPU stays below 1.2e-4 in outputs and 3e-5 in
gradients under every scheme; TF32 and bf16 do not.
"""

import gc
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import create, small_config, varied
from torch import Tensor
from trained import state_of

from lengthgen.config import conf
from lengthgen.model import kernels
from lengthgen.model.build import generator_of
from lengthgen.model.transformer import Transformer
from lengthgen.runs import devices
from lengthgen.runs.distributed import ALONE, Ranks
from lengthgen.training.step import Batch, Loss, MicroBatch, launch_step, loss_function

FP32, BF16 = 5e-4, 2e-2
T, VOCAB = 128, 64
SCHEMES = [(name, None) for name in conf.choices("scheme", config_dir=None)]
CHOSEN = SCHEMES + [("rope", name) for name in conf.choices("variant", config_dir=None)]
HERE = [("rope", None), ("kerple", None), ("rope", "yarn")]  # without a GPU
GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # those of compilers
)
Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v and the table


def named(value: Any) -> str:
    return getattr(value, "__name__", None) or str(value)


def on_devices(cases: list[Any], *, here: list[Any]) -> Any:
    """Runs each case on a GPU, and those of `here` on the CPU."""
    on_gpu = [pytest.param("cuda", case, marks=GPU) for case in cases]
    on_cpu = [pytest.param("cpu", case, marks=pytest.mark.slow) for case in here]
    return pytest.mark.parametrize(("device", "case"), [*on_cpu, *on_gpu], ids=named)


@cache
def model_of(scheme: str, variant: str | None, *more: str) -> Transformer:
    """Returns a small model whose parts have moved off their initial values."""
    words = (f"train.length={T}", f"train.batch_tokens={T}", f"eval.lengths=[{T}]", *more)
    config = small_config(f"scheme={scheme}", f"eval.max_context={T}", *words)
    model = create(config, vocab_size=VOCAB)
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter += 0.3 * torch.rand(parameter.shape)
        model.scheme.clamp_parameters()
    if variant is not None:
        model.scheme = varied(model, config, variant)
    return model


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(0))


def run(model: Callable[..., Tensor], tokens_BT: Tensor) -> Tensor:
    return model(tokens_BT, generator=torch.Generator().manual_seed(0))


def gradients(
    model: Transformer, device: str, *, bf16: bool = False, compiled: bool = False
) -> dict[str, Tensor]:
    """Returns the loss of a batch, and the gradient of every parameter, in fp64 on the CPU."""
    tokens_BT = tokens(2, T).to(device)
    with torch.autocast(device, torch.bfloat16, enabled=bf16):
        x_BTD = run(kernels.compiled(model) if compiled else model, tokens_BT)
        loss = model.token_nll(x_BTD, tokens_BT).mean()
    names, parameters = zip(*model.named_parameters(), strict=True)
    grads = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    return {key: x.detach().double().cpu() for key, x in {"loss": loss, **grads}.items()}


def worst(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """Returns the largest difference over a norm, or over a thousandth of the largest of them."""
    least = 1e-3 * max(float(x.norm()) for x in want.values())
    assert all(bool(x.isfinite().all()) for x in got.values())
    errors = ((got[key] - x).norm() / x.norm().clamp(min=least) for key, x in want.items())
    return max(map(float, errors))


@on_devices(CHOSEN, here=HERE)
@pytest.mark.parametrize("length", [T, 4 * T])
def test_hidden_states_are_those_of_fp64(device: str, case: Any, length: int) -> None:
    model = model_of(*case).eval()
    if (reason := model.scheme.unsupported_reason(length)) is not None:
        pytest.skip(reason)
    with torch.no_grad():
        got = run(model.float().to(device), tokens(2, length).to(device)).double().cpu()
        want = run(model.cpu().double(), tokens(2, length))
    assert float((got - want).abs().max()) < FP32


@on_devices(CHOSEN, here=HERE)
def test_gradients_are_those_of_fp64_with_checkpointing_too(device: str, case: Any) -> None:
    plain = model_of(*case)
    want = gradients(plain.cpu().double(), "cpu")
    assert worst(gradients(plain.float().to(device), device), want) < FP32
    again = model_of(*case, "runtime.activation_checkpointing=true")
    again.load_state_dict(plain.state_dict())
    assert worst(gradients(again.float().to(device), device), want) < FP32
    rounded = gradients(plain, device, bf16=True)
    assert abs(float(rounded["loss"] / want["loss"]) - 1) < BF16
    assert all(bool(x.isfinite().all()) for x in rounded.values())


@on_devices([(name, None) for name in ("rope", "t5", "kerple", "fox", "shaw")], here=[])
def test_compiled_gradients_are_those_of_fp64(device: str, case: Any) -> None:
    model = model_of(*case)
    want = gradients(model.cpu().double(), "cpu")
    torch.compiler.reset()
    assert worst(gradients(model.float().to(device), device, compiled=True), want) < FP32


def dense_mask(table_HS: Tensor, q: Tensor) -> Tensor:
    i = torch.arange(q.shape[2], device=q.device)
    far = i[:, None] - i
    return table_HS[:, far.clamp(min=0)].masked_fill(far < 0, -torch.inf)


def exact(q: Tensor, k: Tensor, v: Tensor, table_HS: Tensor) -> Tensor:
    return dense_mask(table_HS, q).add(q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor, table_HS: Tensor) -> Tensor:
    mask = dense_mask(table_HS, q).to(q.dtype)[None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def flex(q: Tensor, k: Tensor, v: Tensor, table_HS: Tensor) -> Tensor:
    return kernels.flex(table_HS, q, k, v, scale=q.shape[-1] ** -0.5)


def kernel_error(attention: Attention, device: str, dtype: torch.dtype, size: Any) -> float:
    """Returns the error of output and gradients under a trained table of distances."""
    length, width = size
    shapes = [(2, 4, length, width)] * 3 + [(4, length)]  # the table is in fp32
    leaves = [x.to(dtype) for x in map(torch.randn, shapes[:3])] + [torch.randn(shapes[3])]
    weight = torch.randn(shapes[0])

    def computed(attention: Attention, inputs: list[Tensor]) -> dict[str, Tensor]:
        leaves = [x.requires_grad_() for x in inputs]
        out = attention(*leaves)
        grads = torch.autograd.grad((out * weight.to(out)).sum(), leaves)
        named = zip("oqkvt", (out.detach(), *grads), strict=True)
        return {name: x.double().cpu() for name, x in named}

    got = computed(attention, [x.clone().to(device) for x in leaves])
    return worst(got, computed(exact, [x.double() for x in leaves]))


@on_devices([sdpa, flex], here=[sdpa])  # FlexAttention has no backward pass on a CPU
@pytest.mark.parametrize("size", [(T, 64), (T + T // 2 + 1, 16), (T, 128)], ids=str)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, FP32), (torch.bfloat16, BF16)])
def test_a_kernel_keeps_a_trained_bias(
    device: str, case: Attention, size: Any, dtype: torch.dtype, limit: float
) -> None:
    torch.compiler.reset()
    assert kernel_error(case, device, dtype, size) < limit


def micro_batch(device: str) -> MicroBatch:
    """Returns rows that are to be learned as they stand, each the beginning of a text."""
    tokens_BT = tokens(2, T).to(device)
    rows_B = torch.arange(2, device=device)
    return MicroBatch(tokens_BT, tokens_BT, rows_B, rows_B >= 0)


@on_devices(["rope", "sinusoidal", "t5", "alibi", "nope", "kerple"], here=[])
def test_steps_between_two_looks_do_not_wait_for_the_gpu(device: str, case: str) -> None:
    config = small_config(f"scheme={case}", "train.precision=bf16", "runtime.compile=false")
    state = state_of(config, vocab_size=VOCAB, device=torch.device(device))
    loss, batch = loss_function(state, ranks=ALONE), Batch([micro_batch(device)], 2 * T)
    launch_step(state, batch, ranks=ALONE, loss=loss)
    torch.cuda.set_sync_debug_mode("error")
    try:
        launch_step(state, batch, ranks=ALONE, loss=loss)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_devices(["kerple"], here=["kerple"])
def test_a_group_of_one_process_changes_no_gradient(device: str, case: str) -> None:
    config = small_config(f"scheme={case}", f"train.length={T}", f"train.batch_tokens={T}")
    micro = micro_batch(device)
    state = state_of(config, vocab_size=VOCAB, device=torch.device(device))
    store = torch.distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        grads: list[list[Tensor]] = []
        for loss in (
            Loss(state),
            loss_function(state, ranks=Ranks(rank=0, world_size=2, local_rank=0)),
        ):
            state.model.zero_grad(set_to_none=True)
            loss(micro, generator=generator_of("step", config.seed, 0)).backward()
            grads.append([p.grad.clone() for p in state.model.parameters() if p.grad is not None])
        del loss  # as the last owner of the group it would wait for a thread that waits for it
        gc.collect()
    finally:
        torch.distributed.destroy_process_group()
    for alone, grouped in zip(*grads, strict=True):
        torch.testing.assert_close(alone, grouped, rtol=0, atol=0)


@pytest.fixture(autouse=True)
def as_in_a_run() -> None:
    """Sets what a run sets: no TF32."""
    if torch.cuda.is_available():
        devices.prepare(small_config().runtime, torch.device("cuda", 0))
