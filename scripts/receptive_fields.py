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
from typing import NamedTuple

import numpy as np
from scipy import stats

from lengthgen.files import replace_file
from lengthgen.report.load import load
from lengthgen.report.series import select, short
from lengthgen.report.statistics import findings
from lengthgen.report.tables import Cell, Table, markdown

RESULTS = Path(__file__).resolve().parents[1] / "results"
OUT = RESULTS / "probes"
ROWS = OUT / "rows.jsonl"
LENGTH = 4096  # at which the rise is taken: all but one of the schemes have a loss there
WINDOWS = {512, 1024, 2048}  # tokens; a scheme without a field in one of them is left out
NEAR = 0.1  # nats per token of rise up to which a scheme is said to stay near its loss at T


class Checkpoint(NamedTuple):
    """A checkpoint: the nearest tokens that carry 99 % of the gradient, and its rise beyond T."""

    name: str
    T: int
    field: dict[int, int]  # tokens, by length of the window
    rise: float  # loss at LENGTH less that at T, nats per token
    low: float  # of its 95 % interval
    high: float

    @property
    def reach(self) -> float:
        """The field in the longest window, over T."""
        return self.field[max(self.field)] / self.T


def keep(runs: Sequence[Path]) -> None:
    """Writes the rows of the probe of these runs, as they are."""
    lines = [
        line
        for run in sorted(runs)
        for line in (run / "probes.jsonl").read_text(encoding="utf-8").splitlines()
        if json.loads(line)["probe"] == "receptive_field"
    ]
    replace_file(ROWS, "".join(f"{line}\n" for line in lines).encode())


def schemes() -> list[Checkpoint]:
    """Returns the checkpoints of which rows are kept, the narrowest field first."""
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    measured: dict[str, dict[int, int]] = {}
    for row in rows:
        if "skipped" not in row:
            measured.setdefault(row["run"], {})[row["length"]] = row["erf_99"]
    rows = load([RESULTS / "schemes"])
    [probed] = select(rows[rows["run"].isin(measured.keys())])
    table = findings(probed.rows)
    gains = table[(table["quantity"] == "gain") & (table["length"] == LENGTH)]
    runs = dict(zip(probed.rows["series"], probed.rows["run"], strict=True))
    found = [
        Checkpoint(
            name=row["scheme"],
            T=row["train_length"],
            field=measured[runs[row["series"]]],
            **{"rise": -row["value"], "low": -row["high"], "high": -row["low"]},
        )
        for row in gains.to_dict("records")
        if measured[runs[row["series"]]].keys() >= WINDOWS
    ]
    return sorted(found, key=lambda one: (one.reach, one.rise))


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


def page(found: Sequence[Checkpoint]) -> str:
    """Returns the table, and how far the two go together."""
    lengths = sorted(WINDOWS)
    head = ["scheme", *(short(length) for length in lengths), f"rise at {short(LENGTH)}, nats"]
    rows = [
        [
            Cell(one.name),
            *(Cell(f"{one.field[n]:,}") for n in lengths),
            Cell(f"{one.rise:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"),
        ]
        for one in found
    ]
    [T] = {one.T for one in found}
    within = [one for one in found if one.reach <= 1]
    beyond = [one for one in found if one.reach > 1]
    order = agreement([one.reach for one in found], [one.rise for one in found])
    notes = [
        f"The nearest tokens that carry 99 % of the gradient of the last prediction's loss, in "
        f"windows of {' and '.join(short(n) for n in lengths)} tokens, a mean over 16 windows; and "
        f"the loss at {short(LENGTH)} less that at T = {T}, with its 95 % interval over documents. "
        "One seed each, 6M tokens of python.",
        f"Of {len(within)} schemes whose field in the longest window lies within T, "
        f"{_near(within)} rise by less than {NEAR} nats at {short(LENGTH)}; of {len(beyond)} whose "
        f"field does not, {_near(beyond)}. Field and rise: {order}.",
    ]
    title = "Receptive fields, in tokens, and the rise of the loss beyond T"
    return markdown(Table(title=title, head=head, rows=rows, notes=notes))


def _near(found: Sequence[Checkpoint]) -> int:
    return sum(one.rise < NEAR for one in found)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    if len(sys.argv) > 1:
        keep([Path(name) for name in sys.argv[1:]])
    checkpoints = schemes()
    replace_file(OUT / "table.md", page(checkpoints).encode())
