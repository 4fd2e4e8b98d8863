"""The section of a report on tasks: accuracy over length, and the matrix of tasks and schemes."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from lengthgen.report.intervals import Estimate
from lengthgen.report.section import Section
from lengthgen.report.series import Selection, select, short
from lengthgen.report.style import (
    DASHES,
    GREY,
    LineEnd,
    label_ends,
    length_axis,
    new_figure,
    scheme_colours,
    styled,
)
from lengthgen.report.tables import Cell, Table
from lengthgen.tasks.accuracy import (
    BEYOND_CHANCE,
    DECODED,
    HALF,
    LEARNED,
    Accuracy,
    MeanRank,
    accuracies,
    counted,
    mean_ranks,
)
from lengthgen.tasks.decoding import ALTERNATIVES

MOST_COLUMNS = 12  # lengths in a table; of more,
LENGTHS = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4)  # times L
LEAST_CHANCE = 0.05  # below that it is not shown
BOUND = "Upper bound: the scheme is given which characters belong together"
FAINT = "grey or in parentheses"
UNCOUNTED = f"less than {LEARNED:.0%} right up to L, or unknown there; neither compared nor ranked"
UNSOLVED = f"no scheme that learned it exceeds chance by {100 * BEYOND_CHANCE:g} points beyond L"
MEASURES = {
    "edit distance": "Edit distance: Levenshtein's, from the true answer, over the length of the "
    "longer one; 0 is right.",
    "result": "Result: the percentage of right results, whatever the scratchpad before them is.",
    "rank": f"Rank: of the true answer among {ALTERNATIVES} random ones of its form, by log "
    f"probability; 1 is the best, {1 + ALTERNATIVES / 2:g} chance.",
}
SCALES = {"edit distance": (1, 3), "result": (100, 1), "rank": (1, 2)}  # factor, digits


@dataclass(frozen=True, kw_only=True)
class TaskResults:
    """What the series of one task show."""

    name: str
    measured: Sequence[Accuracy]
    selection: Selection
    unit: str  # what lengths count
    chance: float  # of an answer that is right without the prompt

    @property
    def train_length(self) -> int:
        return self.measured[0].train_length


def results_of(rows: pd.DataFrame) -> list[TaskResults]:
    """Returns what the rows of each task show."""
    of_tasks = rows.loc[rows["protocol"] == "answers"]
    results: dict[str, TaskResults] = {}
    for selection in sorted(select(of_tasks), key=lambda one: str(one.rows["corpus"].iloc[0])):
        first = selection.rows.iloc[0]
        name = str(first["corpus"])
        name = f"{name}-{first['fingerprint'][:6]}" if name in results else name
        results[name] = TaskResults(
            name=name,
            measured=accuracies(selection.rows),
            selection=selection,
            unit=str(first["unit"]),
            chance=float(first["chance"]),
        )
    return [*results.values()]


def counted_in(results: Sequence[TaskResults]) -> dict[str, list[Accuracy]]:
    """Returns what ranks are of: the tasks that are solved, and the series that learned them."""
    by_task = {task.name: task.measured for task in results}
    return counted(by_task, {task.name: task.chance for task in results})


def section(rows: pd.DataFrame) -> Section | None:
    """Returns tables and figures of the tasks among the rows; None if no row is of a task."""
    results = results_of(rows)
    if not results:
        return None
    counts = counted_in(results)
    tables: list[Table] = []
    for task in results:
        tables.append(_by_length(task, is_solved=task.name in counts))
        if any(one.decoded for one in task.measured):
            tables.append(_decoded(task))
    tables = [_matrix(results, counts), *tables] if len(results) > 1 else tables
    return Section(
        title=f"Tasks: {', '.join(task.name for task in results)}",
        figures={f"accuracy-{task.name}": accuracy_figure(task) for task in results},
        tables=tables,
        notes=[note for task in results for note in task.selection.notes],
        data={"tasks": by_length(results)},
        summary=tables[0],
    )


def by_length(results: Sequence[TaskResults]) -> pd.DataFrame:
    """Returns each measure of each series by length, with its interval.

    Accuracy has the share of right tokens, and of answers that first go wrong in where they stop.
    """
    return pd.DataFrame(
        {
            "task": task.name,
            "series": one.series,
            "seeds": one.n_seeds,
            "measure": name,
            "length": n,
            "tests": measure.n_tests[n],
            "value": e.value,
            "low": e.low,
            "high": e.high,
            "tokens": one.tokens[n] if measure is one.exact else None,
            "stops": one.stops[n] if measure is one.exact else None,
        }
        for task in results
        for one in task.measured
        for name, measure in {"accuracy": one.exact, **one.decoded}.items()
        for n, e in measure.by_length.items()
    )


# Tables


def _matrix(results: Sequence[TaskResults], counts: Mapping[str, Sequence[Accuracy]]) -> Table:
    """Returns mean accuracy on unseen lengths of each series in each task, and the mean ranks."""
    every = [one for task in results for one in task.measured]
    cells = {
        (one.series, task.name): _standing(one, counts.get(task.name))
        for task in results
        for one in task.measured
    }
    ranks = mean_ranks(counts)
    rows = [
        [
            Cell(label),
            *(cells.get((label, task.name), Cell("-")) for task in results),
            _with_bounds(ranks.get(label), scale=1, digits=2),
        ]
        for label in sorted({one.series for one in every})
    ]
    ranked = (
        f"Mean rank: over {', '.join(counts)}, of the schemes that count in each; ties "
        "share the mean of theirs; 1 is best; in brackets that of the best and of the worst seed."
    )
    unranked = (
        "Mean rank: none, since fewer than two schemes learned, and have a value in, each task "
        "that counts, or seeds are not as many."
    )
    notes = [
        "Bold: the highest of those that count. Means are over the lengths that all were "
        "evaluated at; a dash: no value at one of them.",
        ranked if ranks else unranked,
    ]
    if any(one.excluded for one in every):
        notes.append(f"Not learned, {FAINT}: {UNCOUNTED}.")
    unsolved = [task.name for task in results if task.name not in counts]
    if unsolved:
        notes.append(f"In no rank, {FAINT}: {', '.join(unsolved)}; {UNSOLVED}.")
    if any(one.is_bound for one in every):
        notes.append(f"{BOUND}; neither compared nor ranked.")
    return Table(
        key="tasks",
        title="Accuracy on unseen lengths (mean over the evaluated lengths beyond L), in percent",
        head=["scheme", *(task.name for task in results), "mean rank"],
        rows=rows,
        notes=notes,
    )


def _by_length(task: TaskResults, *, is_solved: bool) -> Table:
    """Returns the accuracy of each series of a task at up to MOST_COLUMNS lengths."""
    tests = [n for one in task.measured for n in one.exact.n_tests.values()]
    lengths = {length for one in task.measured for length in one.exact.by_length}
    columns = _columns(lengths, task.train_length)
    rows: list[list[Cell]] = []
    for one in task.measured:
        seen, unseen = one.exact.seen, one.exact.unseen
        cells = [
            Cell(str(one.n_seeds)),
            *(_percent(one.exact.by_length.get(n), None) for n in columns),
            _with_bounds(seen, scale=100, digits=1),
            _with_bounds(unseen, scale=100, digits=1),
            Cell(one.half_length if task.chance < HALF else "-"),
            Cell(", ".join(f"{100 * x:.1f}" for x in unseen.seeds) if unseen else "-"),
        ]
        label = one.series
        if one.excluded is not None:
            cells = [Cell(cell.text, "faint") for cell in cells]
            label = f"{label} ({one.excluded})"
        rows.append([Cell(label), *cells])
    notes = [
        "Right: all of the answer, its end included, is what greedy decoding writes. Seen, "
        "unseen: means over the lengths that all were evaluated at, up to L, and beyond, each "
        "with the same weight, and their 95% intervals over seeds and examples. L50: the last "
        "of the evaluated lengths before less than half of the answers are right. "
        f"Tests of a length: {min(tests, default=0)} to {max(tests, default=0)}."
    ]
    if task.chance >= LEAST_CHANCE:
        notes.append(f"A model that ignores the prompt can be right in {task.chance:.0%} up to L.")
    if any(one.excluded for one in task.measured):
        notes.append(f"Not learned, {FAINT}: {UNCOUNTED}.")
    if not is_solved:
        notes.append(f"In no rank: {UNSOLVED}.")
    skipped = task.selection.rows["skipped"].dropna()
    notes += [f"A dash: {reason}." for reason in sorted(set(skipped))]
    if any(one.is_bound for one in task.measured):
        notes.append(f"{BOUND}.")
    return Table(
        key=_key("accuracy", task.name),
        title=f"Right answers in percent, by length in {task.unit}, trained to "
        f"L={task.train_length}; {task.selection.title}",
        head=["scheme", "seeds", *map(short, columns), "seen", "unseen", "L50", "each seed"],
        rows=rows,
        notes=notes,
    )


def _decoded(task: TaskResults) -> Table:
    """Returns the measures of decoded tests by length."""
    lines = [
        (one, name, one.decoded[name])
        for name in DECODED
        for one in task.measured
        if name in one.decoded
    ]
    tests = [n for _, _, measure in lines for n in measure.n_tests.values()]
    columns = _columns({n for _, _, measure in lines for n in measure.by_length}, task.train_length)
    rows: list[list[Cell]] = []
    for one, name, measure in lines:
        scale, digits = SCALES[name]
        by_length = (measure.by_length.get(n) for n in columns)
        values = ("-" if e is None else f"{scale * e.value:.{digits}f}" for e in by_length)
        means = [
            _with_bounds(e, scale=scale, digits=digits) for e in (measure.seen, measure.unseen)
        ]
        rows.append([*map(Cell, (name, one.series, str(one.n_seeds), *values)), *means])
    names = dict.fromkeys(name for _, name, _ in lines)
    return Table(
        key=_key("decoded", task.name),
        title=f"Decoded tests, by length in {task.unit}, trained to L={task.train_length}; "
        f"{task.selection.title}",
        head=["measure", "scheme", "seeds", *map(short, columns), "seen", "unseen"],
        rows=rows,
        notes=[
            f"Of the first {min(tests)} to {max(tests)} tests of a length, decoded greedily. "
            + " ".join(MEASURES[name] for name in names)
        ],
    )


def _key(kind: str, name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{kind}-{name}")


def _columns(lengths: Collection[int], L: int) -> list[int]:
    """Returns the lengths that a table shows."""
    if len(lengths) <= MOST_COLUMNS:
        return sorted(lengths)
    return sorted({min(lengths, key=lambda n: (abs(n - k * L), n)) for k in LENGTHS})


def _standing(one: Accuracy, competing: Sequence[Accuracy] | None) -> Cell:
    """Returns a cell of the matrix; `competing` are those that count in its task, if any does."""
    if one.excluded is not None:
        return Cell(one.excluded, "faint")
    if competing is None:
        return Cell(_percent(one.exact.unseen, None).text, "faint")
    best = max(other.exact.unseen.value for other in competing if other.exact.unseen)
    return _percent(one.exact.unseen, None if one.is_bound else best)


def _percent(estimate: Estimate | None, best: float | None) -> Cell:
    if estimate is None:
        return Cell("-")
    mark = "best" if best and estimate.value == best else ""
    return Cell(f"{100 * estimate.value:.1f}", mark)


def _with_bounds(estimate: Estimate | MeanRank | None, *, scale: float, digits: int) -> Cell:
    if estimate is None:
        return Cell("-")
    numbers = (estimate.value, estimate.low, estimate.high)
    value, low, high = (f"{scale * x:.{digits}f}" for x in numbers)
    return Cell(f"{value} [{low}, {high}]")


# Figures


@styled()
def accuracy_figure(task: TaskResults) -> Figure:
    """Draws the share of right answers over length with 95 % bands, a line per series."""
    measured = task.measured
    colours = scheme_colours(one.scheme for one in measured)
    note = f"; grey: {UNCOUNTED}" if any(one.excluded for one in measured) else ""
    drawn = new_figure(f"{task.name}: right answers over length in {task.unit}{note}")
    axes = drawn.subplots()
    axes.set_ylim(-0.03, 1.1)  # room for the word above 100%
    lengths = [n for one in measured for n in one.exact.by_length] or [1]
    length_axis(axes, lengths, trained=task.train_length)
    ends: list[LineEnd] = []
    drawn_of_scheme: dict[str, int] = {}
    for one in measured:
        dash = DASHES[drawn_of_scheme.setdefault(one.scheme, 0) % len(DASHES)]
        drawn_of_scheme[one.scheme] += 1
        x, colour = [*one.exact.by_length], GREY if one.excluded else colours[one.scheme]
        shares = one.exact.by_length.values()
        low, high, values = ([getattr(e, key) for e in shares] for key in ("low", "high", "value"))
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(x, values, color=colour, linestyle=dash, marker="o", markersize=3)
        if values:
            ends.append(LineEnd(values[-1], one.series, colour))
    if task.chance >= LEAST_CHANCE:
        axes.axhline(task.chance, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
        ends.append(LineEnd(task.chance, "chance", GREY))
    axes.set_yticks([n / 4 for n in range(5)], [f"{25 * n}%" for n in range(5)])
    axes.set_xlabel(f"length in {task.unit}")
    label_ends(axes, ends)
    return drawn
