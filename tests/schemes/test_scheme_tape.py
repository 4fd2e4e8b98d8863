"""TAPE: numbers of the released code, equivariance, its function at the start."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from repository import published
from small import VOCAB, bare_call, close, det, dims, hidden, small_config, some_tokens

from lengthgen.model.attention import attend
from lengthgen.model.build import create
from lengthgen.model.transformer import Transformer
from lengthgen.probes.attach import attached
from lengthgen.schemes.content.layer_state import StateContext
from lengthgen.schemes.content.tape import Tape


def tape_model() -> Transformer:
    """Returns a model of three layers in float64, two of which move positions by about a half."""
    model = create(small_config("scheme=tape", "model.n_layers=3"), vocab_size=VOCAB).double()
    draws = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter += torch.randn(parameter.shape, generator=draws).double() / 2
    return model.eval()


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


def test_no_output_depends_on_where_the_text_begins() -> None:
    model, tokens = tape_model(), some_tokens(40)
    here = hidden(model, tokens)
    scheme = model.scheme
    with attached(model, positions=lambda tokens, c: scheme.positions(tokens, c) + 1000):
        close(hidden(model, tokens), here, atol=1e-10)  # angles of up to 1000 are off by 1e-13


def test_training_begins_with_ropes_function() -> None:
    tokens = some_tokens(40)
    of = partial(small_config, "model.n_layers=3")
    tape, rope = (create(of(f"scheme={n}"), vocab_size=VOCAB).double() for n in ("tape", "rope"))
    close(hidden(tape, tokens), hidden(rope, tokens), atol=1e-12)
