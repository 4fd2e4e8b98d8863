"""What more training or a longer T changes: a line for each scheme over the tokens seen, or T."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from lengthgen.analysis.findings import Finding
from lengthgen.analysis.formatting import headline, millions, short, subject
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.seed_groups import labels, sampled
from lengthgen.analysis.used_context import EPS
from lengthgen.report.figures.chart import Chart, Line
from lengthgen.report.figures.curve import named, of_perplexity
from lengthgen.report.figures.layout import MOST_NAMED, panels
from lengthgen.report.figures.style import line_styles

LEAST = 3  # values of the setting that some scheme was trained with; two are in every table


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the runs of one line differ in."""

    field: str  # of a Point
    key: str  # of the section train
    axis: str
    named: Callable[[float], str]  # how a tick is written


TOKENS = Setting(field="tokens_seen", key="tokens", axis="tokens seen in training", named=millions)
LENGTH = Setting(field="train_length", key="length", axis="T, tokens in training", named=named)


def over(
    setting: Setting, findings: Sequence[Finding], configs: Mapping[str, Mapping[str, Any]]
) -> Figure | None:
    """Draws perplexity at T and at the longest length, and the gain there, over a setting.

    Runs that differ in nothing but the setting and the seed are one line. None unless some scheme
    was trained with three values, or with more lines than one chart shows.
    """
    competing = [one for one in findings if one.loss and not one.series.reference]
    longest = min((max(one.loss) for one in competing), default=0)  # which all have
    grouped = _grouped(setting, competing, configs)
    if not any(len(of) >= LEAST for of in grouped.values()) or len(grouped) > MOST_NAMED:
        return None
    series = [
        replace(next(iter(of.values())).series, label=name)  # which its style depends on
        for name, of in grouped.items()
    ]
    styles = line_styles(series)
    found = [one for of in grouped.values() for one in of.values()]
    points = [p for one in found for p in one.series.points]

    def chart(
        title: str, value: Callable[[Finding], Estimate | None], quantity: str, **scale: Any
    ) -> Chart:
        lines = [
            _line(name, styles[name], {n: value(one) for n, one in grouped[name].items()})
            for name in sorted(grouped)
        ]
        return Chart(
            lines=[line for line in lines if line.lengths],
            title=title,
            about=f"{headline(points)}; {subject(points)}",
            notes=[f"band: 95% over {sampled(one.series for one in found)}"],
            quantity=quantity,
            ticks=sorted({getattr(p, setting.field) for p in points}),
            named=setting.named,
            axis=setting.axis,
            trained=(),
            **scale,
        )

    charts = [
        chart("at T", lambda one: _ppl(one, one.series.train_length), "perplexity", scale="log"),
        chart(f"at {short(longest)}", lambda one: _ppl(one, longest), "perplexity", scale="log"),
        chart(
            f"context gain G = loss(T) - loss({short(longest)})",
            lambda one: one.gain.get(longest),
            "G, nats per token",
            **{"scale": "signed", "zone": EPS},
        ),
    ]
    charts = [one for one in charts if one.lines]
    return panels(charts) if charts else None


def _grouped(
    setting: Setting, findings: Sequence[Finding], configs: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[int, Finding]]:
    """Returns the findings by the name of their line and the value of the setting.

    The name is what the label would be if the setting were the same everywhere. Series that were
    trained with one value are left out.
    """
    alike = {run: _without(setting, config) for run, config in configs.items()}
    points = [p for one in findings for p in one.series.points]
    names = labels([replace(p, **{setting.field: 1}) for p in points], alike)
    grouped: dict[str, dict[int, Finding]] = {}
    for one in findings:
        first = one.series.points[0]
        values = grouped.setdefault(names[first.run, first.variant], {})
        values[getattr(first, setting.field)] = one
    return {name: dict(sorted(of.items())) for name, of in grouped.items() if len(of) > 1}


def _without(setting: Setting, config: Mapping[str, Any]) -> dict[str, Any]:
    train = {key: value for key, value in config.get("train", {}).items() if key != setting.key}
    return {**config, "train": train}


def _ppl(finding: Finding, length: int) -> Estimate | None:
    loss = finding.loss.get(length)
    return None if loss is None or not math.isfinite(loss.value) else of_perplexity(loss)


def _line(name: str, style: Mapping[str, Any], estimates: Mapping[int, Estimate | None]) -> Line:
    there = {n: one for n, one in estimates.items() if one is not None}
    return Line(
        name=name,
        runs=(),
        end=name,
        style=style,
        values={n: one.value for n, one in there.items()},
        low={n: one.low for n, one in there.items()},
        high={n: one.high for n, one in there.items()},
    )
