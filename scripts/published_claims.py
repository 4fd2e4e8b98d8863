"""Writes results/published.md: what papers say, and whether the committed studies show it.

    python scripts/published_claims.py

Published numbers come from lengthgen.analysis.reference_results, own ones from the rows of
results/figure1 and results/report. A claim holds if all its 95% intervals lie on the claimed side,
does not hold if one of them lies on the other side, and is undecided otherwise.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from lengthgen.analysis.formatting import short
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.paired_sums import Sample, complete_lengths, sample, whole
from lengthgen.analysis.reference_results import published_curves
from lengthgen.analysis.seed_groups import Series
from lengthgen.report import collect, study

RESULTS = Path(__file__).resolve().parents[1] / "results"
T = 512
BLOCKS, TAIL = "alibi_nonoverlap", "tail"
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
        """True or False if the interval lies on one side of the bound, None otherwise."""
        limit = math.log(self.bound)
        if self.log_ratio.low > limit:
            return self.above
        if self.log_ratio.high < limit:
            return not self.above
        return None

    def __str__(self) -> str:
        value, low, high = (
            f"{math.exp(min(v, 50)):.3g}"
            for v in (self.log_ratio.value, self.log_ratio.low, self.log_ratio.high)
        )
        side = "above" if self.above else "below"
        bound = "" if self.bound == 1 else f", {side} {self.bound:.3g}"
        return f"{self.name}{bound}: {value} [{low}, {high}]"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published claim, with the published ratios of perplexity and ours."""

    source: str
    claim: str
    published: str
    statements: Sequence[Statement]

    @property
    def verdict(self) -> str:
        found = [statement.verdict for statement in self.statements]
        if False in found:
            return "in part" if True in found else "does not hold"
        return "undecided" if None in found else "holds"


@cache
def _report(folder: str) -> collect.Report:
    report, _ = collect.gather_both(study.of_folder(RESULTS / folder).records)
    assert report is not None, folder
    return report


def _lines(folder: str, protocol: str, trained: int = T) -> dict[str, Series]:
    """Returns the series of runs of a training length by scheme, or scheme+variant."""
    return {
        f"{line.scheme}+{line.variant}" if line.variant else line.scheme: line
        for line in _report(folder).by_protocol[protocol]
        if line.train_length == trained
    }


def _rise(
    name: str, length: int, protocol: str = TAIL, folder: str = "figure1", trained: int = T
) -> Estimate:
    """Returns ln of the perplexity at a length over that of the scheme at its training length."""
    lines = _lines(folder, protocol, trained)
    there, at_T = lines[name], lines[name.partition("+")[0]]
    cells = [complete_lengths(there)[length], complete_lengths(at_T)[trained]]
    return _sampled(sample(cells, whole))


def _apart(a: str, b: str, length: int, protocol: str = TAIL) -> Estimate:
    """Returns ln of the perplexity of one scheme over that of another at a length."""
    lines = _lines("figure1", protocol)
    return _sampled(sample([complete_lengths(lines[name])[length] for name in (a, b)], whole))


def _sampled(found: Sample | None) -> Estimate:
    assert found is not None, "cells that share no targets"
    return found.gap(0, 1)


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


def claims() -> list[Claim]:
    """Returns the claims with what the committed rows say of each."""
    press, press_mean = "Press et al. 2022, Tables 13-15", "Press et al. 2022, Table 2"
    slid, table, appendix = "alibi-table13-15", "alibi-table2", "nope-appendix-f"

    def rises(
        scheme: str, *lengths: int, protocol: str = TAIL, above: bool = True, trained: int = T
    ) -> list[Statement]:
        return [
            Statement(
                name=f"{scheme} {short(n)}/T",
                log_ratio=_rise(scheme, n, protocol, trained=trained),
                above=above,
            )
            for n in lengths
        ]

    def pairs(
        *schemes: tuple[str, str], length: int, protocol: str, above: bool = True
    ) -> list[Statement]:
        return [
            Statement(
                name=f"{a}/{b} at {short(length)}",
                log_ratio=_apart(a, b, length, protocol),
                above=above,
            )
            for a, b in schemes
        ]

    def bounded(bound: float, statements: Sequence[Statement]) -> list[Statement]:
        return [replace(one, bound=bound) for one in statements]

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
                    log_ratio=_less(_rise("t5", 16384, trained=1024), _rise("t5", 16384)),
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
                    log_ratio=_less(_rise(a, 2 * T), _rise(b, 2 * T)),
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
            source="Lin et al. 2025 (FoX), section 4.3",
            claim="Extrapolation depends on the training, not on the positions alone. Tested: "
            "RoPE's rise at 32T grows from 3M to 12M tokens.",
            published=DIRECTION,
            statements=[
                Statement(
                    name="rope 16k/T after 12M tokens over that after 3M",
                    log_ratio=_less(_rise("rope", 32 * T), _rise("rope", 32 * T, folder="report")),
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
                    log_ratio=_less(_rise(scheme, 1024), _rise(scheme, 1024, BLOCKS)),
                    above=True,
                )
                for scheme in ("sinusoidal", "rope")
            ],
        ),
    ]


def rendered(found: Sequence[Claim]) -> str:
    """Returns the page."""
    lines = [
        "# Published claims, and what the committed studies show",
        "",
        "Ratios of perplexity with 95% intervals over seeds and documents, from `figure1/` (T =",
        "512 unless said, 12M tokens of `python`) and, for the budget, `report/` (3M, the same",
        "rate for RoPE). `1k/T`: the perplexity at 1k tokens over that at T. Published models",
        "are 190 to 1,000 times larger and saw more text: directions are compared, not sizes.",
        "NoPE and sinusoidal positions had learnt little: their loss at T is 0.9 nats above",
        "RoPE's. A claim holds if every interval lies on the claimed side of 1, or of the bound",
        "given with it. It does not hold if one lies on the other side and none on the claimed",
        "one, holds in part if both occur, and is undecided otherwise. Direction only: the",
        "paper's numbers are not in `lengthgen/analysis/reference_results/`. Written by",
        "`python scripts/published_claims.py`.",
        "",
        "| claim | source | published | here | verdict |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        here = "; ".join(map(str, one.statements))
        cells = [one.claim, one.source, one.published, here, f"**{one.verdict}**"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (RESULTS / "published.md").write_text(rendered(claims()), encoding="utf-8")
