"""The section of a report on tasks: accuracy over length, and the matrix of tasks and schemes."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
from matplotlib.figure import Figure

from lengthgen.results.intervals import Estimate
from lengthgen.results.section import Section
from lengthgen.results.series import Selection, select, short
from lengthgen.results.style import (
    DASHES,
    GREY,
    LineEnd,
    label_ends,
    length_axis,
    new_figure,
    scheme_colours,
    styled,
)
from lengthgen.results.tables import Cell, Table
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
    """What the series of each task show, by the task's name."""

    by_task: Mapping[str, Sequence[Accuracy]]
    selections: Mapping[str, Selection]
    units: Mapping[str, str]  # what lengths count
    chance: Mapping[str, float]  # of answers that are right without the prompt

    @cached_property
    def counted(self) -> dict[str, list[Accuracy]]:
        """What ranks are of: the tasks that are solved, and the series that learned them."""
        return counted(self.by_task, self.chance)

    @property
    def unsolved(self) -> list[str]:
        return [name for name in self.by_task if name not in self.counted]


def results_of(rows: pd.DataFrame) -> TaskResults:
    """Returns what the rows of tasks show."""
    of_tasks = rows.loc[rows["protocol"] == "answers"]
    selections: dict[str, Selection] = {}
    for selection in sorted(select(of_tasks), key=lambda one: str(one.rows["corpus"].iloc[0])):
        first = selection.rows.iloc[0]
        name = str(first["corpus"])
        name = f"{name}-{first['fingerprint'][:6]}" if name in selections else name
        selections[name] = selection
    firsts = {name: selection.rows.iloc[0] for name, selection in selections.items()}
    return TaskResults(
        by_task={name: accuracies(selection.rows) for name, selection in selections.items()},
        selections=selections,
        units={name: str(first["unit"]) for name, first in firsts.items()},
        chance={name: float(first["chance"]) for name, first in firsts.items()},
    )


def section(rows: pd.DataFrame) -> Section | None:
    """Returns tables and figures of the tasks among the rows; None if no row is of a task."""
    results = results_of(rows)
    if not results.by_task:
        return None
    tables: list[Table] = []
    for name in results.by_task:
        decoded = _decoded(name, results)
        tables += [_by_length(name, results), *([decoded] if decoded is not None else [])]
    data = {
        "accuracy": by_length(results),
        "tasks": means(results),
        "decoded": decoded_means(results),
    }
    summary = _matrix(results) if len(results.by_task) > 1 else tables[0]
    return Section(
        title=f"Tasks: {', '.join(results.by_task)}",
        figures={f"accuracy-{name}": accuracy_figure(name, results) for name in results.by_task},
        tables=tables if summary in tables else [summary, *tables],
        notes=[note for selection in results.selections.values() for note in selection.notes],
        data={name: table for name, table in data.items() if len(table)},
        summary=summary,
    )


def by_length(results: TaskResults) -> pd.DataFrame:
    """Returns the accuracy of each series by length, with its interval."""
    return pd.DataFrame(
        {
            "task": name,
            "series": one.series,
            "seeds": one.n_seeds,
            "length": n,
            "tests": one.n_examples[n],
            "accuracy": e.value,
            "low": e.low,
            "high": e.high,
            "tokens": one.tokens[n],
            "stops": one.stops[n],
        }
        for name, measured in results.by_task.items()
        for one in measured
        for n, e in one.exact.items()
    )


def means(results: TaskResults) -> pd.DataFrame:
    """Returns the means over lengths seen and unseen with their intervals, and every seed's."""
    return pd.DataFrame(
        {
            "task": name,
            "series": one.series,
            "lengths": lengths,
            "accuracy": mean.value,
            "low": mean.low,
            "high": mean.high,
            "each_seed": " ".join(f"{x:.6g}" for x in mean.seeds),
            "half_length": one.half_length,
            "left_out": one.excluded or (UNSOLVED if name in results.unsolved else ""),
            "k_max": one.k_max,
        }
        for name, measured in results.by_task.items()
        for one in measured
        for lengths, mean in (("seen", one.seen), ("unseen", one.unseen))
        if mean is not None
    )


def decoded_means(results: TaskResults) -> pd.DataFrame:
    """Returns the means over decoded tests by length, with their intervals."""
    return pd.DataFrame(
        {
            "task": name,
            "series": one.series,
            "length": n,
            "tests": decoded.n_tests[n],
            "measure": measure,
            "value": e.value,
            "low": e.low,
            "high": e.high,
        }
        for name, measured in results.by_task.items()
        for one in measured
        for measure, decoded in one.decoded.items()
        for n, e in decoded.by_length.items()
    )


# Tables


def _matrix(results: TaskResults) -> Table:
    """Returns mean accuracy on unseen lengths of each series in each task, and the mean ranks."""
    every = [one for measured in results.by_task.values() for one in measured]
    cells = {
        (one.series, name): _standing(one, results.counted.get(name))
        for name, measured in results.by_task.items()
        for one in measured
    }
    ranks = mean_ranks(results.counted)
    rows = [
        [
            Cell(label),
            *(cells.get((label, name), Cell("-")) for name in results.by_task),
            _with_bounds(ranks.get(label), scale=1, digits=2),
        ]
        for label in sorted({one.series for one in every})
    ]
    ranked = (
        f"Mean rank: over {', '.join(results.counted)}, of the schemes that count in each; ties "
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
    if results.unsolved:
        notes.append(f"In no rank, {FAINT}: {', '.join(results.unsolved)}; {UNSOLVED}.")
    if any(one.is_bound for one in every):
        notes.append(f"{BOUND}; neither compared nor ranked.")
    return Table(
        key="tasks",
        title="Accuracy on unseen lengths (mean over the evaluated lengths beyond L), in percent",
        head=["scheme", *results.by_task, "mean rank"],
        rows=rows,
        notes=notes,
    )


def _by_length(name: str, results: TaskResults) -> Table:
    """Returns the accuracy of each series of a task at up to MOST_COLUMNS lengths."""
    measured, chance = results.by_task[name], results.chance[name]
    L = measured[0].train_length
    tests = [n for one in measured for n in one.n_examples.values()]
    columns = _columns({length for one in measured for length in one.exact}, L)
    rows: list[list[Cell]] = []
    for one in measured:
        cells = [
            Cell(str(one.n_seeds)),
            *(_share(one.exact.get(n), None) for n in columns),
            _with_bounds(one.seen, scale=100, digits=1),
            _with_bounds(one.unseen, scale=100, digits=1),
            Cell(one.half_length if chance < HALF else "-"),
            Cell(", ".join(f"{100 * x:.1f}" for x in one.unseen.seeds) if one.unseen else "-"),
        ]
        if one.excluded is not None:
            cells = [Cell(cell.text, "faint") for cell in cells]
        suffix = f" ({one.excluded})" if one.excluded is not None else ""
        rows.append([Cell(f"{one.series}{suffix}"), *cells])
    notes = [
        "Right: all of the answer, its end included, is what greedy decoding writes. Seen, "
        "unseen: means over the lengths that all were evaluated at, up to L, and beyond, each "
        "with the same weight, and their 95% intervals over seeds and examples. L50: the last "
        "of the evaluated lengths before less than half of the answers are right. "
        f"Tests of a length: {min(tests, default=0)} to {max(tests, default=0)}."
    ]
    if chance >= LEAST_CHANCE:
        notes.append(f"A model that ignores the prompt can be right in {chance:.0%} up to L.")
    if any(one.excluded for one in measured):
        notes.append(f"Not learned, {FAINT}: {UNCOUNTED}.")
    if name in results.unsolved:
        notes.append(f"In no rank: {UNSOLVED}.")
    skipped = results.selections[name].rows["skipped"].dropna()
    notes += [f"A dash: {reason}." for reason in sorted(set(skipped))]
    notes += _shared_lengths(measured)
    if any(one.is_bound for one in measured):
        notes.append(f"{BOUND}.")
    return Table(
        key=_key("accuracy", name),
        title=f"Right answers in percent, by length in {results.units[name]}, trained to L={L}; "
        f"{results.selections[name].title}",
        head=["scheme", "seeds", *map(short, columns), "seen", "unseen", "L50", "each seed"],
        rows=rows,
        notes=notes,
    )


def _decoded(name: str, results: TaskResults) -> Table | None:
    """Returns the measures of decoded tests by length; None if no test of the task was decoded."""
    lines = [
        (one, measure, one.decoded[measure])
        for measure in DECODED
        for one in results.by_task[name]
        if measure in one.decoded
    ]
    if not lines:
        return None
    L = lines[0][0].train_length
    tests = [n for _, _, decoded in lines for n in decoded.n_tests.values()]
    columns = _columns({n for _, _, decoded in lines for n in decoded.by_length}, L)
    rows: list[list[Cell]] = []
    for one, measure, decoded in lines:
        scale, digits = SCALES[measure]
        by_length = (decoded.by_length.get(n) for n in columns)
        values = ("-" if e is None else f"{scale * e.value:.{digits}f}" for e in by_length)
        means = [
            _with_bounds(e, scale=scale, digits=digits) for e in (decoded.seen, decoded.unseen)
        ]
        rows.append([*map(Cell, (measure, one.series, str(one.n_seeds), *values)), *means])
    measures = dict.fromkeys(measure for _, measure, _ in lines)
    return Table(
        key=_key("decoded", name),
        title=f"Decoded tests, by length in {results.units[name]}, trained to L={L}; "
        f"{results.selections[name].title}",
        head=["measure", "scheme", "seeds", *map(short, columns), "seen", "unseen"],
        rows=rows,
        notes=[
            f"Of the first {min(tests)} to {max(tests)} tests of a length, decoded greedily. "
            + " ".join(MEASURES[measure] for measure in measures)
        ],
    )


def _key(kind: str, name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{kind}-{name}")


def _columns(lengths: Collection[int], L: int) -> list[int]:
    """Returns the lengths that a table shows."""
    if len(lengths) <= MOST_COLUMNS:
        return sorted(lengths)
    return sorted({min(lengths, key=lambda n: (abs(n - k * L), n)) for k in LENGTHS})


def _shared_lengths(measured: Sequence[Accuracy]) -> list[str]:
    """Returns which lengths the means are over, if not all series have the same."""
    evaluated = [set(one.lengths) for one in measured]
    shared = set[int].intersection(*evaluated)
    if not shared or all(lengths == shared for lengths in evaluated):
        return []
    return [f"Lengths that all were evaluated at: {', '.join(map(str, sorted(shared)))}."]


def _standing(one: Accuracy, competing: Sequence[Accuracy] | None) -> Cell:
    """Returns a cell of the matrix; `competing` are those that count in its task, if any does."""
    if one.excluded is not None:
        return Cell(one.excluded, "faint")
    if competing is None:
        return Cell(_share(one.unseen, None).text, "faint")
    best = max(other.unseen.value for other in competing if other.unseen is not None)
    return _share(one.unseen, None if one.is_bound else best)


def _share(estimate: Estimate | None, best: float | None) -> Cell:
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
def accuracy_figure(name: str, results: TaskResults) -> Figure:
    """Draws the share of right answers over length with 95 % bands, a line per series."""
    measured, chance = results.by_task[name], results.chance[name]
    colours = scheme_colours(one.scheme for one in measured)
    note = f"; grey: {UNCOUNTED}" if any(one.excluded for one in measured) else ""
    drawn = new_figure(f"{name}: right answers over length in {results.units[name]}{note}")
    axes = drawn.subplots()
    axes.set_ylim(-0.03, 1.1)  # room for the word above 100%
    lengths = [n for one in measured for n in one.exact] or [1]
    length_axis(axes, lengths, trained=measured[0].train_length)
    ends: list[LineEnd] = []
    drawn_of_scheme: dict[str, int] = {}
    for one in measured:
        dash = DASHES[drawn_of_scheme.setdefault(one.scheme, 0) % len(DASHES)]
        drawn_of_scheme[one.scheme] += 1
        x, colour = [*one.exact], GREY if one.excluded else colours[one.scheme]
        low, high = ([getattr(e, bound) for e in one.exact.values()] for bound in ("low", "high"))
        values = [e.value for e in one.exact.values()]
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(x, values, color=colour, linestyle=dash, marker="o", markersize=3)
        if values:
            ends.append(LineEnd(values[-1], one.series, colour))
    if chance >= LEAST_CHANCE:
        axes.axhline(chance, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
        ends.append(LineEnd(chance, "chance", GREY))
    axes.set_yticks([n / 4 for n in range(5)], [f"{25 * n}%" for n in range(5)])
    axes.set_xlabel(f"length in {results.units[name]}")
    label_ends(axes, ends)
    return drawn
