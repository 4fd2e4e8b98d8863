"""The training loss: blocks of positions against PyTorch's cross entropy of all of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lengthgen.data.windows import IGNORED
from lengthgen.model import cross_entropy
from lengthgen.model.cross_entropy import sum_cross_entropy

N, D, V = 70, 16, 50


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 positions: the last one is shorter."""
    monkeypatch.setattr(cross_entropy, "CPU_BLOCK_BYTES", 4 * V * 16)


def inputs(dtype: torch.dtype, *, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, D, generator=generator, dtype=dtype) for n in (N, V))
    targets = torch.randint(V, (N,), generator=generator)
    targets[::7] = IGNORED
    return (scale * x).requires_grad_(), weight.requires_grad_(), targets


def plain(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(x, weight)
    wide = logits.to(torch.promote_types(torch.float32, logits.dtype))
    return F.cross_entropy(wide, targets, reduction="sum", ignore_index=IGNORED)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_loss_and_gradients_are_of_the_plain_form(dtype: torch.dtype, tolerance: float) -> None:
    x, weight, targets = inputs(dtype)
    losses = [form(x, weight, targets) for form in (sum_cross_entropy, plain)]
    # A factor on the sum, as 1/n_targets is, reaches both gradients.
    gradients = [torch.autograd.grad(0.3 * loss, (x, weight)) for loss in losses]
    torch.testing.assert_close(losses[0], losses[1], rtol=tolerance, atol=0)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_under_autocast_both_round_alike() -> None:
    x, weight, targets = inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        losses = [form(x, weight, targets) for form in (sum_cross_entropy, plain)]
    gradients = [torch.autograd.grad(loss, (x, weight)) for loss in losses]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=0)
    for ours, theirs in zip(*gradients, strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).norm() / theirs.norm()) < 2**-7


def test_a_target_whose_probability_underflows_has_a_finite_loss() -> None:
    x, weight, targets = inputs(torch.float32, scale=100.0)
    expected = plain(x, weight, targets)
    assert expected / N > 104  # exp(-104) is 0 in fp32
    torch.testing.assert_close(sum_cross_entropy(x, weight, targets), expected)


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numel = max(self.numel, out.numel())
        return out


def test_no_tensor_over_all_positions_and_the_vocabulary_is_formed() -> None:
    x, weight, targets = inputs(torch.float32)
    with Largest() as ours:
        sum_cross_entropy(x, weight, targets).backward()
    with Largest() as theirs:
        plain(x, weight, targets).backward()
    assert (ours.numel, theirs.numel) == (max(N * D, 16 * V), N * V)
