"""The chart of a task: accuracy over the length of its examples, the trained range shaded."""

from collections.abc import Sequence
from dataclasses import replace

from lengthgen.analysis.accuracy import LEARNED, Accuracy
from lengthgen.analysis.formatting import subject
from lengthgen.report.figures.chart import Chart, Published
from lengthgen.report.figures.curve import line_of, rank, said
from lengthgen.report.figures.looks import line_looks

UNCOUNTED = f"less than {LEARNED:.0%} right up to L, or unknown there; neither compared nor ranked"
PALE = {"color": "0.6", "markerfacecolor": "0.6"}


def accuracy(
    found: Sequence[Accuracy],
    *,
    unit: str,
    chance: float,
    published: Sequence[Published],
) -> Chart | None:
    """Returns the share of right answers over length, a line per series; None without a value.

    `unit`: what the length counts. `chance`: the share without reading the prompt. `published`:
    lines behind.
    """
    there = [one for one in found if one.exact]
    if not there:
        return None
    lines = [one.series for one in there]
    looks = line_looks(lines)
    longest = max(length for one in there for length in one.exact)
    drawn = [
        line_of(
            one.series,
            look=looks[one.series.label],
            values={length: estimate.value for length, estimate in one.exact.items()},
            band=one.exact,
            longest=longest,
            seeds=[
                {length: estimate.seeds[i] for length, estimate in one.exact.items()}
                for i in range(len(one.series.runs))
            ],
        )
        for one in there
    ]
    drawn = [
        line
        if one.excluded is None
        else replace(line, end=f"{line.end} ({one.excluded})", look={**line.look, **PALE})
        for one, line in zip(there, drawn, strict=True)
    ]
    drawn.sort(key=lambda line: rank(line.values.get(longest), line.name))
    points = [p for line in lines for p in line.points]
    return Chart(
        lines=drawn,
        behind=published,
        title=f"right answers, {subject(points)}",
        says=[
            "shaded: lengths in training",
            *([f"pale: {UNCOUNTED}"] if any(one.excluded for one in there) else []),
            *(["grey: published, of other models and formats"] if published else []),
            *(phrase.replace("documents", "examples") for phrase in said(drawn, lines, level="")),
        ],
        quantity="accuracy (all of the answer)",
        scale="share",
        zone=None,
        floor=("chance", chance) if chance else None,
        ticks=sorted({length for one in there for length in one.exact}),
        named="{:g}".format,
        axis=f"length: {unit}",
        trained=sorted({line.train_length for line in lines}),
        marks=True,
    )
