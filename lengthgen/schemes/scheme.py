"""Scheme: the parts of a model, sorted for every layer by the hooks that they override."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile, permutations

import torch
from torch import Tensor, nn

from lengthgen.errors import UserError
from lengthgen.schemes.base import HOOKS, OWNED, AttentionContext, LayerHooks, Part


class Scheme(nn.Module):
    """The parts of a model, and which of them act in every layer.

    `layers` names the parts that act in layer l as layers[l % len(layers)]; a part that it never
    names acts in every layer. Parts that act on positions or embeddings do so once. Parts that
    change rotary frequencies or remap rotary positions act in the layers that rotate. Parts act in
    the order of `parts`, whatever that within `layers`; biases are summed.
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
        is_variant = where != "scheme.parts"  # which acts in every layer
        self._remedy = "drop one" + ", or separate them with scheme.layers" * (not is_variant)
        self.encoder: Scheme | None = None  # of an encoder-decoder model: the parts of its encoder
        self.parts = nn.ModuleDict(parts)
        self.all = tuple(parts.values())
        self.contiguous = not any(part.overrides("positions") for part in self.all)
        for name, part in parts.items():
            others = {other: parts[other] for other in parts if other != name}
            if reason := self._conflict(part, others):
                remedy = "leave this variant out" if is_variant else "change or drop one"
                raise UserError(f"{where}: {name} {reason}; {remedy}")
        if layers is not None and not layers:
            raise UserError("scheme.layers: an empty list names no layer; use null for all parts")
        cycle = [list(parts)] if layers is None else layers
        everywhere = set(parts) - {name for names in cycle for name in names}
        self.layers = [
            self._hooks_of({name: parts[name] for name in parts if name in active})
            for active in (everywhere.union(cycle[i % len(cycle)]) for i in range(n_layers))
        ]
        acting = {part for layer in self.layers for part in (*layer.parts, *layer.visible)}
        once = {part for part in self.all if part.overrides("positions") or part.overrides("embed")}
        if idle := [name for name, part in parts.items() if part not in acting | once]:
            raise UserError(
                f"{where}: {idle[0]} acts in none of {n_layers} layers; name it in one of these in "
                "scheme.layers, beside what it acts on"
            )
        self.clamp_parameters()

    @property
    def depends_on_length(self) -> bool:
        """True if a prefix alone may give other outputs than within a longer call."""
        return any(part.depends_on_length for part in self.all)

    def unsupported_reason(self, length: int) -> str | None:
        """Returns the first part's reason for having no value at this length, or None."""
        return next(filter(None, (part.unsupported_reason(length) for part in self.all)), None)

    def positions(self, tokens_BT: Tensor, c: AttentionContext) -> Tensor:
        """Returns the tokens' coordinates: 0 ... T-1, or those that a part gives out."""
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

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        """Moves every part's parameters back into their domain."""
        for part in self.all:
            part.clamp_parameters()
        if self.encoder is not None:
            self.encoder.clamp_parameters()

    def _conflict(self, part: Part, others: Mapping[str, Part]) -> str | None:
        """Returns why a part would act nowhere, or on what another one makes void."""
        if reason := part.conflict(others):
            return reason
        if part.needs_rotation() and not any(other.rotary for other in self.all):
            return "acts on rotated queries and keys, and nothing here rotates them, as rope does"
        if part.overrides("positions"):
            largest = part.largest_position(part.shape.train_length)
            for name, other in others.items():
                if other.overrides("positions"):
                    return f"and {name} both give out positions"
                if reason := other.unsupported_reason(largest + 1):
                    return f"assigns positions up to {largest}, and {reason}"
        return None

    def _hooks_of(self, layer: dict[str, Part]) -> LayerHooks:
        masks: tuple[Part, ...] = ()
        if not any(part.rotary for part in layer.values()):
            void = [part for part in layer.values() if part.needs_rotation()]
            layer = {name: part for name, part in layer.items() if part not in void}
            masks = tuple(part for part in void if part.overrides("visible"))
        names = {hook: [name for name in layer if layer[name].overrides(hook)] for hook in HOOKS}
        active = {hook: tuple(layer[name] for name in names[hook]) for hook in HOOKS}
        if fault := next(self._faults(layer, names), None):
            raise UserError(f"{self.where}: {fault}; {self._remedy}")
        owners = {hook: next(iter(active[hook]), None) for hook in OWNED}
        qk, bias, visible = active["qk"], active["bias"], (*active["visible"], *masks)
        if visible or {*owners.values()} - {None, owners["recurrence"]}:
            owners["recurrence"] = None
        remaps = any(part.remaps for part in layer.values())
        first = [part.rotary for part in qk].index(True) if remaps else len(qk)
        table = self.contiguous and all(part.distance_only for part in bias)
        return LayerHooks(
            parts=tuple(layer.values()),
            projections=active["projections"],
            qk=qk[:first],
            rotary=qk[first:],
            frequencies=active["frequencies"],
            bias=bias,
            visible=visible,
            **owners,
            outputs=active["outputs"],
            contiguous=self.contiguous,
            toeplitz=bool(bias) and table and not (visible or any(owners.values())),
        )

    @staticmethod
    def _faults(layer: Mapping[str, Part], names: Mapping[str, Sequence[str]]) -> Iterator[str]:
        """Yields why parts cannot stand in one layer; `names` are those of each hook."""
        for hook in OWNED:
            if len(names[hook]) > 1:
                both = " and ".join(names[hook][:2])
                yield f"{both} both define {hook}, which has one owner in a layer"
        for name, other in permutations(layer, 2):
            if owned := layer[name].owns_qk:
                part = layer[other]
                turns = part.overrides("qk") and not (part.scales_logits or part.needs_rotation())
                if part.reads_qk or turns:
                    yield f"{name} {owned}, and {other} reads or turns them"
        for scorer in names["scores"]:
            none = f"and {scorer} has none that it could act on"
            if not layer[scorer].takes_bias:
                yield from (f"{name} adds a bias to logits, {none}" for name in names["bias"])
                scaling = (name for name in names["qk"] if layer[name].scales_logits)
                yield from (f"{name} scales logits, {none}" for name in scaling)
            if not layer[scorer].takes_relative_keys:
                by_distance = names["relative_keys"]
                yield from (f"{name} adds to keys by distance, {none}" for name in by_distance)
        if any(part.remaps for part in layer.values()):
            for name in dropwhile(lambda name: not layer[name].rotary, names["qk"]):
                reads_text = layer[name].needs_whole_text or layer[name].needs_model
                if reads_text and not layer[name].scales_logits:
                    turns = "turns queries and keys by the text"
                    yield f"{name} {turns}, which no map of positions changes"
