"""The tables of perplexity, one per protocol."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from lengthgen.analysis.curves import HEADLINE, perplexity
from lengthgen.analysis.findings import recl
from lengthgen.analysis.formatting import headline, number, short, subject
from lengthgen.analysis.seed_groups import Series, ordered
from lengthgen.evaluation.protocols import named
from lengthgen.report.page.contents import Contents
from lengthgen.report.page.markup import Child, table, tag
from lengthgen.report.tables import NOT_MARKED, Marks, competitors, marks_of

SIGNS = {"tie": "\u2248 ", "unknown": "? "}  # before a value
SHARES = (0.1, 0.5, 1.0)  # of the targets that count in RECL


def tables(contents: Contents) -> list[Element]:
    """Returns the table of each protocol, the headline's with its best values marked."""
    found: list[Element] = []
    for protocol, lines in contents.series.items():
        points = [p for line in lines for p in line.points]
        is_headline, about = protocol == HEADLINE, named(protocol)
        compared = competitors(lines)
        marks = marks_of(compared, _lengths(lines)) if is_headline else {}
        found += [
            tag("h3", "Matched tail" if is_headline else protocol),
            tag("p", f"Perplexity, {about.says} ({about.source})."),
            tag("p", f"{headline(points)}; {subject(points)}.", class_="note"),
            _table(ordered(lines), marks),
            *_notes(lines, compared if is_headline else [], marks),
        ]
        if is_headline:
            found += _recl(compared)
    return found


def _lengths(lines: Sequence[Series]) -> list[int]:
    return sorted({p.length for line in lines for p in line.points})


def _table(lines: Sequence[Series], marks: Marks) -> Element:
    lengths = _lengths(lines)
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
    return tag("td", SIGNS.get(mark or "", ""), number(value))


def _reasons(lines: Sequence[Series]) -> list[str]:
    return list(dict.fromkeys(reason for line in lines for reason in line.skipped.values()))


def _notes(lines: Sequence[Series], compared: Sequence[Series], marks: Marks) -> list[Element]:
    said = [f"n/a ({i}): {reason}." for i, reason in enumerate(_reasons(lines), start=1)]
    if marks:
        said.append(
            "Bold: the least at its length. \u2248: may be as good, all schemes of a length taken "
            "together at 95% (multiple comparisons with the best). ?: not compared with it."
        )
    elif len(compared) > 1:
        said.append(NOT_MARKED)
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
