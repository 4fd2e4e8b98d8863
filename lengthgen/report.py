"""The report of evaluated runs: figures, tables and CSV from the rows of eval.jsonl."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from lengthgen import figures, series, statistics
from lengthgen.errors import UserError
from lengthgen.series import Series
from lengthgen.statistics import HEADLINE, Curve, Point, perplexity
from lengthgen.tracking import read_rows, replace_file
from lengthgen.wording import apart, headline, number, short, subject


@dataclass(frozen=True, kw_only=True)
class Report:
    """Comparable points of the named runs, the label of each curve, and what to say below."""

    points: list[Point]
    labels: dict[Curve, str]
    remarks: list[str]

    @property
    def protocols(self) -> list[str]:
        """The headline first."""
        return sorted({p.protocol for p in self.points}, key=lambda name: (name != HEADLINE, name))

    def series(self, protocol: str) -> list[Series]:
        points = [p for p in self.points if p.protocol == protocol]
        return series.series(points, self.labels)


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
        found = read_rows(path / "eval.jsonl")
        if not found:
            raise UserError(f"no evaluation in {path}; run lengthgen eval {path.name}")
        rows += [{**row, "run": path.name} for row in found]
    return rows


def gather(run_dirs: Sequence[Path]) -> Report:
    """Reads runs and keeps what may stand side by side.

    Raises UserError as read, statistics.curve and statistics.comparable do.
    """
    points = statistics.curve(read(run_dirs))
    configs = {path.resolve().name: _config(path) for path in run_dirs}
    for run in configs:
        if run not in {p.run for p in points}:
            raise UserError(f"no complete evaluation in {run}; run lengthgen eval {run}")
    kept = statistics.comparable(points)
    remarks = [*_left_out(points, kept), *_unfinished(kept, configs)]
    return Report(points=kept, labels=series.labels(kept, configs), remarks=remarks)


def _left_out(points: Sequence[Point], kept: Sequence[Point]) -> list[str]:
    """Says which cells were evaluated and are not shown, and the commands that help."""

    def cell(p: Point) -> tuple[str, str, str | None, int]:
        return (p.run, p.protocol, p.variant, p.length)

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


def _config(run_dir: Path) -> dict[str, Any]:
    """Returns config.yaml as it stands, so that runs of an older schema can still be shown."""
    path = run_dir / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        config = None
    if not isinstance(config, dict):
        raise UserError(f"{path}: missing or damaged; restore it, or report other runs")
    return config


def write_report(run_dirs: Sequence[Path], out: Path) -> list[Path]:
    """Writes the figures, table.md and curve.csv into `out` and returns their paths.

    The headline protocol's figure is curve.png and curve.svg, another's curve-PROTOCOL.*.
    """
    report = gather(run_dirs)
    files: dict[str, bytes] = {}
    for protocol in report.protocols:
        stem = "curve" if protocol == HEADLINE else f"curve-{protocol}"
        drawn = figures.figure(report.series(protocol))
        files |= {f"{stem}.{kind}": figures.rendered(drawn, kind) for kind in ("png", "svg")}
    files["table.md"] = markdown(report).encode()
    files["curve.csv"] = long_csv(report).encode()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}); give --out DIR") from None
    for name, content in files.items():
        replace_file(out / name, content)
    return [out / name for name in files]


def table(run_dirs: Sequence[Path]) -> str:
    """Returns perplexity over length as Markdown, one table per protocol."""
    return markdown(gather(run_dirs))


def markdown(report: Report) -> str:
    """Returns the report's tables; runs without a protocol's rows are listed with dashes."""
    everyone = sorted(set(report.labels.values()))
    tables = [_table(report.series(protocol), everyone) for protocol in report.protocols]
    return "\n".join([*tables, *(f"{remark}\n" for remark in report.remarks)])


def _table(lines: Sequence[Series], everyone: Sequence[str]) -> str:
    points = [p for line in lines for p in line.points]
    lengths = sorted({p.length for p in points})
    trained = {p.train_length for p in points}
    base = short(min(trained)) if len(trained) == 1 else "T"
    reasons = list(dict.fromkeys(p.skipped for p in points if p.skipped is not None))
    rows = [
        ["scheme", "seeds", *map(short, lengths), f"{short(lengths[-1])}/{base}"],
        *([line.label, str(len(line.runs)), *_cells(line, lengths, reasons)] for line in lines),
    ]
    absent = set(everyone) - {line.label for line in lines}
    rows += [[label, *("-" for _ in rows[0][1:])] for label in sorted(absent)]
    notes = [f"{i}. {reason}" for i, reason in enumerate(reasons, start=1)]
    if any("-" in row for row in rows):
        notes.append("\n`-`: not evaluated")
    title = f"Perplexity, {headline(points)}; {subject(points)}."
    return "\n".join([title, "", *_aligned(rows), "", *notes]).rstrip() + "\n"


def _cells(line: Series, lengths: Sequence[int], reasons: Sequence[str]) -> list[str]:
    """Returns a series' perplexity at each length, and that at the longest over that at T."""
    losses, skipped = line.losses(), line.skipped
    cells: list[str] = []
    for n in lengths:
        if n in losses:
            cells.append(number(perplexity(losses[n])))
        else:
            cells.append(f"n/a ({reasons.index(skipped[n]) + 1})" if n in skipped else "-")
    last, at_T = losses.get(lengths[-1]), losses.get(line.train_length)
    if last is None or at_T is None:
        return [*cells, "n/a"]
    return [*cells, number(perplexity(last - at_T))]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns Markdown rows with the columns in line, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [
        [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]  # the header too
        for row in rows
    ]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [f"| {' | '.join(row)} |" for row in (padded[0], rule, *padded[1:])]


def long_csv(report: Report) -> str:
    """Returns one line per point: its series, all its fields and, under the headline, its gain."""
    gains = {id(gain.point): gain for gain in statistics.context_gain(report.points)}
    names = [field.name for field in fields(Point)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["series", *names, "context_gain", "ratio_to_T"])
    for p in report.points:
        gain = gains.get(id(p))
        derived = (gain.nats, gain.ratio) if gain else (None, None)
        label = report.labels[p.run, p.variant]
        writer.writerow([label, *(getattr(p, name) for name in names), *derived])
    return text.getvalue()
