"""The Transformer of a scheme whose part carries a state of every token from layer to layer.

Between blocks the state stands behind the residual stream, as further channels of it.

B batch, T tokens, Q queries, S keys, D width of the stream, E numbers of a state.
"""

import torch
from torch import Tensor

from lengthgen.model.attention import attend
from lengthgen.model.transformer import Block, LayerCache, Transformer
from lengthgen.schemes import AttentionContext
from lengthgen.schemes.content.layer_state import LayerState, StateContext


class StateBlock(Block):
    """A block that also changes the tokens' states, by the attention weights of its values."""

    def project(self, x_BTD: Tensor, c: AttentionContext) -> LayerCache:
        x_BTD, state_BTE = self.apart(x_BTD, c)
        kept = super().project(x_BTD, c)
        return kept._replace(x_BSD=torch.cat([kept.x_BSD, state_BTE], dim=-1))

    def output(self, x_BQD: Tensor, kept: LayerCache, c: AttentionContext) -> Tensor:
        x_BQD, state_BQE = self.apart(x_BQD, c)
        normed_BSD, state_BSE = kept.x_BSD.split([x_BQD.shape[-1], state_BQE.shape[-1]], dim=-1)
        c = StateContext.of(c, state_BSE)
        kept = kept._replace(x_BSD=normed_BSD)
        if c.layer == c.shape.n_layers - 1:
            return super().output(x_BQD, kept, c)
        carrier = next((part for part in c.hooks.parts if isinstance(part, LayerState)), None)
        if carrier is None:
            return torch.cat([super().output(x_BQD, kept, c), state_BQE], dim=-1)
        c = c.of_queries(normed_BSD, n_queries=x_BQD.shape[1])
        q, k, v = self.mixed(kept.qkv_BSE, c)
        state = state_BSE.unflatten(-1, (self.shape.n_heads, -1)).transpose(1, 2)
        values = torch.cat([v, state.to(v.dtype)], dim=-1)
        both = attend(q[:, :, c.rows], k, values, c)
        attended, mean = both.split([v.shape[-1], state.shape[-1]], dim=-1)
        attended = self.through_outputs(attended, v, c)
        attended_BQD = self.attention_added(attended.transpose(1, 2).flatten(2))
        added_BQD = self.mlp(x_BQD if self.model.parallel_residual else x_BQD + attended_BQD)
        with torch.autocast(x_BQD.device.type, enabled=False):
            state_BQE = carrier.next_state(mean.transpose(1, 2).flatten(2), added_BQD, c)
        return torch.cat([x_BQD + attended_BQD + added_BQD, state_BQE], dim=-1)

    def apart(self, x_BTD: Tensor, c: AttentionContext) -> tuple[Tensor, Tensor]:
        """Returns stream and state of a block's input; before the first the state is the part's."""
        if c.layer == 0:
            assert isinstance(c, StateContext), "the first states are in the context"
            return x_BTD, c.state_BSE[:, c.length - x_BTD.shape[1] :]
        D = self.qkv.in_features
        return x_BTD[..., :D], x_BTD[..., D:]


class StateTransformer(Transformer):
    """A Transformer whose blocks carry the state of one of its parts."""

    block_type = StateBlock

    def extended(self, c: AttentionContext) -> AttentionContext:
        (carrier,) = (part for part in self.scheme.all if isinstance(part, LayerState))
        return StateContext.of(c, carrier.initial_state(c))
