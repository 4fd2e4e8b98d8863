"""Additive biases against two libraries: HF transformers 5 and x-transformers 2.31.

Both compute in fp32. What differs by intention is asserted as such.
"""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from small import bare_call, close, dims, imported
from torch import Tensor

from lengthgen.schemes import ModelDims, Part
from lengthgen.schemes.bias.alibi import Alibi
from lengthgen.schemes.bias.dynamic_bias import DynamicBias
from lengthgen.schemes.bias.t5 import T5

LENGTH = 300
SEEN = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def shape_of(n_heads: int) -> ModelDims:
    return dims(64, d_model=32, n_layers=2, n_heads=n_heads)


def bias_of(part: Part) -> Tensor:
    """Returns the part's bias over a whole call, [H, LENGTH, LENGTH] in fp32."""
    bias = part.bias(bare_call(part.shape, LENGTH, dtype=torch.float32))
    assert bias is not None
    return bias


@pytest.mark.parametrize("n_heads", [1, 8, 12, 20])
def test_alibi_has_the_weights_of_bloom_whose_bias_is_a_function_of_the_key(n_heads: int) -> None:
    bloom = imported("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, LENGTH), n_heads, torch.float32)  # slope * j
    ours = bias_of(Alibi(shape_of(n_heads), beyond="extend"))
    # At the diagonal -slope * (i - j) is 0: theirs less their own value there. Slopes are powers
    # of an fp32 number: a few roundings of up to 300.
    below = theirs - theirs.transpose(1, 2)
    torch.testing.assert_close(below * SEEN, ours * SEEN, rtol=1e-6, atol=2e-5)
    logits = torch.randn(n_heads, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0))
    weights = [(logits + bias).masked_fill(~SEEN, -math.inf).softmax(-1) for bias in (theirs, ours)]
    close(weights[0], weights[1], atol=2e-5)


def test_alibi_tells_keys_apart_in_bf16_at_16k_where_bloom_does_not() -> None:
    bloom = imported("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 16384), 8, torch.bfloat16)[0, 0, -4:]
    assert theirs.unique().numel() == 1
    part = Alibi(shape_of(8), beyond="extend")
    c = bare_call(part.shape, 16384, dtype=torch.bfloat16)
    ours = part.bias(replace(c, q_pos=c.pos[-1:]))[0, 0, -4:].bfloat16()
    assert ours.unique().numel() == 4


@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (32, 512), (64, 2048), (16, 1000), (128, 16384)]
)
def test_t5_buckets_are_those_of_hf_transformers_up_to_16k(
    num_buckets: int, max_distance: int
) -> None:
    d = torch.arange(16384)
    theirs = imported("transformers.models.t5.modeling_t5").T5Attention._relative_position_bucket(
        -d, bidirectional=False, num_buckets=num_buckets, max_distance=max_distance
    )
    part = T5(shape_of(1), num_buckets=num_buckets, max_distance=max_distance, share_layers=True)
    assert torch.equal(part.buckets(d), theirs)


@pytest.mark.parametrize("distance", ["linear", "log"])
@pytest.mark.parametrize("depth", [1, 3])
def test_dynamic_bias_is_that_of_x_transformers(
    depth: int, distance: Literal["linear", "log"]
) -> None:
    module = imported("x_transformers.x_transformers")
    torch.manual_seed(0)
    theirs = module.DynamicPositionBias(dim=8, heads=4, depth=depth, log_distance=distance == "log")
    part = DynamicBias(shape_of(4), width=0.25, depth=depth, distance=distance, share_layers=True)
    layers = [one for one in theirs.modules() if isinstance(one, torch.nn.Linear)]
    with torch.no_grad():
        for i, layer in enumerate(layers):
            part.linear_weights[i][0] = layer.weight
            part.linear_biases[i][0] = layer.bias
        wanted = theirs(LENGTH, LENGTH)
    assert len(layers) == len(part.linear_weights) == depth + 1
    # Theirs is fp32 throughout, at inputs of up to 300.
    torch.testing.assert_close(bias_of(part) * SEEN, wanted * SEEN, rtol=1e-5, atol=1e-4)
