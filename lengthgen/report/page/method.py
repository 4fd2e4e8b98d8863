"""How it was measured, what it cost, and what to be careful about."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import yaml

from lengthgen.analysis.curves import HEADLINE, Point
from lengthgen.analysis.formatting import headline, short
from lengthgen.analysis.intervals import LEVEL, RESAMPLES
from lengthgen.analysis.seed_groups import scheme_lr_ratio
from lengthgen.config import rates
from lengthgen.evaluation.protocols import named
from lengthgen.report import tables
from lengthgen.report.page.contents import Contents
from lengthgen.report.page.markup import Child, table, tag
from lengthgen.report.page.tasks import exhibit

MISSING = object()
EVALUATION = ("eval", "runtime")  # sections as of training; what was evaluated may differ
COLUMNS = (
    "K: how many tokens at the end of each window are scored. Endpoints: the places in the text "
    "where windows end; equal hashes mean equal places. Reach: how many tokens of the text lie "
    "before each endpoint, and so the longest window that there can be."
)


def method(contents: Contents) -> list[Element]:
    """Returns the settings and fingerprints that decide the numbers."""
    points = contents.points
    facts: dict[str, Child] = {
        "corpus": _said(p.corpus + (" (packed)" if p.packed else "") for p in points),
        "fingerprint of its tokens": _code(p.fingerprint for p in points),
        "models": _said(p.model for p in points),
        "trained at T": _said(f"{p.train_length:,} tokens" for p in points),
        "tokens seen": _said(f"{p.tokens_seen:,}" for p in points),
        "seeds": _said(str(p.seed) for p in points),
        "learning rate": _said(_values(contents.configs, "train", "lr")),
        "rate of the schemes' own parameters": _said(_own_rates(contents.configs)),
        "training precision": _said(_values(contents.configs, "train", "precision")),
        "interval": (
            f"{LEVEL:.0%}, from variance components of seeds and documents, each with its own "
            "Student's t; paired by seed and document. The unit is the document, or a block of a "
            "packed stream. From one seed it speaks of this checkpoint on other documents. "
            f"Accuracies: {RESAMPLES:,} resamples of seeds and examples."
        ),
        "commit": _code(_values(contents.environments, "commit")),
        "python": _said(_values(contents.environments, "python")),
        "libraries": _said(_libraries(contents.environments)),
        "devices": _said(_devices(contents.environments)),
        "platform": _said(_values(contents.environments, "platform")),
    }
    found = [
        tag("p", _sentence(contents)),
        tag("dl", *(part for name, fact in facts.items() for part in _entry(name, fact))),
        tag("h3", "Protocols"),
        tag("p", COLUMNS),
        _protocols(contents),
        *_rates(contents),
    ]
    same = shared([contents.configs[run] for run in contents.runs if run in contents.configs])
    trained = {key: value for key, value in same.items() if key not in EVALUATION}
    if trained:
        summary = tag("summary", "All settings of training that the runs share")
        text = yaml.safe_dump(trained, sort_keys=False)
        found.append(tag("details", summary, tag("pre", text)))
    return found


def _rates(contents: Contents) -> list[Element]:
    """Returns the grids that learning rates were chosen from."""
    configs = [contents.configs[run] for run in contents.runs if run in contents.configs]
    grids = tables.rates(*rates.of_runs(configs))
    return [] if grids is None else exhibit(grids)


def _sentence(contents: Contents) -> str:
    tail = [p for p in contents.points if p.protocol == HEADLINE]
    if not tail:
        return "The runs were not evaluated under the headline protocol, so there are no verdicts."
    return (
        f"The headline is the {headline(tail)}: each window ends at the same place at every "
        "length, and the same tokens are scored. Losses are sums of nats over tokens, divided "
        "once. Schemes are compared on the same documents with the same seeds. All pairs of a "
        "length are compared jointly: schemes that are equal are told apart in at most 5% of "
        "tables. From one seed no scheme is called better than another."
    )


def _entry(name: str, fact: Child) -> list[Element]:
    return [tag("dt", name), tag("dd", fact)] if fact != "" else []


def _said(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _code(values: Iterable[str]) -> Child:
    said = _said(values)
    return tag("code", said) if said else ""


def _values(plain: Mapping[str, Mapping[str, Any]], *path: str) -> list[str]:
    """Returns what each run holds under a path of keys."""
    found: list[str] = []
    for run in sorted(plain):
        value: Any = plain[run]
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            found.append(str(value))
    return found


def _own_rates(configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the rates of schemes' own parameters that differ from the network's."""
    ratios = {
        (str(config.get("scheme", {}).get("name")), scheme_lr_ratio(config))
        for config in configs.values()
    }
    return [f"{name}: {ratio:.15g} times" for name, ratio in sorted(ratios) if ratio != 1]


def _libraries(environments: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        f"{name} {version}"
        for environment in environments.values()
        for name, version in [
            ("lengthgen", environment.get("lengthgen", "unknown")),
            *environment.get("libraries", {}).items(),
        ]
    ]


def _devices(environments: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        ", ".join(map(str, environment.get("devices", []))) or "CPU"
        for environment in environments.values()
    ]


def _protocols(contents: Contents) -> Element:
    rows: list[list[Child]] = []
    for protocol, lines in contents.series.items():
        points = [p for line in lines for p in line.points]
        lengths = sorted({p.length for p in points})
        rows.append(
            [
                protocol,
                _said(_scored(p) for p in points),
                _said(f"{p.reach:,}" for p in points),
                tag("td", _code(p.endpoints for p in points)),
                _said(p.precision for p in points),
                f"{max(p.n_documents for p in points):,}",
                f"{_most(points):,}",
                _said(map(short, lengths)),
            ]
        )
    header = ["protocol", "K", "reach", "endpoints (hash)", "precision", "documents", "tokens"]
    return table([*header, "lengths"], rows)


def _scored(point: Point) -> str:
    """Returns K: that of the run, or the convention's own."""
    K = named(point.protocol).last if point.targets is None else point.targets
    return "all" if K is None else str(K)


def _most(points: Sequence[Point]) -> int:
    return max(p.n_tokens for p in points)


def shared(plains: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the keys and values that all mappings have in common, at every depth."""
    if not plains:
        return {}
    first, *others = plains
    found: dict[str, Any] = {}
    for key, value in first.items():
        values = [other.get(key, MISSING) for other in others]
        if isinstance(value, Mapping) and all(isinstance(other, Mapping) for other in values):
            inner = shared([value, *values])
            if inner or not value:
                found[key] = inner
        elif all(other == value for other in values):
            found[key] = value
    return found


def costs(contents: Contents) -> list[Element]:
    """Returns what each run took to train."""
    rows: list[list[Child]] = []
    for run in contents.runs:
        cost = contents.costs.get(run)
        if cost is not None:
            rows.append(
                [
                    tag("code", run),
                    _amount(cost.parameters),
                    _amount(cost.tokens),
                    _amount(cost.tokens_per_s),
                    "-" if cost.seconds is None else duration(cost.seconds),
                ]
            )
    header = ["run", "parameters", "training tokens", "tokens/s", "training time"]
    return [table(header, rows)] if rows else [tag("p", "Not recorded.")]


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Returns 42 s, 3 min 5 s or 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def warnings(contents: Contents) -> list[str]:
    """Returns all that limits what the numbers say."""
    concerned: dict[str, list[str]] = {}
    for finding in contents.findings:
        for warning in finding.warnings:
            concerned.setdefault(warning, []).append(finding.series.label)
    said = [f"{', '.join(labels)}: {warning}." for warning, labels in concerned.items()]
    return [*said, *contents.remarks]
