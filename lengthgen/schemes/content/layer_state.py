"""State carried from layer to layer: what a part knows of each token beside the residual stream.

Its model is a StateTransformer (model/layer_state.py), whose blocks average the states of keys as
they average values. E numbers of a token's state.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lengthgen.schemes.base import AttentionContext, Part


@dataclass(frozen=True, kw_only=True)
class StateContext(AttentionContext):
    """The context of a call whose tokens carry a state."""

    state_BSE: Tensor  # of all keys, in c.dtype

    @staticmethod
    def of(c: AttentionContext, state_BSE: Tensor) -> "StateContext":
        """Returns the context with these states in it."""
        others: dict[str, Any] = {**vars(c), "state_BSE": state_BSE}
        return StateContext(**others)


class LayerState(Part, ABC):
    """A part with a state of every token, which each layer changes; hooks get a StateContext."""

    needs_model = True

    @abstractmethod
    def initial_state(self, c: AttentionContext) -> Tensor:
        """Returns the tokens' states before the first layer, [B, T, E] in c.dtype."""

    @abstractmethod
    def next_state(self, mean_BQE: Tensor, added_BQD: Tensor, c: StateContext) -> Tensor:
        """Returns the states for the layer above, [B, Q, E] in c.dtype; not called in the last one.

        mean_BQE: the keys' states by the layer's attention weights, in the dtype of its values;
        head h has the h-th E/H numbers of each. added_BQD: what the block's network adds to the
        stream. The queries' states so far are c.state_BSE[:, c.rows].
        """

    def conflict(self, others: Mapping[str, Part]) -> str | None:
        for name, other in others.items():
            if isinstance(other, LayerState):
                return f"and {name} both carry a state from layer to layer"
            for hook in ("relative_values", "values"):
                if other.overrides(hook):
                    return f"carries a state, averaged as values are, which {name} changes ({hook})"
        return None
