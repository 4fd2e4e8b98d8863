"""The charts of a protocol over length: perplexity, and the gain over a context of T."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lengthgen.analysis.curves import perplexity
from lengthgen.analysis.findings import Finding
from lengthgen.analysis.formatting import headline, number, short, subject
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.seed_groups import Series, sampled
from lengthgen.analysis.used_context import EPS
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.report.figures.chart import Chart, Line, Values, band_limits
from lengthgen.report.figures.style import line_styles

FAILED = 8.0  # times the perplexity of the middle line
WINDOW = "tokens in the window"


def perplexities(lines: Sequence[Series], findings: Sequence[Finding]) -> Chart:
    """Returns perplexity over length, a line per series; bands where a series has a finding.

    A line is the mean over seeds (of the loss). The level of a series is its perplexity from the
    last T tokens alone: under the headline protocol that of length T.
    """
    points = [p for line in lines for p in line.points]
    known = {finding.series.label: finding for finding in findings}
    styles = line_styles(lines)
    longest = max(p.length for p in points)
    drawn = [
        _perplexity_line(line, known.get(line.label), styles[line.label], longest)
        for line in sorted(lines, key=lambda line: rank(line.losses().get(longest), line.label))
    ]
    drawn = capped(drawn, failed=lambda ppl: FAILED * ppl)
    floors = [finding.unigram for finding in known.values() if finding.unigram is not None]
    return Chart(
        lines=drawn,
        title=headline(points),
        about=subject(points),
        notes=notes(drawn, lines, level="from the last T tokens alone"),
        quantity="perplexity",
        scale="log",
        floor=("unigram floor", perplexity(min(floors))) if floors else None,
        ticks=sorted({p.length for p in points}),
        named=named,
        axis=WINDOW,
        trained=sorted({p.train_length for p in points}),
    )


def capped(lines: Sequence[Line], *, failed: Callable[[float], float]) -> list[Line]:
    """Names the last value of the lines that leave the axis, if a few do, and where that is.

    A few lines that fail would flatten all the others. They may leave if they are no more than a
    third of the lines: at `failed` of the median of the lines' least values.
    """
    competing = [line for line in lines if not line.reference]
    least = sorted(min(line.values.values()) for line in competing if line.lengths)
    cap = failed(least[len(least) // 2]) if least else math.inf
    high = [max(line.values.values(), default=0.0) for line in competing]
    if sum(value > cap for value in high) > len(competing) / 3:
        return list(lines)
    return [
        replace(line, end=f"{line.end}: {number(line.last)}", leaves_at=cap)
        if line.last is not None and max(line.values.values()) > cap
        else line
        for line in lines
    ]


def gains(findings: Sequence[Finding]) -> Chart | None:
    """Returns the context gain G(C) over length, 0 at T; None if no series has one."""
    there = [finding for finding in findings if finding.gain]
    if not there:
        return None
    lines = [finding.series for finding in there]
    points = [p for line in lines for p in line.points]
    styles = line_styles(lines)
    values = {f.series.label: _with_zero(f) for f in there}
    longest = max(n for of in values.values() for n in of)
    drawn = [
        line_of(
            line,
            style=styles[line.label],
            values={n: e.value for n, e in values[line.label].items()},
            band=values[line.label],
            longest=longest,
        )
        for line in sorted(
            lines,
            key=lambda line: rank(_value(values[line.label].get(longest)), line.label),
        )
    ]
    return Chart(
        lines=drawn,
        title="context gain G(C) = loss(T) - loss(C), of the same targets",
        about=subject(points),
        notes=[
            "above 0: text beyond T helps",
            f"grey: +-{EPS:g}, where the axis is linear",
            *notes(drawn, lines, level=""),
        ],
        quantity="G(C), nats per token",
        scale="signed",
        zone=EPS,
        ticks=sorted({n for of in values.values() for n in of}),
        named=named,
        axis=WINDOW,
        trained=sorted({line.train_length for line in lines}),
    )


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def _with_zero(finding: Finding) -> dict[int, Estimate]:
    """Returns the gains, and that of 0 at T, which is exact."""
    seeds = tuple(0.0 for _ in finding.series.runs)
    at_T = Estimate(value=0.0, low=0.0, high=0.0, seeds=seeds)
    return dict(sorted({**finding.gain, finding.series.train_length: at_T}.items()))


def _perplexity_line(
    line: Series, finding: Finding | None, style: Mapping[str, Any], longest: float
) -> Line:
    band = finding.loss if finding is not None else {}
    return line_of(
        line,
        style=style,
        values=_perplexities(line.losses()),
        band={n: of_perplexity(loss) for n, loss in band.items()},
        longest=longest,
        seeds=[_perplexities(line.curve(run)) for run in line.runs],
        level=_level(line),
    )


def of_perplexity(loss: Estimate) -> Estimate:
    """Returns the perplexity of a loss in nats per token, with its interval."""
    value, low, high = (perplexity(nats) for nats in (loss.value, loss.low, loss.high))
    return Estimate(value=value, low=low, high=high, seeds=())


def line_of(
    line: Series,
    *,
    style: Mapping[str, Any],
    values: Values,
    band: Mapping[int, Estimate],
    longest: float,
    seeds: Sequence[Values] = (),
    level: tuple[int, float] | None = None,
) -> Line:
    """Returns the line of a series; the values of a single seed are those of the line."""
    return Line(
        name=line.label,
        runs=line.runs,
        end=_end(line, [n for n, value in values.items() if math.isfinite(value)], longest),
        style=style,
        values=values,
        low={n: e.low for n, e in band.items()},
        high={n: e.high for n, e in band.items()},
        seeds=seeds if len(seeds) > 1 else (),
        level=level,
        reference=line.reference,
    )


def notes(drawn: Sequence[Line], lines: Sequence[Series], *, level: str) -> list[str]:
    """Returns what the parts of the lines are, of the parts that there are."""
    counts = sorted({len(line.runs) for line in lines})
    n_seeds = counts[-1]
    variants = sorted({line.variant for line in lines if line.reference and line.variant})
    (least, most), bands = band_limits(drawn), [*_bands(drawn)]
    cut = any(bound < least or bound > most for bound in bands)
    phrases = {
        f"mean of {' to '.join(map(str, counts[:1] + counts[1:][-1:]))} seeds": n_seeds > 1,
        "thin: each": any(line.seeds for line in drawn),
        f"band: 95% over {sampled(lines)}{', cut where it leaves the axis' if cut else ''}": bool(
            bands
        ),
        f"dotted: {level}": any(line.level for line in drawn),
        "a name with a number: a line that leaves the axis, and where it ends": any(
            line.leaves_at is not None and not line.reference for line in drawn
        ),
        f"thin dashes: the same checkpoint + {', '.join(variants)}": bool(variants),
    }
    return [phrase for phrase, there in phrases.items() if there]


def _bands(lines: Sequence[Line]) -> Iterator[float]:
    for line in lines:
        yield from (b for b in (*line.low.values(), *line.high.values()) if not math.isnan(b))


def _perplexities(losses: Mapping[int, float]) -> dict[float, float]:
    """Returns perplexities, infinite where no axis could show them."""
    return {n: perplexity(loss) if loss < 700 else math.inf for n, loss in losses.items()}


def _level(line: Series) -> tuple[int, float] | None:
    """Returns T and the perplexity of the same targets from the last T tokens alone.

    That is the matched tail of length T itself. None without a longer length.
    """
    trained, losses = {p.train_length for p in line.points}, line.losses()
    scored_alike = all(p.protocol == HEADLINE for p in line.points)
    if line.variant is not None or len(trained) > 1 or not scored_alike:
        return None
    [T] = trained
    if T not in losses or max(losses) == T or losses[T] >= 700:
        return None
    return T, perplexity(losses[T])


def named(length: float) -> str:
    """Returns a tick as the tables write lengths."""
    return short(int(length))


def rank(last: float | None, label: str) -> tuple[bool, float, str]:
    """Orders series from the top down by their value at the longest length, without one last."""
    return (last is None, 0.0 if last is None else -last, label)


def _end(line: Series, scored: Sequence[float], longest: float) -> str:
    """Returns the label, and up to where the line goes if it ends before the others."""
    if longest in scored:
        return line.label
    if longest not in line.skipped:
        return f"{line.label} (to {named(scored[-1])})" if scored else f"{line.label} (none)"
    return f"{line.label} (n/a past {named(scored[-1])})" if scored else f"{line.label} (n/a)"
