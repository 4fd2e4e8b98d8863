"""The CUDA kernels against the explicit blocks in fp64 on the CPU; skipped without a GPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from small import close, context, every_scheme, rotated, small_model, some_qkv
from torch import Tensor

from lengthgen.attention import attend, explicit
from lengthgen.schemes import Ctx

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
EVERY = pytest.mark.parametrize(("name", "variant"), every_scheme())
LENGTH = 256


def on_gpu(c: Ctx) -> Ctx:
    moved: dict[str, Any] = {k: v.cuda() for k, v in vars(c).items() if isinstance(v, Tensor)}
    return replace(c, **moved, dtype=torch.float32)


@EVERY
@pytest.mark.parametrize("n_last", [LENGTH, 40])
def test_attention_and_its_gradients_are_those_of_the_cpu_in_fp64(
    name: str, variant: str | None, n_last: int
) -> None:
    model = small_model(name, variant)
    c = context(model, LENGTH, dtype=torch.float64)
    first = LENGTH - n_last
    c = replace(c, q_pos=c.q_pos[..., first:], rows=slice(first, LENGTH))
    there = model.scheme.layers[0]
    q, k, v = some_qkv(LENGTH, dtype=torch.float64, width=16)
    q = q[:, :, first:]
    want = explicit(there, *rotated(there, q, k, c), v, c, block=64)
    gpu_model = small_model(name, variant, dtype=torch.float32).cuda()
    layer = gpu_model.scheme.layers[0]
    leaves = [x.float().cuda().requires_grad_() for x in (q, k, v)]
    got = attend(layer, leaves[0], leaves[1], leaves[2], on_gpu(c))
    close(got.double().cpu(), want, atol=1e-4)
    with torch.no_grad():
        again = attend(layer, leaves[0], leaves[1], leaves[2], on_gpu(c))
    close(again.double().cpu(), want, atol=1e-4)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    want = explicit(there, *rotated(there, q, k, c), v, c, block=64)
    weight = torch.randn_like(want)
    for one, other in zip(
        torch.autograd.grad((got * weight.float().cuda()).sum(), leaves),
        torch.autograd.grad((want * weight).sum(), inputs),
        strict=True,
    ):
        close(one.double().cpu(), other, atol=1e-3)


@EVERY
def test_a_bf16_training_step_has_finite_gradients(name: str, variant: str | None) -> None:
    model = small_model(name, variant, dtype=torch.float32).cuda()
    tokens = torch.randint(50, (2, 16), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        nats = model.nats(model(tokens), tokens).sum()
    nats.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
