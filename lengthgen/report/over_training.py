"""What changes over training: loss at T and the gains beyond it, at the checkpoints of runs.

All of it is on the targets of the matched tail, which are the same at every checkpoint and length.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.report import style
from lengthgen.report.figures import Across, Colours, draw_lines, gain_scale
from lengthgen.report.series import short
from lengthgen.report.tables import Numbers, Table, TableCell
from lengthgen.terminal import millions

TIMES = (2, 8, 32)  # of T, where gains are shown
MOST_TIMES = 8
SCHEDULE = (
    "The learning rate decays to the end of a run: earlier checkpoints are in the middle of its "
    "schedule, and no shorter runs."
)


def _draw_tokens(axes: Axes, rows: pd.DataFrame, _: float | None) -> None:
    style.token_axis(axes, rows["length"])


def _draw_losses(axes: Axes, rows: pd.DataFrame, _: float | None) -> None:
    low, high = rows["length"].min(), rows["length"].max()
    room = 0.04 * (high - low) or 0.1
    axes.set_xlim(high + room, low - room)
    axes.xaxis.set_major_locator(MaxNLocator(5))


OVER_TOKENS = Across("training tokens", _draw_tokens, millions, marker=".")
OVER_LOSS = Across("loss at T in nats per token, lower to the right", _draw_losses, marker=".")


def training_points(known: pd.DataFrame) -> pd.DataFrame:
    """Returns the losses and gains that are shown, in order of tokens; `times_T` is their length.

    `known` is what statistics.over_training returns. Gains are those at TIMES T that are there,
    else at the longest length.
    """
    of_tail = known[(known["protocol"] == HEADLINE) & ~known["reference"]]
    of_tail = of_tail[of_tail["value"].abs() < math.inf].sort_values(["series", "tokens", "length"])
    of_tail = of_tail.assign(times_T=of_tail["length"] / of_tail["train_length"])
    gains = of_tail[(of_tail["quantity"] == "gain") & (of_tail["times_T"] > 1)]
    usual = gains[gains["times_T"].isin(TIMES)]
    if usual.empty:
        usual = gains[gains["times_T"] == gains["times_T"].max()]
    return pd.concat([of_tail[(of_tail["quantity"] == "loss") & (of_tail["times_T"] == 1)], usual])


@style.styled()
def losses(shown: pd.DataFrame, *, colours: Colours | None = None) -> Figure | None:
    """Draws the loss at T over training tokens; `shown` is of training_points."""
    rows = shown[shown["quantity"] == "loss"]
    low = float(rows[["value", "low"]].min().min())
    high = float(rows[["value", "high"]].max().max())

    def scale(axes: Axes) -> None:
        axes.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))

    title = "Loss at T over training, on the same held-out targets, with 95 % bands"
    rows, unit = rows.assign(length=rows["tokens"]), "nats per token"
    return draw_lines(rows, scale, title, unit=unit, across=OVER_TOKENS, colours=colours)


@style.styled()
def gains(
    shown: pd.DataFrame, *, by_loss: bool = False, colours: Colours | None = None
) -> Figure | None:
    """Draws gains beyond T over training tokens, or over the loss at T that was reached there."""
    rows = shown[shown["quantity"] == "gain"]
    what, against, across = "Gain from context beyond T", "over training", OVER_TOKENS
    if rows["series"].nunique() > style.MAX_LINES:  # small multiples have a line each
        rows = rows[rows["times_T"] == rows["times_T"].max()]
        what += f" at {rows['times_T'].max():g}T"
    if by_loss:
        at_T = shown[shown["quantity"] == "loss"].set_index(["series", "tokens"])["value"]
        rows = rows.join(at_T.rename("loss"), on=["series", "tokens"]).dropna(subset="loss")
        rows = rows.assign(length=rows["loss"])
        against, across = "against the loss at T", OVER_LOSS
    else:
        rows = rows.assign(length=rows["tokens"])
    scale, unit = gain_scale(rows)
    title = f"{what} {against}, with 95 % bands of paired differences"
    look: Any = {"across": across, "by": "times_T", "colours": colours}
    return draw_lines(rows, scale, title, unit=unit, **look)


def training_tables(known: pd.DataFrame, shown: pd.DataFrame) -> list[Table]:
    """Returns perplexity at T, c* and the verdicts on gains, by training tokens."""
    made = partial(_by_tokens, _numbers(known))
    has_c_star = (known["quantity"] == "c_star").any()
    return [
        made(f"Perplexity at T={_T(shown)} by training tokens", _at_T, [SCHEDULE]),
        *([made("c* by training tokens", _c_star)] if has_c_star else []),
        *(
            made(f"Gain at {short(n)} by training tokens", partial(Numbers.verdict, length=n))
            for n in _lengths(shown)
        ),
    ]


def training_summary(known: pd.DataFrame, shown: pd.DataFrame) -> list[Table]:
    """Returns perplexity at T, and the gain at the longest length, by training tokens."""
    made, longest = partial(_by_tokens, _numbers(known)), _lengths(shown)[-1:]
    gains = (made(f"Gain at {short(n)} in nats", partial(_gain, length=n)) for n in longest)
    return [made(f"Perplexity at T={_T(shown)} by training tokens", _at_T), *gains]


def _numbers(known: pd.DataFrame) -> dict[int, Numbers]:
    of_tail = known[known["protocol"] == HEADLINE]
    return {int(n): Numbers(of_tail[of_tail["tokens"] == n]) for n in of_tail["tokens"].unique()}


def _T(shown: pd.DataFrame) -> str:
    return ", ".join(map(short, sorted(set(shown["train_length"]))))


def _lengths(shown: pd.DataFrame) -> list[int]:
    """Returns the lengths of the gains that are shown."""
    return sorted(set(shown.loc[shown["quantity"] == "gain", "length"].astype(int)))


def _at_T(numbers: Numbers, series: str) -> str:
    return numbers.perplexity(series, numbers.T[series]).text


def _c_star(numbers: Numbers, series: str) -> str:
    return numbers.finding(series, "c_star")["word"] or "-"


def _gain(numbers: Numbers, series: str, *, length: int) -> str:
    value = numbers.finding(series, "gain", length)["value"]
    return "-" if math.isnan(value) else f"{value:+.3f}"


def _by_tokens(
    numbers: dict[int, Numbers],
    title: str,
    text: Callable[[Numbers, str], str],
    notes: Sequence[str] = (),
) -> Table:
    """Returns a table of series by tokens: the last, and others evenly spread before it."""
    newest = dict(sorted(numbers.items(), reverse=True))
    kept = sorted([*newest][:: math.ceil(len(newest) / MOST_TIMES)])
    last: dict[str, Numbers] = {}
    for at in newest.values():
        last |= {name: at for name in at.series if name not in last}
    rows: list[list[TableCell]] = []
    for name, at in last.items():
        cells = (text(numbers[n], name) if name in numbers[n].T else "-" for n in kept)
        rows.append([*at.about(name), *map(TableCell, cells)])
    return Table(
        title=title, head=["scheme", "seeds", *map(millions, kept)], rows=rows, notes=notes
    )
