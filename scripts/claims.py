"""Writes docs/results/published.md: what papers say, and whether the committed studies show it.

    python scripts/claims.py

results/claims.yaml holds claims. A statement of one is a quantity of a study and a bound:

    rope 16k/T > 2                 perplexity of a scheme at 16k tokens over that at T
    rope+yarn/rope at 1k < 1       of a scheme, or scheme+variant, over that of another
    rope 1k/T over nope 1k/T > 1   one quantity over another
    t5 minus alibi > 0             accuracy in a task beyond L, minus that of another scheme

[plain_1024, dape, T=1024] behind a quantity: its study, protocol, T where they are not the claim's.
A claim with `untested: REASON`, or of a study without rows, is not tested.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from lengthgen.report.intervals import Estimate, Floats, as_share, gap, holm, ratio
from lengthgen.report.load import load_rows
from lengthgen.report.series import select
from lengthgen.report.statistics import CurvePoint, Sample, Sums, loss_of

RESULTS = Path(__file__).resolve().parents[1] / "results"
PAGE = RESULTS.parent / "docs" / "results" / "published.md"
TOUCHES = 0.001  # an interval that ends so near to its bound decides nothing
OTHER_TEXT = ("kerple", "dape")  # protocols that score other tokens at each length
RISE = re.compile(r"(?P<name>[\w+]+) (?P<length>\w+)/T(?: \[(?P<where>[^]]+)\])?")
PAIR = re.compile(r"(?P<a>[\w+]+)/(?P<b>[\w+]+) at (?P<length>\w+)")
STATEMENT = re.compile(r"(?P<quantity>.+) (?P<side>[<>]) (?P<bound>[\d.]+)")


class NoRows(LookupError):
    """A study lacks the rows of a quantity."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a quantity is measured."""

    study: str
    protocol: str = "tail"
    train_length: int = 512


@cache
def rows_of(study: str) -> pd.DataFrame:
    """Returns the rows of a study with their series; of tasks those of every task."""
    return pd.concat([text.rows for text in select(load_rows([RESULTS / study]))])


@cache
def sums_of(study: str) -> Sums:
    return Sums(rows_of(study), loss_of)


def cell(place: Place, name: str, length: str) -> CurvePoint:
    """Returns the cell of a scheme, or scheme+variant, at a length such as 512 or 1k."""
    scheme, _, variant = name.partition("+")
    rows = rows_of(place.study)
    of_scheme = (rows["scheme"] == scheme) & (rows["train_length"] == place.train_length)
    n = 1024 * int(length[:-1]) if length.endswith("k") else int(length)
    held = of_scheme & (rows["variant"].fillna("") == variant) & (rows["length"] == n)
    found = set(rows.loc[held & (rows["protocol"] == place.protocol), "series"])
    if not found:
        raise NoRows(f"`{place.study}/` has no rows of {name} at {length} under `{place.protocol}`")
    [series] = found
    return CurvePoint(place.protocol, series, n)


def sampled(place: Place, cells: Sequence[CurvePoint]) -> Sample:
    sample = sums_of(place.study).sample(cells)
    assert sample is not None, f"cells that share no targets: {cells}"
    return sample


def placed(place: Place, where: str | None) -> Place:
    """Returns the place with what brackets change of it."""
    for word in (where or "").split(", "):
        if word.startswith("T="):
            place = replace(place, train_length=int(word[2:]))
        elif (RESULTS / word / "rows.parquet").is_file() and word != place.study:
            place = replace(place, study=word)
        elif word:
            place = replace(place, protocol=word)
    return place


def log_ratio(quantity: str, place: Place, n: int) -> Estimate:
    """Returns ln of a ratio of perplexities, with the interval that holds in n statements at once.

    Paired by seed and document where its parts score the same targets, else as of independent ones.
    """
    if pair := PAIR.fullmatch(quantity):
        cells = [cell(place, pair[x], pair["length"]) for x in "ab"]
        return sampled(place, cells).gap(0, 1).widened(n)
    rises: list[tuple[Place, list[CurvePoint]]] = []
    for part in map(RISE.fullmatch, quantity.split(" over ")):
        assert part is not None, f"not a quantity: {quantity}"
        there, scheme = placed(place, part["where"]), part["name"].partition("+")[0]
        at_T = cell(there, scheme, str(there.train_length))
        rises.append((there, [cell(there, part["name"], part["length"]), at_T]))
    if len({(there.study, there.protocol) for there, _ in rises}) < len(rises):
        sample = sampled(rises[0][0], [*rises[0][1], *rises[1][1]])
        a, a_at_T, b, b_at_T = sample.sums
        return gap(a + b_at_T, a_at_T + b, sample.counts_D, sample.groups_D).widened(n)
    of_rises = [_rise(*rise, n) for rise in rises]
    return _minus(*of_rises) if len(of_rises) == 2 else of_rises[0]


def _rise(place: Place, cells: Sequence[CurvePoint], n: int) -> Estimate:
    if place.protocol in OTHER_TEXT:
        return _minus(*(sampled(place, [one]).mean(0).widened(n) for one in cells))
    return sampled(place, cells).gap(0, 1).widened(n)


def _minus(a: Estimate, b: Estimate) -> Estimate:
    """Returns the difference of two independent estimates, its interval by the root of squares."""
    value = a.value - b.value
    below, above = (a.value - a.low, b.high - b.value), (a.high - a.value, b.value - b.low)
    return replace(a, value=value, low=value - math.hypot(*below), high=value + math.hypot(*above))


def share(quantity: str, study: str, task: str, n: int) -> Estimate:
    """Returns accuracy beyond L to 2L, or the difference of two, as `log_ratio` does."""
    a, _, b = quantity.partition(" minus ")
    right = [_right(scheme, study, task) for scheme in (a, b) if scheme]
    weights_D = np.concatenate([np.full(of.shape[1], 1 / of.shape[1]) for of in right[0]])
    right_RD = [np.concatenate(of_scheme, axis=1) * weights_D for of_scheme in right]
    if len(right_RD) == 2:
        found = gap(right_RD[0], right_RD[1], weights_D).widened(n)
        return replace(found, low=max(-1.0, found.low), high=min(1.0, found.high))
    n_examples = min(of.shape[1] for of in right[0]) * len(right[0])
    return as_share(ratio(right_RD[0], weights_D).widened(n), n_examples, n)


def _right(scheme: str, study: str, task: str) -> list[Floats]:
    """Returns 1 for each right answer, else 0, [R, D] at each length beyond L to 2L."""
    rows = rows_of(study)
    beyond = (rows["length"] > rows["train_length"]) & (rows["length"] <= 2 * rows["train_length"])
    beyond &= (rows["corpus"] == task) & (rows["scheme"] == scheme)
    by_length = rows.loc[beyond].sort_values("seed").groupby("length")
    return [
        np.array([[at is None for at in wrong] for wrong in of["first_wrong"]], dtype=np.float64)
        for _, of in by_length
    ]


def judged(statement: str, claim: Mapping[str, Any], n: int = 1) -> tuple[str, bool | None]:
    """Returns a statement of a claim with the interval that the study gives, and if it holds.

    By the interval that holds in n statements at once.
    """
    parts = STATEMENT.fullmatch(statement)
    assert parts is not None, f"not a statement: {statement}"
    quantity, above, bound = parts["quantity"], parts["side"] == ">", float(parts["bound"])
    if task := claim.get("task"):
        e, limit = share(quantity, claim["study"], task, n), bound
        value, low, high = (f"{100 * v:.1f}" for v in (e.value, e.low, e.high))
        of_bound, shown = f"{100 * bound:.3g} %" if bound else "", f"{value} % [{low}, {high}]"
    else:
        keys = ("study", "protocol", "train_length")
        place = Place(**{key: claim[key] for key in keys if key in claim})
        e, limit = log_ratio(quantity, place, n), math.log(bound)
        value, low, high = (f"{math.exp(min(v, 50)):.3g}" for v in (e.value, e.low, e.high))
        of_bound, shown = f"{bound:.3g}" if bound != 1 else "", f"{value} [{low}, {high}]"
    side = f", {'above' if above else 'below'} {of_bound}" if of_bound else ""
    return f"{quantity}{side}: {shown}", on_side(e, limit, above=above)


def on_side(estimate: Estimate, bound: float, *, above: bool) -> bool | None:
    """Returns whether the interval lies on the claimed side of the bound; None if it holds it."""
    if estimate.low > bound + TOUCHES:
        return above
    return not above if estimate.high < bound - TOUCHES else None


def verdict(holds: Sequence[bool | None]) -> str:
    """Returns what the statements of a claim come to."""
    if False in holds:
        return "in part" if True in holds else "not reproduced"
    return "unclear" if None in holds else "reproduced"


def missing(claim: Mapping[str, Any]) -> str:
    """Returns why a claim is not tested; an empty text if it is."""
    if "untested" in claim:
        return claim["untested"]
    if not (RESULTS / claim["study"] / "rows.parquet").is_file():
        return f"`study={claim['study']}` is not run"
    try:
        for statement in claim["here"]:
            judged(statement, claim)
    except NoRows as error:
        return str(error)
    return ""


def decided_at_once(claims: Sequence[Mapping[str, Any]]) -> set[tuple[int, str]]:
    """Returns the statements, with the place of their claim, that hold or fail all at once."""
    tested = ((i, claim) for i, claim in enumerate(claims) if not claim["untested"])
    made = [(i, statement) for i, claim in tested for statement in claim["here"]]
    return holm(made, lambda of, n: judged(of[1], claims[of[0]], n)[1] is not None)


def page(claims: Mapping[str, Any]) -> str:
    """Returns the whole page."""
    sections: list[dict[str, Any]] = []
    for section in claims["sections"]:
        of_study = [{"study": section["study"], **claim} for claim in section["claims"]]
        placed_claims = [{**claim, "untested": missing(claim)} for claim in of_study]
        sections.append({**section, "claims": placed_claims})
    every = [claim for section in sections for claim in section["claims"]]
    n = sum(len(claim["here"]) for claim in every if not claim["untested"])
    by_chance = f"about {n / 20:.0f} would be decided if every value lay on its bound"
    text = "# Published claims, and what the committed studies show\n\n"
    text += f"{claims['introduction']} Of {n} statements {by_chance}.\n"
    for section in sections:
        lines = ["| claim | source | published | here | verdict |", "|---|---|---|---|---|"]
        at_once = decided_at_once(section["claims"])
        for i, claim in enumerate(section["claims"]):
            here, word = claim["untested"], "not tested"
            if not here:
                found = [(*judged(s, claim), "\\*" * ((i, s) in at_once)) for s in claim["here"]]
                here = "; ".join(f"{shown}{star}" for shown, _, star in found)
                word = verdict([holds for _, holds, _ in found])
            published = claim.get("published", "direction only")
            if (protocol := claim.get("protocol")) and word != "not tested":
                here = f"`{protocol}`: {here}"
            cells = [claim["claim"], claim["source"], published, here, f"**{word}**"]
            lines.append(f"| {' | '.join(cells)} |")
        table = "\n".join(lines)
        text += f"\n## {section['title']}\n\n{section['about']}\n\n{table}\n"
    rows = "".join(f"| {c['claim']} | {c['source']} | {c['why']} |\n" for c in claims["untested"])
    return f"{text}\n## Not tested here\n\n| claim | source | why |\n|---|---|---|\n{rows}"


if __name__ == "__main__":
    listed = yaml.safe_load((RESULTS / "claims.yaml").read_text(encoding="utf-8"))
    PAGE.write_text(page(listed), encoding="utf-8")
