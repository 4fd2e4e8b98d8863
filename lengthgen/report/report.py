# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportReturnType=false
"""A report: what runs show, as a page, tables, figures and rows."""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lengthgen import escaping
from lengthgen.config import compose, registry
from lengthgen.errors import UserError, suggestion
from lengthgen.evaluation.protocols import named
from lengthgen.files import read_rows, replace_file, writing
from lengthgen.report import curve_tables, figures, page, tables
from lengthgen.report.load import MANIFEST, ROWS, load, save
from lengthgen.report.section import Section
from lengthgen.report.series import Selection, curves, perplexity, select, short
from lengthgen.report.statistics import findings, number
from lengthgen.report.style import MAX_LINES, saved
from lengthgen.report.tables import Cell, Table
from lengthgen.runs import directory

INTERVALS = (
    "95 %, from variance components of seeds and documents, each with its own Student's t; "
    "differences are paired by seed and document. The best are compared jointly: we expect equal "
    "schemes to be called different in at most 5 % of tables. Verdicts are not corrected for "
    "multiple comparisons. One seed: the interval is of this checkpoint on other documents."
)
PHRASES = {
    "uses": "uses context beyond T",
    "flat": "neither gains nor loses from context beyond T",
    "harmed": "is harmed by context beyond T",
    "unclear": "may gain or lose from context beyond T (the interval includes 0)",
}
Logs = Mapping[str, Sequence[Mapping[str, Any]]]  # rows of train.jsonl by run


def sections(rows: pd.DataFrame, logs: Logs) -> list[Section]:
    """Returns a section for each text, those of rooms beside the core, and the method."""
    selections = select(rows[rows["unit"].isna()])
    made = [text_section(selection, logs, first=i == 0) for i, selection in enumerate(selections)]
    others = [make(rows) for make in registry.contributed("SECTIONS")]
    made += [section for section in others if section is not None]
    return [*made, method(rows)]


def text_section(selection: Selection, logs: Logs, *, first: bool = True) -> Section:
    """Returns figures, verdicts and tables of the runs on one text.

    The names of figures end in the corpus, but for the first section.
    """
    rows = selection.rows
    known = findings(rows)
    protocols = list(dict.fromkeys(known["protocol"]))  # the headline first
    main = known[known["protocol"] == protocols[0]]
    many = main.loc[~main["reference"], "series"].nunique() > MAX_LINES
    drawn: dict[str, Figure | None] = {
        "curve": figures.curve(main),
        "gain": figures.gain(main),
        "ranking": figures.ranking(main),
        "excess": figures.excess(main) if many else None,
        "positions": figures.positions(rows),
        "training": figures.training(_logs(rows, logs)),
    }
    for name in protocols[1:]:
        if named(name).altered is None:
            drawn[f"curve-{name}"] = figures.curve(known[known["protocol"] == name])
    shown = curve_tables.tables(selection, known)
    shown.sort(key=lambda table: table.key != "verdicts")
    end = "" if first else re.sub(r"[^\w-]+", "-", f"-{rows['corpus'].iloc[0]}")
    return Section(
        title=selection.title.capitalize(),
        figures={f"{name}{end}": figure for name, figure in drawn.items() if figure is not None},
        sentences=[*sentences(main)],
        tables=shown,
        notes=[*selection.notes, *curve_tables.notes(main)],
        summary=_summary(main),
    )


def _summary(known: pd.DataFrame) -> Table:
    """Returns the perplexity at T and three longer lengths, and the verdict at the longest."""
    own = known[~known["reference"]]
    losses = {(row["series"], row["length"]): row["value"] for row in _records(own, "loss")}
    words = {(row["series"], row["length"]): row["word"] for row in _records(own, "gain")}
    lengths = sorted({n for _, n in losses if n >= own["train_length"].min()})
    lengths = list(dict.fromkeys([*lengths[:2], *lengths[len(lengths) // 2 :][:1], *lengths[-1:]]))
    finite = {key for key, loss in losses.items() if not math.isnan(loss)}
    series = dict.fromkeys(name for name, _ in losses)
    body = [
        [
            name,
            *(number(perplexity(losses[name, n])) if (name, n) in finite else "-" for n in lengths),
            words.get((name, lengths[-1]), ""),
        ]
        for name in sorted(series, key=lambda name: losses.get((name, lengths[-1]), math.inf))
    ]
    return _plain_table(["scheme", *map(short, lengths), "verdict"], body, title="Perplexity")


def terminal(paths: Sequence[Path]) -> str:
    """Returns what a terminal shows of runs as Markdown, without figures of text."""
    rows = load(paths)
    text = rows[rows["unit"].isna()]
    shown: list[Table] = []
    for selection in select(text) if len(text) else ():
        known = findings(selection.rows)
        protocols = curve_tables.protocols_table(selection, known)
        shown.append(_summary(known[known["protocol"] == known["protocol"].iloc[0]]))
        shown += [protocols] if protocols is not None else []
    if len(text) < len(rows):
        made = [make(rows) for make in registry.contributed("SECTIONS")]
        shown += [one.summary for one in made if one is not None and one.summary is not None]
    return "\n".join(map(tables.markdown, shown))


def summary(made: Sequence[Section]) -> str:
    """Returns the short tables of sections as Markdown."""
    return "\n".join(tables.markdown(s.summary) for s in made if s.summary is not None)


def training_logs(paths: Sequence[Path], runs: Collection[str]) -> Logs:
    """Returns the rows of train.jsonl of the runs that lie in, or below, one of the paths."""
    logs: dict[str, Sequence[Mapping[str, Any]]] = {}
    for folder in (folder for path in paths for folder in (path, *directory.run_dirs(path))):
        if folder.resolve().name in runs and (folder / "train.jsonl").is_file():
            with suppress(UserError):  # a figure less
                run = folder.resolve().name
                logs[run] = read_rows(folder / "train.jsonl", run=run)
    return logs


def sentences(known: pd.DataFrame) -> Iterable[str]:
    """Yields a sentence on each series, the least loss first: the verdict at its longest length."""
    losses = {(row["series"], row["length"]): row["value"] for row in _records(known, "loss")}
    last: dict[str, dict[str, Any]] = {}
    for row in sorted(_records(known, "gain"), key=lambda row: row["length"]):
        if row["length"] > row["train_length"] and not row["reference"]:
            last[row["series"]] = row
    for name, row in sorted(last.items(), key=lambda item: losses[item[0], item[1]["length"]]):
        lengths = [row["train_length"], row["length"]]
        T, C = map(short, lengths)
        at_T, at_C = (number(perplexity(losses[name, n])) for n in lengths)
        seed = "; one seed: this checkpoint" if row["n_seeds"] == 1 else ""
        if row["word"] == "not trained":
            yield f"{name} is not trained: its loss at T is not below that of token frequencies."
        else:
            yield (
                f"{name} {PHRASES[row['word']]}: perplexity {at_T} at {T} tokens, {at_C} at {C}; "
                f"loss({T}) - loss({C}) = {row['value']:+.3f} [{row['low']:+.3f}, "
                f"{row['high']:+.3f}] nats per token{seed}."
            )


def method(rows: pd.DataFrame) -> Section:
    """Returns what decides the numbers: protocols, intervals, settings, machines, costs."""
    runs = rows.drop_duplicates("run")
    protocols = dict.fromkeys(rows["protocol"])
    environments = [json.loads(text) for text in runs["environment"]]

    def each(values: Iterable[Any]) -> str:
        return ", ".join(dict.fromkeys(str(value) for value in values if value))

    facts = {
        "protocols": "; ".join(f"{name}: {named(name).summary}" for name in protocols),
        "intervals": INTERVALS,
        "corpora": each(
            f"{name}{' (packed)' if packed else ''} {digest[:12]}"
            for name, packed, digest in zip(
                *(rows[key] for key in ("corpus", "packed", "fingerprint")), strict=True
            )
        ),
        "models": each(runs["model"]),
        "trained on": each(f"windows of {n:,} tokens" for n in runs["train_length"]),
        "tokens seen": each(f"{n:,}" for n in runs["tokens_seen"]),
        "seeds": each(sorted(set(runs["seed"]))),
        "training precision": each(runs["trained_in"]),
        "commands": each(one.get("command") for one in environments),
        "commits": each(one.get("commit") for one in environments),
        "machines": each(
            ", ".join(one.get("devices") or []) or one.get("processor") for one in environments
        ),
        "versions": each(
            f"{name} {version}"
            for one in environments
            for name, version in {"python": one.get("python"), **one.get("libraries", {})}.items()
        ),
    }
    return Section(
        title="Method",
        facts={name: fact for name, fact in facts.items() if fact},
    )


def _plain_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> Table:
    cells = [[Cell(text) for text in row] for row in rows]
    return Table(key="", title=title, head=head, rows=cells)


def table_text(made: Sequence[Section]) -> str:
    """Returns the tables and notes of sections as Markdown: table.md."""
    return "\n".join(
        text
        for section in made
        for text in (
            *map(tables.markdown, section.tables),
            *(f"{escaping.markdown(note)}\n" for note in section.notes),
        )
    )


def write(
    rows: pd.DataFrame,
    made: Sequence[Section],
    out: Path,
    *,
    png: bool = False,
    again: bool = False,
) -> list[Path]:
    """Writes the files of a report into a folder and returns their paths, the page first.

    All but manifest.json follows from the rows (and logs): the same rows give the same bytes.
    `again`: the rows come from this folder, whose rows and manifest stay as they are.
    Raises UserError for a folder that cannot be written.
    """
    text = rows[rows["unit"].isna()]
    schemes = sorted(set(rows["scheme"]))
    several = f"{len(schemes)} schemes" if len(schemes) > MAX_LINES else ", ".join(schemes)
    title = f"Length generalization of {several}"
    shown = [table for section in made for table in section.tables]
    drawn = {name: figure for section in made for name, figure in section.figures.items()}
    svgs = {name: saved(figure, "svg") for name, figure in drawn.items()}
    html = page.render(title, made, svgs=svgs)
    files: dict[str, bytes] = {
        "report.html": html.encode(),
        "table.md": table_text(made).encode(),
        "table.tex": "\n".join(map(tables.latex, shown)).encode(),
    }
    if len(text):
        files["curves.csv"] = curves(text).map(escaping.csv_cell).to_csv(index=False).encode()
    for name, table in (item for section in made for item in section.data.items()):
        files[f"{name}.csv"] = table.map(escaping.csv_cell).to_csv(index=False).encode()
    files |= {f"{name}.svg": svg for name, svg in svgs.items()}
    if png:
        files |= {f"{name}.png": saved(figure, "png") for name, figure in drawn.items()}
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    if not again:
        save(rows, out)
    for name, content in files.items():
        replace_file(out / name, content)
    return [out / name for name in (*files, ROWS, MANIFEST)]


def matching(rows: pd.DataFrame, conditions: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Returns the rows of the runs whose configuration has one of the values at each key.

    The value of a group, such as scheme or task, is the name of its choice. Raises UserError for a
    key or value that no run has, and where no run meets all conditions.
    """
    values: dict[str, dict[str, Any]] = {}  # by run
    for run, text in rows.drop_duplicates("run")[["run", "config"]].itertuples(index=False):
        config = json.loads(text)
        groups = {**config, "task": config.get("corpus", {}).get("task")}
        choices = {k: v["name"] for k, v in groups.items() if isinstance(v, dict) and "name" in v}
        values[run] = compose.flatten(config) | choices
    for key, wanted in conditions.items():
        known = [of_run[key] for of_run in values.values() if key in of_run]
        if not known:
            keys = {name for of_run in values.values() for name in of_run}
            raise UserError(f"{key}: no evaluated run has this key; {suggestion(key, keys)}")
        for value in wanted:
            if value not in known:
                remedy = suggestion(str(value), {str(one) for one in known})
                raise UserError(f"{key}={value}: no evaluated run has this value; {remedy}")
    kept = [
        run
        for run, of_run in values.items()
        if all(of_run.get(key) in wanted for key, wanted in conditions.items())
    ]
    if not kept:
        raise UserError(f"no evaluated run has all of {', '.join(conditions)} as given; name fewer")
    return rows[rows["run"].isin(kept)]


def _records(known: pd.DataFrame, quantity: str) -> list[dict[str, Any]]:
    return known[known["quantity"] == quantity].to_dict("records")


def _logs(rows: pd.DataFrame, logs: Logs) -> list[figures.Log]:
    """Returns series, scheme and log of each run as trained."""
    trained = rows[rows["variant"].isna()].drop_duplicates("run")
    runs = trained[["series", "scheme", "run"]].itertuples(index=False)
    return [(series, scheme, logs.get(run, [])) for series, scheme, run in runs]
