"""Writes results/published.md: what papers say, and whether the committed studies show it.

    python scripts/published_claims.py

Published numbers come from lengthgen.analysis.reference_results, own ones from the rows of
results/figure1, results/report, results/variants, results/tasks, results/kerple, results/schemes
and results/slow_schemes. A claim holds if all its 95% intervals lie on the claimed side; the page
states the other verdicts.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from lengthgen.analysis import intervals
from lengthgen.analysis.accuracy import Accuracy, accuracies, unseen_difference
from lengthgen.analysis.formatting import short
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.paired_sums import Sample, SeedPoints, complete_lengths, sample, whole
from lengthgen.analysis.reference_results import accuracies as published_accuracies
from lengthgen.analysis.reference_results import published_curves
from lengthgen.analysis.seed_groups import Series
from lengthgen.report import collect, study

RESULTS = Path(__file__).resolve().parents[1] / "results"
T = 512
BLOCKS, TAIL = "alibi_nonoverlap", "tail"
OTHER_TEXT = ("kerple", "dape")  # protocols that score other tokens at each length
DIRECTION = "direction only"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A ratio of perplexities that a claim places above or below a bound."""

    name: str
    log_ratio: Estimate
    above: bool
    bound: float = 1.0

    @property
    def verdict(self) -> bool | None:
        """As of `_side`."""
        return _side(self.log_ratio, math.log(self.bound), above=self.above)

    def __str__(self) -> str:
        value, low, high = (
            f"{math.exp(min(v, 50)):.3g}"
            for v in (self.log_ratio.value, self.log_ratio.low, self.log_ratio.high)
        )
        side = "above" if self.above else "below"
        bound = "" if self.bound == 1 else f", {side} {self.bound:.3g}"
        return f"{self.name}{bound}: {value} [{low}, {high}]"


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of right answers, or a difference of two, that a claim places beside a bound."""

    name: str
    share: Estimate
    above: bool
    bound: float = 0.0

    @property
    def verdict(self) -> bool | None:
        """As of `_side`."""
        return _side(self.share, self.bound, above=self.above)

    def __str__(self) -> str:
        value, low, high = (100 * v for v in (self.share.value, self.share.low, self.share.high))
        side = "above" if self.above else "below"
        bound = "" if self.bound == 0 else f", {side} {100 * self.bound:.3g} %"
        return f"{self.name}{bound}: {value:.1f} % [{low:.1f}, {high:.1f}]"


def _side(estimate: Estimate, bound: float, *, above: bool) -> bool | None:
    """Returns whether the interval lies on the claimed side of the bound; None if it holds it."""
    if estimate.low > bound:
        return above
    if estimate.high < bound:
        return not above
    return None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published claim, with the published numbers and ours."""

    source: str
    claim: str
    published: str
    statements: Sequence[Statement | Share]

    @property
    def verdict(self) -> str:
        found = [statement.verdict for statement in self.statements]
        if False in found:
            return "in part" if True in found else "does not hold"
        return "undecided" if None in found else "holds"


@cache
def _report(folder: str) -> collect.Report:
    report, _ = collect.gather_both(study.from_folder(RESULTS / folder).records)
    assert report is not None, folder
    return report


def _lines(folder: str, protocol: str, trained: int = T) -> dict[str, Series]:
    """Returns the series of runs of a training length by scheme, or scheme+variant."""
    return {
        f"{line.scheme}+{line.variant}" if line.variant else line.scheme: line
        for line in _report(folder).by_protocol[protocol]
        if line.train_length == trained
    }


@dataclass(frozen=True, kw_only=True)
class Rise:
    """The perplexity of a scheme at a length over that at its training length."""

    name: str  # of a scheme, or scheme+variant
    length: int
    protocol: str = TAIL
    folder: str = "figure1"
    trained: int = T

    @property
    def cells(self) -> list[SeedPoints]:
        """The points at the length, and those of the scheme itself at its training length."""
        lines = _lines(self.folder, self.protocol, self.trained)
        there, at_T = lines[self.name], lines[self.name.partition("+")[0]]
        return [complete_lengths(there)[self.length], complete_lengths(at_T)[self.trained]]

    @property
    def estimate(self) -> Estimate:
        """ln of the ratio; paired by document where a protocol scores one text at all lengths."""
        if self.protocol in OTHER_TEXT:
            return _less(*(_sampled([cell]).mean(0) for cell in self.cells))
        return _sampled(self.cells).gap(0, 1)

    def less(self, other: "Rise") -> Estimate:
        """Returns ln of the ratio over that of another rise.

        Paired by seed and document where both score the same targets, else as of independent ones.
        """
        if (self.protocol, self.folder) != (other.protocol, other.folder):
            return _less(self.estimate, other.estimate)
        found = _sampled([*self.cells, *other.cells])
        there, at_T, other_there, other_at_T = found.sums
        return intervals.gap(there + other_at_T, at_T + other_there, found.counts_D)


def _apart(a: str, b: str, length: int, protocol: str = TAIL, folder: str = "figure1") -> Estimate:
    """Returns ln of the perplexity of one scheme over that of another at a length."""
    lines = _lines(folder, protocol)
    return _sampled([complete_lengths(lines[name])[length] for name in (a, b)]).gap(0, 1)


def _sampled(cells: Sequence[SeedPoints]) -> Sample:
    found = sample(cells, whole)
    assert found is not None, "cells that share no targets"
    return found


def _less(a: Estimate, b: Estimate) -> Estimate:
    """Returns the difference of two independent estimates, its interval by the root of squares."""
    value = a.value - b.value
    return replace(
        a,
        value=value,
        low=value - math.hypot(a.value - a.low, b.high - b.value),
        high=value + math.hypot(a.high - a.value, b.value - b.low),
    )


def _ppl(table: str, scheme: str) -> tuple[dict[int, float], int]:
    """Returns published perplexities by length, and T."""
    [curve] = [c for c in published_curves() if (c.table, c.scheme) == (table, scheme)]
    return curve.ppl, curve.train_length


def _published(table: str, scheme: str, *lengths: int) -> str:
    """Returns published ratios of perplexity to that at T."""
    ppl, at = _ppl(table, scheme)
    return f"{scheme}/T " + ", ".join(f"{ppl[n] / ppl[at]:.3g} at {n:,}" for n in lengths)


def rises(
    scheme: str,
    *lengths: int,
    protocol: str = TAIL,
    above: bool = True,
    trained: int = T,
    folder: str = "figure1",
) -> list[Statement]:
    """Returns a statement for each length: the perplexity there over that at T."""
    return [
        Statement(
            name=f"{scheme} {short(n)}/T",
            log_ratio=Rise(
                name=scheme, length=n, protocol=protocol, folder=folder, trained=trained
            ).estimate,
            above=above,
        )
        for n in lengths
    ]


def pairs(
    *schemes: tuple[str, str],
    length: int,
    protocol: str = TAIL,
    above: bool = True,
    folder: str = "figure1",
) -> list[Statement]:
    """Returns a statement for each pair: the perplexity of the first over that of the second."""
    return [
        Statement(
            name=f"{a}/{b} at {short(length)}",
            log_ratio=_apart(a, b, length, protocol, folder),
            above=above,
        )
        for a, b in schemes
    ]


def below(
    scheme: str, *others: str, lengths: Sequence[int], folder: str = "schemes"
) -> list[Statement]:
    """Returns statements that a scheme is below others at each length."""
    return [
        one
        for n in lengths
        for one in pairs(
            *((scheme, other) for other in others), length=n, above=False, folder=folder
        )
    ]


def bounded(bound: float, statements: Sequence[Statement]) -> list[Statement]:
    """Returns the statements with another bound than 1."""
    return [replace(one, bound=bound) for one in statements]


def claims() -> list[Claim]:
    """Returns the claims on the schemes of figure1, with what its rows say of each."""
    press, press_mean = "Press et al. 2022, Tables 13-15", "Press et al. 2022, Table 2"
    slid, table, appendix = "alibi-table13-15", "alibi-table2", "nope-appendix-f"

    order = ("sinusoidal", "rope", "t5", "alibi")
    longest = {name: max(_ppl(table, name)[0].items()) for name in order}
    beyond_T = [T * 2**n for n in range(1, 6)]
    return [
        Claim(
            source=press,
            claim="Sinusoidal positions do not extrapolate: perplexity has doubled at 2T.",
            published=_published(slid, "sinusoidal", 1024, 3072),
            statements=bounded(2, rises("sinusoidal", 1024, 16384)),
        ),
        Claim(
            source=press_mean,
            claim="RoPE's perplexity is above that at T from 2T on.",
            published=_published(table, "rope", 712, 1012, 15512),
            statements=rises("rope", *beyond_T, protocol=BLOCKS),
        ),
        Claim(
            source=press,
            claim="T5's biases hold to 2T, within 10 %.",
            published=_published(slid, "t5", 1024),
            statements=bounded(1.1, rises("t5", 1024, above=False)),
        ),
        Claim(
            source=press,
            claim="Beyond 2T the perplexity of T5's biases is above that at T.",
            published=_published(slid, "t5", 1536, 3072),
            statements=rises("t5", *beyond_T[1:]),
        ),
        Claim(
            source="Press et al. 2022, Figure 1",
            claim="At T = 1,024 too sinusoidal positions and RoPE rise from 2T on.",
            published=DIRECTION,
            statements=[
                *rises("sinusoidal", 2048, trained=1024),
                *rises("rope", 2048, trained=1024),
            ],
        ),
        Claim(
            source="Press et al. 2022, Figure 1",
            claim="The longer T, the later T5's biases rise. Tested: their rise at 16k is less "
            "after T = 1,024 than after 512.",
            published=DIRECTION,
            statements=[
                Statement(
                    name="t5 16k/T, T = 1,024 over 512",
                    log_ratio=Rise(name="t5", length=16384, trained=1024).less(
                        Rise(name="t5", length=16384)
                    ),
                    above=False,
                )
            ],
        ),
        Claim(
            source=press_mean,
            claim="ALiBi's perplexity falls beyond T where windows lie side by side.",
            published=_published(table, "alibi", 1012, 15512),
            statements=rises("alibi", *beyond_T, protocol=BLOCKS, above=False),
        ),
        Claim(
            source=press,
            claim="With equal context for every target ALiBi's perplexity falls by less than 1 %: "
            "the gain was that of early tokens.",
            published=_published(slid, "alibi", 1024, 3072),
            statements=bounded(0.99, rises("alibi", 1024, 16384)),
        ),
        Claim(
            source=press_mean,
            claim="Order at the longest length: sinusoidal worst, then RoPE, T5, ALiBi.",
            published="perplexity "
            + ", ".join(f"{name} {ppl:.4g} at {n:,}" for name, (n, ppl) in longest.items()),
            statements=pairs(
                *itertools.pairwise(order),
                length=16384,
                protocol=BLOCKS,
            ),
        ),
        Claim(
            source="Haviv et al. 2022",
            claim="Without positions the model is slightly worse than with sinusoidal ones at T, "
            "and ALiBi is better than both.",
            published="nope/sinusoidal 1.04, alibi/sinusoidal 0.978, at 512",
            statements=[
                *pairs(("nope", "sinusoidal"), length=T, protocol=BLOCKS),
                *pairs(
                    *(("alibi", "sinusoidal"), ("alibi", "nope")),
                    length=T,
                    protocol=BLOCKS,
                    above=False,
                ),
            ],
        ),
        Claim(
            source="Kazemnejad et al. 2023, Appendix F",
            claim="At 2T RoPE has risen most, then models without positions, then ALiBi.",
            published="; ".join(
                _published(appendix, name, 2048) for name in ("rope", "nope", "alibi")
            )
            + "; RoPE in a quarter of the channels",
            statements=[
                Statement(
                    name=f"{a} 1k/T over {b} 1k/T",
                    log_ratio=Rise(name=a, length=2 * T).less(Rise(name=b, length=2 * T)),
                    above=True,
                )
                for a, b in (("rope", "nope"), ("nope", "alibi"))
            ],
        ),
        Claim(
            source="Kazemnejad et al. 2023, Appendix F",
            claim="At 2T ALiBi has failed too: its perplexity has doubled.",
            published=_published(appendix, "alibi", 1600, 2048),
            statements=bounded(2, rises("alibi", 1024)),
        ),
        Claim(
            source="Chi et al. 2022 (KERPLE), Table 3",
            claim="The logarithmic kernel is at or below ALiBi at every length from T to 32T, "
            "within 1 %.",
            published=DIRECTION,
            statements=[
                replace(one, bound=1.01)
                for n in (T, *beyond_T)
                for one in pairs(("kerple", "alibi"), length=n, protocol=TAIL, above=False)
            ],
        ),
        Claim(
            source="Zheng et al. 2024 (DAPE)",
            claim="KERPLE trained at 512 tokens has doubled at 8,192. Tested under the paper's own "
            "protocol and four others, in `kerple/`, too.",
            published="4.57 at 512, 9.08 at 8,192: 1.99, under `dape`",
            statements=bounded(
                1.5,
                [
                    *rises("kerple", 8192),
                    *(
                        replace(one, name=f"{one.name} under `{protocol}`")
                        for protocol in ("dape", "kerple", BLOCKS, "last_k", TAIL)
                        for one in rises("kerple", 8192, protocol=protocol, folder="kerple")
                    ),
                ],
            ),
        ),
        Claim(
            source="Chi et al. 2023 (Sandwich)",
            claim="ALiBi attends as in a window: without what lies beyond its last T tokens the "
            "perplexity at 16k stays within 5 %.",
            published=DIRECTION,
            statements=bounded(1.05, pairs(("alibi+window", "alibi"), length=16384, above=False)),
        ),
        Claim(
            source="Lin et al. 2025 (FoX), section 4.3",
            claim="Extrapolation depends on the training, not on the positions alone. Tested: "
            "RoPE's rise at 32T grows from 3M to 12M tokens.",
            published=DIRECTION,
            statements=[
                Statement(
                    name="rope 16k/T after 12M tokens over that after 3M",
                    log_ratio=Rise(name="rope", length=32 * T).less(
                        Rise(name="rope", length=32 * T, folder="report")
                    ),
                    above=True,
                )
            ],
        ),
        Claim(
            source="Xiao et al. 2023 (StreamingLLM), section 3.1",
            claim="A window of T tokens fails once it has lost the first tokens: perplexity has "
            "doubled.",
            published=DIRECTION,
            statements=bounded(
                2,
                [
                    one
                    for name in ("nope", "rope", "t5", "alibi", "kerple")
                    for one in rises(f"{name}+window", 16384)
                ],
            ),
        ),
        Claim(
            source="Press et al. 2022, Tables 2 and 13",
            claim="A mean over all positions of side by side windows understates the collapse.",
            published=f"side by side {_published(table, 'sinusoidal', 1012)}, "
            f"equal context {_published(slid, 'sinusoidal', 1024)}",
            statements=[
                Statement(
                    name=f"{scheme} 1k/T, equal context over side by side",
                    log_ratio=Rise(name=scheme, length=1024).less(
                        Rise(name=scheme, length=1024, protocol=BLOCKS)
                    ),
                    above=True,
                )
                for scheme in ("sinusoidal", "rope")
            ],
        ),
    ]


def _directions(claimed: Sequence[tuple[str, str, list[Statement]]]) -> list[Claim]:
    """Returns claims, by source and text, of papers whose numbers are not at hand."""
    return [
        Claim(source=source, claim=claim, published=DIRECTION, statements=statements)
        for source, claim, statements in claimed
    ]


def of_variants() -> list[Claim]:
    """Returns claims on training-free changes of RoPE, with what its three seeds show."""
    short_of_16k, beyond, folder = (1024, 4096), (1024, 4096, 16384), "variants"

    def near_T(variant: str, bound: float, lengths: Sequence[int] = beyond) -> list[Statement]:
        return bounded(bound, rises(f"rope+{variant}", *lengths, above=False, folder=folder))

    def less(variant: str, other: str) -> list[Statement]:
        return below(f"rope+{variant}", other, lengths=beyond, folder=folder)

    claimed: list[tuple[str, str, list[Statement]]] = [
        (
            "Chen et al. 2023",
            "Without fine-tuning too, position interpolation is below RoPE unchanged.",
            less("pi", "rope"),
        ),
        (
            "bloc97 2023 (NTK-aware scaling)",
            "Without fine-tuning a raised base costs little: within 10 % of the perplexity at T.",
            near_T("ntk", 1.1),
        ),
        (
            "Peng et al. 2023 (YaRN)",
            "Without fine-tuning, by the length of each call, YaRN is below interpolation.",
            less("yarn", "rope+pi"),
        ),
        (
            "Gelberg et al. 2025 (DroPE)",
            "YaRN without fine-tuning does what cropping does: within 5 % of the last T tokens.",
            near_T("yarn", 1.05),
        ),
        (
            "Su 2023 (ReRoPE)",
            "With log-n scaling, as released, more text lowers the perplexity beyond T.",
            near_T("rerope+logn", 1, short_of_16k),
        ),
        (
            "Jin et al. 2024 (SelfExtend)",
            "The perplexity stays near that at T: within 10 %.",
            near_T("selfextend", 1.1, short_of_16k),
        ),
        (
            "An et al. 2024 (dual chunk attention)",
            "To 8 T and more the perplexity rises by a negligible amount: within 5 %.",
            near_T("dual_chunk", 1.05, short_of_16k),
        ),
        (
            "Han et al. 2023 (LM-Infinite)",
            "The perplexity stays level at any length: within 5 %.",
            near_T("lm_infinite", 1.05),
        ),
        (
            "Xiao et al. 2023 (StreamingLLM)",
            "First and recent keys at their places in the cache are as good as the last T tokens: "
            "within 5 %.",
            near_T("streaming_llm", 1.05, short_of_16k),
        ),
    ]
    return _directions(claimed)


@cache
def _answers(task: str) -> dict[str, Accuracy]:
    """Returns the accuracies of the schemes that learned a task, at lengths to 2L, as published."""
    _, tasks = collect.gather_both(study.from_folder(RESULTS / "tasks").records)
    assert tasks is not None
    short_lines = [
        replace(line, points=tuple(p for p in line.points if p.length <= 2 * line.train_length))
        for line in (one.series for one in tasks.by_task[task])
    ]
    found = {one.series.scheme: one for one in accuracies(short_lines)}
    return {scheme: one for scheme, one in found.items() if one.excluded is None}


def shares(task: str, *schemes: str, bound: float) -> list[Share]:
    """Returns statements that less than a share of the answers beyond L are right."""
    unseen = {scheme: _answers(task)[scheme].unseen for scheme in schemes}
    return [
        Share(name=scheme, share=share, above=False, bound=bound)
        for scheme, share in unseen.items()
        if share is not None
    ]


def more(task: str, *schemes: tuple[str, str]) -> list[Share]:
    """Returns statements that beyond L more answers of the first of each pair are right."""
    found = _answers(task)
    return [
        Share(name=f"{a} less {b}", share=difference, above=True)
        for a, b in schemes
        if (difference := unseen_difference(found[a], found[b])) is not None
    ]


def _published_shares(task: str, *schemes: str) -> str:
    """Returns published shares of right answers beyond L, to 2L."""
    known = {one.scheme: one.accuracy for one in published_accuracies() if one.task == task}
    return ", ".join(f"{scheme} {100 * known[scheme]:.0f} %" for scheme in schemes)


def of_tasks() -> list[Claim]:
    """Returns the claims on copying to twice the trained length, with what three seeds show."""
    source = "Kazemnejad et al. 2023, released results"
    return [
        Claim(
            source=source,
            claim="Copying: T5 copies more than ALiBi.",
            published=_published_shares("copy", "t5", "alibi"),
            statements=more("copy", ("t5", "alibi")),
        ),
        Claim(
            source=source,
            claim="Copying: RoPE and learned positions copy next to nothing, below 5 %.",
            published=_published_shares("copy", "rope", "learned_absolute"),
            statements=shares("copy", "rope", "learned_absolute", bound=0.05),
        ),
        Claim(
            source=source,
            claim="Repeated copy: NoPE copies more than T5, and T5 more than ALiBi.",
            published=_published_shares("copy_repeat", "nope", "t5", "alibi"),
            statements=more("copy_repeat", ("nope", "t5"), ("t5", "alibi")),
        ),
        Claim(
            source=source,
            claim="Repeated copy: NoPE copies more than ALiBi.",
            published=_published_shares("copy_repeat", "nope", "alibi"),
            statements=more("copy_repeat", ("nope", "alibi")),
        ),
        Claim(
            source=source,
            claim="Repeated copy: RoPE and learned positions copy next to nothing, below 5 %.",
            published=_published_shares("copy_repeat", "rope", "learned_absolute"),
            statements=shares("copy_repeat", "rope", "learned_absolute", bound=0.05),
        ),
        Claim(
            source=source,
            claim="Reversing: NoPE and T5 write more than ALiBi.",
            published=_published_shares("reverse", "nope", "t5", "alibi"),
            statements=more("reverse", ("nope", "alibi"), ("t5", "alibi")),
        ),
        Claim(
            source=source,
            claim="Reversing: RoPE and learned positions write less than 10 %.",
            published=_published_shares("reverse", "rope", "learned_absolute"),
            statements=shares("reverse", "rope", "learned_absolute", bound=0.1),
        ),
    ]


def of_checkpoints() -> list[Claim]:
    """Returns claims of the papers of schemes, with what one checkpoint or three seeds show."""
    beyond = (1024, 4096, 16384)

    def holds(scheme: str, *lengths: int) -> list[Statement]:
        return rises(scheme, *lengths, above=False, folder="schemes")

    claimed: list[tuple[str, str, list[Statement]]] = [
        (
            "Chi et al. 2022 (KERPLE), Table 3",
            "The power form stays within 1 % of its perplexity at T, and the logarithmic one is "
            "below it at 16k.",
            [
                *bounded(1.01, holds("kerple_power", *beyond)),
                *below("kerple", "kerple_power", lengths=[16384]),
            ],
        ),
        (
            "Li et al. 2023 (FIRE)",
            "Beyond T FIRE is below other biases.",
            below("fire", "alibi", "kerple", "t5", lengths=beyond),
        ),
        (
            "Chi et al. 2023 (Sandwich)",
            "Sandwich uses text beyond T.",
            holds("sandwich", *beyond),
        ),
        (
            "Bianchessi et al. 2025 (BAM)",
            "Beyond T its perplexity is comparable to that of others: within 5 % of ALiBi's.",
            bounded(1.05, below("bam", "alibi", lengths=beyond)),
        ),
        (
            "Sun et al. 2022 (xPos)",
            "xPos is below RoPE beyond T, and stays within 5 % of its perplexity at T. Tested "
            "without blockwise attention.",
            [
                *below("xpos", "rope", lengths=beyond),
                *bounded(1.05, holds("xpos", *beyond)),
            ],
        ),
        *(
            (source, f"Beyond T {name} is below RoPE.", below(scheme, "rope", lengths=beyond))
            for scheme, name, source in (
                ("hope", "HoPE", "Chen et al. 2024 (HoPE)"),
                ("pope", "PoPE", "Gopalakrishnan et al. 2025 (PoPE)"),
                ("fope", "FoPE", "Hua et al. 2024 (FoPE)"),
                ("ssmax", "scalable softmax", "Nakanishi 2025 (SSMax)"),
                ("gated_attention", "gated attention", "Qiu et al. 2025"),
                ("fox", "the forgetting transformer", "Lin et al. 2025 (FoX)"),
            )
        ),
        (
            "Vasylenko et al. 2025 (ASEntmax)",
            "At 8T adaptive entmax is below softmax and scalable softmax.",
            below("asentmax", "rope", "ssmax", lengths=[4096]),
        ),
        (
            "Yang et al. 2025 (RNoPE-SWA)",
            "RNoPE-SWA is below RoPE in short and in long contexts.",
            below("rnope_swa", "rope", lengths=[T, *beyond]),
        ),
        (
            "Veisi et al. 2025 (CABLE)",
            "Beyond T CABLE is below other usual schemes.",
            below("cable", "alibi", "kerple", "t5", "rope", "sinusoidal", lengths=beyond),
        ),
        (
            "Zheng et al. 2024 (DAPE V2)",
            "Convolving the logits lowers the perplexity beyond T: below ALiBi at 2k. After 1.5M "
            "tokens (`slow_schemes/`).",
            below("dape_v2_kerple", "alibi", lengths=[2048], folder="slow_schemes"),
        ),
        (
            "Zheng et al. 2024 (DAPE)",
            "Over KERPLE, DAPE is below KERPLE and ALiBi beyond T: at 2k. After 1.5M tokens "
            "(`slow_schemes/`).",
            below("dape_kerple", "kerple", "alibi", lengths=[2048], folder="slow_schemes"),
        ),
        (
            "Yang et al. 2025 (PaTH)",
            "PaTH extrapolates better than RoPE: below it at 2k. After 1.5M tokens "
            "(`slow_schemes/`).",
            below("path_attention", "rope", lengths=[2048], folder="slow_schemes"),
        ),
        (
            "Tan et al. 2024 (stick-breaking)",
            "The perplexity improves up to 8T.",
            holds("stick_breaking", 1024, 4096),
        ),
        (
            "Shaw et al. 2018, section 3.2",
            "Clipped distances may generalise to other lengths: within 10 % of the value at T.",
            bounded(1.1, holds("shaw", *beyond)),
        ),
        (
            "Dai et al. 2019 (Transformer-XL), section 3.3",
            "The positions generalise to longer attention: within 10 % of the perplexity at T.",
            bounded(1.1, holds("transformer_xl", *beyond)),
        ),
        (
            "Zhu et al. 2025 (TAPE)",
            "TAPE has a lower loss than RoPE and ALiBi at T.",
            below("tape", "rope", "alibi", lengths=[T]),
        ),
        (
            "Vaswani et al. 2017, section 3.5",
            "Learned positions are nearly equal to sinusoids at T: less than 5 % above them.",
            bounded(1.05, below("learned_absolute", "sinusoidal", lengths=[T])),
        ),
    ]
    return _directions(claimed)


UNTESTED = (
    (
        "Trained at 1,024, ALiBi reaches at 2,048 the perplexity of sinusoids trained there.",
        "Press et al. 2022",
        "no model here is trained at 2,048 but one of RoPE (`fine_tuning/`)",
    ),
    (
        "ALiBi trains as fast as sinusoids, T5's biases at half that speed.",
        "Press et al. 2022, Table 1",
        "speeds of a GPU; on a CPU (`cost/schemes.tsv`) 0.93, 1.00 and 0.91 of no scheme",
    ),
    (
        "Retrieval at 500 (BAM) or 1,000 (ASEntmax) times the trained length.",
        "Bianchessi et al. 2025, Vasylenko et al. 2025",
        "no model here is trained for retrieval at such lengths",
    ),
    (
        "A needle in a haystack is found where RoPE fails (FoPE, SSMax), and texts of 16k "
        "are understood better (FIRE).",
        "Hua et al. 2024, Nakanishi 2025, Li et al. 2023",
        "asks for models that follow instructions",
    ),
    (
        "Copying another or twice, SCAN, PCFG, addition: NoPE, T5 and ALiBi are above RoPE and "
        "learned positions beyond L.",
        "Kazemnejad et al. 2023",
        "the tasks exist, no run of decoders is committed",
    ),
    (
        "Counting, selective copying and Flip-Flop under CoPE; 15 algorithmic tasks under "
        "randomised positions; sums of 100 and 200 digits under Abacus and position coupling.",
        "Golovneva et al. 2024, Ruoss et al. 2023, McLeish et al. 2024, Cho et al. 2024",
        "the tasks exist (`lengthgen list tasks`), no run is committed",
    ),
    (
        "Addition to 2.5 times the trained length by FIRE over randomised positions with hints.",
        "Zhou et al. 2024",
        "`experiment=addition_formats`, half a day to two days, is not run",
    ),
    (
        "Dependencies 450 % longer through a memory.",
        "Dai et al. 2019",
        "their measure, RECL, compares groups of models of several sizes",
    ),
    (
        "Gated DeltaNet extrapolates better than Mamba2 and DeltaNet.",
        "Yang et al. 2024",
        "the other two are not implemented",
    ),
)


INTRODUCTION = """\
# Published claims, and what the committed studies show

Ratios of perplexity with 95% intervals. `1k/T`: the perplexity at 1k tokens over that at T = 512.
Published models are 190 to 1,000 times larger and saw more text: directions are compared, not
sizes. A claim holds if every interval lies on the claimed side of 1, or of the bound given with
it. It does not hold if one lies on the other side and none on the claimed one, holds in part if
both occur, and is undecided otherwise. Direction only: the paper's numbers are not in
`lengthgen/analysis/reference_results/`. Written by `python scripts/published_claims.py`.

## Six schemes, three seeds

From `figure1/` (12M tokens of `python`) and, for the budget, `report/` (3M, the same rate for
RoPE); intervals over seeds and documents. NoPE and sinusoidal positions had learnt little: their
loss at T is 0.9 nats above RoPE's.

"""
VARIANTS = """
## Training-free variants of RoPE, three seeds

From `variants/` (12M tokens, no fine-tuning; the arguments of `conf/variant/`, untuned). `/T`: over
RoPE unchanged at T. Intervals are over seeds and documents.

"""
TASKS = """
## Copying, three seeds

From `tasks/`: right answers beyond L = 20, the longest trained length, to 2L; means over lengths,
and differences of such means, with 95% intervals over seeds and examples. A difference is claimed
to be above 0. NoPE did not learn to copy random characters here and is compared in repeated copy
alone.

"""
CHECKPOINTS = """
## Other schemes, one checkpoint or three seeds

From `schemes/` (6M tokens) unless said, three seeds of
{several};
one of the others. Where a scheme has one seed, intervals are over documents and the verdict is
about that checkpoint, not about the scheme.

"""
NOT_TESTED = """
## Not tested here

| claim | source | why |
|---|---|---|
"""


def page() -> str:
    """Returns the whole page."""
    untested = "".join(f"| {' | '.join(row)} |\n" for row in UNTESTED)
    sections = (
        (INTRODUCTION, claims),
        (VARIANTS, of_variants),
        (TASKS, of_tasks),
        (CHECKPOINTS.format(several=_of_several_seeds("schemes")), of_checkpoints),
    )
    tables = "".join(head + rendered(found()) for head, found in sections)
    return tables + NOT_TESTED + untested


def _of_several_seeds(folder: str) -> str:
    lines = _lines(folder, TAIL)
    return ", ".join(f"`{name}`" for name, line in lines.items() if len(line.runs) > 1)


def rendered(found: Sequence[Claim]) -> str:
    """Returns the table of claims."""
    lines = ["| claim | source | published | here | verdict |", "|---|---|---|---|---|"]
    for one in found:
        here = "; ".join(map(str, one.statements))
        cells = [one.claim, one.source, one.published, here, f"**{one.verdict}**"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (RESULTS / "published.md").write_text(page(), encoding="utf-8")
