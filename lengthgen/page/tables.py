"""The tables of perplexity, one per protocol."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from lengthgen.findings import recl, ties
from lengthgen.page.contents import Contents
from lengthgen.page.markup import Child, table, tag
from lengthgen.protocols import named
from lengthgen.series import Series
from lengthgen.statistics import HEADLINE, perplexity
from lengthgen.wording import headline, number, short, subject

SHARES = (0.1, 0.5, 1.0)  # of the targets that count in RECL


def tables(contents: Contents) -> list[Element]:
    """Returns the table of each protocol, the headline's with its best values marked."""
    found: list[Element] = []
    for protocol, lines in contents.series.items():
        points = [p for line in lines for p in line.points]
        is_headline, about = protocol == HEADLINE, named(protocol)
        marks = _marks(contents, lines) if is_headline else {}
        found += [
            tag("h3", "Matched tail" if is_headline else protocol),
            tag("p", f"Perplexity, {about.says} ({about.source})."),
            tag("p", f"{headline(points)}; {subject(points)}.", class_="note"),
            _table(lines, marks),
            *_notes(lines, marked=bool(marks)),
        ]
        if is_headline:
            found += _recl([line for line in lines if line.label not in contents.references])
    return found


def _marks(contents: Contents, lines: Sequence[Series]) -> dict[tuple[str, int], str]:
    """Returns which values are the best at their length, and which are not called worse."""
    compared = [line for line in lines if line.label not in contents.references]
    marks: dict[tuple[str, int], str] = {}
    if len(compared) > 1:
        for n in sorted({p.length for line in compared for p in line.points}):
            found = ties(compared, n)
            if found is not None:
                best, others = found
                marks[best.label, n] = "best"
                marks |= {(line.label, n): "tie" for line in others}
    return marks


def _table(lines: Sequence[Series], marks: dict[tuple[str, int], str]) -> Element:
    lengths = sorted({p.length for line in lines for p in line.points})
    reasons = _reasons(lines)
    rows: list[list[Child]] = []
    for line in lines:
        losses, skipped = line.losses(), line.skipped
        row: list[Child] = [line.label, str(len(line.runs))]
        for n in lengths:
            if n in losses:
                row.append(_value(perplexity(losses[n]), marks.get((line.label, n))))
            else:
                row.append(f"n/a ({reasons.index(skipped[n]) + 1})" if n in skipped else "-")
        rows.append(row)
    return table(["scheme", "seeds", *map(short, lengths)], rows)


def _value(value: float, mark: str | None) -> Child:
    if mark == "best":
        return tag("td", tag("b", number(value)), class_="best")
    return tag("td", "\u2248 " if mark == "tie" else "", number(value))


def _reasons(lines: Sequence[Series]) -> list[str]:
    return list(dict.fromkeys(reason for line in lines for reason in line.skipped.values()))


def _notes(lines: Sequence[Series], *, marked: bool) -> list[Element]:
    said = [f"n/a ({i}): {reason}." for i, reason in enumerate(_reasons(lines), start=1)]
    if marked:
        said.append(
            "Bold: the least at its length. \u2248: not called different from it, because the "
            "interval of the paired difference holds 0 or the seeds disagree."
        )
    return [tag("p", text, class_="note") for text in said]


def _recl(lines: Sequence[Series]) -> list[Element]:
    """Returns the table of the relative effective context length, where it is known."""
    found = {share: recl(lines, top=share) for share in SHARES}
    if not any(found.values()):
        return []
    rows: list[list[Child]] = [
        [line.label, *(_length(of.get(line.label)) for of in found.values())] for line in lines
    ]
    header = ["scheme", *(f"hardest {share:.0%}" for share in SHARES)]
    about = (
        "Relative effective context length in tokens (RECL, Dai et al. 2019, App. C): up to where "
        "each step to a longer text gains 1% of the perplexity, if each target takes the smaller "
        "of its baseline (the group's least loss at the shorter length) and the scheme's own loss "
        "at the longer one; so erratic losses count as gain, and a scheme that is harmed on "
        "average can have a long RECL. "
        f"Hardest {SHARES[0]:.0%}: that share of the targets, those of largest baseline."
    )
    return [tag("h3", "RECL"), tag("p", about), table(header, rows)]


def _length(tokens: int | None) -> str:
    return "-" if tokens is None else short(tokens)
