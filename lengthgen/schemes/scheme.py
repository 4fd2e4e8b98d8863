"""Scheme: the parts of a model, sorted for every layer by the hooks that they override.

B batch, T tokens, D width.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lengthgen.errors import UserError
from lengthgen.schemes.base import AttentionContext, LayerHooks, Part


class Scheme(nn.Module):
    """The parts of a model, and which of them act in every layer.

    `layers` names the parts that act in layer l as layers[l % len(layers)]; a part that it never
    names acts in every layer, as all do if it is None. Parts that act on positions or embeddings do
    so once, whatever `layers` says. Parts that change rotary frequencies or remap rotary positions
    act in the layers that rotate; it is an error if none does.
    """

    def __init__(
        self,
        parts: Mapping[str, Part],
        *,
        layers: Sequence[Sequence[str]] | None,
        n_layers: int,
        where: str = "scheme.parts",
    ) -> None:
        super().__init__()
        self.where = where  # the dotted key that messages name
        self.encoder: Scheme | None = None  # of an encoder-decoder model: the parts of its encoder
        self.parts = nn.ModuleDict(parts)
        self.all = tuple(parts.values())
        self.contiguous = not any(part.overrides("positions") for part in self.all)
        self._refuse_contradictions(parts)
        cycle = [list(parts)] if layers is None else layers
        if not cycle:
            raise UserError("scheme.layers: an empty list names no layer; use null for all parts")
        placed = {name for names in cycle for name in names}
        everywhere = set(parts) - placed
        self.layers = [
            self._hooks_of(
                {
                    name: part
                    for name, part in parts.items()
                    if name in everywhere or name in cycle[i % len(cycle)]
                }
            )
            for i in range(n_layers)
        ]
        self.clamp_parameters()

    @property
    def depends_on_length(self) -> bool:
        """True if a prefix alone may give other outputs than within a longer call."""
        return any(part.depends_on_length for part in self.all)

    @property
    def shift_invariant(self) -> bool:
        """True if adding a constant to all coordinates changes nothing."""
        return all(part.shift_invariant for part in self.all)

    @property
    def reads_alignment(self) -> bool:
        """True if the scheme needs alignment ids: which of a task's characters belong together."""
        return any(part.reads_alignment for part in self.all)

    @property
    def embeds(self) -> bool:
        """True if positions are mixed into the token embeddings."""
        return any(part.overrides("embed") for part in self.all)

    @property
    def memory(self) -> int:
        """Tokens of the previous segments that stay visible as keys; 0: no segments."""
        return max([0, *(part.memory for part in self.all)])

    def unsupported_reason(self, length: int) -> str | None:
        """Returns the first part's reason for having no value at this length, or None."""
        return next(filter(None, (part.unsupported_reason(length) for part in self.all)), None)

    def positions(self, tokens_BT: Tensor, c: AttentionContext) -> Tensor:
        """Returns the tokens' coordinates: 0 ... T-1, or those of the last part that has any."""
        pos = c.pos
        for part in self.all:
            if part.overrides("positions"):
                pos = part.positions(tokens_BT, c)
        return pos

    def embed(self, x_BTD: Tensor, c: AttentionContext) -> Tensor:
        """Returns the token embeddings after every part's `embed`, in order."""
        for part in self.all:
            x_BTD = part.embed(x_BTD, c)
        return x_BTD

    def initial_state(self, c: AttentionContext) -> Tensor:
        """Returns what one part carries from layer to layer, [B, T, E]; E = 0 if none does."""
        for part in self.all:
            if part.overrides("initial_state"):
                return part.initial_state(c)
        return c.state_BSE

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        """Moves every part's parameters back into their domain."""
        for part in self.all:
            part.clamp_parameters()
        if self.encoder is not None:
            self.encoder.clamp_parameters()

    def _refuse_contradictions(self, parts: Mapping[str, Part]) -> None:
        """Raises UserError for a part that would act nowhere, or on what another one makes void."""
        for name, part in parts.items():
            for own, _ in (*part.named_parameters(), *part.named_buffers(), *part.named_children()):
                if hasattr(Part, own.partition(".")[0]):
                    raise UserError(
                        f"{self.where}: self.{own} of {name} cannot be read, since every part has "
                        f"something of this name already; rename it in {type(part).__name__}"
                    )
        if not any(part.rotary for part in parts.values()):
            for name, part in parts.items():
                if part.needs_rotation:
                    raise UserError(
                        f"{self.where}: {name} acts on rotated queries and keys, and nothing here "
                        f"rotates them; it goes with rope, xpos or pope. Drop {name}"
                    )
        sampling = [name for name, part in parts.items() if part.overrides("positions")]
        if len(sampling) > 1:
            raise UserError(
                f"{self.where}: {sampling[0]} and {sampling[1]} both give out positions; drop one"
            )
        for name in sampling:
            T = parts[name].shape.train_length
            largest = parts[name].largest_position(T)
            for other in parts.values():
                reason = None if other is parts[name] else other.unsupported_reason(largest + 1)
                if reason:
                    raise UserError(
                        f"{self.where}: {name} gives out positions up to {largest}, and {reason}; "
                        "drop one"
                    )
        remembering = [name for name, part in parts.items() if part.memory]
        carrying = [name for name, part in parts.items() if part.overrides("initial_state")]
        if len(carrying) > 1:
            raise UserError(
                f"{self.where}: {carrying[0]} and {carrying[1]} both carry a state from layer to "
                "layer; drop one"
            )
        if carrying and remembering:
            raise UserError(
                f"{self.where}: {remembering[0]} reads a text in segments, and {carrying[0]} "
                "carries a state from layer to layer, which no segment remembers; drop one"
            )
        for name, part in parts.items():
            of_text = part.depends_on_length or part.counts_tokens or part.reads_alignment
            of_text = of_text or part.overrides("positions")
            if remembering and (of_text or not part.shift_invariant):
                raise UserError(
                    f"{self.where}: {remembering[0]} reads a text in segments, and {name} needs to "
                    "know where in the text a token stands; drop one"
                )

    def _hooks_of(self, layer: dict[str, Part]) -> LayerHooks:
        if not any(part.rotary for part in layer.values()):
            layer = {name: part for name, part in layer.items() if not part.needs_rotation}

        def all_of(hook: str) -> tuple[Part, ...]:
            return tuple(part for part in layer.values() if part.overrides(hook))

        def owner(hook: str) -> Part | None:
            names = [name for name, part in layer.items() if part.overrides(hook)]
            if len(names) > 1:
                raise UserError(
                    f"{self.where}: {names[0]} and {names[1]} both define {hook}, which has one "
                    "owner in a layer; drop one, or separate them with scheme.layers"
                )
            return layer[names[0]] if names else None

        qk, bias, visible = all_of("qk"), all_of("bias"), all_of("visible")
        first = len(qk)
        if any(part.remaps for part in layer.values()):
            first = [part.rotary for part in qk].index(True)
        owners = [
            owner(hook)
            for hook in ("relative_keys", "relative_values", "scores", "weights", "values")
        ]
        carrier, name_of = owner("next_state"), {part: name for name, part in layer.items()}
        for hook, changing in (("relative_values", owners[1]), ("values", owners[4])):
            if carrier and changing:
                raise UserError(
                    f"{self.where}: {name_of[changing]} defines {hook}, and the state that "
                    f"{name_of[carrier]} carries is averaged next to the values; drop one, or "
                    "separate them with scheme.layers"
                )
        if bias and (scorer := owners[2]) and not scorer.takes_bias:
            raise UserError(
                f"{self.where}: {name_of[bias[0]]} adds a bias to logits, and {name_of[scorer]} "
                "has none; drop one, or separate them with scheme.layers"
            )
        return LayerHooks(
            qk=qk[:first],
            rotary=qk[first:],
            frequencies=all_of("frequencies"),
            bias=bias,
            visible=visible,
            relative_keys=owners[0],
            relative_values=owners[1],
            scores=owners[2],
            weights=owners[3],
            values=owners[4],
            next_state=carrier,
            contiguous=self.contiguous,
            toeplitz=bool(bias)
            and self.contiguous
            and all(part.distance_only for part in bias)
            and not (visible or any(owners)),
        )
