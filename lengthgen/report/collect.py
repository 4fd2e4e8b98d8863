"""The runs of a report side by side: comparable series, findings, remarks and tables."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import ValidationError

from lengthgen import escaping
from lengthgen.analysis import curves, reference_results, seed_groups
from lengthgen.analysis.accuracy import Accuracy, accuracies
from lengthgen.analysis.curves import Curve, Point
from lengthgen.analysis.findings import Finding, findings
from lengthgen.analysis.formatting import condition_difference, short
from lengthgen.analysis.reference_results import PublishedCurve
from lengthgen.analysis.seed_groups import Series
from lengthgen.config.tuned_rates import Tuned
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import HEADLINE, named
from lengthgen.report import curve_tables, table_formats, task_tables
from lengthgen.report.run_records import Cost, Plain, RunRecord, TaskFacts, task_of
from lengthgen.report.table_formats import Table
from lengthgen.report.task_tables import TaskReport


@dataclass(frozen=True, kw_only=True)
class Report:
    """What tables, figures and page show of runs of text. All of it may be untrusted."""

    by_protocol: Mapping[str, Sequence[Series]]  # the headline first
    findings: Sequence[Finding]  # of the headline protocol; none if it was not evaluated
    remarks: Sequence[str]  # what is not shown or not comparable
    runs: Mapping[str, RunRecord]

    @cached_property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The plain configuration of each run."""
        return {run: record.config for run, record in self.runs.items()}

    @property
    def bases(self) -> dict[str, str]:
        """The run that each run of train.init_from began with, by run."""
        found = {
            run: config.get("train", {}).get("init_from") for run, config in self.configs.items()
        }
        return {run: str(init["run"]) for run, init in found.items() if init}

    @property
    def costs(self) -> dict[str, Cost]:
        """What each run took."""
        return {run: record.cost for run, record in self.runs.items()}

    @cached_property
    def points(self) -> list[Point]:
        return [p for lines in self.by_protocol.values() for line in lines for p in line.points]

    @cached_property
    def schemes(self) -> list[str]:
        return sorted({p.scheme for p in self.points})

    @cached_property
    def lines(self) -> list[Series]:
        """One series of each label, whatever its protocol."""
        found: dict[str, Series] = {}
        for lines in self.by_protocol.values():
            for line in lines:
                found.setdefault(line.label, line)
        return list(found.values())

    @cached_property
    def keys(self) -> dict[str, str]:
        """A short name of each label, for ids and attributes of the page."""
        return {line.label: f"s{i}" for i, line in enumerate(self.lines)}

    @cached_property
    def summary(self) -> list[Table]:
        """The tables that come first: those of perplexity, of verdicts, and of protocols."""
        found = [
            _perplexities(self, next(iter(self.by_protocol))),
            curve_tables.verdicts(self.findings),
            curve_tables.protocols(self.by_protocol),
        ]
        return [table for table in found if table is not None]

    @property
    def unaltered(self) -> list[str]:
        """The protocols that score the text as it stands; if there is none, all."""
        names = [name for name in self.by_protocol if named(name).altered is None]
        return names or [*self.by_protocol]

    @property
    def published_curves(self) -> list[PublishedCurve]:
        """The published curves of the schemes that were evaluated."""
        return [one for one in reference_results.published_curves() if one.scheme in self.schemes]


def gather(records: Sequence[RunRecord]) -> Report:
    """Keeps the comparable rows of runs of text.

    Raises UserError as curves.curve and curves.comparable do, and for a run without a complete
    evaluation.
    """
    rows = [row for record in records for row in record.rows]
    runs = {record.run: record for record in records}
    configs = {run: record.config for run, record in runs.items()}
    points, gaps = curves.curve_and_gaps(rows)
    _require({p.run for p in points}, configs)
    kept = curves.comparable(points)
    found = by_protocol(kept, configs)
    labels = seed_groups.labels(kept, configs)
    return Report(
        by_protocol=found,
        findings=findings(found),
        remarks=[*_incomplete(gaps), *_remarks(points, kept, labels, configs)],
        runs=runs,
    )


def by_protocol(points: Sequence[Point], configs: Mapping[str, Plain]) -> dict[str, list[Series]]:
    """Returns comparable points as the series of each protocol, the headline first."""
    labels = seed_groups.labels(points, configs)
    references = seed_groups.references(points, configs)
    names = sorted({p.protocol for p in points}, key=lambda name: (name != HEADLINE, name))
    return {
        name: seed_groups.series([p for p in points if p.protocol == name], labels, references)
        for name in names
    }


def gather_tasks(records: Sequence[RunRecord]) -> TaskReport:
    """Keeps the comparable rows of each task.

    A series of one task bears its model's name if those of another task have another. Raises
    UserError as curves.curve and curves.comparable do: of one name, all runs must have the same
    examples; and for a run without a complete evaluation.
    """
    configs = {record.run: record.config for record in records}
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    about: dict[str, TaskFacts] = {}
    for record in records:
        if record.task is not None:
            name = str(task_of(record.config))
            about[name] = record.task
            answers = [row for row in record.rows if row.get("protocol") == "answers"]
            if answers:
                by_task.setdefault(name, []).extend(answers)
    found: dict[str, list[Accuracy]] = {}
    everything = [row for record in records for row in record.rows]
    remarks = _incomplete(curves.curve_and_gaps(everything)[1])
    evaluated = set[str]()
    several = len({row["model"] for rows in by_task.values() for row in rows}) > 1
    for name, rows in sorted(by_task.items()):
        points = curves.curve(rows)
        kept = curves.comparable(points)
        labels = seed_groups.labels(kept, configs, name_models=several)
        found[name] = accuracies(seed_groups.series(kept, labels))
        remarks += [f"{name}: {one}" for one in _remarks(points, kept, labels, configs)]
        evaluated |= {p.run for p in kept}
    _require(evaluated, configs)
    return TaskReport(by_task=found, about=about, remarks=remarks)


class Gathered(NamedTuple):
    """The report of runs of text, and that of runs of tasks; None for a kind without runs."""

    text: Report | None
    tasks: TaskReport | None


def gather_both(records: Sequence[RunRecord]) -> Gathered:
    """Returns the report of runs of text, and that of runs of tasks; None for a kind without.

    No runs at all count as runs of text.
    """
    text = [record for record in records if task_of(record.config) is None]
    of_tasks = [record for record in records if task_of(record.config) is not None]
    report = gather(text) if text or not of_tasks else None
    return Gathered(report, gather_tasks(of_tasks) if of_tasks else None)


def _require(evaluated: Collection[str], configs: Mapping[str, Mapping[str, Any]]) -> None:
    for run in configs:
        if run not in evaluated:
            raise UserError(f"no complete evaluation in {run}; run lengthgen eval {run}")


def _incomplete(cells: Sequence[str]) -> list[str]:
    return [f"Not shown: {cell}; run lengthgen eval" for cell in cells]


def _remarks(
    points: Sequence[Point],
    kept: Sequence[Point],
    labels: Mapping[Curve, str],
    configs: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Returns what of all points is not shown, and what limits the comparison of those kept."""
    return [*_hidden(points, kept), *_differences(kept, labels), *_unfinished(kept, configs)]


def _hidden(points: Sequence[Point], kept: Sequence[Point]) -> list[str]:
    """Returns which cells were evaluated and are not shown, and the commands that help."""

    def cell(p: Point) -> tuple[object, ...]:
        return (p.run, p.protocol, p.variant, p.length, p.condition)

    shown = {cell(p) for p in kept}
    hidden = [p for p in points if cell(p) not in shown]
    found: list[str] = []
    for protocol, condition in dict.fromkeys((p.protocol, p.condition) for p in hidden):
        lost = [p for p in hidden if (p.protocol, p.condition) == (protocol, condition)]
        lengths = ", ".join(map(short, sorted({p.length for p in lost})))
        why = condition_difference(lost, [p for p in kept if p.protocol == protocol])
        found.append(
            f"Not shown: {protocol} at {lengths} ({why}), evaluated otherwise than the rest. "
            f"All in one table: {_command([p for p in points if p.protocol == protocol])}"
        )
    return found


def _command(points: Sequence[Point]) -> str:
    """Returns the commands that evaluate every length of a protocol in all runs in the same way."""
    lengths = ",".join(map(str, sorted({p.length for p in points})))
    runs: dict[tuple[str, ...], list[str]] = {}  # by the variants that a run was evaluated with
    for run in dict.fromkeys(p.run for p in points):
        variants = sorted({p.variant for p in points if p.run == run and p.variant is not None})
        runs.setdefault(tuple(variants), []).append(run)
    protocol = points[0].protocol
    only = "" if protocol == HEADLINE else f" --protocols {protocol}"
    return " && ".join(
        f"lengthgen eval {' '.join(names)} --lengths {lengths}{only}"
        + (f" --variants {','.join(variants)}" if variants else "")
        for variants, names in runs.items()
    )


def _differences(points: Sequence[Point], labels: Mapping[Curve, str]) -> list[str]:
    """Returns what shown series differ in other than their schemes."""
    fields = {"model": "model", "train_length": "T", "tokens_seen": "tokens seen"}
    found: list[str] = []
    for field, name in fields.items():
        by_value: dict[object, dict[str, None]] = {}
        for p in points:
            by_value.setdefault(getattr(p, field), {})[labels[p.run, p.variant]] = None
        if len(by_value) > 1:
            written = {v: f"{v:,}" if isinstance(v, int) else v for v in by_value}
            values = [f"{written[value]} ({', '.join(of)})" for value, of in by_value.items()]
            found.append(f"Not like with like: {name} is {' and '.join(values)}")
    return found


def _unfinished(points: Sequence[Point], configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns how far a run had come that was evaluated before its last step."""
    found: list[str] = []
    for run, tokens_seen in dict.fromkeys((p.run, p.tokens_seen) for p in points):
        train = configs[run].get("train", {})
        tokens, batch_tokens = train.get("tokens"), train.get("batch_tokens")
        if tokens and batch_tokens and tokens_seen < tokens:
            step, steps = (-(-n // batch_tokens) for n in (tokens_seen, tokens))
            found.append(
                f"Unfinished: {run} is at step {step} of {steps}; the command that began it "
                "continues it"
            )
    return found


def table(records: Sequence[RunRecord]) -> str:
    """Returns what a terminal shows of runs, as Markdown."""
    return summary(gather_both(records))


def summary(gathered: Gathered) -> str:
    """Returns perplexity over length and the verdicts as Markdown; of tasks, all tables."""
    report, answered = gathered
    texts: list[str] = []
    if report is not None:
        limits = curve_tables.warnings(report.findings, report.remarks)
        texts.append(markdown(report.summary, limits))
    if answered is not None:
        texts.append(markdown(task_tables.contents(answered), answered.remarks))
    return "\n".join(texts)


def markdown(shown: Sequence[Table], limits: Sequence[str]) -> str:
    """Returns tables as Markdown, and below them what limits what they state."""
    below = (f"{escaping.markdown(limit)}\n" for limit in limits)
    return "\n".join([*map(table_formats.markdown, shown), *below])


def contents(report: Report) -> list[Table]:
    """Returns the tables of a report, the most important first."""
    found = [
        *report.summary,
        curve_tables.leaderboard(report.findings, report.costs),
        curve_tables.key_numbers(report.findings),
        curve_tables.against_least(report.by_protocol.get(HEADLINE, [])),
        curve_tables.before_and_after(report.by_protocol.get(HEADLINE, []), report.bases),
        *(_perplexities(report, name) for name in report.unaltered[1:]),
        curve_tables.rates(*_tuned_rates(report.configs.values())),
    ]
    return [table for table in found if table is not None]


def _perplexities(report: Report, protocol: str) -> Table:
    competing = {
        line.label
        for lines in report.by_protocol.values()
        for line in curve_tables.competitors(lines)
    }
    return curve_tables.perplexities(report.by_protocol[protocol], sorted(competing))


def _tuned_rates(
    configs: Iterable[Mapping[str, Any]],
) -> tuple[list[tuple[str, Tuned]], dict[str, list[float]]]:
    """Returns the tuned rates of plain configurations by scheme, and the lr of those without."""
    tuned: dict[tuple[str, str], tuple[str, Tuned]] = {}
    untuned: dict[str, list[float]] = {}
    for plain in configs:
        name, train = str(plain.get("scheme", {}).get("name")), plain.get("train", {})
        try:
            rates = Tuned.model_validate(train.get("tuned"))
        except ValidationError:  # most often there is none
            known = untuned.setdefault(name, [])
            known += [train["lr"]] if train.get("lr") not in (None, *known) else []
            continue
        tuned[name, rates.model_dump_json()] = name, rates
    return list(tuned.values()), untuned
