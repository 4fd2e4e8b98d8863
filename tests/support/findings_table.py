"""Findings for tests of figures, as report.statistics.findings returns them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

LENGTHS = (128, 256, 512, 1024, 4096)


def findings_of(
    perplexities: Mapping[str, Sequence[float]], references: Sequence[str] = (), **columns: Any
) -> pd.DataFrame:
    """Returns the losses of series at LENGTHS; the name of one begins with its scheme's."""
    rows = [
        _finding(name, "loss", length, math.log(ppl), reference=name in references, **columns)
        for name, values in perplexities.items()
        for length, ppl in zip(LENGTHS, values, strict=False)
    ]
    return pd.DataFrame(rows)


def gains_of(names: Sequence[str], *, gain: float = -0.2) -> pd.DataFrame:
    """Returns gains at the lengths beyond 512, equal in all of them."""
    shown = {"low": gain - 0.02, "high": gain + 0.02, "word": "harmed" if gain < 0 else "uses"}
    return pd.DataFrame(
        [_finding(name, "gain", n, gain, **shown) for name in names for n in LENGTHS[3:]]
    )


def _finding(name: str, quantity: str, length: int, value: float, **columns: Any) -> dict[str, Any]:
    scheme, _, variant = name.partition(" + ")
    return {
        **{"series": name, "scheme": scheme.partition(" ")[0], "variant": variant or None},
        **{"reference": False, "train_length": 512, "n_seeds": 1, "protocol": "tail"},
        **{"quantity": quantity, "length": length, "value": value},
        **{"low": math.nan, "high": math.nan, "word": "", "mark": "", **columns},
    }
