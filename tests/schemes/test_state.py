"""What a part carries from layer to layer: which numbers its hooks get, and what is refused."""

import pytest
import torch
from parts import OwnValues
from small import VOCAB, close, small_config, small_model, some_tokens
from torch import Tensor

from lengthgen.errors import UserError
from lengthgen.model.layer_state import StateTransformer
from lengthgen.model.transformer import Block, Transformer
from lengthgen.schemes import AttentionContext, ModelDims, Part, Rotated, Scheme
from lengthgen.schemes.content.layer_state import LayerState, StateContext

LENGTH = 150  # two blocks of attend(), the second not full
SHAPE = small_config().shape


class Carrying(LayerState):
    """Carries the token embeddings, moved by all that `next_state` is given; writes both down."""

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        self.calls: list[tuple[Tensor, Tensor, AttentionContext]] = []
        self.states: list[Tensor] = []
        self.autocast: list[bool] = []

    def initial_state(self, c: AttentionContext) -> Tensor:
        return c.x_BTD.to(c.dtype)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        assert isinstance(c, StateContext)
        self.states.append(c.state_BSE)
        return Rotated(q_BHQK, k_BHSK)

    def next_state(self, mean_BQE: Tensor, added_BQD: Tensor, c: StateContext) -> Tensor:
        self.calls.append((mean_BQE, added_BQD, c))
        self.autocast.append(torch.is_autocast_enabled(c.x_BTD.device.type))
        return c.state_BSE[:, c.rows] + mean_BQE - 2 * added_BQD


def model_under(*parts: Part, dtype: torch.dtype = torch.float64) -> Transformer:
    """Returns the model of small_model("nope"), with blocks that carry a state."""
    model = StateTransformer(small_config("scheme=nope"), vocab_size=VOCAB)
    model.load_state_dict(small_model("nope").state_dict())
    model.scheme = Scheme({f"part{i}": p for i, p in enumerate(parts)}, layers=None, n_layers=2)
    return model.to(dtype).eval()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("n_last", [None, 3])
def test_a_layer_moves_the_state_by_means_of_its_own_weights_and_what_its_network_adds(
    grad: bool, n_last: int | None
) -> None:
    part, tokens, added = Carrying(SHAPE), some_tokens(LENGTH), []
    model = model_under(part)
    block = model.blocks[0]
    assert isinstance(block, Block)
    block.mlp_out.register_forward_hook(lambda _module, _inputs, out: added.append(out))
    with torch.set_grad_enabled(grad):
        out = model(tokens, n_last=n_last)
    x = model.embedding(tokens)
    q, k = (
        one.unflatten(-1, (4, 8)).transpose(1, 2)
        for one in block.qkv(block.attention_norm(x)).chunk(3, dim=-1)[:2]
    )
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    w = (q @ k.mT * 8**-0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    mean = (w @ x.unflatten(-1, (4, 8)).transpose(1, 2)).transpose(1, 2).flatten(2)
    ((got_mean, got_added, c),) = part.calls  # not in the last layer
    assert (c.layer, c.rows, c.hooks) == (0, slice(0, LENGTH), model.scheme.layers[0])
    close(got_mean, mean, atol=1e-12)
    assert torch.equal(got_added, added[0])
    assert torch.equal(part.states[0], x)
    close(part.states[1], x + mean - 2 * added[0], atol=1e-12)
    plain = small_model("nope")
    close(out, plain(tokens, n_last=n_last), atol=1e-12)  # what is carried alone changes nothing


def test_under_bf16_autocast_the_state_stays_fp32_and_autocast_is_off() -> None:
    part = Carrying(SHAPE)
    with torch.autocast("cpu", torch.bfloat16):
        model_under(part, dtype=torch.float32)(some_tokens(LENGTH))
    ((mean, _, _),) = part.calls
    assert part.autocast == [False]
    assert mean.dtype == torch.bfloat16
    assert [state.dtype for state in part.states] == [torch.float32] * 2


def test_what_a_state_does_not_go_with_is_refused() -> None:
    for other, message in ((Carrying(SHAPE), "and part1 both carry"), (OwnValues(SHAPE), "values")):
        with pytest.raises(UserError, match=message):
            model_under(Carrying(SHAPE), other)
