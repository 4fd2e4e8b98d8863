"""Findings for tests of figures, as report.statistics.findings returns them."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

LENGTHS = (128, 256, 512, 1024, 4096)
COLUMNS = [
    *("series", "scheme", "variant", "reference", "train_length", "n_seeds", "protocol"),
    *("quantity", "length", "value", "low", "high", "word", "mark"),
]


def findings_of(
    perplexities: Mapping[str, Sequence[float]],
    *,
    train_length: int = 512,
    references: Sequence[str] = (),
) -> pd.DataFrame:
    """Returns the losses of series at LENGTHS; the name of one begins with its scheme's."""
    return _table(
        [
            [series, "loss", length, math.log(ppl), math.nan, math.nan, ""]
            for series, values in perplexities.items()
            for length, ppl in zip(LENGTHS, values, strict=False)
        ],
        train_length=train_length,
        references=references,
    )


def gains_of(names: Sequence[str], *, gain: float = -0.2) -> pd.DataFrame:
    """Returns gains at the lengths beyond 512, equal in all of them."""
    return _table(
        [
            [name, "gain", length, gain, gain - 0.02, gain + 0.02, "harmed" if gain < 0 else "uses"]
            for name in names
            for length in LENGTHS[3:]
        ],
        train_length=512,
        references=(),
    )


def _table(
    rows: Sequence[Sequence[object]], *, train_length: int, references: Sequence[str]
) -> pd.DataFrame:
    table = pd.DataFrame(
        rows, columns=["series", "quantity", "length", "value", "low", "high", "word"]
    )
    variants = [str(name).partition(" + ")[2] or None for name in table["series"]]
    assigned = table.assign(
        scheme=[str(name).partition(" ")[0] for name in table["series"]],
        variant=variants,
        reference=[name in references for name in table["series"]],
        train_length=train_length,
        n_seeds=1,
        protocol="tail",
        mark="",
    )
    return assigned.reindex(columns=COLUMNS)
