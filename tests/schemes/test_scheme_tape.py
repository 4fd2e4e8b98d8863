"""TAPE: numbers of the released code, plain loops over complex numbers, equivariance.

The loops are in float64; what they are compared with differs by the order of sums alone, 1e-12.
"""

import cmath
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from repository import published
from small import VOCAB, bare_call, close, det, dims, hidden, small_config, some_tokens
from torch import Tensor

from lengthgen.model.attention import attend
from lengthgen.model.build import create
from lengthgen.model.transformer import Block, Transformer
from lengthgen.probes.attach import attach_module
from lengthgen.probes.shift_invariance import Shift
from lengthgen.schemes.content.layer_state import StateContext
from lengthgen.schemes.content.tape import Tape

LENGTH = 9


def tape_model() -> Transformer:
    """Returns a model of three layers in float64, two of which move positions by about a half."""
    model = create(small_config("scheme=tape", "model.n_layers=3"), vocab_size=VOCAB).double()
    draws = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter += torch.randn(parameter.shape, generator=draws).double() / 2
    return model.eval()


def tape_of(model: Transformer) -> Tape:
    (part,) = model.scheme.all
    assert isinstance(part, Tape)
    return part


@pytest.mark.parametrize("case", published("tape"), ids=lambda case: case["source"])
def test_positions_and_outputs_are_those_of_the_released_layer(case: dict[str, Any]) -> None:
    H, K, T = 2, 4, 3
    shape = dims(K, n_heads=H, n_layers=3, train_length=16)
    part = Tape(shape, base=10000.0, hidden_per_head=4).double().requires_grad_(False)
    part.a[:] = det(H, H, a=1.9).sum(-1)  # there, a matrix of which each row is summed
    part.U[:], part.G[:] = det(4 * H, H, a=0.9), det(4 * H, H * K, a=1.3)
    part.W[:] = det(H, 4 * H, a=1.7)
    q, k, v = (det(1, T, H * K, a=a).unflatten(-1, (H, K)).transpose(1, 2) for a in (0.7, 1.1, 0.3))
    model = create(small_config("scheme=nope"), vocab_size=VOCAB)
    c = replace(bare_call(shape, T), hooks=model.scheme.layers[0]._replace(qk=(part,)))
    z = part.initial_state(c)
    out = torch.empty(0)
    for i in range(2):
        at = StateContext.of(replace(c, layer=i), z)
        wide = torch.cat([v, part.of_heads(z).transpose(1, 2)], dim=-1)
        out, mean = attend(at.hooks, q, k, wide, at).split(K, dim=-1)
        z = part.next_state(mean.transpose(1, 2).flatten(2), det(1, T, H * K, a=0.5), at)
    close(part.of_heads(z)[0, -1], torch.tensor(case["z"]).double(), atol=2e-6)
    close(out[0, :, -1].flatten(), torch.tensor(case["out"]).double(), atol=2e-6)


def test_a_model_equals_complex_multiplications_one_query_and_one_key_at_a_time() -> None:
    model, tokens = tape_model(), some_tokens(LENGTH, batch=1)
    close(hidden(model, tokens)[0], slowly(model, tokens[0]), atol=1e-12)


@torch.no_grad()
def slowly(model: Transformer, tokens_T: Tensor) -> Tensor:
    """Returns the final hidden states, [T, D]."""
    part, H = tape_of(model), model.shape.n_heads
    K, D = model.shape.d_head, model.shape.d_model
    omega = [part.base ** (-2 * m / K) for m in range(K // 2)]
    x = list(model.embedding(tokens_T))
    turns = [[cmath.exp(1j * t * w) for w in omega] for t in range(len(x))]
    z = [[torch.tensor(turn, dtype=torch.complex128)] * H for turn in turns]
    for n, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        norm = block.attention_norm
        qkv = [block.qkv.weight @ F.layer_norm(one, (D,), norm.weight, eps=norm.eps) for one in x]
        after, moved = [], []
        for t in range(len(x)):
            outs, means = [], []
            for h in range(H):
                q, keys = head(qkv[t], 0, h, K), [head(qkv[j], 1, h, K) for j in range(t + 1)]
                turned = as_complex(q) * z[t][h]
                s = [
                    (turned * (as_complex(key) * z[j][h]).conj()).real.sum() / K**0.5
                    for j, key in enumerate(keys)
                ]
                w = torch.stack(s).softmax(-1)
                outs.append(sum(w[j] * head(qkv[j], 2, h, K) for j in range(t + 1)))
                means.append(sum(w[j] * z[j][h] for j in range(t + 1)))
            mid = x[t] + block.attention_out.weight @ torch.cat(outs)
            normed = F.layer_norm(mid, (D,), block.mlp_norm.weight, eps=block.mlp_norm.eps)
            added = block.mlp_out.weight @ F.gelu(block.mlp_in.weight @ normed)
            after.append(mid + added)
            if n < len(model.blocks) - 1:
                moved.append(moved_by(part, n, z[t], means, added))
        x, z = after, moved
    return F.layer_norm(torch.stack(x), (D,), model.norm.weight, eps=model.norm.eps)


def head(qkv: Tensor, which: int, h: int, K: int) -> Tensor:
    return qkv.chunk(3)[which][h * K : (h + 1) * K]


def as_complex(x_K: Tensor) -> Tensor:
    return torch.complex(*x_K.chunk(2))


def moved_by(
    part: Tape, n: int, z: list[Tensor], means: list[Tensor], added: Tensor
) -> list[Tensor]:
    """Returns the position of a token in every head after layer n."""
    heads = range(len(z))
    z = [z[h] + part.a[n, h] * means[h] for h in heads]
    out = list(z)
    for f in range(part.U.shape[1]):
        gate = F.silu(part.G[n, f] @ added)
        unit = gate * sum(part.U[n, f, g] * z[g] for g in heads)
        out = [out[h] + part.W[n, h, f] * unit for h in heads]
    return out


@pytest.mark.parametrize("by", [5, 1000])
def test_no_output_depends_on_where_the_text_begins(by: int) -> None:
    model, tokens = tape_model(), some_tokens(40)
    here = hidden(model, tokens)
    shift = Shift(model.shape, model.scheme)
    with attach_module(model, shift):
        shift.by = by
        close(hidden(model, tokens), here, atol=1e-10)  # angles of up to 1000 are off by 1e-13


def test_training_begins_with_ropes_function() -> None:
    tokens = some_tokens(40)
    of = partial(small_config, "model.n_layers=3")
    tape, rope = (create(of(f"scheme={n}"), vocab_size=VOCAB).double() for n in ("tape", "rope"))
    close(hidden(tape, tokens), hidden(rope, tokens), atol=1e-12)
