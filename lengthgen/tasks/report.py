"""The section of a report on tasks: accuracy over length, and the matrix of tasks and schemes."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lengthgen.report import figures, style
from lengthgen.report.intervals import Estimate
from lengthgen.report.report import ReportSection
from lengthgen.report.series import Selection, select, short
from lengthgen.report.tables import MOST_COLUMNS, Table, TableCell
from lengthgen.tasks import accuracy
from lengthgen.tasks.accuracy import Accuracy, accuracies

LENGTHS = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4)  # times L, of more than MOST_COLUMNS
BRIEF = (0.5, 1, 2, 4)  # times L, for a terminal
LEAST_CHANCE = 0.05  # below that it is not shown
NOTES = [
    "Correct: greedy decoding writes the whole answer and its end. Seen, unseen: means over the "
    "lengths up to L, and beyond, that most have; 95 % intervals over seeds and examples. L50: the "
    "last length before accuracy falls below one half.",
    f"In parentheses: accuracy below {accuracy.LEARNED:.0%} up to L, or a task in which no scheme "
    f"that learned it exceeds chance by {100 * accuracy.BEYOND_CHANCE:g} points beyond L. These, "
    "and upper bounds, are neither compared nor ranked.",
]
RANKS = (
    "Mean rank: over the tasks that count, of the schemes that count in each, if all of these have "
    "equally many seeds; ties share the mean. In brackets: the best and the worst seed. Bold: the "
    "highest of those that count."
)


@dataclass(frozen=True, kw_only=True)
class TaskResults:
    """What the series of one task show."""

    name: str
    measured: Sequence[Accuracy]
    selection: Selection
    unit: str  # what lengths count
    chance: float  # of an answer that is right without the prompt
    train_length: int  # L


def results_of(rows: pd.DataFrame) -> list[TaskResults]:
    """Returns what the rows of each task show."""
    results: dict[str, TaskResults] = {}
    selections = select(rows.loc[rows["protocol"] == "answers"])
    for selection in sorted(selections, key=lambda text: str(text.rows["corpus"].iloc[0])):
        first = selection.rows.iloc[0]
        name = str(first["corpus"])
        name = f"{name}-{first['fingerprint'][:6]}" if name in results else name
        about: Any = first[["unit", "chance", "train_length"]].to_dict()
        measured = accuracies(selection.rows)
        results[name] = TaskResults(name=name, measured=measured, selection=selection, **about)
    return [*results.values()]


def series_that_learned(results: Sequence[TaskResults]) -> dict[str, list[Accuracy]]:
    """Returns the series that learned each task, of the tasks that one of them solves beyond L.

    Solved: BEYOND_CHANCE above the task's chance. Upper bounds are left out.
    """
    counts: dict[str, list[Accuracy]] = {}
    for task in results:
        learned = [a for a in task.measured if a.excluded is None and not a.is_bound]
        best = max((a.unseen.value for a in learned if a.unseen is not None), default=-1.0)
        if best >= task.chance + accuracy.BEYOND_CHANCE - accuracy.ROUNDING:
            counts[task.name] = learned
    return counts


def tasks_section(rows: pd.DataFrame) -> ReportSection | None:
    """Returns tables and figures of the tasks among the rows; None if no row is of a task."""
    results = results_of(rows)
    if not results:
        return None
    colours = style.scheme_colours(rows["scheme"])  # in all figures
    matrix = [_matrix(results, series_that_learned(results))] if len(results) > 1 else []
    tables = [*matrix, *map(_by_length, results)]
    by_length: dict[Hashable, pd.DataFrame] = {
        (task.name, a.series, a.n_seeds): a.by_length for task in results for a in task.measured
    }
    names: list[Hashable] = ["task", "series", "seeds"]
    return ReportSection(
        title=f"Tasks: {', '.join(task.name for task in results)}",
        drawings=lambda: {
            f"accuracy-{t.name}": partial(accuracy_figure, t, colours) for t in results
        },
        tables=tables,
        notes=[note for task in results for note in task.selection.notes],
        data={"tasks": pd.concat(by_length, names=names).reset_index()},
        summary=matrix or [_by_length(task, brief=True) for task in results],
    )


# Tables


def _matrix(results: Sequence[TaskResults], counts: Mapping[str, Sequence[Accuracy]]) -> Table:
    """Returns the accuracy beyond L of each series in each task, and mean ranks."""
    cells = {
        (a.series, task.name): _standing(a, counts.get(task.name))
        for task in results
        for a in task.measured
    }
    ranks = accuracy.mean_ranks(counts)
    rows = [
        [
            TableCell(series),
            *(cells.get((series, task.name), TableCell("-")) for task in results),
            _with_bounds(ranks.get(series), scale=1, digits=2),
        ]
        for series in sorted({series for series, _ in cells})
    ]
    return Table(
        title="Accuracy on unseen lengths (mean over the evaluated lengths beyond L), in percent",
        head=["scheme", *(task.name for task in results), "mean rank"],
        rows=rows,
        notes=[RANKS, NOTES[1]],
    )


def _standing(series: Accuracy, competing: Sequence[Accuracy] | None) -> TableCell:
    """Returns a cell of the matrix; `competing` are those that count in its task, if any does."""
    if series.excluded is not None:
        return TableCell(series.excluded, "faint")
    if series.unseen is None:
        return TableCell("-")
    text = f"{100 * series.unseen.value:.1f}"
    if competing is None:
        return TableCell(text, "faint")
    best = max(other.unseen.value for other in competing if other.unseen)
    is_best = not series.is_bound and best and series.unseen.value == best
    return TableCell(text, "best" if is_best else "")


def _by_length(task: TaskResults, *, brief: bool = False) -> Table:
    """Returns the accuracy of each series of a task at up to MOST_COLUMNS lengths; brief: four."""
    columns = sorted({n for a in task.measured for n in a.by_length.index})
    if len(columns) > (len(BRIEF) if brief else MOST_COLUMNS):
        nearest = (k * task.train_length for k in (BRIEF if brief else LENGTHS))
        columns = sorted({min(columns, key=lambda n: (abs(n - at), n)) for at in nearest})
    rows: list[list[TableCell]] = []
    for a in task.measured:
        at = a.by_length["accuracy"]
        cells = [
            TableCell(str(a.n_seeds)),
            *(TableCell(f"{100 * at[n]:.1f}" if n in at else "-") for n in columns),
            _with_bounds(a.seen, scale=100, digits=1),
            _with_bounds(a.unseen, scale=100, digits=1),
            TableCell(a.half_length if task.chance < accuracy.HALF else "-"),
            TableCell(", ".join(f"{100 * x:.1f}" for x in a.unseen.seeds) if a.unseen else "-"),
        ]
        if a.excluded is not None:
            cells = [TableCell(cell.text, "faint") for cell in cells]
        label = a.series if a.excluded is None else f"{a.series} ({a.excluded})"
        rows.append([TableCell(label), *cells])
    head = ["scheme", "seeds", *map(short, columns), "seen", "unseen", "L50", "each seed"]
    if brief:
        kept = [i for i, name in enumerate(head) if name not in ("seeds", "seen", "each seed")]
        head, rows = [head[i] for i in kept], [[row[i] for i in kept] for row in rows]
    notes = [*NOTES]
    if task.chance >= LEAST_CHANCE:
        notes.append(f"A model that ignores the prompt has up to {task.chance:.0%} up to L.")
    skipped = task.selection.rows["skipped"].dropna()
    notes += [f"A dash: {reason}." for reason in sorted(set(skipped))]
    return Table(
        title=f"Accuracy in percent, by length in {task.unit}, trained to "
        f"L={task.train_length}; {task.selection.title}",
        head=head,
        rows=rows,
        notes=notes,
    )


def _with_bounds(estimate: Estimate | None, *, scale: float, digits: int) -> TableCell:
    if estimate is None:
        return TableCell("-")
    numbers = (estimate.value, estimate.low, estimate.high)
    value, low, high = (f"{scale * x:.{digits}f}" for x in numbers)
    return TableCell(f"{value} [{low}, {high}]")


# Figures


@style.styled()
def accuracy_figure(task: TaskResults, colours: Mapping[str, str]) -> Figure:
    """Draws accuracy by length with 95 % bands, a line per series, in the colours of schemes."""
    note = "; grey: not learned up to L" if any(a.excluded for a in task.measured) else ""
    lines, looks = list[pd.DataFrame](), dict[str, dict[str, Any]]()
    for i, a in enumerate(task.measured):
        same = [other for other in task.measured[:i] if other.scheme == a.scheme]
        colour, dashes = style.GREY if a.excluded else colours[a.scheme], style.DASHES
        looks[a.series] = {"color": colour, "linestyle": dashes[len(same) % len(dashes)]}
        values = a.by_length[["low", "high"]].assign(value=a.by_length["accuracy"])
        about = {"series": a.series, "scheme": a.scheme, "reference": False}
        lines.append(values.assign(**about).reset_index())
    if task.chance >= LEAST_CHANCE:
        ends = pd.concat(lines)["length"].agg(["min", "max"]).tolist()
        values = {"length": ends, "value": task.chance, "low": math.nan, "high": math.nan}
        about = {"series": "chance", "scheme": "", "reference": True}
        lines.append(pd.DataFrame({**values, **about}))
        looks["chance"] = {"color": style.GREY, "linewidth": 0.8, "linestyle": (0, (1, 2))}
    return figures.draw_shares(
        pd.concat(lines, ignore_index=True),
        looks,
        f"{task.name}: accuracy by length in {task.unit}{note}",
        across=f"length in {task.unit}",
        trained=task.train_length,
        height=max(4.4, 0.7 + 0.2 * len(task.measured)),
    )
