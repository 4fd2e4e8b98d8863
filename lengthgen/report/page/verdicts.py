"""The table of verdicts: what the text beyond T does to each scheme at each length."""

import math
from collections.abc import Collection, Sequence
from xml.etree.ElementTree import Element

from lengthgen.analysis.findings import EPS, Factor, Finding, Verdict, Word
from lengthgen.analysis.formatting import short
from lengthgen.report.page.contents import Contents
from lengthgen.report.page.looks import swatch
from lengthgen.report.page.markup import Child, table, tag
from lengthgen.report.page.numbers import bounds, change
from lengthgen.report.tables import detectable, judged, poor, speaks_of, used

MEANINGS: dict[Word, tuple[str, str]] = {  # a sign beside the colour, and what is meant
    "uses": ("\u25b2", "the text beyond T lowers the loss"),
    "no gain": ("\u25c6", f"it is read (swapping it hurts), but G(C) is within {EPS} of 0"),
    "ignores": ("\u25a0", f"G(C) is within {EPS} of 0, and c* is at least T/2"),
    "short-sighted": ("\u25e7", f"G(C) is within {EPS} of 0, but c* is below T/2"),
    "harmed": ("\u25bc", "it raises the loss"),
    "unclear": ("?", "the data do not decide; the sentence behind it says what would"),
}


def verdicts(contents: Contents) -> list[Element]:
    """Returns the table, how to read it, and a line for the sentence behind a verdict."""
    shown = judged(contents.findings)
    lengths = sorted({n for finding in shown for n in finding.verdicts})
    epsilons = sorted({factor.eps for finding in shown for factor in finding.factors})
    header = [
        "scheme",
        "seeds",
        "c*",
        *(f"at {short(n)}" for n in lengths),
        "least |G| shown",
        "peak",
        *(f"XF {eps:g}" for eps in epsilons),
    ]
    faint = poor([finding.series for finding in contents.findings])
    rows = [_row(contents, finding, lengths, epsilons, faint) for finding in shown]
    said = tag("p", "Point at, or tap, a verdict for the sentence behind it.", class_="why script")
    said.set("aria-live", "polite")
    return [table(header, rows, class_="verdicts"), said, _key(bool(epsilons), bool(faint))]


def _row(
    contents: Contents,
    finding: Finding,
    lengths: Sequence[int],
    epsilons: Sequence[float],
    faint: Collection[str],
) -> list[Child]:
    label = finding.series.label
    name = tag("a", swatch(contents.strokes[label]), label, href=f"#{contents.keys[label]}")
    factors = {factor.eps: factor for factor in finding.factors}
    return [
        name,
        speaks_of(finding),
        used(finding),
        *(_cell(finding.verdicts.get(n)) for n in lengths),
        detectable(finding),
        "-" if finding.peak is None else short(finding.peak),
        *(_factor(factors[eps], label in faint) if eps in factors else "-" for eps in epsilons),
    ]


def _factor(factor: Factor, is_faint: bool) -> Element:
    class_ = "faint" if is_faint else None
    if factor.low == factor.high or math.isnan(factor.low):
        return tag("td", factor.text, class_=class_)
    return tag("td", factor.text, tag("small", factor.interval), class_=class_)


def _cell(verdict: Verdict | None) -> Child:
    if verdict is None:
        return "-"
    return tag(
        "td",
        badge(verdict.word),
        f" {change(verdict.gain.value)}",
        tag("small", bounds(verdict.gain, change)),
        class_="verdict",
        title=verdict.why,
        tabindex="0",
    )


def badge(word: Word) -> Element:
    """Returns the word in its colour with its sign."""
    sign = tag("span", MEANINGS[word][0], aria_hidden="true")
    return tag("span", sign, word, class_=f"badge {word.replace(' ', '-')}")


def _key(has_factors: bool, has_faint: bool) -> Element:
    entries = [tag("li", badge(word), f" {MEANINGS[word][1]}") for word in MEANINGS]
    said = [
        "Beside each verdict: G(C) in nats per token, below it the 95% interval, of each verdict "
        "by itself. Of one seed it is a verdict on this checkpoint, not on the scheme.",
        "c*, the used context: the least length up to T whose loss is within 0.01 nats of the "
        "least one.",
        "Least |G| shown: what the data would show at the longest length in 80 of 100 cases.",
        "Peak: the length of least loss.",
    ]
    if has_factors:
        said.append(
            "XF: how many T a scheme reaches before its loss exceeds that at T by so many nats."
        )
    if has_faint:
        said.append("Grey: the loss at T is more than 0.05 nats above the least.")
    return tag("ul", *entries, *(tag("li", text) for text in said), class_="key")
