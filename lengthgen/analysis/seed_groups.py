"""Series: runs that differ in the seed alone, under a name that holds what else differs."""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lengthgen import schemes
from lengthgen.analysis.curves import Curve, Point
from lengthgen.analysis.formatting import millions
from lengthgen.config import compose, sections
from lengthgen.escaping import visible
from lengthgen.schemes.absolute.alignment import Aligned

UPPER_BOUND = " (upper bound)"  # ends the names of such series


@dataclass(frozen=True, kw_only=True)
class Series:
    """Runs that differ in nothing but the seed, under one protocol: one line of a figure."""

    label: str
    points: tuple[Point, ...]
    reference: bool = False  # a line to compare its scheme with, not a competitor
    bound: bool = False  # nor this one: alignment ids give it which characters belong together
    repeated: tuple[str, ...] = ()  # runs of a seed that another run has; they are left out

    @property
    def scheme(self) -> str:
        return self.points[0].scheme

    @property
    def variant(self) -> str | None:
        return self.points[0].variant

    @property
    def train_length(self) -> int:
        return self.points[0].train_length

    @property
    def runs(self) -> list[str]:
        return sorted({point.run for point in self.points})

    @property
    def skipped(self) -> dict[int, str]:
        """The reason at each length that was skipped."""
        return {p.length: p.skipped for p in self.points if p.skipped is not None}

    def is_reference_of(self, other: "Series") -> bool:
        """Whether it shows checkpoints of the other series under a reference variant."""
        return self.reference and not set(self.runs).isdisjoint(other.runs)

    def curve(self, run: str) -> dict[int, float]:
        """Returns the loss of one seed at each length."""
        return {p.length: p.loss for p in self.points if p.run == run and p.loss is not None}

    def losses(self) -> dict[int, float]:
        """Returns the mean loss over the seeds, at the lengths where every seed has one."""
        curves: dict[str, dict[int, float]] = {p.run: {} for p in self.points}
        for p in self.points:
            if p.loss is not None:
                curves[p.run][p.length] = p.loss
        shared = set[int].intersection(*map(set[int], curves.values()))
        return {n: math.fsum(c[n] for c in curves.values()) / len(curves) for n in sorted(shared)}


def series(
    points: Iterable[Point], labels: Mapping[Curve, str], references: Collection[Curve] = ()
) -> list[Series]:
    """Returns the points of one protocol as series, sorted by label.

    Of runs of one seed, which are no independent seeds, the first by name is kept.
    """
    by_label: dict[str, list[Point]] = {}
    for p in points:
        by_label.setdefault(labels[p.run, p.variant], []).append(p)
    found: list[Series] = []
    for label, members in sorted(by_label.items()):
        run_of_seed = {p.seed: p.run for p in sorted(members, key=lambda p: p.run, reverse=True)}
        kept = set(run_of_seed.values())
        found.append(
            Series(
                label=label,
                points=tuple(p for p in members if p.run in kept),
                reference=all((p.run, p.variant) in references for p in members),
                bound=label.endswith(UPPER_BOUND),
                repeated=tuple(sorted({p.run for p in members} - kept)),
            )
        )
    return found


def ordered(lines: Iterable[Series]) -> list[Series]:
    """Returns competing series and behind them references, by the loss at the longest length.

    Series without a loss there stand behind those that have one, by that at the next length.
    """
    lines = list(lines)
    losses = {line.label: line.losses() for line in lines}
    lengths = sorted({n for curve in losses.values() for n in curve}, reverse=True)

    def place(line: Series) -> tuple[bool, list[float], str]:
        return line.reference, [losses[line.label].get(n, math.inf) for n in lengths], line.label

    return sorted(lines, key=place)


def sampled(lines: Iterable[Series]) -> str:
    """Returns what intervals of the lines are over: documents, and seeds where a line has two."""
    return "seeds and documents" if any(len(line.runs) > 1 for line in lines) else "documents"


def least_at_T(lines: Iterable[Series]) -> dict[int, float]:
    """Returns the least loss at T of each T; infinite if no series of that T has one."""
    least: dict[int, float] = {}
    for line in lines:
        T = line.train_length
        least[T] = min(least.get(T, math.inf), line.losses().get(T, math.inf))
    return least


def references(points: Iterable[Point], configs: Mapping[str, Mapping[str, Any]]) -> set[Curve]:
    """Returns the curves of the variants that their run lists as eval.reference_variants."""
    return {
        (p.run, p.variant)
        for p in points
        if p.variant in configs[p.run].get("eval", {}).get("reference_variants", [])
    }


def labels(
    points: Iterable[Point],
    configs: Mapping[str, Mapping[str, Any]],
    *,
    name_models: bool = False,
) -> dict[Curve, str]:
    """Returns the name of the series of each curve; runs that differ in the seed alone share it.

    `configs` holds the plain configuration of each run. The name is the scheme's and the variant's;
    what differs between the series is added where it must be, and the model if `name_models`.
    """
    facts: dict[Curve, Point] = {}
    for p in sorted(points, key=lambda p: (p.seed, p.run)):
        facts.setdefault((p.run, p.variant), p)
    identity = {
        (run, variant): {
            **_science(configs[run], variant),
            "variant": variant,
            **({"parts": p.parts} if variant else {}),  # as it was defined when it was evaluated
            "tokens_seen": p.tokens_seen,
        }
        for (run, variant), p in facts.items()
    }
    groups: dict[str, list[Curve]] = {}
    for curve, keys in identity.items():
        groups.setdefault(json.dumps(keys, sort_keys=True, default=str), []).append(curve)
    firsts = [members[0] for members in groups.values()]
    names = _plain_names([facts[first] for first in firsts], name_models=name_models)
    named: dict[Curve, str] = {}
    oracles = {name for name, part in schemes.registry().items() if issubclass(part, Aligned)}
    for name, first, members in zip(names, firsts, groups.values(), strict=True):
        twins = [identity[f] for f, n in zip(firsts, names, strict=True) if n == name]
        label = name if len(twins) == 1 else f"{name} ({_difference(first, identity, twins)})"
        parts: Mapping[str, Any] = configs[first[0]].get("scheme", {}).get("parts") or {}
        label += UPPER_BOUND * (not oracles.isdisjoint(parts))
        named |= dict.fromkeys(members, visible(label))
    return named


def _plain_names(points: Sequence[Point], *, name_models: bool) -> list[str]:
    """Returns scheme and variant of each point, and of model, T and tokens seen what varies."""
    several = {"model"} if name_models else set[str]()
    several |= {
        field
        for field in ("model", "train_length", "tokens_seen")
        if len({getattr(p, field) for p in points}) > 1
    }
    names: list[str] = []
    for p in points:
        texts = {
            "model": p.model,
            "train_length": f"T={p.train_length}",
            "tokens_seen": f"{millions(p.tokens_seen)} tokens",
        }
        details = [text for field, text in texts.items() if field in several]
        name = f"{p.scheme} + {p.variant.replace('+', ' + ')}" if p.variant else p.scheme
        names.append(f"{name} ({', '.join(details)})" if details else name)
    return names


def _difference(
    first: Curve, identity: Mapping[Curve, Mapping[str, Any]], twins: Sequence[Mapping[str, Any]]
) -> str:
    """Returns the keys in which series of one name differ, the scheme's first, three at most."""
    keys = {
        key
        for twin in twins
        for key in twin
        if any(key not in t or t[key] != twin[key] for t in twins)
    }
    ordered = sorted(keys, key=lambda key: (not key.startswith("scheme."), key))
    own = identity[first]
    changes = [f"{k}={_short(own[k])}" if k in own else f"no {k}" for k in ordered[:3]]
    run = first[0]
    return ", ".join([*changes, run.rsplit("-", 1)[-1]] if len(ordered) > 3 else changes)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    return value if isinstance(value, str) else json.dumps(value)


def scheme_lr_ratio(config: Mapping[str, Any]) -> float:
    """Returns Config.scheme_lr_ratio of a plain configuration: 1 if it is older than the keys."""
    return _lr_ratio(compose.flatten(config))


def _lr_ratio(flat: Mapping[str, Any]) -> float:
    return next((flat[key] for key in _LR_RATIOS if flat.get(key) is not None), 1.0)


_VARIANTS = ("scheme.variants", "variants")
_LR_RATIOS = ("train.scheme_lr_ratio", "scheme.lr_ratio")


def _arguments_since(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of arguments that a run may be older than, as dotted keys."""
    known = schemes.registry()
    return {
        f"scheme.parts.{part}.{name}": value
        for part in config.get("scheme", {}).get("parts") or {}
        if part in known
        for name, value in sections.defaults(known[part]).items()
    }


def _science(config: Mapping[str, Any], variant: str | None) -> dict[str, Any]:
    """Returns what decides a curve's numbers but the seed, as dotted keys.

    A run's plugins are files named by their content.
    """
    flat = compose.flatten(config)
    aside = (
        *("seed", "runtime.", "eval.", "train.checkpoint_every", "train.tuned", "train.init_from"),
        *_LR_RATIOS,
        *_VARIANTS,
    )
    kept = {key: value for key, value in flat.items() if not key.startswith(aside)}
    kept["train.scheme_lr_ratio"] = _lr_ratio(flat)
    kept = _arguments_since(config) | kept
    if init_from := flat.get("train.init_from.recipe"):
        kept["init_from"] = init_from
    names = variant.split("+") if variant else []
    used = tuple(f"{home}.{name}." for home in _VARIANTS for name in names)
    return kept | {key: value for key, value in flat.items() if key.startswith(used)}
