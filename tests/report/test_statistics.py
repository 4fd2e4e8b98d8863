# pyright: basic, reportAttributeAccessIssue=false
"""statistics: every formula against plain loops over rows, verdicts, comparisons and notes."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import LENGTHS, Loss, frame

from lengthgen.report.intervals import Estimate, Floats, Spread, gap, ratio
from lengthgen.report.series import select
from lengthgen.report.statistics import (
    EPS,
    CurvePoint,
    Sums,
    Verdict,
    curves,
    findings,
    loss_of,
    used_context,
    verdict,
)

T = 512


def noisy(key: int, *, scale: float = 0.05) -> Callable[[int, str, int], float]:
    """Losses of 3 nats with an effect of each seed, each document and each score."""

    def loss(seed: int, document: str, length: int) -> float:
        parts = [(key, seed), (key, document), (seed, document, length, key)]
        return 3 + sum(random.Random(repr(part)).gauss(0, scale) for part in parts)

    return loss


def numbers(
    rows: pd.DataFrame, quantity: str, series: str = "rope", protocol: str = "tail"
) -> dict[int, Any]:
    """Findings of a quantity by length; 0 where it has none."""
    table = findings(rows).fillna({"length": 0})
    own = table[(table["series"] == series) & (table["protocol"] == protocol)]
    own = own[own["quantity"] == quantity]
    lines: Any = own
    return {int(row.length): row for row in lines.itertuples()}


def notes(rows: pd.DataFrame) -> list[str]:
    table = findings(rows)
    return list(table.loc[table["quantity"] == "note", "word"])


# Plain loops over rows: the sums of each seed and document.

Sheet = tuple[Floats, Floats]  # sums [R, D], counts [D]


def sheet(rows: pd.DataFrame, length: int, nats: str = "nats", tokens: str = "n_tokens") -> Sheet:
    lines: Any = rows
    at = [r for r in lines.itertuples() if r.length == length]
    table = {(r.seed, r.document): (getattr(r, nats), getattr(r, tokens)) for r in at}
    seeds, documents = sorted({r.seed for r in at}), sorted({r.document for r in at})
    documents = [d for d in documents if table[seeds[0], d][1] > 0]
    sums = [[table[seed, document][0] for document in documents] for seed in seeds]
    return np.array(sums), np.array([float(table[seeds[0], name][1]) for name in documents])


def minus(a: Sheet, b: Sheet) -> Estimate:
    return gap(a[0], b[0], a[1])


def same(found: Mapping[int, Any], expected: Mapping[int, Estimate]) -> None:
    assert sorted(found) == sorted(expected)
    for n, slow in expected.items():
        close = pytest.approx((slow.value, slow.low, slow.high), rel=1e-12, abs=1e-13)
        assert (found[n].value, found[n].low, found[n].high) == close


def random_rows(key: int) -> pd.DataFrame:
    """Rows of a series in random order."""
    dice = random.Random(key)
    documents = {f"d{i}": dice.randint(2, 9) for i in range(dice.randint(3, 7))}
    copies = {d: dice.randint(0, n) for d, n in documents.items()} | {"d0": 2, "d1": 1}
    seeds = dice.sample(range(9), dice.randint(1, 4))
    table = frame(lambda _s, _d, _n: dice.uniform(2.98, 3.02), seeds=seeds, documents=documents)
    table["copy_tokens"] = [float(copies[d]) for d in table["document"]]
    share = [dice.uniform(0.5, 1) for _ in range(len(table))]
    table["copy_nats"] = table["nats"] * table["copy_tokens"] / table["n_tokens"] * share
    return table.sample(frac=1, random_state=key)


@pytest.mark.parametrize("key", range(4))
def test_losses_and_gains_are_those_of_plain_loops_in_any_order_of_rows(key: int) -> None:
    rows = random_rows(key)
    sheets = {n: sheet(rows, n) for n in LENGTHS}
    copies = {n: sheet(rows, n, "copy_nats", "copy_tokens") for n in LENGTHS}
    beside = [n for n in LENGTHS if n != T]
    same(numbers(rows, "loss"), {n: ratio(*sheets[n]) for n in LENGTHS})
    same(numbers(rows, "gain"), {n: minus(sheets[T], sheets[n]) for n in beside})
    same(numbers(rows, "copy_gain"), {n: minus(copies[T], copies[n]) for n in beside})
    again = rows.sort_values(["length", "seed", "document"], ascending=False)
    keys = ["protocol", "quantity", "length", "word"]
    one, other = (findings(r).sort_values(keys, ignore_index=True) for r in (rows, again))
    pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_a_loss_is_a_mean_over_windows_where_the_protocol_says_so() -> None:
    """Of two windows of each document the first has seven of eight tokens."""
    rows = frame(1.0, protocol="yarn", documents={"a": 8, "b": 8})
    rows = rows.assign(nats=7 * 3.0 + 2.0, window_nats=5.0, n_windows=2.0)
    assert numbers(rows, "loss", protocol="yarn")[T].value == pytest.approx(2.5)


def test_without_T_there_is_no_gain_and_that_is_said_and_that_there_is_one_seed() -> None:
    rows = frame(noisy(1), lengths=(1024, 2048), seeds=(1,))
    assert numbers(rows, "gain") == {}
    for said in ("no loss at T=512", "one seed: this checkpoint"):
        assert any(said in note for note in notes(rows))


@pytest.mark.parametrize("lengths", [(2048,), (512, 2048)])
def test_a_gain_of_a_variant_counts_from_the_model_as_it_is(lengths: tuple[int, ...]) -> None:
    plain = frame(noisy(1)).assign(copy_nats=2.0, copy_tokens=1.0)
    changed = frame(noisy(2), lengths=lengths, variant="yarn").assign(copy_nats=1.5, copy_tokens=1)
    rows = pd.concat([changed, plain])
    gains = {n: minus(sheet(plain, T), sheet(changed, n)) for n in lengths}
    same(numbers(rows, "gain", "rope + yarn"), gains)
    assert numbers(rows, "copy_gain", "rope + yarn")[2048].value == pytest.approx(0.5)
    assert not any("no loss at T" in note for note in notes(rows))
    alone = numbers(changed, "gain", "rope + yarn")
    same(alone, {2048: minus(*(sheet(changed, n) for n in (T, 2048)))} if T in lengths else {})


def estimate(low: float, high: float, *, seeds: tuple[float, ...] | None = None) -> Estimate:
    middle = (low + high) / 2
    unit = Spread(seeds=0.0, groups=1.0, n_seeds=2, freedom=7.0)
    found = Estimate(value=middle, low=low, high=high, seeds=seeds or (middle, middle), spread=unit)
    half = (high - low) / 2 if math.isfinite(high - low) else 1.0
    return replace(found, spread=replace(unit, groups=(half / unit.half_width(0.975)) ** 2))


@pytest.mark.parametrize(
    ("gain", "word"),
    [
        (estimate(-EPS, EPS), "flat"),
        (estimate(0.002, 0.008), "flat"),  # a gain, but too small to count
        (estimate(-0.008, -0.002), "flat"),
        (estimate(0.002, EPS + 1e-9), "uses"),
        (estimate(-EPS - 1e-9, -0.002), "harmed"),
        (estimate(0.2, 0.3), "uses"),
        (estimate(-0.3, -0.2), "harmed"),
        (estimate(0.2, 0.3, seeds=(0.6, -0.1)), "unclear"),
        (estimate(-0.3, -0.2, seeds=(-0.6, 0.1)), "unclear"),
        (estimate(0.0, 0.3), "unclear"),
        (estimate(-0.2, 0.3), "unclear"),
        (estimate(math.nan, math.nan, seeds=(0.1, 0.1)), "unclear"),
        (estimate(math.inf, math.inf), "unclear"),  # the loss at T is infinite
        (estimate(-math.inf, -0.1, seeds=(-math.inf, -0.2)), "harmed"),
    ],
)
def test_a_verdict_follows_from_the_interval(gain: Estimate, word: Verdict) -> None:
    assert verdict(gain) == word


def test_a_series_that_has_not_beaten_token_frequencies_is_not_trained_and_not_judged() -> None:
    """Their loss is 9 nats here."""
    for loss, word in ((8.9, "flat"), (9.0, "not trained"), (9.5, "not trained")):
        rows = frame(loss)
        assert {row.word for n, row in numbers(rows, "gain").items() if n > T} == {word}


@pytest.mark.parametrize(
    ("losses", "used"),
    [
        ({64: 3.0, 128: 3.0, 256: 3.0}, 64),
        ({64: 3.1, 128: 3.009, 256: 3.0, 512: 2.0}, 128),
        ({64: 3.1, 128: 3.011, 256: 3.0}, 256),
        ({64: 3.0, 128: 3.1, 256: 3.2}, 64),
        ({256: 3.0, 512: 2.0}, None),  # no length below T
        ({64: 3.0, 128: 3.0}, None),  # no T
        ({64: math.inf, 256: 3.0}, None),
    ],
)
def test_the_used_context_is_the_least_length_within_eps_of_the_best_up_to_T(
    losses: dict[int, float], used: int | None
) -> None:
    assert used_context(losses, 256) == used


def test_a_diverged_seed_stays_visible_as_an_infinite_loss() -> None:
    rows = frame(lambda s, _d, n: None if (s, n) == (2, 2048) else 3.0)
    losses = numbers(rows, "loss")
    assert losses[1024].value == pytest.approx(3.0)
    assert (losses[2048].value, losses[2048].n_seeds) == (math.inf, 3)
    assert math.isnan(losses[2048].low)
    assert any("diverged: rope-s2 at 2k" in note for note in notes(rows))
    assert numbers(rows, "gain")[2048].word == "unclear"


def test_lengths_and_documents_that_not_every_seed_has_are_left_out_and_named() -> None:
    full, short = frame(3.0, seeds=(1,)), frame(3.0, seeds=(2,), lengths=LENGTHS[:3])
    rows = pd.concat([full, short[short["document"] != "e"].assign(n_documents=4)])
    assert sorted(numbers(rows, "loss")) == [256, 512, 1024]
    assert sorted(numbers(rows, "gain")) == [256, 1024]
    assert any("left out: 2k" in note for note in notes(rows))
    assert any("left out: 1 of 5 documents" in note for note in notes(rows))


def test_of_a_variant_that_has_no_tail_nothing_is_said_to_be_left_out() -> None:
    rows = pd.concat([frame(3.0), frame(3.0, variant="yarn", protocol="nonoverlap")])
    assert notes(rows) == []


def test_the_seeds_of_a_number_are_those_evaluated_under_its_protocol() -> None:
    rows = pd.concat([frame(3.0), frame(3.0, seeds=(1,), protocol="nonoverlap")])
    found = findings(rows).groupby("protocol")["n_seeds"].unique()
    assert found.map(list).to_dict() == {"tail": [3], "nonoverlap": [1]}


def test_a_difference_is_that_of_plain_loops_on_shared_seeds_and_documents() -> None:
    a = frame(noisy(1), scheme="alibi", seeds=(4, 1, 2))
    b = frame(noisy(2), seeds=(3, 2, 4), documents="bcdex")
    (selection,) = select(pd.concat([a, b]))
    cells = [CurvePoint("tail", name, 1024) for name in ("alibi", "rope")]
    found = Sums(selection.rows, loss_of).difference(*cells)
    shared = [
        r[r["seed"].isin([2, 4]) & r["document"].isin([*"bcde"])].reset_index() for r in (a, b)
    ]
    assert found is not None
    same({1024: found}, {1024: minus(*(sheet(r, 1024) for r in shared))})


def noisy_table(above: Mapping[str, float], **changes: Any) -> pd.DataFrame:
    noise = noisy(3, scale=0.01)

    def loss(name: str) -> Loss:
        own = noisy(len(name), scale=0.01)
        return lambda s, d, n: noise(s, d, n) + own(s, d, n) + above[name]

    return pd.concat([frame(loss(name), scheme=name, **changes) for name in above])


GROUPS = {"a": "one", "b": "one", "c": "two", "d": "two", "e": None}  # e is a group of its own


def test_gains_and_differences_are_clustered_by_the_groups_of_documents() -> None:
    a, b = (frame(noisy(key), scheme=name) for key, name in ((1, "rope"), (2, "alibi")))
    rows = pd.concat([of.assign(group=[GROUPS[d] for d in of["document"]]) for of in (a, b)])
    codes, at_T, at = np.array([0, 0, 1, 1, 2]), sheet(a, T), sheet(a, 2048)
    clustered = gap(at_T[0], at[0], at[1], codes)
    same({2048: numbers(rows, "gain")[2048]}, {2048: clustered})
    assert clustered != minus(at_T, at)
    (selection,) = select(rows)
    found = Sums(selection.rows, loss_of).difference(
        *(CurvePoint("tail", name, 2048) for name in ("rope", "alibi"))
    )
    assert found == gap(at[0], sheet(b, 2048)[0], at[1], codes)


def test_of_one_group_alone_documents_are_the_sample_and_that_is_said() -> None:
    rows = frame(noisy(1))
    one, apart = rows.assign(group="one"), rows.assign(group=rows["document"].str.upper())
    assert any("of one group" in note for note in notes(one))
    assert not any("of one group" in note for note in notes(apart))
    found = [findings(known) for known in (rows, one, apart)]
    alone, *others = (f.loc[f["quantity"] != "note"].reset_index(drop=True) for f in found)
    for other in others:
        pd.testing.assert_frame_equal(other, alone)


def test_verdicts_that_hold_at_once_are_marked_and_others_are_not() -> None:
    """Of 0.5 at 1k, as precise as may be, and of 0.03 at 2k, whose interval just has a sign."""

    def loss(seed: int, document: str, n: int) -> float:
        spread = {1024: 1e-6, 2048: 0.0135}.get(n, 0.0) * ("abcde".index(document) - 2 + seed / 10)
        return 3 - {1024: 0.5, 2048: 0.03}.get(n, 0.0) + spread

    rows = frame(loss)
    alone = numbers(rows.loc[rows["length"] != 1024], "gain")[2048]
    gains = numbers(pd.concat([rows, frame(3.0, scheme="alibi")]), "gain")
    assert {n: gains[n].word for n in (1024, 2048)} == {1024: "uses", 2048: "uses"}
    assert (gains[1024].mark, gains[2048].mark, alone.mark) == ("joint", "", "joint")
    reference = frame(3.0, scheme="alibi", reference=True, variant="window")
    beside = numbers(pd.concat([rows.loc[rows["length"] != 1024], reference]), "gain")[2048]
    assert beside.mark == "joint"  # references are no statements


def test_the_bounds_of_the_used_context_are_those_of_paired_differences() -> None:
    """From 256 on all is as good; at 128 it may be, at 64 it is not."""
    lengths, above = (64, 128, 256, 512), {64: 0.2, 128: 0.02}
    noise = noisy(1, scale=0.02)

    def loss(seed: int, document: str, n: int) -> float:
        return 3 + above.get(n, 0.0) + (noise(seed, document, n) - 3 if n < 256 else 0.0)

    rows = frame(loss, lengths=lengths)
    used = numbers(rows, "c_star")[0]
    excess = {n: minus(sheet(rows, n), sheet(rows, 256)) for n in lengths}
    may = min(n for n, e in excess.items() if e.low <= EPS)
    does = min(n for n, e in excess.items() if e.high <= EPS)
    assert (used.low, used.value, used.high) == (may, 256, does) == (128, 256, 256)
    assert used.word == "256 [128, 256]"
    assert numbers(frame(3.0, documents="a"), "c_star")[0].word == "<= 256"  # without intervals


def test_the_curves_of_two_texts_are_told_apart() -> None:
    rows = pd.concat([frame(4.0), frame(5.0, corpus="prose", fingerprint="prose" * 8)])
    table = curves(findings(rows))
    assert not table.duplicated(["corpus", "series", "protocol", "length"]).any()
    assert dict(zip(table["corpus"], table["loss"], strict=True)) == {"toy": 4.0, "prose": 5.0}


def marks(rows: pd.DataFrame) -> dict[str, str]:
    table = findings(rows)
    own = table[(table["quantity"] == "loss") & (table["length"] == 1024)]
    return dict(zip(own["series"], own["mark"], strict=True))


def test_what_may_be_best_are_the_series_not_told_apart_from_the_least() -> None:
    rows = noisy_table({"worst": 0.5, "best": 0.0, "close": 0.001})
    assert sorted(marks(rows).values()) == ["", "best", "tie"]
    assert marks(rows)["worst"] == ""


def test_what_cannot_be_compared_with_the_best_is_unknown_unless_all_its_seeds_diverged() -> None:
    others = [
        frame(4.0, scheme="strange", seeds=(8,)),
        frame(2.0, scheme="lone", seeds=(1,)),
        frame(lambda s, _d, _n: None if s == 1 else 3.0, scheme="split"),
        frame(lambda _s, _d, _n: None, scheme="none"),
    ]
    found = marks(pd.concat([noisy_table({"a": 0.0, "b": 0.5}), *others]))
    unknown = dict.fromkeys(["strange", "lone", "split"], "unknown")
    assert found == {"a": "best", "b": "", "none": "", **unknown}


def test_the_best_is_no_series_that_another_is_shown_to_be_better_than() -> None:
    """A third seed, which the other lacks, has given it the least loss of all its seeds."""
    noise = noisy(4, scale=0.001)
    a = frame(lambda s, d, n: noise(s, d, n) + (3 if s < 3 else 2), scheme="a")
    b = frame(lambda s, d, n: noise(s, d, n) + 2.9, scheme="b", seeds=(1, 2))
    assert marks(pd.concat([a, b])) == {"a": "unknown", "b": "best"}


@pytest.mark.parametrize("change", [{"seeds": (1,)}, {"documents": "a"}])
def test_one_seed_or_one_document_names_no_best(change: Mapping[str, Any]) -> None:
    rows = noisy_table({"a": 0.0, "b": 5.0}, **change)
    assert set(marks(rows).values()) == {""}


def test_a_reference_is_not_the_best() -> None:
    rows = noisy_table({"a": 0.1, "b": 0.5})
    window = frame(2.0, scheme="a", run="a", variant="window", reference=True)
    found = marks(pd.concat([rows, window]))
    assert (found["a + window"], found["a"]) == ("", "best")
