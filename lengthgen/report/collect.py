"""The report of evaluated runs: figures, tables, CSV and a page, from the rows of eval.jsonl."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lengthgen.analysis import curves, reference_results, seed_groups
from lengthgen.analysis.accuracy import Accuracy, accuracies
from lengthgen.analysis.curves import Curve, Point
from lengthgen.analysis.findings import Finding, findings
from lengthgen.analysis.formatting import condition_difference, short
from lengthgen.analysis.reference_results import Anchor
from lengthgen.analysis.seed_groups import Series
from lengthgen.config import rates, trust
from lengthgen.errors import UserError, suggestion
from lengthgen.evaluation.protocols import ANSWERS, BY_POSITION, HEADLINE, named
from lengthgen.evaluation.rows import FORMAT
from lengthgen.report import html, tables, tasks, text_tables
from lengthgen.report.figures import curve, style
from lengthgen.report.figures.chart import Chart
from lengthgen.report.figures.layout import MOST_NAMED, laid_out, panels
from lengthgen.report.figures.positions import positions
from lengthgen.report.figures.ratios import ratios
from lengthgen.report.tables import Table
from lengthgen.report.tasks import TaskReport, task_of
from lengthgen.runs import directory as runs
from lengthgen.storage import read_rows, replace_file, strip_checksum


@dataclass(frozen=True, kw_only=True)
class Report:
    """Comparable points of the named runs, the label of each curve, and the remarks below."""

    points: Sequence[Point]
    labels: Mapping[Curve, str]
    configs: Mapping[str, Mapping[str, Any]]  # the plain configuration of each run
    remarks: Sequence[str]

    @cached_property
    def by_protocol(self) -> dict[str, list[Series]]:
        """The series of each protocol, the headline first."""
        names = sorted({p.protocol for p in self.points}, key=lambda name: (name != HEADLINE, name))
        references = seed_groups.references(self.points, self.configs)
        return {
            name: seed_groups.series(
                [p for p in self.points if p.protocol == name], self.labels, references
            )
            for name in names
        }

    @property
    def unaltered(self) -> list[str]:
        """The protocols that score the text as it stands; if there is none, all."""
        names = [name for name in self.by_protocol if named(name).altered is None]
        return names or [*self.by_protocol]

    @cached_property
    def findings(self) -> list[Finding]:
        """What the series of the headline protocol show."""
        return findings(self.by_protocol)

    @property
    def anchors(self) -> list[Anchor]:
        """The published curves of the schemes that were evaluated."""
        schemes = {p.scheme for p in self.points}
        return [anchor for anchor in reference_results.anchors() if anchor.scheme in schemes]


def of_groups(run_dirs: Sequence[Path], groups: Sequence[str]) -> list[Path]:
    """Returns the runs of some groups; a run's group is the name of its scheme.

    Raises UserError for a group without runs.
    """
    names = {path: str(runs.read_config(path).get("scheme", {}).get("name")) for path in run_dirs}
    for group in groups:
        if group not in names.values():
            known = sorted(set(names.values()))
            raise UserError(f"--group: no evaluated run of {group!r}; {suggestion(group, known)}")
    return [path for path in run_dirs if names[path] in groups]


def read(run_dirs: Sequence[Path]) -> list[dict[str, Any]]:
    """Returns the eval rows of all runs; the directory's name is the run's.

    Raises UserError for a directory without rows, and for two of one name.
    """
    if not run_dirs:
        raise UserError("report: no run is named; lengthgen list runs shows those there are")
    rows: list[dict[str, Any]] = []
    seen: dict[str, Path] = {}
    for path in dict.fromkeys(path.resolve() for path in run_dirs):
        if path.name in seen:
            raise UserError(
                f"run {path.name} lies in {seen[path.name].parent} and in {path.parent}; name one"
            )
        seen[path.name] = path
        trust.refuse_links(path)
        found = [r for r in read_rows(path / "eval.jsonl") if r.get("format") == FORMAT]
        if not found:
            raise UserError(f"no evaluation in {path}; run lengthgen eval {path.name}")
        rows += [{**row, "run": path.name} for row in found]
    return rows


def gather(run_dirs: Sequence[Path], rows: Sequence[Mapping[str, Any]] | None = None) -> Report:
    """Keeps the comparable rows, by default of all of these runs of text.

    Raises UserError as read, curves.curve and curves.comparable do.
    """
    rows = read(run_dirs) if rows is None else rows
    configs = _configs(run_dirs)
    points = curves.curve(rows)
    _require({p.run for p in points}, configs)
    kept = curves.comparable(points)
    labels = seed_groups.labels(kept, configs)
    remarks = [*_incomplete(rows), *_remarks(points, kept, labels, configs)]
    return Report(points=kept, labels=labels, configs=configs, remarks=remarks)


def gather_tasks(
    rows: Sequence[Mapping[str, Any]], configs: Mapping[str, Mapping[str, Any]]
) -> TaskReport:
    """Keeps the comparable rows of each task, given the plain configuration of each run.

    Raises UserError as curves.curve and curves.comparable do: of one name, all runs must have the
    same examples; and for a run without a complete evaluation.
    """
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        name = task_of(configs[row["run"]])
        if name is not None and row["protocol"] == ANSWERS:
            by_task.setdefault(name, []).append(row)
    found: dict[str, list[Accuracy]] = {}
    remarks, evaluated = _incomplete(rows), set[str]()
    for name, of in sorted(by_task.items()):
        points = curves.curve(of)
        kept = curves.comparable(points)
        labels = seed_groups.labels(kept, configs)
        found[name] = accuracies(seed_groups.series(kept, labels))
        remarks += [f"{name}: {one}" for one in _remarks(points, kept, labels, configs)]
        evaluated |= {p.run for p in kept}
    _require(evaluated, configs)
    about = {str(task_of(config)): tasks.about(config) for config in configs.values()}
    return TaskReport(by_task=found, about=about, remarks=remarks)


def _gather_both(
    run_dirs: Sequence[Path], rows: Sequence[Mapping[str, Any]] | None
) -> tuple[list[Path], Report | None, TaskReport | None]:
    """Returns the runs of text, their report, and that of runs of tasks; None for a kind without.

    No runs at all count as runs of text.
    """
    of_tasks = [path for path in run_dirs if task_of(runs.read_config(path)) is not None]
    of_text = [path for path in run_dirs if path not in of_tasks]

    def rows_of(paths: Sequence[Path]) -> Sequence[Mapping[str, Any]]:
        names = {path.resolve().name for path in paths}
        return read(paths) if rows is None else [row for row in rows if row["run"] in names]

    text = gather(of_text, rows_of(of_text)) if of_text or not of_tasks else None
    answered = gather_tasks(rows_of(of_tasks), _configs(of_tasks)) if of_tasks else None
    return of_text, text, answered


def _configs(run_dirs: Sequence[Path]) -> dict[str, dict[str, Any]]:
    return {path.resolve().name: runs.read_config(path) for path in run_dirs}


def _require(evaluated: Collection[str], configs: Mapping[str, Mapping[str, Any]]) -> None:
    for run in configs:
        if run not in evaluated:
            raise UserError(f"no complete evaluation in {run}; run lengthgen eval {run}")


def _incomplete(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"Not shown: {cell}; run lengthgen eval" for cell in curves.incomplete(rows)]


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
    for protocol in dict.fromkeys(p.protocol for p in hidden):
        lost = [p for p in hidden if p.protocol == protocol]
        lengths = ", ".join(map(short, sorted({p.length for p in lost})))
        why = condition_difference(lost, [p for p in kept if p.protocol == protocol])
        found.append(
            f"Not shown: {protocol} at {lengths} ({why}), evaluated otherwise than the rest. "
            f"All in one table: {_command([p for p in points if p.protocol == protocol])}"
        )
    return found


def _command(points: Sequence[Point]) -> str:
    """Returns the commands that evaluate every length of a protocol in all runs alike."""
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
    """Returns in what shown series differ besides their schemes."""
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
        if "tokens" in train and tokens_seen < train["tokens"]:
            step, steps = (-(-n // train["batch_tokens"]) for n in (tokens_seen, train["tokens"]))
            found.append(
                f"Unfinished: {run} is at step {step} of {steps}; the command that began it "
                "continues it"
            )
    return found


def write_report(run_dirs: Sequence[Path], out: Path) -> list[Path]:
    """Writes the figures, tables, CSV files and report.html into `out` and returns their paths.

    The headline protocol's figure is curve.png and curve.svg, another's curve-PROTOCOL.*, a task's
    accuracy-TASK.*; ratios-PROTOCOL.* compares with published curves of that protocol. Runs of
    several tasks are shown together, next to runs of one text.
    """
    of_text, report, answered = _gather_both(run_dirs, None)
    figures: dict[str, bytes] = {}
    numbers: dict[str, str] = {}
    markdowns: list[str] = []
    shown: list[Table] = []
    text: html.Contents | None = None
    exhibit: html.Tasks | None = None
    if report is not None:
        figures |= pictures(report)
        numbers["curve.csv"] = text_tables.points_csv(report.points, report.labels)
        numbers["findings.csv"] = text_tables.findings_csv(report.findings)
        headline = report.by_protocol.get(HEADLINE, [])
        numbers["differences.csv"] = text_tables.differences_csv(headline)
        shown += contents(report)
        markdowns.append(markdown(report))
        text = exhibits(report, of_text)
    if answered is not None:
        drawn = tasks.pictures(answered, report.findings if report is not None else [])
        figures |= drawn
        numbers["accuracy.csv"] = tasks.accuracy_csv(answered)
        numbers["tasks.csv"] = tasks.tasks_csv(answered)
        of = tasks.contents(answered)
        shown += of
        markdowns.append(_markdown(of, answered.remarks))
        svgs = {Path(name).stem: data for name, data in drawn.items() if name.endswith(".svg")}
        exhibit = html.Tasks(
            pictures=[
                html.Picture(stem.replace("-", " "), data.decode()) for stem, data in svgs.items()
            ],
            tables=of,
            remarks=answered.remarks,
        )
    texts = {
        "table.md": "\n".join(markdowns),
        "table.tex": "\n".join(map(tables.latex, shown)),
        **numbers,
        "report.html": html.render(text, exhibit),
    }
    files = figures | {name: content.encode() for name, content in texts.items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}); give --out DIR") from None
    for name, content in files.items():
        replace_file(out / name, content)
    return [out / name for name in files]


def pictures(report: Report) -> dict[str, bytes]:
    """Returns the figures by file name: those of the headline protocol and a curve per other one.

    The panels of `headline` are for a paper; there are none if they would show too many lines.
    """
    by_position = report.by_protocol.get(BY_POSITION, [])
    charts = {
        **{_stem("curve", name): _curve(report, name) for name in report.unaltered},
        "gain": curve.gains(report.findings),
        "positions": positions(by_position),
        **{
            _stem("ratios", name): ratios(report.by_protocol[name], report.anchors)
            for name in report.unaltered
        },
    }
    there = {name: chart for name, chart in charts.items() if chart is not None}
    drawn = {name: laid_out(chart) for name, chart in there.items()}
    side_by_side = [there[name] for name in ("curve", "gain", "positions") if name in there]
    if len(side_by_side) > 1 and all(len(chart.shown) <= MOST_NAMED for chart in side_by_side):
        drawn["headline"] = panels(side_by_side)
    return style.files(drawn)


def _stem(name: str, protocol: str) -> str:
    return name if protocol == HEADLINE else f"{name}-{protocol}"


def _curve(report: Report, protocol: str) -> Chart | None:
    """Returns the curve of a protocol; none of another than the headline with one length."""
    lines = report.by_protocol[protocol]
    if protocol == HEADLINE:
        return curve.perplexities(lines, report.findings)
    several = len({p.length for line in lines for p in line.points}) > 1
    return curve.perplexities(lines, []) if several else None


def exhibits(report: Report, run_dirs: Sequence[Path]) -> html.Contents:
    """Returns what the page shows, with what the runs' directories hold next to rows."""
    paths = {path.resolve().name: path for path in run_dirs}
    environments = {run: _environment(path) for run, path in paths.items()}
    return html.Contents(
        findings=report.findings,
        series=report.by_protocol,
        remarks=report.remarks,
        configs=report.configs,
        environments={run: found for run, found in environments.items() if found is not None},
        pictures={run: _probes(path) for run, path in paths.items()},
        anchors=report.anchors,
        costs={run: _cost(path) for run, path in paths.items()},
    )


def _environment(run_dir: Path) -> dict[str, Any] | None:
    try:
        return json.loads(strip_checksum((run_dir / "env.json").read_bytes()))
    except (OSError, ValueError):
        return None


def _probes(run_dir: Path) -> list[html.Picture]:
    pictures: list[html.Picture] = []
    for path in sorted(run_dir.glob("probes/*.svg")):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} is damaged ({error}); lengthgen probe {run_dir.name} draws it again"
            ) from None
        pictures.append(html.Picture(path.stem.replace("_", " "), text))
    return pictures


def _cost(run_dir: Path) -> html.Cost:
    """Returns what a run cost; parameters are None if no checkpoint can be read."""
    weights = sorted(run_dir.glob("checkpoints/*/model.safetensors"))
    try:
        n_parameters = parameters(weights[-1]) if weights else None
    except (OSError, SafetensorError):
        n_parameters = None
    return cost(runs.training_log(run_dir), parameters=n_parameters)


def cost(rows: Sequence[Mapping[str, Any]], *, parameters: int | None) -> html.Cost:
    """Returns the cost of a run from the rows of train.jsonl."""
    seen = [0, *(row["train/tokens"] for row in rows)]
    steps = zip(pairwise(seen), rows, strict=True)
    seconds = math.fsum((b - a) / row["train/tokens_per_s"] for (a, b), row in steps)
    return html.Cost(parameters=parameters, tokens=seen[-1] or None, seconds=seconds or None)


def parameters(model: Path) -> int:
    """Returns the number of parameters in a model.safetensors, tied ones counted once."""
    with safe_open(model, framework="numpy") as tensors:
        names = tensors.offset_keys()
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)


def table(run_dirs: Sequence[Path], rows: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Returns what a terminal shows of the rows, by default of all of these runs, as Markdown.

    That is perplexity over length, and the verdicts; of tasks, all tables.
    """
    _, report, answered = _gather_both(run_dirs, rows)
    texts: list[str] = []
    if report is not None:
        limits = text_tables.warnings(report.findings, report.remarks)
        texts.append(_markdown(_summary(report), limits))
    if answered is not None:
        texts.append(_markdown(tasks.contents(answered), answered.remarks))
    return "\n".join(texts)


def markdown(report: Report) -> str:
    """Returns all tables; runs without a protocol's rows are listed with dashes."""
    return _markdown(contents(report), text_tables.warnings(report.findings, report.remarks))


def _markdown(shown: Sequence[Table], limits: Sequence[str]) -> str:
    """Returns tables as Markdown, and below them what limits what they say."""
    return "\n".join([*map(tables.markdown, shown), *(f"{limit}\n" for limit in limits)])


def contents(report: Report) -> list[Table]:
    """Returns the tables of a report, the most important first."""
    found = [
        *_summary(report),
        text_tables.key_numbers(report.findings),
        text_tables.against_least(report.by_protocol.get(HEADLINE, [])),
        *(_perplexities(report, name) for name in report.unaltered[1:]),
        text_tables.rates(*rates.of_runs(report.configs.values())),
    ]
    return [table for table in found if table is not None]


def _summary(report: Report) -> list[Table]:
    first = next(iter(report.by_protocol))
    found = [
        _perplexities(report, first),
        text_tables.verdicts(report.findings),
        text_tables.protocols(report.by_protocol),
    ]
    return [table for table in found if table is not None]


def _perplexities(report: Report, protocol: str) -> Table:
    competing = {
        line.label
        for lines in report.by_protocol.values()
        for line in text_tables.competitors(lines)
    }
    return text_tables.perplexities(report.by_protocol[protocol], sorted(competing))
