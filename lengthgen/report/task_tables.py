"""What a report shows of tasks: accuracy over length, the matrix of tasks and schemes, its relation
to perplexity.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lengthgen.analysis import reference_results
from lengthgen.analysis.accuracy import (
    BEYOND_CHANCE,
    DECODED,
    HALF,
    UNCOUNTED,
    Accuracy,
    Decoded,
    MeanRank,
    agreement,
    counted,
    mean_ranks,
)
from lengthgen.analysis.formatting import short, subject
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.reference_results import PublishedAccuracy
from lengthgen.report.run_records import TaskFacts
from lengthgen.report.table_formats import Cell, Table, csv_text
from lengthgen.tasks.decoding import ALTERNATIVES

MOST_COLUMNS = 12  # lengths in a table; of more,
LENGTHS = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4)  # times L
LEAST_CHANCE = 0.05  # below that it is not shown
BOUND = "Upper bound: the scheme is given which characters belong together"
FAINT = "grey or in parentheses"
MEASURES = {
    "edit distance": "Edit distance: Levenshtein's, from the true answer, over the length of the "
    "longer one; 0 is right.",
    "result": "Result: the percentage of right results, whatever the scratchpad before them is.",
    "rank": f"Rank: of the true answer among {ALTERNATIVES} random ones of its form, by log "
    f"probability; 1 is the best, {1 + ALTERNATIVES / 2:g} chance.",
}
UNSOLVED = f"no scheme that learned it exceeds chance by {100 * BEYOND_CHANCE:g} points beyond L"


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """The accuracies of the series of each task, by the task's name, and the remarks below."""

    by_task: Mapping[str, Sequence[Accuracy]]
    about: Mapping[str, TaskFacts]
    remarks: Sequence[str]

    @cached_property
    def counted(self) -> dict[str, list[Accuracy]]:
        """What ranks, means over tasks and correlations are of."""
        return counted(self.by_task, {name: about.chance for name, about in self.about.items()})

    @property
    def unsolved(self) -> list[str]:
        """The tasks that are not among these."""
        return [name for name in self.by_task if name not in self.counted]


def contents(report: TaskReport) -> list[Table]:
    """Returns the tables, the matrix of tasks and schemes first if there are several tasks."""
    found: list[Table] = []
    for name in report.by_task:
        decoded = _decoded(name, report)
        found += [_by_length(name, report), *([decoded] if decoded is not None else [])]
    return [_matrix(report), *found] if len(report.by_task) > 1 else found


def accuracy_csv(report: TaskReport) -> str:
    """Returns every value with its interval, one line each, below a head."""
    head = ["task", "series", "seeds", "length", "tests", "accuracy", "low", "high"]
    head += ["tokens", "stops"]
    rows: list[list[str]] = []
    for name, found in report.by_task.items():
        for one in found:
            label, seeds = one.series.label, str(len(one.series.runs))
            for n, e in one.exact.items():
                numbers = (e.value, e.low, e.high, one.tokens[n], one.stops[n])
                tests = str(one.n_examples[n])
                rows.append([name, label, seeds, str(n), tests, *(f"{x:.6g}" for x in numbers)])
    return csv_text(head, rows)


def tasks_csv(report: TaskReport) -> str:
    """Returns the means over lengths seen and unseen with their intervals, and every seed's."""
    head = ["task", "series", "lengths", "accuracy", "low", "high", "each_seed", "half_length"]
    head += ["left_out", "k_max"]
    rows = [
        [
            *(name, one.series.label, lengths),
            *(f"{x:.6g}" for x in (mean.value, mean.low, mean.high)),
            " ".join(f"{x:.6g}" for x in mean.seeds),
            one.half_length,
            one.excluded or (UNSOLVED if name in report.unsolved else ""),
            one.k_max,
        ]
        for name, found in report.by_task.items()
        for one in found
        for lengths, mean in (("seen", one.seen), ("unseen", one.unseen))
        if mean is not None
    ]
    return csv_text(head, rows)


def decoded_csv(report: TaskReport) -> str | None:
    """Returns the means over decoded tests with their intervals, as accuracy_csv; None if none."""
    head = ["task", "series", "seeds", "length", "tests", "measure", "value", "low", "high"]
    rows = [
        [
            *(name, one.series.label, str(len(one.series.runs)), str(length)),
            *(str(of.n_tests[length]), measure),
            *(f"{x:.6g}" for x in (e.value, e.low, e.high)),
        ]
        for name, found in report.by_task.items()
        for one in found
        for measure, of in one.decoded.items()
        for length, e in of.by_length.items()
    ]
    return csv_text(head, rows) if rows else None


def shown_chance(about: TaskFacts) -> float:
    """Returns the share of answers that are right without the prompt; 0 if it is negligible."""
    return about.chance if about.chance >= LEAST_CHANCE else 0.0


def _matrix(report: TaskReport) -> Table:
    """Returns mean accuracy on unseen lengths of each series in each task, and the mean ranks."""
    labels = sorted({one.series.label for found in report.by_task.values() for one in found})
    cells = {
        (one.series.label, name): _standing(one, report.counted.get(name))
        for name, found in report.by_task.items()
        for one in found
    }
    excluded = any(one.excluded for found in report.by_task.values() for one in found)
    ranks = mean_ranks(report.counted)
    bounds = any(one.series.bound for found in report.by_task.values() for one in found)
    rows = [
        [
            Cell(label),
            *(cells.get((label, name), Cell("-")) for name in report.by_task),
            _with_bounds(ranks.get(label), scale=1, digits=2),
        ]
        for label in labels
    ]
    published, unsolved = _published_rows(report), report.unsolved
    for source, of in published.items():
        rows.append([Cell(source), *(Cell(of.get(n, "-")) for n in report.by_task), Cell("-")])
    unranked = (
        "Mean rank: none, since fewer than two schemes learned, and have a value in, each task "
        "that counts, or seeds are not as many."
    )
    return Table(
        key="tasks",
        title="Accuracy on unseen lengths (mean over the evaluated lengths beyond L), in percent",
        head=["scheme", *report.by_task, "mean rank"],
        rows=rows,
        notes=[
            "Bold: the highest of those that count. Means are over the lengths that all were "
            "evaluated at; a dash: no value at one of them.",
            f"Mean rank: over {', '.join(report.counted)}, of the schemes that count in each; ties "
            "sharing the mean of theirs; 1 is best; in brackets that "
            "of the best and of the worst seed."
            if ranks
            else unranked,
            *([f"Not learned, {FAINT}: {UNCOUNTED}."] if excluded else []),
            *([f"In no rank, {FAINT}: {', '.join(unsolved)}; {UNSOLVED}."] if unsolved else []),
            *([f"{BOUND}; neither compared nor ranked."] if bounds else []),
            *(
                ["Published: of other models and formats, and over lengths to 2L only."]
                if published
                else []
            ),
        ],
    )


def _by_length(name: str, report: TaskReport) -> Table:
    found = report.by_task[name]
    L, about = found[0].series.train_length, report.about[name]
    tests = [n for one in found for n in one.n_examples.values()]
    columns = _columns({length for one in found for length in one.exact}, L)
    rows = [
        [
            Cell(one.series.label),
            Cell(str(len(one.series.runs))),
            *(_share(one.exact.get(n), None) for n in columns),
            _with_bounds(one.seen, scale=100, digits=1),
            _with_bounds(one.unseen, scale=100, digits=1),
            Cell(one.half_length if about.chance < HALF else "-"),
            Cell(_seeds(one.unseen)),
        ]
        for one in found
    ]
    for one, row in zip(found, rows, strict=True):
        if one.excluded is not None:
            row[1:] = [Cell(cell.text, "faint") for cell in row[1:]]
            row[0] = Cell(f"{one.series.label} ({one.excluded})")
    points = [p for one in found for p in one.series.points]
    reasons = sorted({p.skipped for p in points if p.skipped is not None})
    return Table(
        key=f"accuracy-{name}".replace("_", "-"),
        title=f"Right answers in percent, by length in {about.unit}, trained to L={L}; "
        f"{subject(points)}",
        head=[
            "scheme",
            "seeds",
            *map(short, columns),
            "seen",
            "unseen",
            "L50",
            "unseen, each seed",
        ],
        rows=rows,
        notes=[
            "Right: all of the answer, its end included, is what greedy decoding writes. Seen, "
            "unseen: means over the lengths that all were evaluated at, up to L, and beyond, each "
            "with the same weight, and their 95% intervals over seeds and examples. L50: the last "
            "of the evaluated lengths before less than half of the answers are right. "
            f"Tests of a length: {min(tests, default=0)} to {max(tests, default=0)}.",
            *(
                [f"A model that ignores the prompt can be right in {about.chance:.0%} up to L."]
                if shown_chance(about)
                else []
            ),
            *(
                [f"Not learned, {FAINT}: {UNCOUNTED}."]
                if any(one.excluded for one in found)
                else []
            ),
            *([f"In no rank: {UNSOLVED}."] if name in report.unsolved else []),
            *(f"A dash: {reason}." for reason in reasons),
            *_order(name, report.counted.get(name, [])),
            *_shared_lengths(found),
            *([f"{BOUND}."] if any(one.series.bound for one in found) else []),
        ],
    )


def _columns(lengths: Collection[int], L: int) -> list[int]:
    """Returns the lengths that a table shows."""
    if len(lengths) <= MOST_COLUMNS:
        return sorted(lengths)
    return sorted({min(lengths, key=lambda n: (abs(n - k * L), n)) for k in LENGTHS})


def _decoded(name: str, report: TaskReport) -> Table | None:
    """Returns the measures of decoded tests by length; None if no test of the task was decoded."""
    lines = [
        (one, measure, one.decoded[measure])
        for measure in DECODED
        for one in report.by_task[name]
        if measure in one.decoded
    ]
    if not lines:
        return None
    L = lines[0][0].series.train_length
    tests = [n for _, _, of in lines for n in of.n_tests.values()]
    columns = _columns({length for _, _, of in lines for length in of.by_length}, L)
    measures = list(dict.fromkeys(measure for _, measure, _ in lines))

    def cells(measure: str, of: Decoded) -> list[Cell]:
        scale, digits = (
            (100, 1) if measure == "result" else (1, 3 if measure == "edit distance" else 2)
        )
        found = (of.by_length.get(n) for n in columns)
        means = (_with_bounds(mean, scale=scale, digits=digits) for mean in (of.seen, of.unseen))
        shown = ("-" if e is None else f"{scale * e.value:.{digits}f}" for e in found)
        return [*map(Cell, shown), *means]

    return Table(
        key=f"decoded-{name}".replace("_", "-"),
        title=f"Decoded tests, by length in {report.about[name].unit}, trained to L={L}; "
        f"{subject([p for one, _, _ in lines for p in one.series.points])}",
        head=["measure", "scheme", "seeds", *map(short, columns), "seen", "unseen"],
        rows=[
            [
                *(Cell(measure), Cell(one.series.label), Cell(str(len(one.series.runs)))),
                *cells(measure, of),
            ]
            for one, measure, of in lines
        ],
        notes=[
            f"Of the first {min(tests)} to {max(tests)} tests of a length, decoded greedily. "
            + " ".join(MEASURES[measure] for measure in measures)
        ],
    )


def _order(name: str, found: Sequence[Accuracy]) -> list[str]:
    """Returns how far the schemes' order agrees with those published, over the same lengths."""
    if not found:
        return []
    L = found[0].series.train_length
    ours = {one.series.label: one for one in found}  # a plain scheme's label is its name
    by_source: dict[tuple[str, int], dict[str, PublishedAccuracy]] = {}
    for paper in reference_results.accuracies():
        if paper.task == name and paper.train_length == L and paper.scheme in ours:
            by_source.setdefault((paper.citation, paper.test_length), {})[paper.scheme] = paper
    sentences: list[str] = []
    for (source, longest), by_scheme in by_source.items():
        means: dict[str, float] = {}
        for scheme in by_scheme:
            there = [e.value for n, e in ours[scheme].exact.items() if L < n <= longest]
            if there:
                means[scheme] = sum(there) / len(there)
        if len(means) > 1:
            agreed = agreement(list(means.values()), [by_scheme[one].accuracy for one in means])
            compared = f"The order of {', '.join(means)} over {L + 1} to {longest}"
            sentences.append(f"{compared} compared with that of {source}: {agreed}.")
    return sentences


def _shared_lengths(found: Sequence[Accuracy]) -> list[str]:
    """Returns which lengths the means are over, if not all series have the same."""
    evaluated = [{p.length for p in one.series.points} for one in found]
    shared = set[int].intersection(*evaluated)
    if not shared or all(one == shared for one in evaluated):
        return []
    return [f"Lengths that all were evaluated at: {', '.join(map(str, sorted(shared)))}."]


def _standing(one: Accuracy, found: Sequence[Accuracy] | None) -> Cell:
    """Returns a cell of the matrix; `found`: the series that count in its task, if any does."""
    if one.excluded is not None:
        return Cell(one.excluded, "faint")
    if found is None:
        return Cell(_share(one.unseen, None).text, "faint")
    best = max(other.unseen.value for other in found if other.unseen is not None)
    return _share(one.unseen, None if one.series.bound else best)


def _share(estimate: Estimate | None, best: float | None) -> Cell:
    if estimate is None:
        return Cell("-")
    mark = "best" if best and estimate.value == best else ""
    return Cell(f"{100 * estimate.value:.1f}", mark)


def _seeds(estimate: Estimate | None) -> str:
    return "-" if estimate is None else ", ".join(f"{100 * one:.1f}" for one in estimate.seeds)


def _with_bounds(estimate: Estimate | MeanRank | None, *, scale: float, digits: int) -> Cell:
    if estimate is None:
        return Cell("-")
    numbers = (estimate.value, estimate.low, estimate.high)
    value, low, high = (f"{scale * x:.{digits}f}" for x in numbers)
    return Cell(f"{value} [{low}, {high}]")


def _published_rows(report: TaskReport) -> dict[str, dict[str, str]]:
    """Returns published numbers of the tasks and schemes shown, in percent, by their source."""
    shown = {one.series.scheme for found in report.by_task.values() for one in found}
    rows: dict[str, dict[str, str]] = {}
    for paper in reference_results.accuracies():
        found = report.by_task.get(paper.task)
        same_length = found is not None and found[0].series.train_length == paper.train_length
        if same_length and paper.scheme in shown:
            rows.setdefault(citation(paper), {})[paper.task] = f"{100 * paper.accuracy:.1f}"
    return rows


def citation(paper: PublishedAccuracy) -> str:
    """Returns what a published number is called: its scheme and its paper."""
    note = f" ({paper.note})" if paper.note else ""
    return f"{paper.scheme}{note}, {paper.citation}"
