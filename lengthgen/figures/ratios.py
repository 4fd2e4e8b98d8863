"""The chart of perplexity over that at T, before published curves of schemes shown, in grey."""

from collections.abc import Mapping, Sequence
from typing import Any

from lengthgen.figures.chart import Chart, Line
from lengthgen.figures.curve import rank, said
from lengthgen.figures.looks import line_looks
from lengthgen.findings import Finding
from lengthgen.published import Anchor
from lengthgen.statistics import perplexity
from lengthgen.wording import headline, subject


def ratios(findings: Sequence[Finding], anchors: Sequence[Anchor]) -> Chart | None:
    """Returns ppl(C) / ppl(T) over C / T of all but references, and anchors of these schemes.

    None if there are no such anchors.
    """
    there = [finding for finding in findings if finding.gain and not finding.series.reference]
    lines = [finding.series for finding in there]
    points = [p for line in lines for p in line.points]
    shown = {line.scheme for line in lines}
    behind = {_named(a): a.ratios() for a in anchors if a.scheme in shown}
    if not behind:
        return None
    looks = line_looks(lines)
    longest = max(n / f.series.train_length for f in there for n in f.gain)
    drawn = [_line(finding, looks[finding.series.label]) for finding in there]
    drawn.sort(key=lambda line: rank(line.values.get(longest), line.name))
    ticks = {x for line in drawn for x in line.values}
    return Chart(
        lines=drawn,
        behind=behind,
        title=f"perplexity over that at T, {headline(points)}; {subject(points)}",
        says=[*said(drawn, lines, level=""), "grey: published, as named below"],
        quantity="ppl(C) / ppl(T)",
        scale="log",
        zone=None,
        floor=None,
        ticks=sorted(ticks),
        named="{:g}T".format,
        axis="window C in units of T",
        trained=[],
        marks=True,
    )


def _line(finding: Finding, look: Mapping[str, Any]) -> Line:
    T, label = finding.series.train_length, finding.series.label
    values = {n / T: perplexity(-gain.value) for n, gain in finding.gain.items()}
    return Line(
        name=label,
        scheme=finding.series.scheme,
        end=label,
        look=look,
        values={**values, 1.0: 1.0},
        low={**{n / T: perplexity(-gain.high) for n, gain in finding.gain.items()}, 1.0: 1.0},
        high={**{n / T: perplexity(-gain.low) for n, gain in finding.gain.items()}, 1.0: 1.0},
        seeds=(),
        level=None,
        leaves_at=None,
        reference=False,
    )


def _named(anchor: Anchor) -> str:
    told = [
        anchor.scheme + (f" ({anchor.note})" if anchor.note else ""),
        f"{anchor.protocol}, T={anchor.train_length}",
        f"{anchor.params} on {anchor.corpus}",
        anchor.citation + (f", arXiv {anchor.arxiv}" if anchor.arxiv else ""),
    ]
    return "; ".join(told)
