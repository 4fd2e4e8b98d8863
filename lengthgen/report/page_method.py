"""What the page states of the method: settings, fingerprints, protocols and costs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from lengthgen.analysis.formatting import headline, short
from lengthgen.analysis.intervals import LEVEL
from lengthgen.analysis.seed_groups import scheme_lr_ratio
from lengthgen.evaluation.protocols import HEADLINE, named
from lengthgen.report.collect import Report
from lengthgen.report.table_formats import Table, plain_table

MISSING = object()
EVALUATION = ("eval", "runtime")  # sections as of training; what was evaluated may differ


def facts(report: Report) -> dict[str, str]:
    """Returns the settings and fingerprints that decide the numbers, by name; none is empty."""
    points, configs = report.points, report.configs
    environments = {
        run: record.environment
        for run, record in report.runs.items()
        if record.environment is not None
    }
    libraries = [
        f"{name} {version}"
        for one in environments.values()
        for name, version in [
            ("lengthgen", one.get("lengthgen", "unknown")),
            *one.get("libraries", {}).items(),
        ]
    ]
    own = {(str(c.get("scheme", {}).get("name")), scheme_lr_ratio(c)) for c in configs.values()}
    devices = [
        ", ".join(map(str, one.get("devices", []))) or one.get("processor") or "CPU"
        for one in environments.values()
    ]
    found: dict[str, Iterable[str]] = {
        "corpus": [p.corpus + (" (packed)" if p.packed else "") for p in points],
        "fingerprint of its tokens": [p.fingerprint for p in points],
        "models": [p.model for p in points],
        "trained at T": [f"{p.train_length:,} tokens" for p in points],
        "tokens seen": [f"{p.tokens_seen:,}" for p in points],
        "seeds": [str(p.seed) for p in points],
        "learning rate": _values(configs, "train", "lr"),
        "rate of the schemes' own parameters": [
            f"{name}: {ratio:.15g} times" for name, ratio in sorted(own) if ratio != 1
        ],
        "training precision": _values(configs, "train", "precision"),
        "interval": [
            f"{LEVEL:.0%}, from variance components of seeds and documents, each with its own "
            "Student's t; paired by seed and document. The unit is the document, or a block of a "
            "packed stream, or the example of a task. From one seed it is of this checkpoint on "
            "other documents. Of shares of right answers at least Wilson's."
        ],
        "commit": _values(environments, "commit"),
        "python": _values(environments, "python"),
        "libraries": libraries,
        "devices": devices,
        "platform": _values(environments, "platform"),
    }
    return {name: _joined(values) for name, values in found.items() if _joined(values)}


def _joined(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


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


def scored_how(report: Report) -> str:
    tail = [p for p in report.points if p.protocol == HEADLINE]
    if not tail:
        return "The runs were not evaluated under the headline protocol, so there are no verdicts."
    return (
        f"The headline is the {headline(tail)}: each window ends at the same place at every "
        "length, and the same tokens are scored. Losses are sums of nats over tokens, divided "
        "once. Schemes are compared on the same documents with the same seeds. All pairs of a "
        "length are compared jointly: equal schemes are called different in at most 5% of tables. "
        "From one seed no scheme is called better than another."
    )


def protocols(report: Report) -> Table:
    """Returns what was scored under each protocol."""
    rows: list[list[str]] = []
    for protocol, lines in report.by_protocol.items():
        points = [p for line in lines for p in line.points]
        last = named(protocol).last
        K = [last if p.targets is None else p.targets for p in points]
        rows.append(
            [
                protocol,
                _joined("all" if n is None else str(n) for n in K),
                _joined(f"{p.reach:,}" for p in points),
                _joined(p.endpoints for p in points),
                _joined(p.precision for p in points),
                f"{max(p.n_documents for p in points):,}",
                f"{max(p.n_tokens for p in points):,}",
                _joined(map(short, sorted({p.length for p in points}))),
            ]
        )
    head = ["protocol", "K", "reach", "endpoints (hash)", "precision", "documents", "tokens"]
    return plain_table([*head, "lengths"], rows)


def settings(report: Report) -> str:
    """Returns the settings of training that the runs share as YAML; empty if there are none."""
    same = shared([*report.configs.values()])
    trained = {key: value for key, value in same.items() if key not in EVALUATION}
    return yaml.safe_dump(trained, sort_keys=False) if trained else ""


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


def costs(report: Report) -> Table:
    """Returns what each run took to train."""
    rows = [
        [
            run,
            *(
                "-" if amount is None else f"{amount:,.0f}"
                for amount in (cost.parameters, cost.tokens, cost.tokens_per_s)
            ),
            "-" if cost.seconds is None else duration(cost.seconds),
        ]
        for run, cost in sorted((run, record.cost) for run, record in report.runs.items())
    ]
    return plain_table(["run", "parameters", "training tokens", "tokens/s", "training time"], rows)


def duration(seconds: float) -> str:
    """Returns 42 s, 3 min 5 s or 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
