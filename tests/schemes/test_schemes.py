"""Positions added to embeddings, RoPE, no positions; layers, variants and plugins of a scheme."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from repository import published
from small import close, context, det, dims, small_config, small_model
from torch import Tensor

from lengthgen import schemes
from lengthgen.errors import UserError
from lengthgen.model.attention import attend
from lengthgen.model.build import create
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import Scheme
from lengthgen.schemes.absolute.learned_absolute import LearnedAbsolute
from lengthgen.schemes.absolute.sinusoidal import Sinusoidal
from lengthgen.schemes.rotary.rope import Rope, angles, powers

SHAPE = dims(train_length=4)


def rope(layout: str = "half", *, base: float = 1e4, share: float = 1.0) -> Rope:
    return Rope(SHAPE, base=base, rotary_percentage=share, layout=layout)  # pyright: ignore[reportArgumentType]


def turn(part: Rope, x: Tensor, position: int) -> Tensor:
    c = context(small_model("nope"), 1, dtype=torch.float64)
    theta = angles(torch.tensor([position]), powers(part.base, part.n_rotated, c))
    return part.rotate(x[None, None, None], theta)[0, 0, 0]


@pytest.mark.parametrize("case", published("rope"))
def test_rope_turns_channels_as_published(case: dict[str, Any]) -> None:
    part = rope(case["layout"], base=case["base"], share=case["share"])
    got = turn(part, torch.arange(1, 9, dtype=torch.float64), case["position"])
    close(got, torch.tensor(case["want"], dtype=torch.float64), atol=2e-6)


@pytest.mark.parametrize("case", published("sinusoids"))
def test_sinusoids_are_those_of_each_layout(case: dict[str, Any]) -> None:
    layout, position = case["layout"], case["position"]
    part = Sinusoidal(SHAPE, base=1e4, layout=layout, scale=1.0)
    got = part.table(torch.tensor([position]), torch.float64)[0]
    # fairseq ran in fp32: its angle at position p is off by up to p * 2^-24.
    atol = 2e-6 + (position * 2**-24 if layout == "concat_t2t" else 0)
    close(got, torch.tensor(case["want"], dtype=torch.float64), atol=atol)


def sinusoidal_model(scale: str) -> Transformer:
    config = small_config("scheme=sinusoidal", f"scheme.parts.sinusoidal.scale={scale}")
    return create(config, vocab_size=50).double()


def test_published_sinusoids_are_added_to_embeddings_of_size_1_up_to_a_common_factor() -> None:
    model = sinusoidal_model("published")
    (part,) = model.scheme.all
    assert isinstance(part, Sinusoidal)
    c = context(model, 9, dtype=torch.float64)
    for factor in (1.0, 6.0):  # the embeddings grow
        with torch.no_grad():
            model.embedding.weight *= factor
        size = model.embedding.weight.detach().square().mean().sqrt()
        want = c.x_BTD / size + part.table(torch.arange(9), torch.float64)
        close(part.embed(c.x_BTD, c) / size, want, atol=1e-12)


@pytest.mark.parametrize(
    ("beyond", "want"),
    [  # T = 4, L = 8; interpolate resamples at p * 3/7
        ("clamp", [0, 1, 2, 3, 3, 3, 3, 3]),
        ("wrap", [0, 1, 2, 3, 0, 1, 2, 3]),
        ("interpolate", [p * 3 / 7 for p in range(8)]),
    ],
)
def test_learned_rows_continue_past_t_as_they_say(beyond: str, want: list[float]) -> None:
    part = LearnedAbsolute(SHAPE, beyond=beyond).double()  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        part.table.copy_(torch.arange(4, dtype=torch.float64)[:, None].expand(4, 8))
    close(
        part.lookup(torch.arange(8), 8)[:, 0], torch.tensor(want, dtype=torch.float64), atol=1e-12
    )
    assert torch.equal(part.lookup(torch.arange(4), 4), part.table)


def test_learned_rows_have_no_value_past_t_by_default() -> None:
    part = LearnedAbsolute(SHAPE, beyond="na")
    assert part.unsupported_reason(4) is None
    assert part.unsupported_reason(5) == "learned_absolute has 4 rows and beyond=na"


def test_attention_without_positions_does_not_see_the_order_of_earlier_keys() -> None:
    # Row 4 of softmax(Q K^T / 2) V.
    q, k, v = (det(1, 1, 5, 4, a=a, b=0.3) for a in (0.7, 1.1, 0.3))
    layer = Scheme({}, layers=None, n_layers=1).layers[0]
    c = context(small_model("nope"), 5, dtype=torch.float64)
    c = replace(c, shape=replace(c.shape, d_head=4))
    got = attend(layer, q, k, v, c)[0, 0, 4]
    want = torch.tensor([0.527726, 0.52345, 0.499214, 0.457183], dtype=torch.float64)
    close(got, want, atol=2e-6)
    order = torch.tensor([3, 1, 0, 2, 4])
    close(attend(layer, q, k[:, :, order], v[:, :, order], c)[0, 0, 4], got, atol=1e-15)


def test_layers_are_cycled_and_name_the_parts_that_act_in_each() -> None:
    config = small_config(
        "scheme=rope", "+scheme.parts.alibi.beyond=extend", "scheme.layers=[[rope],[alibi],[]]"
    )
    built = schemes.build(
        config.scheme.parts,
        layers=config.scheme.layers,
        shape=dims(n_layers=5, n_heads=4, train_length=4),
    )
    acting = [(len(layer.qk), len(layer.bias)) for layer in built.layers]
    assert acting == [(1, 0), (0, 1), (0, 0), (1, 0), (0, 1)]


def test_variants_merge_in_order_drop_parts_and_change_arguments() -> None:
    config = small_config(
        "scheme=rope",
        "+scheme.variants.slow={rope: {base: 500000}}",
        "+scheme.variants.biased={alibi: {beyond: extend}}",
        "+scheme.variants.bare={rope: null}",
    )
    assert config.variant("slow+biased") == {
        "rope": {"base": 500000, "rotary_percentage": 1.0, "layout": "half"},
        "alibi": {"beyond": "extend"},
    }
    assert config.variant("biased+bare") == {"alibi": {"beyond": "extend"}}
    for name, message in {
        "slwo": r"no variant 'slwo'; did you mean slow\?",
        "slow+": r"no variant ''",
        "slow+biased+slow": "names one variant twice",
    }.items():
        with pytest.raises(UserError, match=message):
            config.variant(name)
