"""The table of verdicts: what the text beyond T does to each scheme at each length."""

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from lengthgen.findings import EPS, Finding, Verdict, Word
from lengthgen.page.contents import Contents
from lengthgen.page.looks import swatch
from lengthgen.page.markup import Child, table, tag
from lengthgen.page.numbers import bounds, change
from lengthgen.wording import short

MEANINGS: dict[Word, tuple[str, str]] = {  # a sign beside the colour, and what is meant
    "uses": ("\u25b2", "the text beyond T lowers the loss"),
    "no gain": ("\u25c6", f"it is read (swapping it hurts), but G(C) is within {EPS} of 0"),
    "ignores": ("\u25a0", f"G(C) is within {EPS} of 0"),
    "harmed": ("\u25bc", "it raises the loss"),
    "unclear": (
        "?",
        "the interval or the seeds do not decide, or there is no interval (one document, "
        "one window)",
    ),
}


def verdicts(contents: Contents) -> list[Element]:
    """Returns the table, how to read it, and a line for the sentence behind a verdict."""
    shown = [f for f in contents.findings if f.series.label not in contents.references]
    lengths = sorted({n for finding in shown for n in finding.verdicts})
    epsilons = sorted({factor.eps for finding in shown for factor in finding.factors})
    header = [
        "scheme",
        *(f"at {short(n)}" for n in lengths),
        *(f"XF {eps:g}" for eps in epsilons),
        "peak",
    ]
    rows = [_row(contents, finding, lengths, epsilons) for finding in shown]
    said = tag("p", "Point at, or tap, a verdict for the sentence behind it.", class_="why script")
    said.set("aria-live", "polite")
    return [table(header, rows, class_="verdicts"), said, _key(bool(epsilons))]


def _row(
    contents: Contents, finding: Finding, lengths: Sequence[int], epsilons: Sequence[float]
) -> list[Child]:
    label = finding.series.label
    name = tag("a", swatch(contents.strokes[label]), label, href=f"#{contents.keys[label]}")
    factors = {factor.eps: factor for factor in finding.factors}
    return [
        name,
        *(_cell(finding.verdicts.get(n)) for n in lengths),
        *(_factor(finding, eps) if eps in factors else "-" for eps in epsilons),
        "-" if finding.peak is None else short(finding.peak),
    ]


def _factor(finding: Finding, eps: float) -> Element:
    factor = next(factor for factor in finding.factors if factor.eps == eps)
    if factor.low == factor.high or math.isnan(factor.low):
        return tag("td", factor.text)
    return tag("td", factor.text, tag("small", factor.interval))


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


def _key(has_factors: bool) -> Element:
    entries = [tag("li", badge(word), f" {MEANINGS[word][1]}") for word in MEANINGS]
    entries.append(
        tag("li", "Beside each verdict: G(C) in nats per token, below it the 95% interval.")
    )
    if has_factors:
        text = "XF: how many T a scheme reaches before its loss exceeds that at T by so many nats."
        entries.append(tag("li", text))
    entries.append(tag("li", "Peak: the length of least loss."))
    return tag("ul", *entries, class_="key")
