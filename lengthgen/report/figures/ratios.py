"""The chart of perplexity over that at T, before published curves of the same protocol, in grey."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lengthgen.analysis.curves import perplexity
from lengthgen.analysis.findings import Finding
from lengthgen.analysis.formatting import headline, subject
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.reference_results import PublishedCurve
from lengthgen.analysis.seed_groups import Series
from lengthgen.report.figures.chart import Chart, Line, Published, Values
from lengthgen.report.figures.curve import notes, rank
from lengthgen.report.figures.style import line_styles


def ratios(
    lines: Sequence[Series],
    published_curves: Sequence[PublishedCurve],
    *,
    findings: Sequence[Finding] = (),
    all_protocols: bool = False,
) -> Chart | None:
    """Returns ppl(C) / ppl(T) over C / T of the series of one protocol, but references.

    Behind them are the published curves of these schemes, under the same protocol alone or, if
    `all_protocols`, under any; None if there is none under the same one, or no loss at T. Bands
    where a series has a finding.
    """
    there = [line for line in lines if not line.reference and multiples(line.losses(), line)]
    behind = _published(published_curves, there, all_protocols=all_protocols)
    if not there or not (behind or all_protocols):
        return None
    points = [p for line in there for p in line.points]
    gains = {finding.series.label: finding.gain for finding in findings}
    styles = line_styles(there)
    drawn = [_line(line, styles[line.label], gains.get(line.label, {})) for line in there]
    longest = max(x for line in drawn for x in line.values)
    drawn.sort(key=lambda line: rank(line.values.get(longest), line.name))
    return Chart(
        lines=drawn,
        behind=behind,
        title=f"perplexity over that at T, {headline(points)}",
        about=subject(points),
        notes=[*notes(drawn, there, level=""), "grey: published, same protocol, as named below"],
        quantity="ppl(C) / ppl(T)",
        scale="log",
        ticks=sorted({x for line in drawn for x in line.values}),
        named="{:g}T".format,
        axis="window C in units of T",
        trained=[],
    )


def _published(
    published_curves: Sequence[PublishedCurve], lines: Sequence[Series], *, all_protocols: bool
) -> list[Published]:
    measured = {(line.scheme, p.protocol) for line in lines for p in line.points}
    return [
        Published(
            _named(paper),
            f"{paper.citation}, {paper.protocol}",
            (paper.scheme, paper.protocol) in measured,
            paper.ratios(),
        )
        for paper in published_curves
        if (paper.scheme, paper.protocol) in measured
        or (all_protocols and paper.scheme in {line.scheme for line in lines})
    ]


def multiples(losses: Mapping[int, float], line: Series) -> dict[float, float]:
    """Returns ppl(C) / ppl(T) by C / T; nothing without a finite loss at T."""
    T = line.train_length
    if not math.isfinite(losses.get(T, math.inf)):
        return {}
    return {n / T: perplexity(loss - losses[T]) for n, loss in losses.items()}


def _line(line: Series, style: Mapping[str, Any], gains: Mapping[int, Estimate]) -> Line:
    T = line.train_length
    seeds: list[Values] = [multiples(line.curve(run), line) for run in line.runs]
    return Line(
        name=line.label,
        runs=line.runs,
        end=line.label,
        style=style,
        values=multiples(line.losses(), line),
        low={n / T: perplexity(-gain.high) for n, gain in gains.items()},
        high={n / T: perplexity(-gain.low) for n, gain in gains.items()},
        seeds=seeds if len(seeds) > 1 else (),
    )


def _named(paper: PublishedCurve) -> str:
    parts = [
        paper.scheme + (f" ({paper.note})" if paper.note else ""),
        f"{paper.protocol}, T={paper.train_length}",
        f"{paper.params} on {paper.corpus}",
        f"{paper.citation}, arXiv {paper.arxiv}, {paper.table}",
    ]
    return "; ".join(parts)
