"""Part, the module a positional scheme is made of; AttentionContext, what its hooks read.

Axes, in all files of schemes/: B batch, T tokens, D width of the model, H heads, K head width, Q
queries, S keys, N distances from 0, R rotated channel pairs. A file names what it has beside them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from lengthgen.config.schema import AlignmentIds, ModelDims
from lengthgen.schemes.relative_shift import (
    at_distance,
    extend_table,
    pad_table,
    skew,
    split_clipped,
    to_distance,
    unskew,
)


@dataclass(frozen=True, kw_only=True)
class AttentionContext:
    """All that a hook reads; built in every call, so that no state leaks between lengths.

    In `qk`, q_pos and k_pos are the coordinates of all queries and keys; in the hooks of the
    attention matrix those of the current block. They are [n] or [B, n], int64 unless remapped. Keys
    kept from earlier calls (KV cache, segment memory) stand before the tokens of the call.
    """

    shape: ModelDims
    length: int  # L, all tokens that are keys
    layer: int = 0
    training: bool
    generator: torch.Generator | None  # for a part that samples; the same in every layer's call
    dtype: torch.dtype  # of angles, distances and biases: float32, or float64 if the model is
    tokens_BT: Tensor
    embedding_VD: Tensor | None = None  # the table of token embeddings, if no norm follows it
    x_BTD: Tensor  # the layer's normalised input; in positions and embed, the token embeddings
    pos: Tensor  # [L] or [B, L], coordinates of all tokens that are keys
    q_pos: Tensor  # [Q] or [B, Q]
    k_pos: Tensor  # [S] or [B, S]
    rows: slice  # token indices of the queries
    cols: slice  # token indices of the keys: from 0
    key_padding_BS: Tensor | None = None  # True where a key holds no token; None: all hold one
    hooks: "LayerHooks" = field(default_factory=lambda: NO_PARTS)  # the parts of this layer
    keys_HNK: Tensor | None = None  # what the layer adds to keys by distance
    queries_H1K: Tensor | None = None  # and to queries where they meet these
    values_HNK: Tensor | None = None  # and to values

    @staticmethod
    def of_call(
        shape: ModelDims,
        tokens_BT: Tensor,
        x_BTD: Tensor,
        *,
        training: bool,
        generator: torch.Generator | None,
        embedding_VD: Tensor | None = None,
    ) -> "AttentionContext":
        """Returns the context of a call before any hook has run: layer 0, positions 0 ... T-1."""
        length = tokens_BT.shape[1]
        pos = torch.arange(length, device=tokens_BT.device)
        return AttentionContext(
            shape=shape,
            length=length,
            training=training,
            generator=generator,
            dtype=torch.promote_types(torch.float32, x_BTD.dtype),
            tokens_BT=tokens_BT,
            embedding_VD=embedding_VD,
            x_BTD=x_BTD,
            pos=pos,
            q_pos=pos,
            k_pos=pos,
            rows=slice(0, length),
            cols=slice(0, length),
        )

    def of_queries(self, x_BSD: Tensor, *, n_queries: int) -> Self:
        """Returns the context of a layer with these inputs, whose queries are the last tokens."""
        rows = slice(self.length - n_queries, self.length)
        return replace(self, x_BTD=x_BSD, q_pos=self.pos[..., rows], rows=rows)

    def of_last(self, n: int) -> Self:
        """Returns the context of a call in which only the last n tokens are left, as they were."""
        if n == self.length:
            return self
        tokens_BT, pos, rows = self.tokens_BT[:, -n:], self.pos[..., -n:], slice(0, n)
        of_tokens: Any = {"tokens_BT": tokens_BT, "pos": pos, "q_pos": pos, "k_pos": pos}
        return replace(self, length=n, **of_tokens, rows=rows, cols=rows)

    def distance(self) -> Tensor:
        """Returns q_pos - k_pos in c.dtype, clamped at 0: [Q, S], or [B, 1, Q, S].

        Masked entries too must have a finite gradient. In an encoder, |q_pos - k_pos|.
        """
        return self.exact_distance().to(self.dtype)

    def exact_distance(self) -> Tensor:
        """Returns the distance in the coordinates' own type: of whole numbers, unless remapped."""
        d = self.q_pos[..., :, None] - self.k_pos[..., None, :]
        d = d.clamp(min=0) if self.shape.causal else d.abs()
        return d[:, None] if d.dim() == 3 else d

    def n_visible(self) -> Tensor:
        """Returns i + 1, the number of keys up to each query, [Q] int64."""
        return torch.arange(self.rows.start + 1, self.rows.stop + 1, device=self.q_pos.device)

    def total_bias(self) -> Tensor | None:
        """Returns the sum of all parts' biases of the block, or None if no part has one.

        Raises Unfit for a bias of another dtype, or without a value for each query and key.
        """
        Q, S, H = self.q_pos.shape[-1], self.k_pos.shape[-1], self.shape.n_heads
        biases: list[Tensor] = []  # list[Tensor]() would end a graph of torch.compile
        for part in self.hooks.bias:
            bias, shapes = part.bias(self), ((Q, S), (1, Q, S), (H, Q, S))
            is_tensor = isinstance(bias, Tensor)
            if not is_tensor or bias.dtype != self.dtype or bias.shape[-3:] not in shapes:
                expected = "a tensor [Q, S], [H, Q, S] or [B, H, Q, S] in c.distance()'s dtype"
                sizes = f"{self.dtype}; here H = {H}, Q = {Q}, S = {S}"
                raise Unfit(part, "bias", bias, f"{expected}, {sizes}")
            biases.append(bias)
        return reduce(torch.add, biases) if biases else None

    def biased(self, s_BHQS: Tensor) -> Tensor:
        """Returns the block's logits plus the biases of all parts."""
        bias = self.total_bias()
        return s_BHQS if bias is None else s_BHQS + bias

    def frequencies(self, omega_R: Tensor) -> Tensor:
        """Returns a rotary part's angles per position as the layer's other parts change them."""
        for part in self.hooks.frequencies:
            omega_R = part.frequencies(omega_R, self)
        return omega_R


class Rotated(NamedTuple):
    """Queries and keys after `qk`."""

    q_BHQK: Tensor
    k_BHSK: Tensor


class Part(nn.Module):
    """One positional mechanism. Every default is the identity: override only what it changes.

    The constructor takes the ModelDims and keyword-only arguments: they are the schema of its YAML,
    bounds included (pydantic's Field). What it cannot honour beyond them raises ValueError. Hooks
    are pure functions of AttentionContext and parameters. Causality is the engine's.
    """

    bidirectional = False  # defined for keys after the query too, as an encoder has them
    distance_only = False  # bias() depends on c.distance() and the head alone
    shift_invariant = True  # adding a constant to all coordinates changes nothing
    reads_qk = False  # uses queries or keys beside q.k: beside a rotary part, not shift-invariant
    depends_on_length = False  # a prefix alone may give other outputs than within a longer call
    rotary = False  # qk() turns queries by q_pos and keys by k_pos, with angles of c.frequencies()
    remaps = False  # scores() calls the layer's rotary parts, which do not rotate before it
    takes_bias = True  # False: scores() are no logits, to which a part could add a bias
    takes_relative_keys = True  # False: scores() does not read c.keys_HNK
    owns_qk = ""  # why no part of its layer may read or turn q and k, but for factors of a query
    scales_logits = False  # qk() multiplies each query by a factor, and does nothing else
    needs_whole_text = False  # reads tokens beside query and key, or counts them: not in segments
    reach: int | None = None  # how many of the nearest keys a query sees, if it sees no others
    at_network_rate = False  # its parameters learn at train.lr, whatever the scheme's lr_ratio
    needs_model = False  # acts through a Transformer of its own: model/build.py
    reads_alignment = False  # needs alignment_ids, which a task's corpus has
    alignment_ids: AlignmentIds | None = None

    def __init__(self, shape: ModelDims) -> None:
        super().__init__()
        self.shape = shape

    def __setattr__(self, name: str, value: Any) -> None:
        hides = callable(getattr(Part, name, None)) or isinstance(value, nn.Module | Tensor)
        if name[0] != "_" and hasattr(Part, name) and hides:
            raise AttributeError(f"self.{name} would hide Part.{name}; rename the attribute")
        super().__setattr__(name, value)

    def conflict(self, others: Mapping[str, "Part"]) -> str | None:
        """Returns why the part cannot stand beside these, after its name; None if it can."""
        return None

    def unsupported_reason(self, length: int) -> str | None:
        """Returns why the part has no value at this length, or None if it has."""
        return None

    def largest_position(self, length: int) -> int:
        """Returns the largest coordinate that `positions` may give out in a call of this length."""
        return length - 1

    def positions(self, tokens_BT: Tensor, c: AttentionContext) -> Tensor:
        """Returns the coordinates of the tokens, [T] or [B, T] int64; c.pos is 0 ... T-1.

        What is drawn from c.generator must not depend on how a batch is divided.
        """
        return c.pos

    def embed(self, x_BTD: Tensor, c: AttentionContext) -> Tensor:
        """Returns the token embeddings with positions mixed in."""
        return x_BTD

    def projections(self, qkv_BTE: Tensor, c: AttentionContext) -> Tensor:
        """Returns all tokens' queries, keys, values side by side: E of shape.qkv_widths."""
        return qkv_BTE

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        """Returns rotated, rescaled or widened queries and keys."""
        return Rotated(q_BHQK, k_BHSK)

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        """Returns other angles per position for the layer's rotary parts, one per channel pair."""
        return omega_R

    def bias(self, c: AttentionContext) -> Tensor | None:
        """Returns what is added to q.k / sqrt(d_head): [H, Q, S] or [B, H, Q, S]; 1 for B or H."""
        return None

    def relative_keys(self, c: AttentionContext) -> Tensor | None:
        """Returns what is added to a key by its distance from the query: rows [H, N, K].

        The last row serves all distances beyond; [1, N, K] serves all heads. The context is that of
        the whole call.
        """
        return None

    def relative_queries(self, c: AttentionContext) -> Tensor | None:
        """Returns what is added to the queries where they meet relative_keys: [H, 1, K]."""
        return None

    def relative_values(self, c: AttentionContext) -> Tensor | None:
        """Returns what is added to a value by its distance from the query, like relative_keys."""
        return None

    def visible(self, c: AttentionContext) -> Tensor | None:
        """Returns which keys a query may see, one at least.

        Bool [Q, S], [H, Q, S] or [B, 1 or H, Q, S], over the keys of the block.
        """
        return None

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        """Returns the logits of the block; only for those that are not q.k/sqrt(d) + bias.

        The keys are all those up to the block's last query. The engine may write to the logits.
        """
        return logits(q_BHQK, k_BHSK, c)

    def weights(self, s_BHQS: Tensor, c: AttentionContext) -> Tensor:
        """Returns attention weights from masked logits (-inf where hidden); softmax by default."""
        return s_BHQS.softmax(-1)

    def values(self, w_BHQS: Tensor, v_BHSK: Tensor, c: AttentionContext) -> Tensor:
        """Returns the output of the block from weights and values."""
        return weighted(w_BHQS, v_BHSK, c)

    def recurrence(
        self, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: AttentionContext
    ) -> Tensor:
        """Returns what scores, weights and values of the part give for a whole call, without them.

        [B, H, Q, K] of all queries and keys, none of which is hidden: where one is, or where
        another part owns one of these, they are called instead.
        """
        raise NotImplementedError

    def outputs(self, out_BHQK: Tensor, v_BHSK: Tensor, c: AttentionContext) -> Tensor:
        """Returns other outputs, after those of any kernel; v_BHSK has the values of all keys."""
        return out_BHQK

    def clamp_parameters(self) -> None:
        """Moves parameters back into their domain; called at build and after each step."""

    @classmethod
    def needs_rotation(cls) -> bool:
        """Returns True if the part is void where nothing rotates."""
        return cls.remaps or cls.overrides("frequencies")

    @classmethod
    def overrides(cls, hook: str) -> bool:
        """True if this part's class defines the hook itself."""
        return getattr(cls, hook) is not getattr(Part, hook)


# By one part each:
OWNED = ("relative_keys", "relative_values", "scores", "weights", "values", "recurrence")
HOOKS = (  # a part overrides at least one of these, unless a Transformer of its own serves it
    *("positions", "embed", "projections", "qk", "frequencies", "bias", "visible", "outputs"),
    *("relative_queries", *OWNED),
)


class LayerHooks(NamedTuple):
    """The parts of one layer, sorted by the hooks that they override: all that attention reads."""

    parts: tuple[Part, ...] = ()
    projections: tuple[Part, ...] = ()
    qk: tuple[Part, ...] = ()
    rotary: tuple[Part, ...] = ()  # whose qk is left to a part that remaps: from the rotary one on
    frequencies: tuple[Part, ...] = ()
    bias: tuple[Part, ...] = ()
    visible: tuple[Part, ...] = ()
    relative_keys: Part | None = None
    relative_values: Part | None = None
    scores: Part | None = None
    weights: Part | None = None
    values: Part | None = None
    recurrence: Part | None = None  # nothing hides keys from it, or shares its work
    outputs: tuple[Part, ...] = ()
    contiguous: bool = True  # coordinates are 0, 1, 2 ...: no part gives out others
    toeplitz: bool = False  # the bias is a table over (head, i - j): nothing else touches logits

    @property
    def eager(self) -> bool:
        """True if a part owns logits, weights or values, or adds to keys or values by distance.

        No fused kernel applies then.
        """
        of_distance = self.relative_keys or self.relative_values
        return bool(of_distance or self.scores or self.weights or self.values)


NO_PARTS = LayerHooks()


class Unfit(ValueError):
    """A hook of a part has not returned what it should."""

    def __init__(self, part: Part, hook: str, returned: object, expected: str) -> None:
        self.part = part
        found = "None" if returned is None else f"a {type(returned).__name__}"
        if isinstance(returned, Tensor):
            found = f"{returned.dtype} {[*returned.shape]}"
        super().__init__(f"{type(part).__name__}.{hook} returns {found}; return {expected}")


def through_qk(
    parts: Sequence[Part], q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext
) -> Rotated:
    """Returns queries and keys after these parts' `qk`, rounded once to the dtype they had."""
    dtype = q_BHQK.dtype
    for part in parts:
        turned = part.qk(q_BHQK, k_BHSK, c)
        if not isinstance(turned, tuple) or len(turned) != 2:  # pyright: ignore
            raise Unfit(part, "qk", turned, "Rotated(q, k)")
        q_BHQK, k_BHSK = turned
    return Rotated(q_BHQK.to(dtype), k_BHSK.to(dtype))


def logits(q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
    """Returns the block's products and all biases, [B, H, Q, S] in c.dtype."""
    s_BHQS, bias = products(q_BHQK, k_BHSK, c), c.total_bias()
    return s_BHQS if bias is None else s_BHQS.add_(bias)


def products(q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
    """Returns q.k / sqrt(d_head), k with its row by distance: [B, H, Q, S] in c.dtype."""
    Q, S, scale = q_BHQK.shape[2], k_BHSK.shape[2], c.shape.d_head**-0.5
    q_BHQK, table_HNK = q_BHQK * scale, c.keys_HNK
    if table_HNK is None:
        return (q_BHQK @ k_BHSK.mT).to(c.dtype)
    other_BHQK = q_BHQK
    if c.queries_H1K is not None:
        other_BHQK, table_HNK = q_BHQK + c.queries_H1K * scale, extend_table(table_HNK, S)
    if not c.hooks.contiguous:
        added, n_near = at_distance(other_BHQK, table_HNK, c.exact_distance()), S
    else:
        k_BHSK, near_HNK = split_clipped(k_BHSK, table_HNK)
        rows_HWK, n_near = pad_table(near_HNK, queries=Q, keys=S)
        added = skew(other_BHQK @ rows_HWK.mT)
    s_BHQS = q_BHQK @ k_BHSK.mT
    s_BHQS[..., S - n_near :] += added
    return s_BHQS.to(c.dtype)


def weighted(w_BHQS: Tensor, v_BHSK: Tensor, c: AttentionContext) -> Tensor:
    """Returns the sum of the values, each with its row by distance, by their weights."""
    w_BHQS, Q, S = w_BHQS.to(v_BHSK.dtype), w_BHQS.shape[2], v_BHSK.shape[2]
    if c.values_HNK is None:
        return w_BHQS @ v_BHSK
    if not c.hooks.contiguous:
        return w_BHQS @ v_BHSK + to_distance(w_BHQS, c.values_HNK, c.exact_distance())
    v_BHSK, near_HNK = split_clipped(v_BHSK, c.values_HNK)
    rows_HWK, n_near = pad_table(near_HNK, queries=Q, keys=S)
    return w_BHQS @ v_BHSK + unskew(w_BHQS[..., S - n_near :]) @ rows_HWK
