"""The numbers of a report as CSV: every point, every difference of a pair, every finding."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import combinations

from lengthgen.analysis.comparisons import Comparison, compare, difference
from lengthgen.analysis.curves import Point, context_gain
from lengthgen.analysis.findings import Finding
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.seed_groups import Series
from lengthgen.report.curve_tables import competitors
from lengthgen.report.table_formats import csv_text


def points_csv(by_protocol: Mapping[str, Sequence[Series]]) -> str:
    """Returns one line per point: its series, all its fields and, under the headline, its gain."""
    names = [field.name for field in fields(Point) if field.name not in ("rows", "weights")]
    rows: list[list[object]] = []
    for lines in by_protocol.values():
        labelled = [(line.label, p) for line in lines for p in line.points]
        gains = {id(gain.point): gain for gain in context_gain(p for _, p in labelled)}
        for label, p in sorted(
            labelled, key=lambda of: (of[1].run, of[1].variant or "", of[1].length)
        ):
            gain = gains.get(id(p))
            derived = (gain.nats, gain.ratio) if gain else (None, None)
            rows.append([label, *(getattr(p, name) for name in names), *derived])
    return csv_text(["series", *names, "context_gain", "ratio_to_T"], rows)


def differences_csv(lines: Sequence[Series]) -> str:
    """Returns a line per pair of competing series, at T and at the longest length that they share.

    A pair of unlike T is compared at the longest length alone.

    Low and high are of the pair by itself; apart says whether the two differ, all pairs of
    the length taken together at 95%.
    """
    rows: list[list[object]] = []
    compared, found = competitors(lines), dict[int, Comparison | None]()
    for a, b in combinations(compared, 2):
        shared = a.losses().keys() & b.losses().keys()
        if not shared:
            continue
        at_T = {a.train_length} & {b.train_length} & shared
        for n in sorted(at_T | {max(shared)}):
            estimate = difference(a, b, n)
            if n not in found:
                found[n] = compare(compared, n)
            at_n = found[n]
            if estimate is not None:
                names, pairs = (a.label, b.label), at_n.different if at_n is not None else set()
                is_apart = names in pairs or names[::-1] in pairs
                known = at_n is not None and {*names} <= at_n.ranks.keys()
                distinct = is_apart if known else ""
                rows.append([*names, n, *_numbers(estimate), distinct, len(estimate.seeds)])
    return csv_text(["a", "b", "length", "a_minus_b", "low", "high", "apart", "n_seeds"], rows)


def findings_csv(findings: Sequence[Finding]) -> str:
    """Returns a line per series, quantity and length: value, 95% interval, and a verdict's word."""
    rows: list[list[object]] = []
    for finding in findings:
        series = [finding.series.label, len(finding.series.runs), finding.series.train_length]
        for quantity in ("loss", "gain", "swap", "shuffle", "far", "near", "far_gain", "near_gain"):
            estimates: Mapping[int, Estimate] = getattr(finding, quantity)
            for length, estimate in estimates.items():
                word = finding.verdicts[length].word if _has_word(finding, quantity, length) else ""
                rows.append([*series, quantity, length, *_numbers(estimate), word])
        for n, gain in finding.gain.items():
            shown = _or_empty(gain.detectable, math.nan, math.nan)
            rows.append([*series, "least_gain_shown", n, *shown, ""])
        if finding.used is not None:
            c = finding.used
            rows.append([*series, "used_context", "", c.value, c.low, c.high, c.text])
        for n, bits in finding.bits_per_byte.items():
            rows.append([*series, "bits_per_byte", n, *_or_empty(bits, math.nan, math.nan), ""])
        for factor in finding.factors:
            found = _or_empty(factor.value, factor.low, factor.high)
            rows.append([*series, f"factor_{factor.eps:g}", "", *found, factor.text])
    head = ["series", "n_seeds", "train_length", "quantity", "length", "value", "low", "high"]
    return csv_text([*head, "text"], rows)


def _has_word(finding: Finding, quantity: str, length: int) -> bool:
    return quantity == "gain" and length in finding.verdicts


def _numbers(estimate: Estimate) -> list[float | str]:
    return _or_empty(estimate.value, estimate.low, estimate.high)


def _or_empty(*values: float) -> list[float | str]:
    """Returns the values, empty where there is none."""
    return ["" if math.isnan(value) else value for value in values]
