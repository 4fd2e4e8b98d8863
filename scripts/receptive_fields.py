# pyright: basic, reportArgumentType=false, reportCallIssue=false
"""Writes results/probes: the receptive field of each checkpoint next to what text beyond T does.

    python scripts/receptive_fields.py [RUN ...]

With runs, their rows of the probe are kept first, as results/probes/rows.jsonl; without, the table
is made again from these and the rows of results/schemes. Chi et al. 2023 (Sandwich, arXiv
2212.10356) tie extrapolation to a field that lies within T.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from lengthgen.files import replace_file
from lengthgen.report.load import load
from lengthgen.report.series import select, short
from lengthgen.report.statistics import findings
from lengthgen.report.tables import Table, TableCell, markdown

RESULTS = Path(__file__).resolve().parents[1] / "results"
OUT = RESULTS / "probes"
ROWS = OUT / "rows.jsonl"
LENGTH = 4096  # at which the rise is taken: all but one of the schemes have a loss there
WINDOWS = [512, 1024, 2048]  # tokens; a scheme without a field in one of them is left out
NEAR = 0.1  # nats per token of rise up to which a scheme is said to stay near its loss at T


def keep(runs: Sequence[Path]) -> None:
    """Writes the rows of the probe of these runs, as they are."""
    texts = [(run / "probes.jsonl").read_text(encoding="utf-8") for run in sorted(runs)]
    lines = [line for text in texts for line in text.splitlines()]
    lines = [line for line in lines if json.loads(line)["probe"] == "receptive_field"]
    replace_file(ROWS, "".join(f"{line}\n" for line in lines).encode())


def schemes() -> pd.DataFrame:
    """Returns a row for each checkpoint of which rows are kept, the narrowest field first.

    By window the nearest tokens that carry 99 % of the gradient; reach, that in the longest window
    over T; rise, the loss at LENGTH less that at T in nats per token, with its 95 % interval.
    """
    kept = pd.DataFrame(map(json.loads, ROWS.read_text(encoding="utf-8").splitlines()))
    fields = kept.dropna(subset="erf_99").pivot(index="run", columns="length", values="erf_99")
    rows = load([RESULTS / "schemes"])
    [probed] = select(rows[rows["run"].isin(fields.index)])
    runs = dict(zip(probed.rows["series"], probed.rows["run"], strict=True))
    gains = findings(probed.rows).query("quantity == 'gain' and length == @LENGTH")
    gains = gains.assign(run=gains["series"].map(runs))
    table = gains.merge(fields[WINDOWS].dropna().astype(int), left_on="run", right_index=True)
    table["reach"] = table[WINDOWS[-1]] / table["train_length"]
    table = table.assign(rise=-table["value"], low=-table["high"], high=-table["low"])
    return table.sort_values(["reach", "rise"])


def agreement(a: Sequence[float], b: Sequence[float]) -> str:
    """Returns Spearman's rho with the share of drawn orders with one as far from 0."""
    ranks, others = (stats.rankdata(values) - (len(values) + 1) / 2 for values in (a, b))
    rho = ranks @ others / np.sqrt((ranks @ ranks) * (others @ others))
    test = stats.permutation_test(
        (ranks,),
        lambda drawn, axis: np.abs(drawn @ others),
        permutation_type="pairings",
        alternative="greater",
        n_resamples=9999,
        rng=np.random.default_rng(0),
    )
    return f"Spearman's rho {rho:+.2f} (n = {len(a)}, permutation P = {test.pvalue:.2g})"


def page(table: pd.DataFrame) -> str:
    """Returns the table, and how far the two go together."""
    head = ["scheme", *map(short, WINDOWS), f"rise at {short(LENGTH)}, nats"]
    rows = [
        [
            TableCell(row["scheme"]),
            *(TableCell(f"{row[n]:,}") for n in WINDOWS),
            TableCell(f"{row['rise']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"),
        ]
        for row in table.to_dict("records")
    ]
    [T] = set(table["train_length"])
    within, near = table["reach"] <= 1, table["rise"] < NEAR
    order = agreement(table["reach"].tolist(), table["rise"].tolist())
    notes = [
        f"The nearest tokens that carry 99 % of the gradient of the last prediction's loss, in "
        f"windows of {' and '.join(map(short, WINDOWS))} tokens, a mean over 16 windows. "
        f"Beside them, the loss at {short(LENGTH)} minus that at T = {T}, with its 95 % interval "
        "over documents. One seed each, 6M tokens of python.",
        f"Of {sum(within)} schemes whose field in the longest window lies within T, "
        f"{sum(within & near)} rise by less than {NEAR} nats at {short(LENGTH)}; of {sum(~within)} "
        f"whose field does not, {sum(~within & near)}. Field and rise: {order}.",
    ]
    title = "Receptive fields, in tokens, and the rise of the loss beyond T"
    return markdown(Table(title=title, head=head, rows=rows, notes=notes))


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    if len(sys.argv) > 1:
        keep([Path(name) for name in sys.argv[1:]])
    replace_file(OUT / "table.md", page(schemes()).encode())
