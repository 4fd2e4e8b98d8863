"""findings: every formula against plain loops over rows, and the verdicts on them."""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from eval_rows import NOTHING, Row, row

from lengthgen.analysis.comparisons import Comparison, compare, compared, difference
from lengthgen.analysis.curves import curve
from lengthgen.analysis.effective_context import recl
from lengthgen.analysis.eval_rows import FORMAT
from lengthgen.analysis.findings import Finding, findings
from lengthgen.analysis.intervals import Estimate, Floats, Spread, gap, ratio
from lengthgen.analysis.seed_groups import Series, series
from lengthgen.analysis.used_context import UsedContext
from lengthgen.analysis.verdicts import EPS, Word, verdict
from lengthgen.errors import UserError

T = 512
LENGTHS = (256, 512, 1024, 2048)
Loss = Callable[[int, str, int], float | None]  # of seed, document, length


def line(rows: Iterable[Row], label: str = "rope") -> Series:
    points = curve(rows)
    (found,) = series(points, {(p.run, p.variant): label for p in points})
    return found


def rows_of(
    loss: Loss,
    *,
    run: str = "r",
    seeds: Sequence[int] = (1, 2, 3),
    documents: Mapping[str, int] | str = "abcde",
    lengths: Sequence[int] = LENGTHS,
    **changes: Any,
) -> list[Row]:
    """Rows of runs with a loss by seed, document and length; documents have 4 targets."""
    n_tokens = documents if isinstance(documents, Mapping) else dict.fromkeys(documents, 4)
    return [
        row(
            **{"run": f"{run}{seed}", "seed": seed, "document": d, "length": n},
            **{"n_documents": len(n_tokens), "n_tokens": k, "n_bytes": 3 * k},
            **{"nats": None if (x := loss(seed, d, n)) is None else k * x},
            **{"window_nats": None if x is None else x, **changes},
        )
        for seed in seeds
        for d, k in n_tokens.items()
        for n in lengths
    ]


def by_length(*losses: float) -> Loss:
    """The same loss in all seeds and documents."""
    return lambda _seed, _document, n: losses[LENGTHS.index(n)]


def one(series: Mapping[str, Sequence[Series]]) -> Finding:
    (found,) = findings(series)
    return found


def of(loss: Loss, **changes: Any) -> Finding:
    return one({"tail": [line(rows_of(loss, **changes))]})


def nowhere(_seed: int, _document: str, _length: int) -> None:
    """A model that diverged everywhere."""


def noisy(key: int, *, scale: float = 0.05) -> Callable[[int, str, int], float]:
    """Losses of 3 nats with an effect of each seed, each document and each score."""

    def loss(seed: int, document: str, length: int) -> float:
        parts = [(key, seed), (key, document), (seed, document, length, key)]
        return 3 + sum(random.Random(repr(part)).gauss(0, scale) for part in parts)

    return loss


# Plain loops over rows: the sums of each seed and document.

Sums = Callable[[Row], tuple[float, int]]
Sheet = tuple[Floats, Floats]  # sums [R, D], counts [D]
ALL: Sums = lambda r: (r["nats"], r["n_tokens"])  # noqa: E731
FAR: Sums = lambda r: (r["far_nats"], r["far_tokens"])  # noqa: E731
NEAR: Sums = lambda r: (r["nats"] - r["far_nats"], r["n_tokens"] - r["far_tokens"])  # noqa: E731


def slow_sheet(rows: Sequence[Row], length: int, sums: Sums = ALL) -> Sheet:
    at = [r for r in rows if r["length"] == length]
    documents = sorted({r["document"] for r in at if sums(r)[1] > 0})
    seeds = sorted({r["seed"] for r in at})
    table = {(r["seed"], r["document"]): sums(r) for r in at}
    nats = [[table[seed, document][0] for document in documents] for seed in seeds]
    return np.array(nats), np.array([float(table[seeds[0], name][1]) for name in documents])


def same(found: Mapping[int, Estimate], expected: Mapping[int, Estimate]) -> None:
    assert list(found) == sorted(expected)
    for n, slow in expected.items():
        near = pytest.approx((slow.value, slow.low, slow.high, *slow.seeds), rel=1e-12, abs=1e-13)
        assert (found[n].value, found[n].low, found[n].high, *found[n].seeds) == near


def minus(a: Sheet, b: Sheet) -> Estimate:
    return gap(a[0], b[0], a[1])


class Case:
    """Random rows of a series under tail, swap and shuffle."""

    def __init__(self, key: int) -> None:
        dice = random.Random(key)
        self.R = dice.randint(1, 4)
        documents = {f"d{i}": dice.randint(2, 9) for i in range(dice.randint(3, 7))}
        far = {d: dice.randint(0, n) for d, n in documents.items()}
        far |= {"d0": documents["d0"], "d1": 1, "d2": 1}
        seeds = dice.sample(range(9), self.R)

        def rows(protocol: str, lengths: Sequence[int], spread: float) -> list[Row]:
            made = rows_of(
                lambda _s, _d, _n: dice.uniform(3 - spread, 3 + spread),
                seeds=seeds,
                documents=documents,
                lengths=lengths,
                protocol=protocol,
            )
            for r in made:
                r["far_tokens"] = far[r["document"]]
                r["far_nats"] = r["nats"] * r["far_tokens"] / r["n_tokens"] * dice.uniform(0.5, 1)
                r["unigram_nats"] = 7.0 * documents[r["document"]] + 1
            return dice.sample(made, len(made))

        self.tail = rows("tail", LENGTHS, 0.02)
        self.swap = rows("swap", (1024, 2048), 0.1)
        self.shuffle = rows("shuffle", (1024, 2048), 0.1)
        self.sheets = {n: slow_sheet(self.tail, n) for n in LENGTHS}
        self.found = one(
            {name: [line(getattr(self, name))] for name in ("tail", "swap", "shuffle")}
        )


CASES = [Case(key) for key in range(4)]
each_case = pytest.mark.parametrize("case", CASES)


@each_case
def test_losses_are_those_of_plain_loops(case: Case) -> None:
    same(case.found.loss, {n: ratio(*case.sheets[n]) for n in LENGTHS})


@each_case
def test_gains_are_those_of_plain_loops(case: Case) -> None:
    same(case.found.gain, {n: minus(case.sheets[T], case.sheets[n]) for n in LENGTHS if n != T})


@each_case
def test_swap_and_shuffle_are_those_of_plain_loops(case: Case) -> None:
    for found, rows in ((case.found.swap, case.swap), (case.found.shuffle, case.shuffle)):
        same(found, {n: minus(slow_sheet(rows, n), case.sheets[n]) for n in (1024, 2048)})


@each_case
def test_far_and_near_copies_are_those_of_plain_loops(case: Case) -> None:
    for found, sums in ((case.found.far, FAR), (case.found.near, NEAR)):
        same(found, {n: ratio(*slow_sheet(case.tail, n, sums)) for n in LENGTHS})
    for gains, sums in ((case.found.far_gain, FAR), (case.found.near_gain, NEAR)):
        sheets = {n: slow_sheet(case.tail, n, sums) for n in LENGTHS}
        same(gains, {n: minus(sheets[T], sheets[n]) for n in LENGTHS if n != T})


@each_case
def test_factors_are_those_of_plain_loops(case: Case) -> None:
    """A bound is the reach of the intervals' bounds; the high one's hold for both lengths."""
    losses = {n: ratio(*case.sheets[n]).value for n in LENGTHS}
    for factor in case.found.factors:

        def reach(holds: Callable[[int], bool]) -> float:
            beyond = (1024, 2048)
            held = [C for C in beyond if all(holds(n) for n in beyond if n <= C)]
            return max([T, *held]) / T

        gains, eps = case.found.gain, factor.eps
        assert factor.value == reach(lambda n, eps=eps: losses[n] <= losses[T] + eps)
        assert factor.low == reach(lambda n, eps=eps, gains=gains: gains[n].low >= -eps)
        assert factor.high == reach(
            lambda n, eps=eps, gains=gains: gains[n].widened(2).high >= -eps
        )
        assert factor.censored == (factor.value == LENGTHS[-1] / T)


@each_case
def test_bits_per_byte_unigram_floor_and_peak_are_those_of_plain_loops(case: Case) -> None:
    def total(field: str, length: int) -> float:
        return sum(r[field] for r in case.tail if r["length"] == length)

    for n in LENGTHS:
        bits = total("nats", n) / math.log(2) / total("n_bytes", n)
        assert case.found.bits_per_byte[n] == pytest.approx(bits, rel=1e-13)
    floor = total("unigram_nats", T) / total("n_tokens", T)
    assert case.found.unigram == pytest.approx(floor, rel=1e-13)
    assert case.found.peak == min(LENGTHS, key=lambda n: total("nats", n))


@each_case
def test_the_order_of_rows_and_points_changes_no_bit(case: Case) -> None:
    again = line(sorted(case.tail, key=lambda r: (r["document"], -r["length"])))
    reordered = replace(again, points=tuple(reversed(again.points)))
    found, expected = one({"tail": [reordered]}), one({"tail": [line(case.tail)]})
    assert replace(found, series=expected.series) == expected


def test_a_finding_for_each_series_of_the_tail_in_its_order() -> None:
    lines = [line(rows_of(by_length(3, 3, 3, 3), run=name), label=name) for name in "cab"]
    found = findings({"tail": lines, "nonoverlap": lines, "swap": []})
    assert [f.series.label for f in found] == ["c", "a", "b"]
    assert findings({"nonoverlap": lines}) == []


def test_a_document_counts_by_its_targets() -> None:
    found = of(lambda _s, d, _n: 1.0 if d == "a" else 4.0, documents={"a": 2, "b": 1})
    assert found.loss[T].value == pytest.approx(2.0)


# Extrapolation factor


@pytest.mark.parametrize(
    ("losses", "texts"),
    [
        ((3.0, 3.0, 3.005, 3.02), ["2", ">= 4"]),
        ((3.0, 3.0, 3.1, 3.0), ["1", "1"]),  # a length that recovers after a failure is not counted
        ((9.0, 3.0, 3.0, 3.1), ["2", "2"]),  # nor is one below T
    ],
)
def test_the_factor_reaches_to_the_last_length_before_the_first_failure(
    losses: Sequence[float], texts: list[str]
) -> None:
    assert [factor.text for factor in of(by_length(*losses)).factors] == texts


def test_a_factor_is_censored_if_no_length_fails() -> None:
    first, _ = of(by_length(3.0, 3.0, 2.9, 2.8)).factors
    assert (first.censored, first.text, first.value) == (True, ">= 4", 4.0)
    assert first.interval == "[>= 4, >= 4]"


def test_one_bound_of_a_factor_may_be_censored_alone() -> None:
    """One seed of three fails at 2048 by enough to take the mean with it."""
    found = of(lambda seed, _d, n: 3.0 if n < 2048 or seed > 1 else 3.3)
    first, _ = found.factors
    assert (first.text, first.interval, first.censored) == ("2", "[2, >= 4]", False)


def test_the_interval_of_a_factor_holds_the_truth() -> None:
    """The truth is 2: one of six lengths beyond T is worse by 0.03 nats, with a noise of 0.02."""
    rng, lengths = np.random.default_rng(4), (512, 1024, 2048, 4096, 8192, 16384, 32768)
    held = 0
    for _ in range(40):
        noise = {(d, n): rng.normal(0, 0.05) for d in MANY for n in lengths}
        found = of(
            lambda _s, d, n, noise=noise: 3 + noise[d, n] + 0.03 * (n > 1024),
            **{"seeds": (1, 2), "documents": MANY, "lengths": lengths},
        )
        held += found.factors[0].low <= 2 <= found.factors[0].high
    assert held >= 36


def test_without_lengths_beyond_T_there_is_no_factor() -> None:
    found = of(by_length(3, 3, 3, 3), lengths=(256, 512))
    assert (found.factors, found.verdicts) == ((), {})


def test_without_T_there_is_neither_gain_nor_factor_nor_verdict() -> None:
    found = of(by_length(3, 3, 3, 3), lengths=(1024, 2048))
    assert (found.gain, found.factors, found.verdicts) == ({}, (), {})
    assert list(found.loss) == [1024, 2048]


# Verdicts


def estimate(
    low: float, high: float, *, seeds: tuple[float, ...] | None = None, detectable: float = 0.009
) -> Estimate:
    """An estimate of eight documents that would show so much."""
    middle = (low + high) / 2
    unit = Spread(seeds=0.0, documents=1.0, residual=0.0, n_seeds=2, n_documents=8, freedom=7.0)
    found = Estimate(value=middle, low=low, high=high, seeds=seeds or (middle, middle), spread=unit)
    scale = (detectable / found.detectable) ** 2
    return replace(found, spread=replace(unit, documents=scale))


READ, UNREAD = estimate(0.02, 0.04), estimate(EPS, 0.04)


def used(
    value: int, low: int, high: int, *, shortest: int = 128, rejected: int | None = None
) -> UsedContext:
    """The used context of a grid of powers of two, unless the longest too short is given."""
    longest = (low // 2 if low > shortest else 0) if rejected is None else rejected
    return UsedContext(value=value, low=low, high=high, shortest=shortest, rejected=longest)


WHOLE = used(1024, 512, 1024)


def judged(
    gain: Estimate, swap: Estimate | None = None, of_context: UsedContext | None = WHOLE
) -> tuple[Word, str]:
    """The word and the sentence at 4096, of a model trained at 1024."""
    found = verdict(4096, gain, swap, train_length=1024, used=of_context)
    assert (found.gain, found.swap) == (gain, swap)
    return found.word, found.why


@pytest.mark.parametrize(
    ("gain", "swap", "word"),
    [
        (estimate(-EPS, EPS), None, "ignores"),
        (estimate(0.002, 0.008), None, "ignores"),
        (estimate(-0.008, -0.002), None, "ignores"),
        (estimate(-EPS, EPS), UNREAD, "unclear"),  # it may read the far text, up to 0.04
        (estimate(-EPS, EPS), estimate(-0.02, EPS), "ignores"),
        (estimate(math.inf, math.inf), None, "unclear"),  # the loss at T is infinite
        (estimate(-EPS, EPS), READ, "no gain"),
        (estimate(-0.008, 0.002, detectable=0.011), None, "unclear"),
        (estimate(0.002, EPS + 1e-9), READ, "uses"),
        (estimate(-EPS - 1e-9, -0.002), READ, "harmed"),
        (estimate(0.2, 0.3), UNREAD, "uses"),
        (estimate(-0.3, -0.2), None, "harmed"),
        (estimate(0.2, 0.3, seeds=(0.6, -0.1)), None, "unclear"),
        (estimate(-0.3, -0.2, seeds=(-0.6, 0.1)), None, "unclear"),
        (estimate(0.0, 0.3), None, "unclear"),
        (estimate(-0.3, 0.0), None, "unclear"),
        (estimate(-0.2, 0.3), READ, "unclear"),
        (estimate(math.nan, math.nan, seeds=(0.1, 0.1)), READ, "unclear"),
        (estimate(-math.inf, -0.1, seeds=(-math.inf, -0.2)), None, "harmed"),
    ],
)
def test_a_verdict_follows_from_the_intervals(
    gain: Estimate, swap: Estimate | None, word: Word
) -> None:
    found, why = judged(gain, swap)
    assert found == word
    assert f": {word}" in why


@pytest.mark.parametrize(
    ("of_context", "word"),
    [
        (None, "unclear"),
        (used(512, 512, 512), "ignores"),
        (used(1024, 256, 1024), "unclear"),  # it may use less than T/2
        (used(256, 128, 512), "unclear"),  # or not
        (used(256, 128, 256), "short-sighted"),
        (used(512, 512, 512, shortest=512), "unclear"),  # no shorter length shows that it uses 512
    ],
)
def test_a_flat_curve_needs_half_of_T_to_be_used_before_it_ignores(
    of_context: UsedContext | None, word: Word
) -> None:
    assert judged(estimate(-0.004, 0.004), None, of_context)[0] == word


def test_a_verdict_says_its_interval() -> None:
    assert judged(estimate(-0.36, -0.26))[1] == (
        "G(4k) = -0.310 [-0.360, -0.260] nats per token: harmed"
    )
    assert judged(estimate(-0.004, 0.004), READ)[1] == (
        "G(4k) = 0.000 [-0.004, 0.004] nats per token: no gain, all within 0.01 of 0, though it "
        "reads the far text: U(4k) = 0.030 [0.020, 0.040]"
    )
    assert judged(estimate(-0.004, 0.004), None, used(256, 128, 256))[1].endswith(
        "short-sighted, all within 0.01 of 0, and of 1024 tokens it uses 256 [<= 128, 256]"
    )


def test_of_one_seed_a_verdict_speaks_of_the_checkpoint() -> None:
    word, why = judged(estimate(-0.004, 0.004, seeds=(0.0,)))
    assert word == "ignores"
    assert why.startswith("this checkpoint (one seed): G(4k) = ")


@pytest.mark.parametrize(
    ("gain", "of_context", "reason"),
    [
        (estimate(0.2, 0.3, seeds=(0.6, -0.1)), WHOLE, "the seeds disagree in sign"),
        (estimate(math.nan, math.nan, seeds=(0.1,)), WHOLE, "there is no interval"),
        (estimate(0.0, 0.0), None, "no length below T was evaluated; add 128, 256, 512 to --len"),
        (estimate(0.0, 0.0), used(256, 128, 512), "may use less than 512 tokens: c* is 256 [<= 12"),
        (
            estimate(-0.2, 0.3, detectable=0.02),
            WHOLE,
            "holds 0 and more than it; the least |G| that these data show is 0.020: "
            "evaluate about 26 documents for 0.01",
        ),
    ],
)
def test_an_unclear_verdict_says_why_and_what_would_decide_it(
    gain: Estimate, of_context: UsedContext | None, reason: str
) -> None:
    word, why = judged(gain, None, of_context)
    assert word == "unclear"
    assert reason in why


def test_seeds_that_differ_too_much_ask_for_more_seeds() -> None:
    spread = Spread(seeds=1.0, documents=0.0, residual=0.0, n_seeds=2, n_documents=8, freedom=7.0)
    gain = replace(estimate(-0.2, 0.3), spread=spread)
    assert "evaluate more seeds" in judged(gain)[1]


def test_verdicts_stand_at_the_lengths_beyond_T() -> None:
    found = of(by_length(3.4, 3.0, 2.8, 3.3))
    assert found.used is not None
    assert found.used.text == "512"
    words = {n: v.word for n, v in found.verdicts.items()}
    assert words == {1024: "uses", 2048: "harmed"}
    assert found.gain[256].value == pytest.approx(-0.4)


def test_a_model_that_reads_far_text_without_profit_has_no_gain() -> None:
    flat = rows_of(by_length(3.1, 3, 3, 3))
    worse = rows_of(by_length(3.1, 3, 3.2, 3), protocol="swap")
    swapped = [r for r in worse if r["length"] > T]
    found = one({"tail": [line(flat)], "swap": [line(swapped)]})
    assert {n: v.word for n, v in found.verdicts.items()} == {1024: "no gain", 2048: "ignores"}
    assert found.swap[1024].value == pytest.approx(0.2)


def toy(gain: Callable[[int], float], *, noise: float = 0.004, **changes: Any) -> Finding:
    """A model of loss 3 - gain(C) with an effect of each seed, document and cell, at T/8 ... 4T."""
    effect = noisy(5, scale=noise)
    shared = noisy(6, scale=0.3)
    lengths = (64, 128, 256, 512, 1024, 2048)
    return of(
        lambda s, d, n: shared(s, d, 0) + effect(s, d, n) - 3 - gain(n),
        **{"lengths": lengths, "documents": [f"stream block {i}" for i in range(64)], **changes},
    )


def fall(n: int) -> float:
    """How much loss n tokens save, in nats."""
    return 0.1 * math.log(n)


TOYS: dict[Word, Callable[[int], float]] = {
    "ignores": lambda n: fall(min(n, T)),
    "uses": fall,
    "harmed": lambda n: fall(min(n, T)) - 0.05 * (n > T),
    "short-sighted": lambda n: fall(min(n, 100)),
}


@pytest.mark.parametrize("word", TOYS)
@pytest.mark.parametrize("seeds", [(1,), (1, 2, 3)])
def test_a_toy_model_gets_its_verdict_on_documents_as_on_blocks_of_a_stream(
    word: Word, seeds: Sequence[int]
) -> None:
    found = toy(TOYS[word], seeds=seeds, packed=True)
    assert {v.word for v in found.verdicts.values()} == {word}
    assert found.used is not None
    assert found.used.value == (128 if word == "short-sighted" else T)


def test_a_known_gain_is_within_its_interval_and_noise_hides_it() -> None:
    found = toy(lambda n: 0.1 * math.log(n))
    gain = found.gain[2048]
    assert gain.low < 0.1 * math.log(4) < gain.high
    unclear = toy(lambda n: 0.01 * math.log(n), noise=0.3).verdicts[2048]
    assert unclear.word == "unclear"
    assert "documents for 0.01" in unclear.why


def test_the_used_context_is_within_its_interval_and_noise_widens_it() -> None:
    sharp, dull = (
        toy(lambda n: 0.1 * math.log(min(n, T)), noise=noise).used for noise in (0.004, 0.2)
    )
    assert sharp == UsedContext(value=512, low=512, high=512, shortest=64, rejected=256)
    assert dull is not None
    assert dull.low < dull.high
    assert dull.low <= 512 <= dull.high


def test_a_length_far_below_half_of_T_does_not_show_that_half_of_it_is_used() -> None:
    coarse = toy(lambda n: fall(min(n, 100)), lengths=(32, 512, 1024))
    assert {v.word for v in coarse.verdicts.values()} == {"unclear"}
    fine = toy(lambda n: fall(min(n, 100)), lengths=(32, 64, 128, 256, 512, 1024))
    assert {v.word for v in fine.verdicts.values()} == {"short-sighted"}


def test_the_used_context_is_unknown_without_a_shorter_length_or_an_interval() -> None:
    assert toy(lambda _n: 0.0, lengths=(512, 1024)).used is None
    assert toy(lambda _n: 0.0, lengths=(128, 256)).used is None
    assert toy(lambda _n: 0.0, documents="a").used is None


def test_one_document_never_gives_a_verdict() -> None:
    found = of(by_length(3.0, 3.0, 2.0, 4.0), documents="a")
    assert {v.word for v in found.verdicts.values()} == {"unclear"}
    assert math.isnan(found.factors[0].low)
    assert "one document: no interval, no verdict" in found.warnings


# Warnings


MANY = "abcdefghijklmnop"


def besides_documents(found: Finding) -> tuple[str, ...]:
    """Returns the warnings without that of few documents, which most cases here have."""
    return tuple(
        message for message in found.warnings if " documents: intervals hold" not in message
    )


def test_enough_similar_seeds_and_documents_give_no_warning() -> None:
    assert of(noisy(1, scale=0.01), seeds=range(5), documents=MANY).warnings == ()


def test_few_documents_are_said_to_be_few() -> None:
    (message,) = of(noisy(1, scale=0.01), seeds=range(5), documents=MANY[:15]).warnings
    assert message == "15 documents: intervals hold if their losses are near normal"


def test_without_a_loss_at_T_it_is_said_what_is_missing() -> None:
    found = of(noisy(1, scale=0.01), seeds=range(5), lengths=(1024, 2048))
    assert not found.verdicts
    assert besides_documents(found) == (
        "no loss at T=512: no context gain, verdict or XF; add 512 to --lengths",
    )


@pytest.mark.parametrize(("unigram", "warned"), [(2.9, True), (3.1, False)])
def test_a_model_worse_than_token_frequencies_is_said_to_be(unigram: float, warned: bool) -> None:
    rows = rows_of(by_length(3, 3, 3, 3), seeds=range(5))
    rows = [{**row, "unigram_nats": unigram * row["n_tokens"]} for row in rows]
    message = [w for w in one({"tail": [line(rows)]}).warnings if "nothing was learned" in w]
    assert bool(message) == warned


def test_a_length_without_a_loss_ends_the_extrapolation_factor() -> None:
    rows = rows_of(by_length(3, 3, 3, 3), seeds=(1, 2))
    torn = [row for row in rows if row["length"] != 1024 or row["seed"] == 1]
    whole, cut = (one({"tail": [line(r)]}).factors[0] for r in (rows, torn))
    assert (whole.text, cut.text) == (">= 4", ">= 1")


def test_one_seed_is_said() -> None:
    message = besides_documents(of(noisy(1), seeds=[1]))
    assert message == (
        "one seed: statements hold for this checkpoint on other documents, not the scheme",
    )


def test_a_diverged_seed_is_named_and_counts_as_infinite() -> None:
    found = of(lambda s, d, n: None if (s, d, n) == (2, "c", 2048) else 3.0, seeds=range(1, 6))
    diverged, spread = besides_documents(found)
    assert diverged == "diverged: r2 at 2k, counted as an infinite loss"
    assert spread.endswith("median and quartiles at 2k: 20.09 [20.09, 20.09]")
    at = found.loss[2048]
    assert at.seeds[0] == pytest.approx(3.0)
    assert (at.value, at.seeds[1]) == (math.inf, math.inf)
    assert math.isnan(at.low)
    assert math.isnan(at.high)
    assert found.loss[1024].value == pytest.approx(3.0)


def test_a_seed_that_diverged_at_T_and_beyond_leaves_the_gain_undefined() -> None:
    found = of(lambda s, _d, n: None if s == 2 and n >= T else 3.0)
    assert math.isnan(found.gain[1024].value)
    assert found.verdicts[1024].word == "unclear"
    assert found.gain[256].value == math.inf
    factor = found.factors[0]
    assert (factor.text, factor.interval, factor.censored) == ("n/a", "n/a", False)


def test_one_seed_that_diverged_beyond_T_leaves_the_verdict_open() -> None:
    found = of(lambda s, _d, n: 3.0 if n <= T else None if s == 2 else 3.5)
    verdict = found.verdicts[1024]
    assert (verdict.word, verdict.gain.value) == ("unclear", -math.inf)
    assert verdict.why.endswith("there is no interval")
    assert found.factors[0].text == "1"


def test_seeds_that_all_diverged_beyond_T_are_harmed() -> None:
    found = of(lambda _s, _d, n: 3.0 if n <= T else None)
    verdict = found.verdicts[1024]
    assert (verdict.word, verdict.gain.high) == ("harmed", -math.inf)
    assert found.factors[0].interval == "[1, 1]"


def test_a_series_that_diverged_everywhere_has_no_peak() -> None:
    assert of(nowhere).peak is None


def test_a_perplexity_that_differs_over_seeds_is_given_by_median_and_quartiles() -> None:
    ppl = {1: 10.0, 2: 11.0, 3: 20.0, 4: 30.0, 5: 100.0}
    found = of(lambda s, _d, n: math.log(ppl[s] if n == 1024 else 10.0), seeds=list(ppl))
    assert besides_documents(found) == (
        "perplexity differs by more than 10% (std / mean) over seeds; median and quartiles at "
        "1k: 20.00 [11.00, 30.00]",
    )


@pytest.mark.parametrize(("spread", "warned"), [(0.099, False), (0.101, True)])
def test_the_spread_is_measured_with_n_minus_1(spread: float, warned: bool) -> None:
    """Two perplexities m (1 - x), m (1 + x) have a standard deviation of m x sqrt(2)."""
    x = spread / math.sqrt(2)
    found = of(lambda s, _d, _n: math.log(10 * (1 + (x if s == 1 else -x))), seeds=[1, 2])
    assert any("perplexity differs" in message for message in found.warnings) is warned


def test_a_length_that_one_seed_lacks_is_left_out_and_said() -> None:
    rows = [*rows_of(noisy(1), seeds=(1, 2)), *rows_of(noisy(1), seeds=(3,), lengths=(512, 1024))]
    found = one({"tail": [line(rows)]})
    assert list(found.loss) == [512, 1024]
    assert "left out: 256, 2k, which not every seed has" in found.warnings


def test_documents_that_one_cell_lacks_are_left_out_and_said() -> None:
    few = [*rows_of(noisy(1)), *rows_of(noisy(1), seeds=(4,), documents="abd")]
    same_documents = rows_of(noisy(1), seeds=(1, 2, 3, 4), documents="abd")
    found, expected = one({"tail": [line(few)]}), one({"tail": [line(same_documents)]})
    assert found.loss == expected.loss
    assert "left out: 2 of 5 documents, which not every seed and length has" in found.warnings


def test_a_second_run_of_a_seed_is_no_second_seed() -> None:
    first = rows_of(noisy(1), run="a")
    found = one({"tail": [line([*first, *rows_of(noisy(2), run="b", seeds=(2,))])]})
    assert found.loss == one({"tail": [line(first)]}).loss
    assert found.series.losses() == line(first).losses()
    assert found.series.runs == ["a1", "a2", "a3"]
    assert "left out: b2, another run of one seed" in found.warnings


def test_a_skipped_length_has_no_numbers() -> None:
    skipped = [row(**NOTHING, run=f"r{s}", seed=s, length=4096, skipped="x") for s in (1, 2, 3)]
    found = one({"tail": [line([*rows_of(noisy(1)), *skipped])]})
    assert list(found.loss) == list(LENGTHS)
    assert not any("left out" in message for message in found.warnings)


@pytest.mark.parametrize(
    ("of_seed_1", "of_seed_2", "missing"),
    [
        ({"lengths": (512,)}, {"lengths": (1024,)}, "512, 1k, which not every seed has"),
        ({}, {"documents": "xyz"}, "all documents, none of which every seed and length has"),
    ],
)
def test_a_series_without_a_shared_length_or_document_has_no_numbers_and_a_warning(
    of_seed_1: dict[str, Any], of_seed_2: dict[str, Any], missing: str
) -> None:
    rows = rows_of(noisy(1), seeds=(1,), **of_seed_1) + rows_of(noisy(1), seeds=(2,), **of_seed_2)
    found = one({"tail": [line(rows)]})
    assert (found.loss, found.verdicts, found.peak, found.unigram) == ({}, {}, None, None)
    assert found.warnings == (f"left out: {missing}",)


def test_rows_that_count_other_targets_are_refused_by_run_and_document() -> None:
    rows = rows_of(noisy(1))
    next(r for r in rows if (r["run"], r["document"], r["length"]) == ("r2", "c", 1024)).update(
        n_tokens=5
    )
    with pytest.raises(UserError, match=r"eval.jsonl of r2: document c counts 5 at length 1024"):
        findings({"tail": [line(rows)]})


def test_a_swap_on_other_targets_is_left_out_and_said() -> None:
    tail = line(rows_of(noisy(1)))
    swap = line(rows_of(noisy(1), protocol="swap", endpoints="other", lengths=(1024,)))
    found = one({"tail": [tail], "swap": [swap]})
    assert found.swap == {}
    assert "left out: swap, which shares no targets or no seeds with the tail" in found.warnings


def test_a_swap_that_was_skipped_is_not_left_out() -> None:
    skipped = row(**NOTHING, run="r1", protocol="swap", skipped="x")
    found = one({"tail": [line(rows_of(noisy(1)))], "swap": [line([skipped])]})
    assert not any("swap" in message for message in found.warnings)


def test_a_swap_of_fewer_seeds_is_said_and_compared_with_those() -> None:
    swap = rows_of(noisy(2), protocol="swap", seeds=(1, 3), lengths=(1024,))
    tail = rows_of(noisy(1))
    found = one({"tail": [line(tail)], "swap": [line(swap)]})
    of_both = [r for r in tail if r["seed"] != 2]
    same(found.swap, {1024: minus(slow_sheet(swap, 1024), slow_sheet(of_both, 1024))})
    assert "swap covers 2 of 3 seeds" in found.warnings


def test_rows_without_far_targets_or_unigram_floor_have_none() -> None:
    found = of(noisy(1))
    assert (found.far, found.near, found.unigram) == ({}, {}, None)


# Differences


def pair(a: Loss, b: Loss, **changes: Any) -> tuple[Series, Series]:
    return line(rows_of(a, **changes), "a"), line(rows_of(b, run="b", **changes), "b")


def test_a_difference_is_that_of_plain_loops_on_shared_seeds_and_documents() -> None:
    a, b = rows_of(noisy(1), seeds=(4, 1, 2)), rows_of(noisy(2), seeds=(3, 2, 4), documents="bcdex")
    found = difference(line(a), line(b), 1024)
    shared_a, shared_b = (
        [r for r in rows if r["seed"] in (2, 4) and r["document"] in "bcde"] for rows in (a, b)
    )
    assert found is not None
    same({1024: found}, {1024: minus(slow_sheet(shared_a, 1024), slow_sheet(shared_b, 1024))})


def test_a_difference_does_not_depend_on_what_its_series_were_compared_with_before() -> None:
    a, b = rows_of(noisy(1)), rows_of(noisy(2), run="b")
    fewer = line(rows_of(noisy(3), run="c", documents="bcdex"), "c")
    x, y = line(a, "a"), line(b, "b")
    assert difference(x, fewer, 1024) != difference(x, y, 1024)
    assert difference(x, y, 1024) == difference(line(a, "a"), line(b, "b"), 1024)
    assert difference(x, fewer, 1024) == difference(line(a, "a"), fewer, 1024)


def test_a_difference_is_the_negative_of_its_reverse() -> None:
    a, b = pair(noisy(1), noisy(2))
    one_way, other_way = difference(a, b, 1024), difference(b, a, 1024)
    assert one_way is not None
    assert other_way is not None
    x, y = one_way, other_way
    assert (x.value, x.low, x.high) == (-y.value, -y.high, -y.low)
    assert x.seeds == tuple(-seed for seed in y.seeds)


def test_pairing_sees_a_difference_that_unpaired_intervals_cannot() -> None:
    """Seeds and documents differ by 0.3 nats, the series by 0.02 with a noise of 0.005."""
    shared, noise = noisy(1, scale=0.3), noisy(2, scale=0.005)
    a, b = pair(
        shared, lambda s, d, n: shared(s, d, n) + noise(s, d, n) - 3 + 0.02, documents="abcdefghij"
    )
    paired = difference(b, a, 1024)
    assert paired is not None
    assert paired.has_sign
    width = paired.high - paired.low
    alone = [f.loss[1024] for f in findings({"tail": [a, b]})]
    unpaired = math.hypot(*(e.high - e.low for e in alone))
    assert width < unpaired / 20
    assert max(e.low for e in alone) < min(e.high for e in alone)


def test_a_difference_whose_seeds_disagree_in_sign_has_none() -> None:
    a, b = pair(
        by_length(3, 3, 3, 3), lambda s, _d, _n: 2.99 if s == 1 else 3.2, seeds=range(1, 11)
    )
    found = difference(b, a, 1024)
    assert found is not None
    assert found.low > 0
    assert not found.has_sign
    together = compare([a, b], 1024)
    assert together is not None
    assert together.ties == {"b"}


@pytest.mark.parametrize(
    "change",
    [{"seeds": (7, 8)}, {"documents": "xyz"}, {"endpoints": "other"}, {"lengths": (256, 512)}],
    ids=lambda change: next(iter(change)),
)
def test_series_that_share_nothing_have_no_difference(change: Mapping[str, Any]) -> None:
    a, b = line(rows_of(noisy(1))), line(rows_of(noisy(2), **change))
    assert difference(a, b, 1024) is None


def noisy_lines(above: Mapping[str, float], **changes: Any) -> list[Series]:
    noise = noisy(3, scale=0.01)

    def loss(label: str) -> Loss:
        own = noisy(len(label), scale=0.01)
        return lambda s, d, n: noise(s, d, n) + own(s, d, n) + above[label]

    return [line(rows_of(loss(label), **changes), label) for label in above]


def there(found: Comparison | None) -> Comparison:
    assert found is not None
    return found


def test_what_may_be_best_are_the_series_not_told_apart_from_the_least() -> None:
    lines = noisy_lines({"worst": 0.5, "best": 0.0, "close": 0.001})
    found = there(compare(lines, 1024))
    assert found.best == min(lines, key=lambda one: one.losses()[1024]).label
    assert {found.best, *found.ties} == {"best", "close"}
    assert found.unknown == frozenset()
    assert found.ranks == {"best": (1, 2), "close": (1, 2), "worst": (3, 3)}
    assert found.different == {("best", "worst"), ("close", "worst")}


def test_what_cannot_be_compared_with_the_best_is_unknown_and_no_tie() -> None:
    lines = noisy_lines({"a": 0.0, "b": 0.5})
    short = line(rows_of(by_length(4, 4, 4, 4), lengths=(256,)), "short")
    strange = line(rows_of(by_length(4, 4, 4, 4), seeds=(8,)), "strange")
    lone = line(rows_of(by_length(2, 2, 2, 2), seeds=(1,)), "lone")
    split = line(rows_of(lambda s, _d, _n: None if s == 1 else 3.0), "split")
    found = there(compare([short, strange, lone, split, *lines], 1024))
    assert (found.best, found.ties) == ("a", frozenset())
    assert found.unknown == {"strange", "lone", "split"}


def test_a_series_that_diverged_in_all_seeds_is_told_apart() -> None:
    found = there(compare([*noisy_lines({"a": 0.0}), line(rows_of(nowhere), "none")], 1024))
    assert (found.best, found.ties, found.unknown) == ("a", frozenset(), frozenset())


def test_the_best_is_no_series_that_another_is_shown_to_be_better_than() -> None:
    """A third seed, which the other lacks, has given it the least loss of all its seeds."""
    noise = noisy(4, scale=0.001)
    a = line(rows_of(lambda s, d, n: noise(s, d, n) + (3 if s < 3 else 2), seeds=(1, 2, 3)), "a")
    b = line(rows_of(lambda s, d, n: noise(s, d, n) + 2.9, seeds=(1, 2)), "b")
    assert a.losses()[1024] < b.losses()[1024]
    found = there(compare([a, b], 1024))
    assert (found.best, found.ties, found.different) == ("b", frozenset(), {("b", "a")})


def test_series_whose_loss_is_a_mean_over_windows_are_compared_by_it() -> None:
    """Of two windows of each document the first has seven of eight tokens."""

    def of_windows(label: str, first: float, second: float) -> Series:
        rows = [
            row(
                run=f"{label}{seed}",
                scheme=label,
                seed=seed,
                document=name,
                protocol="yarn",
                nats=7 * first + second + 0.001 * seed,
                window_nats=first + second + 0.001 * seed,
            )
            for seed in (1, 2, 3)
            for name in "ab"
        ]
        return line(rows, label)

    a, b = of_windows("a", 3.0, 2.0), of_windows("b", 2.9, 2.5)
    found = difference(a, b, 1024)
    assert found is not None
    assert found.value == pytest.approx(a.losses()[1024] - b.losses()[1024]) == pytest.approx(-0.2)


@pytest.mark.parametrize("change", [{"seeds": (1,)}, {"documents": "a"}, {"lengths": (512,)}])
def test_one_seed_one_document_or_no_loss_names_no_best(change: Mapping[str, Any]) -> None:
    assert compare(noisy_lines({"a": 0.0, "b": 5.0}, **change), 1024) is None
    assert compare([line(rows_of(nowhere), label) for label in "ab"], 1024) is None
    assert compare([], 1024) is None


def shared_error(
    rng: np.random.Generator, k: int, R: int, *, heavy: bool, means: Sequence[float] = ()
) -> Comparison:
    """A comparison of k series on 32 documents, of which those without a mean are equal."""
    document = rng.standard_t(3, (k, 1, 32)) if heavy else rng.normal(size=(k, 1, 32))
    x = 0.2 * rng.normal(size=(k, R, 1)) + document + rng.normal(size=(k, R, 32))
    x[: len(means)] += np.array(means)[:, None, None]
    names = [f"{i:02}" for i in range(k)]
    pairs = {(names[i], names[j]): gap(x[i], x[j], np.ones(32)) for j in range(k) for i in range(j)}
    return there(compared({name: float(x[i].mean()) for i, name in enumerate(names)}, pairs))


@pytest.mark.parametrize(
    ("k", "R", "heavy", "n"), [(2, 2, False, 400), (6, 3, False, 120), (6, 2, True, 120)]
)
def test_equal_series_are_seldom_told_apart(k: int, R: int, heavy: bool, n: int) -> None:
    """Of n tables at most 5% and two standard errors; calling each pair alone does so in 20%."""
    rng = np.random.default_rng(2)
    wrong = sum(bool(shared_error(rng, k, R, heavy=heavy).different) for _ in range(n))
    assert wrong <= 0.05 * n + 2 * math.sqrt(0.05 * 0.95 * n)


def test_ranks_hold_the_truth_in_all_of_a_table() -> None:
    """Two series are worse by much, two by a little, and two are the best."""
    rng, n, means = np.random.default_rng(3), 100, (9.0, 9.0, 0.5, 0.5, 0.0, 0.0)
    truth = {"00": (5, 6), "01": (5, 6), "02": (3, 4), "03": (3, 4), "04": (1, 2), "05": (1, 2)}
    found = [shared_error(rng, 6, 3, heavy=False, means=means) for _ in range(n)]
    held = sum(
        all(one.ranks[name][0] <= low and high <= one.ranks[name][1] for name, (low, high) in of)
        for one in found
        for of in [truth.items()]
    )
    assert held >= 0.95 * n - 4
    assert all(one.ranks["00"][0] == 5 for one in found)


# RECL


def with_tokens(losses: Callable[[str, int, str, int, int], float], **changes: Any) -> list[Series]:
    """Series a, b, c with a loss by label, seed, document, length and target."""
    lines: list[Series] = []
    for label in "abc":
        rows = rows_of(by_length(0, 0, 0, 0), run=label, **changes)
        for r in rows:
            at = (label, r["seed"], r["document"], r["length"])
            r["token_nats"] = [losses(*at, t) for t in range(r["n_tokens"])]
            r["nats"] = sum(r["token_nats"])
        lines.append(line(rows, label))
    return lines


def slow_recl(lines: Sequence[Series], top: float) -> dict[str, int]:
    """Appendix C of Transformer-XL, word for word, in each seed; the median of seeds 1, 2, 3."""
    tables: dict[tuple[str, int, int], list[float]] = {}
    for of_label in lines:
        for p in of_label.points:
            nats = [x for r in p.rows for x in (r.token_nats or [])]
            tables[of_label.label, p.seed, p.length] = nats
    labels = [of_label.label for of_label in lines]
    found: dict[str, int] = {}
    for label in labels:
        lengths_found: list[int] = []
        for seed in (1, 2, 3):
            c, longer = LENGTHS[0], LENGTHS[1]
            while True:
                losses_at_c = [tables[m, seed, c] for m in labels]
                b = [min(at_t) for at_t in zip(*losses_at_c, strict=True)]
                targets = sorted(range(len(b)), key=lambda t: (-b[t], t))[: round(top * len(b))]

                def f(context: int, b: list[float] = b, targets: list[int] = targets) -> float:
                    own = tables[label, seed, context]  # noqa: B023
                    return sum(min(b[t], own[t]) for t in targets) / len(targets)

                gain = (math.exp(f(c)) - math.exp(f(longer))) / math.exp(f(c))
                if gain < 0.01:
                    break
                c = longer
                if c == LENGTHS[-1]:
                    break
                longer = LENGTHS[LENGTHS.index(c) + 1]
            lengths_found.append(c)
        found[label] = sorted(lengths_found)[1]
    return found


@pytest.mark.parametrize("top", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("key", range(8))
def test_recl_is_the_papers_algorithm_written_out(top: float, key: int) -> None:
    dice = random.Random(key)
    fall = {label: dice.uniform(0.0, 0.05) for label in "abc"}

    def loss(label: str, _seed: int, _document: str, length: int, _target: int) -> float:
        return round(max(0.0, dice.gauss(3 - fall[label] * math.log2(length), 0.02)), 6)

    lines = with_tokens(loss)
    assert recl(lines, top=top) == slow_recl(lines, top)


def test_the_cases_of_recl_end_at_different_lengths() -> None:
    """So that the comparison with the written-out algorithm sees it stop everywhere."""
    ends: set[int] = set()
    for key in range(8):
        dice = random.Random(key)
        fall = {label: dice.uniform(0.0, 0.05) for label in "abc"}
        lines = with_tokens(
            lambda label, _s, _d, n, _t, dice=dice, fall=fall: max(
                0.0, dice.gauss(3 - fall[label] * math.log2(n), 0.02)
            )
        )
        ends |= set(recl(lines, top=1.0).values())
    assert len(ends) >= 3


def test_recl_counts_only_what_improves_on_the_best_of_the_group() -> None:
    """b gains 0.5 nats from 512 to 1024, but only down to what a has at 512 already."""
    falls = {"a": (2.0, 1.0, 1.0, 1.0), "b": (2.0, 1.5, 1.0, 1.0), "c": (2.0, 1.0, 0.5, 0.0)}
    lines = with_tokens(lambda label, _s, _d, n, _t: falls[label][LENGTHS.index(n)])
    assert recl(lines, top=1.0) == {"a": 512, "b": 512, "c": 2048}


def test_recl_counts_the_targets_that_are_hard_in_a_short_context() -> None:
    """Only the first of four targets is hard; the others fall, but do not count."""
    lines = with_tokens(lambda _l, _s, _d, n, t: 5.0 if t == 0 else 1.0 - n / 4096)
    assert recl(lines, top=0.25) == {"a": 256, "b": 256, "c": 256}
    assert recl(lines, top=1.0) == {"a": 2048, "b": 2048, "c": 2048}


@pytest.mark.parametrize(("fall", "end"), [(0.01004, 256), (0.01006, 2048)])
def test_recl_needs_one_percent_of_the_perplexity(fall: float, end: int) -> None:
    """One percent is -log(0.99) = 0.01005 nats."""
    lines = with_tokens(lambda _l, _s, _d, n, _t: 3.0 - fall * LENGTHS.index(n))
    assert recl(lines, top=1.0) == {"a": end, "b": end, "c": end}


def test_recl_of_two_seeds_is_the_smaller() -> None:
    lines = with_tokens(lambda _l, s, _d, n, _t: 3.0 - n / 1024 if s == 1 else 3.0, seeds=(1, 2))
    assert recl(lines, top=1.0) == {"a": 256, "b": 256, "c": 256}


def test_recl_of_a_diverged_model_ends_where_it_diverges() -> None:
    lines = with_tokens(lambda _l, _s, _d, n, _t: 3.0 - n / 1024)
    rows = [asdict(r) for p in lines[0].points for r in p.rows]
    for r in rows:
        if r["length"] == 2048:
            r |= {"nats": None, "window_nats": None, "token_nats": None}
    diverged = line([{**r, "format": FORMAT} for r in rows], "a")
    assert recl([diverged, *lines[1:]], top=1.0) == {"a": 1024, "b": 2048, "c": 2048}


def test_recl_needs_shared_seeds_and_the_loss_of_each_target() -> None:
    lines = with_tokens(lambda _l, _s, _d, n, _t: 3.0 - n / 1024)
    other = with_tokens(lambda _l, _s, _d, _n, _t: 3.0, seeds=(8, 9))[0]
    without = line(rows_of(noisy(1)), "d")
    elsewhere = with_tokens(lambda _l, _s, _d, _n, _t: 3.0, endpoints="other")[0]
    for stranger in (other, without, elsewhere):
        assert recl([*lines, replace(stranger, label="d")], top=1.0) == {}
    assert recl([], top=1.0) == {}


def test_a_verdict_without_an_interval_says_no_bounds() -> None:
    why = of(by_length(3, 3, 3.5, 3.5), documents="a").verdicts[1024].why
    assert why == "G(1k) = -0.500 nats per token: unclear, there is no interval"
