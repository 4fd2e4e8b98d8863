"""Part, the small module a positional scheme is made of; Ctx, what its hooks may look at; the fold.

B batch, T tokens, D width, H heads, K head width, Q queries, S keys.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lengthgen.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a part may know of the model that it is built for."""

    d_model: int
    n_layers: int
    n_heads: int
    d_head: int
    train_length: int
    init_std: float


@dataclass(frozen=True, kw_only=True)
class Ctx:
    """All that a hook may look at; made anew in every call, so no state leaks between lengths.

    In `positions`, pos is 0 ... T-1. In `qk`, q_pos and k_pos are the coordinates of all queries
    and keys; in the hooks of the attention matrix those of the current block. A coordinate tensor
    is [n] or [B, n], int64.
    """

    shape: Shape
    length: int  # L, tokens of this call
    layer: int
    training: bool
    generator: torch.Generator | None  # for a part that samples; the same in every layer's call
    dtype: torch.dtype  # of angles, distances and biases: float32, or float64 if the model is
    tokens_BT: Tensor
    x_BTD: Tensor  # the layer's normalised input; in positions and embed, the token embeddings
    pos: Tensor  # [T] or [B, T], coordinates of all tokens
    q_pos: Tensor  # [Q] or [B, Q]
    k_pos: Tensor  # [S] or [B, S]
    rows: slice  # token indices of the queries
    cols: slice  # token indices of the keys
    folded: Callable[[], Tensor | None]  # sum of all biases of the block, for an owner of scores

    @staticmethod
    def of_call(
        shape: Shape,
        tokens_BT: Tensor,
        x_BTD: Tensor,
        *,
        training: bool,
        generator: torch.Generator | None,
    ) -> "Ctx":
        """Returns the context of a call before any hook has run: positions 0 ... L-1, layer 0."""
        length = tokens_BT.shape[1]
        pos = torch.arange(length, device=tokens_BT.device)
        return Ctx(
            shape=shape,
            length=length,
            layer=0,
            training=training,
            generator=generator,
            dtype=torch.promote_types(torch.float32, x_BTD.dtype),
            tokens_BT=tokens_BT,
            x_BTD=x_BTD,
            pos=pos,
            q_pos=pos,
            k_pos=pos,
            rows=slice(0, length),
            cols=slice(0, length),
            folded=_nothing_folded,
        )

    def distance(self) -> Tensor:
        """Returns q_pos - k_pos, clamped at 0, in c.dtype: [Q, S], or [B, 1, Q, S].

        Clamped because entries above the diagonal are masked later but must keep a finite
        gradient: 0 * inf is nan.
        """
        d = (self.q_pos[..., :, None] - self.k_pos[..., None, :]).clamp(min=0).to(self.dtype)
        return d[:, None] if d.dim() == 3 else d


def _nothing_folded() -> None:
    return None


class Rotated(NamedTuple):
    """Queries and keys after `qk`."""

    q_BHQK: Tensor
    k_BHSK: Tensor


class Part(nn.Module):
    """One positional mechanism. Every default is the identity: override only what it changes.

    The constructor takes the Shape and keyword-only arguments: they are the schema of its YAML.
    A value it cannot honour raises ValueError. Hooks are pure functions of Ctx and parameters.
    Biases and scores are added after q.k / sqrt(d_head); causality is the engine's.
    """

    distance_only = False  # bias() depends on c.distance() and the head alone
    shift_invariant = True  # adding a constant to all coordinates changes nothing
    depends_on_length = False  # a prefix alone may give other outputs than within a longer call

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def undefined_at(self, length: int) -> str | None:
        """Returns why the part has no value at this length, or None if it has."""
        return None

    def positions(self, tokens_BT: Tensor, c: Ctx) -> Tensor:
        """Returns the coordinates of the tokens, [T] or [B, T] int64.

        A part that samples draws [T] from c.generator, one draw for the batch: what it draws must
        not depend on how a batch is divided.
        """
        return c.pos

    def embed(self, x_BTD: Tensor, c: Ctx) -> Tensor:
        """Returns the token embeddings with positions mixed in."""
        return x_BTD

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: Ctx) -> Rotated:
        """Returns rotated, rescaled or widened queries and keys."""
        return Rotated(q_BHQK, k_BHSK)

    def bias(self, c: Ctx) -> Tensor | None:
        """Returns what is added to the block's scaled logits: [H, Q, S] or [B, H, Q, S]."""
        return None

    def visible(self, c: Ctx) -> Tensor | None:
        """Returns which keys of the block a query may see, bool [Q, S]; ANDed with causality.

        A query must see one key at least: its own, if no other.
        """
        return None

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: Ctx) -> Tensor:
        """Returns the logits of the block; only for those that are not q.k/sqrt(d) + bias.

        The keys are all those up to the block's last query; c.folded() is the bias of all parts.
        """
        s_BHQS = q_BHQK @ k_BHSK.transpose(-1, -2) * c.shape.d_head**-0.5
        bias = c.folded()
        return s_BHQS if bias is None else s_BHQS + bias

    def weights(self, s_BHQS: Tensor, c: Ctx) -> Tensor:
        """Returns attention weights from masked logits (-inf where hidden); softmax by default."""
        return s_BHQS.softmax(-1)

    def values(self, w_BHQS: Tensor, v_BHSK: Tensor, c: Ctx) -> Tensor:
        """Returns the output of the block from weights and values."""
        return w_BHQS @ v_BHSK

    def project(self) -> None:
        """Moves parameters back into their domain; called at build and after each step."""

    def overrides(self, hook: str) -> bool:
        """True if this part's class defines the hook itself."""
        return getattr(type(self), hook) is not getattr(Part, hook)


class Layer(NamedTuple):
    """The parts that act in one layer, sorted by hook; the engine reads nothing else."""

    qk: tuple[Part, ...]
    bias: tuple[Part, ...]
    visible: tuple[Part, ...]
    scores: Part | None
    weights: Part | None
    values: Part | None
    toeplitz: bool  # the bias is a table over (head, i - j), and nothing else hides keys

    @property
    def plain(self) -> bool:
        """True if attention is softmax(q.k/sqrt(d)) under the causal mask alone."""
        return not (self.bias or self.visible or self.explicit)

    @property
    def explicit(self) -> bool:
        """True if a part owns logits, weights or values, so that no fused kernel applies."""
        return bool(self.scores or self.weights or self.values)


class Scheme(nn.Module):
    """The parts of a model, folded over every layer.

    `layers` names the parts that act in layer l as layers[l % len(layers)]; None: all in all.
    Parts that act on positions or embeddings do so once, whatever `layers` says.
    """

    def __init__(
        self, parts: Mapping[str, Part], *, layers: Sequence[Sequence[str]] | None, n_layers: int
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.all = tuple(parts.values())
        self.numbered = not any(part.overrides("positions") for part in self.all)
        cycle = [list(parts)] if layers is None else layers
        if not cycle:
            raise UserError("scheme.layers: an empty list names no layer; use null for all parts")
        self.layers = [
            self._fold({name: parts[name] for name in cycle[i % len(cycle)]})
            for i in range(n_layers)
        ]
        self.project()

    @property
    def depends_on_length(self) -> bool:
        """True if a prefix alone may give other outputs than within a longer call."""
        return any(part.depends_on_length for part in self.all)

    @property
    def shift_invariant(self) -> bool:
        """True if adding a constant to all coordinates changes nothing."""
        return all(part.shift_invariant for part in self.all)

    def undefined_at(self, length: int) -> str | None:
        """Returns the first part's reason for having no value at this length, or None."""
        return next(filter(None, (part.undefined_at(length) for part in self.all)), None)

    def positions(self, tokens_BT: Tensor, c: Ctx) -> Tensor:
        """Returns the tokens' coordinates: 0 ... T-1, or those of the last part that has any."""
        pos = c.pos
        for part in self.all:
            if part.overrides("positions"):
                pos = part.positions(tokens_BT, c)
        return pos

    def embed(self, x_BTD: Tensor, c: Ctx) -> Tensor:
        """Returns the token embeddings after every part's `embed`, in order."""
        for part in self.all:
            x_BTD = part.embed(x_BTD, c)
        return x_BTD

    @torch.no_grad()
    def project(self) -> None:
        """Moves every part's parameters back into their domain."""
        for part in self.all:
            part.project()

    def _fold(self, layer: dict[str, Part]) -> Layer:
        def all_of(hook: str) -> tuple[Part, ...]:
            return tuple(part for part in layer.values() if part.overrides(hook))

        def owner(hook: str) -> Part | None:
            names = [name for name, part in layer.items() if part.overrides(hook)]
            if len(names) > 1:
                raise UserError(
                    f"scheme.parts: {names[0]} and {names[1]} both define {hook}, which has one "
                    "owner in a layer; drop one, or separate them with scheme.layers"
                )
            return layer[names[0]] if names else None

        bias, visible = all_of("bias"), all_of("visible")
        owners = [owner(hook) for hook in ("scores", "weights", "values")]
        return Layer(
            qk=all_of("qk"),
            bias=bias,
            visible=visible,
            scores=owners[0],
            weights=owners[1],
            values=owners[2],
            toeplitz=bool(bias)
            and self.numbered
            and all(part.distance_only for part in bias)
            and not (visible or any(owners)),
        )
