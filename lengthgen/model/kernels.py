"""Attention kernels: functions of tensors alone. attention.py chooses between them.

B batch, H heads, Q queries, S keys, K head width, N distances.
"""

import math
import os
import shutil
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import (
    BlockMask,
    create_block_mask,  # pyright: ignore[reportUnknownVariableType]
    flex_attention,
)
from torch.utils._triton import has_triton  # not public; as PyTorch itself tests

from lengthgen.schemes import parameters
from lengthgen.schemes.absolute import alignment
from lengthgen.schemes.relative_shift import skew, unskew

UNDERFLOW = 104.0  # exp(-104) is 0 in fp32, subnormal numbers included
FLEX_BLOCK = 128  # of FlexAttention: queries, and keys
SDPA_KEYS = 512  # keys that CPU SDPA takes at a time; a cut between them changes no rounding


def fused(q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, **how: Any) -> Tensor:
    """PyTorch's fused attention, whose `scale` is given; v may be narrower or wider than q and k.

    The fused kernels of CPU and MPS take one width only. What stands in for them forms [Q, S]
    logits, as under an `attn_mask` of three dimensions, which gets a fourth here.
    """
    width, mask = v_BHSK.shape[-1], how.get("attn_mask")
    if mask is not None:  # a CPU takes fp32 next to any dtype
        mask = mask[None] if mask.dim() == 3 else mask
        how["attn_mask"] = mask if mask.device.type == "cpu" else mask.to(q_BHQK.dtype)
    if q_BHQK.device.type in ("cpu", "mps"):
        q_BHQK, k_BHSK, v_BHSK = _of_one_width(q_BHQK, k_BHSK, v_BHSK)
    return F.scaled_dot_product_attention(q_BHQK, k_BHSK, v_BHSK, **how)[..., :width]


def fused_with_logsumexp(
    q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """`fused` on a CPU, and log(sum(exp(logit))) of each query, [B, H, Q].

    A query that the mask leaves no key has an output of 0, and a sum without meaning.
    """
    q, k, v = _of_one_width(q_BHQK, k_BHSK, v_BHSK)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # SDPA returns no sum
    out, total = kernel(q, k, v, attn_mask=mask, scale=scale)
    return out[..., : v_BHSK.shape[-1]], total


def _of_one_width(*given: Tensor) -> list[Tensor]:
    """Returns tensors with zeros behind the channels of those that are narrower."""
    width = max(x.shape[-1] for x in given)
    return [F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in given]


def sdpa_nearest_keys(
    table_HS: Tensor,
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    *,
    reach_H: Sequence[int],
    scale: float,
    block: int,
) -> Tensor:
    """Fused attention per head, of every query over its nearest keys: reach_H[h] or a few more."""
    B, H, Q, _ = q_BHQK.shape
    S = k_BHSK.shape[2]
    out = v_BHSK.new_empty(B, H, Q, v_BHSK.shape[-1])
    for h in range(H):
        # Rows run backwards, so that the mask is a view of one row of numbers: entry (i, j) depends
        # on i + j alone.
        rising = torch.cat([table_HS[h].flip(0), table_HS.new_full((block,), -math.inf)])
        for lo in range(0, Q, block):
            hi = min(lo + block, Q)
            first, last = S - Q + lo, S - Q + hi  # token indices of the block's queries
            start = max(0, first - reach_H[h] + 1) // SDPA_KEYS * SDPA_KEYS
            mask = rising.as_strided((hi - lo, last - start), (1, 1), S - last + start)
            rows = fused(
                q_BHQK[:, h : h + 1, lo:hi].flip(2),
                k_BHSK[:, h : h + 1, start:last],
                v_BHSK[:, h : h + 1, start:last],
                attn_mask=mask,
                scale=scale,
            )
            out[:, h : h + 1, lo:hi] = rows.flip(2)
    return out


def max_attended_distance(
    table_HS: Tensor, q_BHQK: Tensor, k_BHSK: Tensor, *, scale: float
) -> list[int]:
    """Returns per head the number of distances, from 0, at which a key can have any weight.

    A key at distance d has a logit of at most |q||k| scale + table[d], and the query's own key one
    of q.k scale + table[0]. Keys beyond the distance from which on the first stays UNDERFLOW below
    the second have weight 0 in fp32. Leaving them out changes no bit of the result: steep
    biases reach a few hundred keys, whatever the length.
    """
    Q, S = q_BHQK.shape[2], k_BHSK.shape[2]
    q, k = q_BHQK.float(), k_BHSK.float()
    k_max_BH1 = k.norm(dim=-1).amax(-1, keepdim=True)
    own_BHQ = (q * k[:, :, S - Q :]).sum(-1)
    excess_H = ((q.norm(dim=-1) * k_max_BH1 - own_BHQ) * scale).amax(dim=(0, 2))
    least_H = table_HS[:, 0].float() - excess_H - UNDERFLOW
    best_beyond_HS = table_HS.float().flip(-1).cummax(-1).values.flip(-1)
    negligible_HS = best_beyond_HS < least_H[:, None]  # never true of nan
    return (~negligible_HS).sum(-1).clamp(min=1).tolist()


def flex(
    table_HS: Tensor, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, *, scale: float
) -> Tensor:
    """FlexAttention with a bias table over (head, distance); the table's gradient is exact.

    On CUDA it is compiled, by itself or within what is being compiled.
    """

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + table_HS[h, (i - j).clamp(min=0)]

    as_it_is = torch.compiler.is_compiling() or q_BHQK.device.type == "cpu"
    attention = flex_attention if as_it_is else _compiled_flex()
    n = q_BHQK.shape[2]
    # Not made once itself: what is made once is a constant of a graph, which no BlockMask can be.
    blocks = causal_blocks(n, q_BHQK.device)
    mask = BlockMask((n, n), *blocks, BLOCK_SIZE=(FLEX_BLOCK, FLEX_BLOCK), mask_mod=causal)
    return attention(q_BHQK, k_BHSK, v_BHSK, score_mod=score_mod, block_mask=mask, scale=scale)


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def causal_blocks(length: int, device: torch.device) -> tuple[Any, ...]:
    """Returns which blocks of the causal matrix FlexAttention computes, as tables of a BlockMask.

    They are made once per length.
    """
    return _causal_blocks(length, device)


@cache
def _causal_blocks(length: int, device: torch.device) -> tuple[Any, ...]:
    with torch.inference_mode(False):  # else none could be kept for a backward pass
        mask = create_block_mask(causal, None, None, length, length, device, FLEX_BLOCK)
    of_keys = mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices
    of_queries = mask.q_num_blocks, mask.q_indices, mask.full_q_num_blocks, mask.full_q_indices
    return *of_keys, *of_queries


def flex_takes(q_BHQK: Tensor, v_BHSK: Tensor) -> bool:
    """True for training on CUDA with heads that a product of Triton takes.

    Not where Triton makes no kernels. Not for evaluation either, whose many lengths and batches it
    would be compiled for one by one; after 8 compilations PyTorch forms all logits instead.
    """
    return (
        q_BHQK.device.type == "cuda"
        and torch.is_grad_enabled()
        and q_BHQK.dtype != torch.float64
        and min(q_BHQK.shape[-1], v_BHSK.shape[-1]) >= 16
        and (torch.compiler.is_compiling() or triton_compiles())
    )


@cache
def triton_compiles() -> bool:
    """True if Triton makes kernels for the GPU here; it needs a C compiler and Python.h."""
    has_cc = any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")))
    include = sysconfig.get_path("include", "posix_prefix")  # where Triton looks
    has_headers = os.path.exists(f"{include}/Python.h")  # of Debian: python3-dev
    return has_triton() and has_cc and has_headers


@cache
def _compiled_flex() -> Callable[..., Any]:
    return torch.compile(flex_attention)


def compiled(forward: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Returns a forward pass under torch.compile(**options); tables made once are its constants.

    They are marked here, not where they are defined: a mark imports the compiler, which takes
    seconds, and most processes compile nothing. What was compiled of earlier models is forgotten:
    after 8 of them PyTorch would compile no other.
    """
    torch.compiler.reset()
    alignment.ids_of = torch.compiler.disable(alignment.ids_of)  # of Python lists
    for table in (causal_blocks, parameters.constant):
        torch.compiler.assume_constant_result(table)
    return torch.compile(forward, **options)


def hide_later_(s_BHQS: Tensor) -> None:
    """Writes -inf to the keys behind each query, the last of which is the last key.

    masked_fill with a mask that broadcasts is slow on a CPU, forward and backward; this touches the
    diagonal square alone.
    """
    n, S = s_BHQS.shape[-2:]
    later = torch.ones(n, n - 1, dtype=torch.bool, device=s_BHQS.device).triu()
    s_BHQS[..., S - n + 1 :].masked_fill_(later, -math.inf)


class Causal(torch.autograd.Function):
    """A copy with later keys hidden, for what goes through a softmax or into its logits.

    The gradient passes unchanged: a softmax has 0 where its weight is 0.
    """

    @staticmethod
    def forward(ctx: Any, s_BHQS: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        out = s_BHQS.clone()
        hide_later_(out)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return d_out


class CausalDistances(torch.autograd.Function):
    """The bias of the last n of S queries from a table over distances [H, S], later keys hidden.

    Returns [H, n, S]. Its gradient is summed along diagonals by strides, without an index.
    """

    @staticmethod
    def forward(ctx: Any, table_HS: Tensor, n: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows = F.pad(table_HS.flip(-1), (0, n - 1), value=-math.inf)
        return skew(rows[:, None].expand(-1, n, -1).contiguous())

    @staticmethod
    def backward(ctx: Any, d_HnS: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return unskew(d_HnS).sum(-2)[:, : d_HnS.shape[-1]].flip(-1), None


class SavedWeights(torch.autograd.Function):
    """softmax(q k^T scale + bias) v by blocks of queries; the weights are kept for the backward.

    Against autograd over the same loop: no fp32 copy of the weights, no zero-padded gradients of k
    and v, and the causal mask touches the diagonal square of a block only. The softmax sums in
    fp32. Biases are one tensor per block, [H, Q, S] or [B, H, Q, S], with the mask in it.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        block: int,
        scale: float,
        *biases: Tensor,
    ) -> Tensor:
        (B, H, Q, _), S = q.shape, k.shape[2]
        q3, k3, v3 = (q * scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        out = v3.new_empty(B * H, Q, v.shape[-1])
        later = q.new_full((block, block), -math.inf).triu(1)
        saved: list[Tensor] = []
        for n, lo in enumerate(range(0, Q, block)):
            hi = min(lo + block, Q)
            last = S - Q + hi
            s = torch.bmm(q3[:, lo:hi], k3[:, :last].transpose(1, 2))
            if biases:
                s = s.to(biases[n].dtype)  # first: an addition of two dtypes takes twice as long
                s.view(B, H, hi - lo, last).add_(biases[n])
                w = s.softmax(-1).to(q.dtype)
            else:
                s[:, :, last - (hi - lo) :] += later[: hi - lo, : hi - lo]
                w = s.softmax(-1)
            out[:, lo:hi] = torch.bmm(w, v3[:, :last])
            saved.append(w)
        ctx.save_for_backward(q3, k3, v3, *saved)
        ctx.block, ctx.scale, ctx.sizes = block, scale, (B, H, Q, S)
        ctx.bias_shapes = [bias.shape for bias in biases]
        return out.view(B, H, Q, -1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q3, k3, v3, *saved = ctx.saved_tensors
        B, H, Q, S = ctx.sizes
        d_out = d_out.flatten(0, 1)
        dq, dk, dv = torch.empty_like(q3), torch.zeros_like(k3), torch.zeros_like(v3)
        d_biases: list[Tensor | None] = []
        for n, lo in enumerate(range(0, Q, ctx.block)):
            hi = min(lo + ctx.block, Q)
            last = S - Q + hi
            w, d_rows = saved[n], d_out[:, lo:hi]
            dv[:, :last].baddbmm_(w.transpose(1, 2), d_rows)
            dw = torch.bmm(d_rows, v3[:, :last].transpose(1, 2))
            ds = torch.ops.aten._softmax_backward_data(dw, w, -1, w.dtype)
            dq[:, lo:hi] = torch.bmm(ds, k3[:, :last])
            dk[:, :last].baddbmm_(ds.transpose(1, 2), q3[:, lo:hi])
            if ctx.bias_shapes:
                ds, wanted = ds.view(B, H, hi - lo, last), ctx.needs_input_grad[5 + n]
                d_biases.append(_bias_gradient(ds, ctx.bias_shapes[n]) if wanted else None)
        d_qkv = (x.view(B, H, x.shape[1], -1) for x in (dq.mul_(ctx.scale), dk, dv))
        return *d_qkv, None, None, *d_biases


def _bias_gradient(ds_BHQS: Tensor, shape: torch.Size) -> Tensor:
    """Returns the gradient of a bias of the given shape: summed over what it is shared by."""
    dtype = _wide(ds_BHQS)
    ds = ds_BHQS.sum(0, dtype=dtype) if len(shape) == 3 else ds_BHQS.to(dtype)
    return ds.sum_to_size(shape)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(torch.float32, x.dtype)
