"""The report of evaluated runs: figures, tables, CSV and a page, from the rows of eval.jsonl."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lengthgen.analysis import curves, reference_results, seed_groups
from lengthgen.analysis.curves import BY_POSITION, HEADLINE, Curve, Point
from lengthgen.analysis.findings import Finding, findings
from lengthgen.analysis.formatting import apart, short
from lengthgen.analysis.reference_results import Anchor
from lengthgen.analysis.seed_groups import Series
from lengthgen.config import rates, trust
from lengthgen.errors import UserError, suggestion
from lengthgen.evaluation.protocols import named
from lengthgen.report import html, tables, tasks, text_tables
from lengthgen.report.figures import curve, style
from lengthgen.report.figures.chart import Chart
from lengthgen.report.figures.layout import MOST_NAMED, laid_out, panels
from lengthgen.report.figures.positions import positions
from lengthgen.report.figures.ratios import ratios
from lengthgen.report.tables import Table
from lengthgen.report.tasks import TaskReport, task_of
from lengthgen.runs import directory as runs
from lengthgen.storage import read_rows, replace_file, unsealed


@dataclass(frozen=True, kw_only=True)
class Report:
    """Comparable points of the named runs, the label of each curve, and what to say below."""

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
        found = [r for r in read_rows(path / "eval.jsonl") if r.get("format") == curves.FORMAT]
        if not found:
            raise UserError(f"no evaluation in {path}; run lengthgen eval {path.name}")
        rows += [{**row, "run": path.name} for row in found]
    return rows


def gather(run_dirs: Sequence[Path], rows: Sequence[Mapping[str, Any]] | None = None) -> Report:
    """Keeps what may stand side by side of the rows, by default all of these runs.

    Raises UserError as read, statistics.curve and statistics.comparable do.
    """
    rows = read(run_dirs) if rows is None else rows
    points = curves.curve(rows)
    configs = {path.resolve().name: runs.read_config(path) for path in run_dirs}
    for run in configs:
        if run not in {p.run for p in points}:
            raise UserError(f"no complete evaluation in {run}; run lengthgen eval {run}")
    kept = curves.comparable(points)
    labels = seed_groups.labels(kept, configs)
    remarks = [f"Not shown: {said}; run lengthgen eval" for said in curves.incomplete(rows)]
    remarks += [*_left_out(points, kept), *_unlike(kept, labels), *_unfinished(kept, configs)]
    return Report(points=kept, labels=labels, configs=configs, remarks=remarks)


def gather_tasks(
    run_dirs: Sequence[Path], rows: Sequence[Mapping[str, Any]] | None = None
) -> TaskReport:
    """Keeps what may stand side by side of the rows of runs of tasks, by default all of them.

    Raises UserError as read and task_report.gather do.
    """
    configs = {path.resolve().name: runs.read_config(path) for path in run_dirs}

    def remarks(
        points: Sequence[Point], kept: Sequence[Point], labels: Mapping[Curve, str]
    ) -> list[str]:
        unlike = [*_left_out(points, kept), *_unlike(kept, labels)]
        return [*unlike, *_unfinished(kept, configs)]

    rows = read(run_dirs) if rows is None else rows
    return tasks.gather(rows, configs, remarks=remarks)


def _apart(run_dirs: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Returns the runs of text, and those of tasks; of nothing at all as if they were of text."""
    of_tasks = [path for path in run_dirs if task_of(runs.read_config(path)) is not None]
    return [path for path in run_dirs if path not in of_tasks], of_tasks


def _left_out(points: Sequence[Point], kept: Sequence[Point]) -> list[str]:
    """Says which cells were evaluated and are not shown, and the commands that help."""

    def cell(p: Point) -> tuple[object, ...]:
        return (p.run, p.protocol, p.variant, p.length, p.condition)

    shown = {cell(p) for p in kept}
    hidden = [p for p in points if cell(p) not in shown]
    said: list[str] = []
    for protocol in dict.fromkeys(p.protocol for p in hidden):
        lost = [p for p in hidden if p.protocol == protocol]
        lengths = ", ".join(map(short, sorted({p.length for p in lost})))
        why = apart(lost, [p for p in kept if p.protocol == protocol])
        said.append(
            f"Not shown: {protocol} at {lengths} ({why}), evaluated otherwise than the rest. "
            f"All in one table: {_together([p for p in points if p.protocol == protocol])}"
        )
    return said


def _together(points: Sequence[Point]) -> str:
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


def _unlike(points: Sequence[Point], labels: Mapping[Curve, str]) -> list[str]:
    """Says in what shown series differ besides their schemes."""
    told = {"model": "model", "train_length": "T", "tokens_seen": "tokens seen"}
    said: list[str] = []
    for field, name in told.items():
        found: dict[object, dict[str, None]] = {}
        for p in points:
            found.setdefault(getattr(p, field), {})[labels[p.run, p.variant]] = None
        if len(found) > 1:
            written = {v: f"{v:,}" if isinstance(v, int) else v for v in found}
            values = [f"{written[value]} ({', '.join(of)})" for value, of in found.items()]
            said.append(f"Not like with like: {name} is {' and '.join(values)}")
    return said


def _unfinished(points: Sequence[Point], configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Says how far a run had come that was evaluated before its last step."""
    said: list[str] = []
    for run, tokens_seen in dict.fromkeys((p.run, p.tokens_seen) for p in points):
        train = configs[run].get("train", {})
        if "tokens" in train and tokens_seen < train["tokens"]:
            step, steps = (-(-n // train["batch_tokens"]) for n in (tokens_seen, train["tokens"]))
            said.append(
                f"Unfinished: {run} is at step {step} of {steps}; the command that began it "
                "continues it"
            )
    return said


def write_report(run_dirs: Sequence[Path], out: Path) -> list[Path]:
    """Writes the figures, tables, CSV files and report.html into `out` and returns their paths.

    The headline protocol's figure is curve.png and curve.svg, another's curve-PROTOCOL.*, a task's
    accuracy-TASK.*; ratios-PROTOCOL.* stands beside it where a curve of that protocol is published.
    Runs of several tasks stand side by side, beside runs of one text.
    """
    of_text, of_tasks = _apart(run_dirs)
    report = gather(of_text) if of_text or not of_tasks else None
    tasks_report = gather_tasks(of_tasks) if of_tasks else None
    files: dict[str, bytes] = {}
    numbers: dict[str, bytes] = {}
    written: list[Table] = []
    said: list[str] = []
    if report is not None:
        headline = report.by_protocol.get(HEADLINE, [])
        files |= pictures(report)
        numbers["curve.csv"] = text_tables.points_csv(report.points, report.labels).encode()
        numbers["findings.csv"] = text_tables.findings_csv(report.findings).encode()
        numbers["differences.csv"] = text_tables.differences_csv(headline).encode()
        written += contents(report)
        said.append(markdown(report))
    exhibit = None
    if tasks_report is not None:
        found = report.findings if report is not None else []
        drawn = tasks.pictures(tasks_report, found)
        files |= drawn
        numbers["accuracy.csv"] = tasks.accuracy_csv(tasks_report).encode()
        numbers["tasks.csv"] = tasks.tasks_csv(tasks_report).encode()
        of = tasks.contents(tasks_report)
        written += of
        said.append(_with_remarks(of, tasks_report))
        exhibit = html.Tasks(
            pictures=[
                html.Picture(name.removesuffix(".svg").replace("-", " "), content.decode())
                for name, content in drawn.items()
                if name.endswith(".svg")
            ],
            tables=of,
            remarks=tasks_report.remarks,
        )
    files["table.md"] = "\n".join(said).encode()
    files["table.tex"] = "\n".join(map(tables.latex, written)).encode()
    files |= numbers
    shown = exhibits(report, of_text) if report is not None else None
    files["report.html"] = html.render(shown, exhibit).encode()
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
    beside = [there[name] for name in ("curve", "gain", "positions") if name in there]
    if len(beside) > 1 and all(len(chart.shown) <= MOST_NAMED for chart in beside):
        drawn["headline"] = panels(beside)
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
    """Returns what the page shows, with what the runs' directories hold besides rows."""
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
        return json.loads(unsealed((run_dir / "env.json").read_bytes()))
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

    That is perplexity over length, and the verdicts.
    """
    of_text, of_tasks = _apart(run_dirs)

    def of(paths: Sequence[Path]) -> Sequence[Mapping[str, Any]] | None:
        names = {path.resolve().name for path in paths}
        return None if rows is None else [row for row in rows if row["run"] in names]

    said: list[str] = []
    if of_text or not of_tasks:
        report = gather(of_text, of(of_text))
        said.append(_joined(report, _summary(report)))
    if of_tasks:
        found = gather_tasks(of_tasks, of(of_tasks))
        said.append(_with_remarks(tasks.contents(found), found))
    return "\n".join(said)


def markdown(report: Report) -> str:
    """Returns all tables; runs without a protocol's rows are listed with dashes."""
    return _joined(report, contents(report))


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


def _joined(report: Report, shown: Sequence[Table]) -> str:
    """Returns tables as Markdown, and below them what limits what they say."""
    said = text_tables.warnings(report.findings, report.remarks)
    return "\n".join([_markdown(shown), *(f"{one}\n" for one in said)])


def _markdown(shown: Sequence[Table]) -> str:
    return "\n".join(map(tables.markdown, shown))


def _with_remarks(shown: Sequence[Table], report: TaskReport) -> str:
    return "\n".join([_markdown(shown), *(f"{remark}\n" for remark in report.remarks)])
