"""A report: what runs show, as a page, tables, figures and rows."""

import base64
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd

from lengthgen import escaping
from lengthgen.config import registry
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import HEADLINE, named
from lengthgen.files import replace_file, writing
from lengthgen.report import tables
from lengthgen.report.load import MANIFEST, ROWS, is_last, load_rows, only, save_rows
from lengthgen.report.series import Selection, select, short
from lengthgen.report.statistics import curves, findings, learning_rates, over_training, unchanged
from lengthgen.report.tables import Numbers, Table
from lengthgen.runs.selection import runs_matching

if TYPE_CHECKING:  # matplotlib takes as long as all that a terminal shows, which does without it
    from matplotlib.figure import Figure

    from lengthgen.report.figures import Colours

Drawings = Mapping[str, "Callable[[], Figure | None]"]  # by file
PHRASES = {
    "uses": "uses context beyond T",
    "flat": "neither gains nor loses from context beyond T",
    "unclear": "may gain or lose from context beyond T (the interval includes 0)",
    "no interval": "may gain or lose from context beyond T (there is no interval)",
    "seeds disagree": "may gain or lose from context beyond T (its seeds disagree)",
    "harmed": "is harmed by context beyond T",
    "not trained": "is not trained (its loss at T is not below that of token frequencies)",
}
MOST_SENTENCES = 12  # of a page; of more series, one on each verdict
MOST_NAMES = 8  # of a title


@dataclass(frozen=True, kw_only=True)
class ReportSection:
    """What a page shows under one heading: a figure, sentences, a table, and then the others.

    A subpackage beside the core adds sections: `SECTIONS` of its report_sections.py lists functions
    that take the rows of load_rows and return a ReportSection, or None where no row is theirs.
    """

    title: str
    headline: str = ""  # what all of it comes to
    drawings: Callable[[], Drawings] = dict
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # by name
    commands: Sequence[str] = ()  # that made the runs
    notes: Sequence[str] = ()  # what is not shown, or limits a comparison
    data: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # for CSV
    summary: Sequence[Table] = ()  # for a terminal

    @cached_property
    def figures(self) -> "dict[str, Figure]":
        """The drawings that have something to show, drawn when they are first asked for."""
        drawn = {name: draw() for name, draw in self.drawings().items()}
        return {name: figure for name, figure in drawn.items() if figure is not None}


def sections(rows: pd.DataFrame, *, lengths: Sequence[int] = ()) -> list[ReportSection]:
    """Returns a section for each text, those of subpackages beside the core, and the method.

    Their short tables have these lengths. Raises UserError if nothing can be compared.
    """
    of_others = {name for name in rows["protocol"].unique() if named(name).texts}
    of_texts = rows[rows["unit"].isna() & ~rows["protocol"].isin(of_others)]
    texts, lost = list[Selection](), list[str]()
    try:
        texts = select(of_texts)
    except UserError as error:
        if len(of_texts) == len(rows):
            raise
        lost = [str(error)]  # and tasks alone are shown
    made = list[ReportSection | None]()
    for i, text in enumerate(texts, start=1):
        known, end = findings(text.rows), f"-{i}" if i > 1 else ""
        colours = partial(_colours, text.rows, known, {*rows["scheme"]})
        made += [
            text_section(text, known, end, colours, lengths=lengths, alone=len(texts) == 1),
            training_section(text, end, colours),
        ]
    last = rows.loc[is_last(rows)]
    made += [make(last) for make in registry.contributed("SECTIONS", "report_sections")]
    return [*(section for section in made if section is not None), method(last, lost)]


def _colours(rows: pd.DataFrame, known: pd.DataFrame, schemes: Collection[str]) -> "Colours":
    """Returns the colours of all series, those of tables first and in their order."""
    from lengthgen.report import figures

    order = Numbers(known[known["protocol"] == next(iter(known["protocol"]))]).series
    colours = figures.series_colours(rows, schemes, unchanged(rows))
    return {name: colours[name] for name in (*order, *({*colours} - {*order}))}


def text_section(
    selection: Selection,
    known: pd.DataFrame,
    end: str,
    colours: "Callable[[], Colours]",
    *,
    lengths: Sequence[int],
    alone: bool,
) -> ReportSection:
    """Returns figures, sentences and tables of runs on one text; names of files have the end.

    `known` are its findings. `alone`: there is no other text.
    """
    by_protocol = {name: known[known["protocol"] == name] for name in known["protocol"].unique()}
    numbers = {name: Numbers(rows) for name, rows in by_protocol.items()}
    main, *others = by_protocol  # the headline first
    bases = unchanged(selection.rows)

    def drawings() -> Drawings:
        from lengthgen.report import figures

        crops = figures.cropped(by_protocol[main] if main == HEADLINE else known.iloc[:0], bases)
        look: Any = {"colours": colours()}
        lines = partial(figures.curve, pd.concat([by_protocol[main], crops]), **look)
        first = numbers[main]
        drawn = {
            "overview": partial(figures.dots, by_protocol[main], first.T, first.common[-1], **look),
            "curve": lines,
            "curve-each": partial(lines, each=True),
            "gain": partial(figures.gain, by_protocol[main], **look),
            "positions": partial(figures.positions, selection.rows, **look),
        }
        for name in others:
            if named(name).altered is None:
                drawn[f"curve-{name}"] = partial(figures.curve, by_protocol[name], **look)
        return {f"{name}{end}": draw for name, draw in drawn.items()}

    notes = known[(known["quantity"] == "note") & ~known["reference"]]
    limits = notes.groupby("word", sort=False)["series"].unique()
    n_series = known.loc[~known["reference"], "series"].nunique()
    return ReportSection(
        title=f"C{selection.title[1:]}",
        drawings=drawings,
        headline=headline(numbers[main]),
        sentences=[*sentences(numbers[main], bases)],
        tables=[
            *tables.verdicts(numbers[main]),
            *(tables.perplexities(selection, each, name) for name, each in numbers.items()),
        ],
        notes=[
            *selection.notes,
            *(_limit(str(n), of, n_series=n_series) for n, of in limits.items()),
        ],
        data={f"curves{end}": curves(known)},
        summary=[
            tables.summary(
                each,
                f", {name}" * (name != HEADLINE) + f"; corpus {selection.text}" * (not alone),
                lengths=lengths,
                notes=[
                    *(selection.terminal_notes if name == main else ()),
                    *(tables.without_verdict(each) if name == HEADLINE else ()),
                ],
            )
            for name, each in numbers.items()
        ],
    )


def training_section(
    selection: Selection, end: str, colours: "Callable[[], Colours]"
) -> ReportSection | None:
    """Returns loss at T and gains over training, of series with several checkpoints, if any."""
    if selection.earlier.empty:
        return None
    from lengthgen.report import over_training as training

    several = selection.rows[selection.rows["series"].isin(selection.earlier["series"])]
    known = over_training(replace(selection, rows=several))
    shown = training.training_points(known)
    if shown.empty:  # without T
        return None

    def drawings() -> Drawings:
        look: Any = {"colours": colours()}
        return {
            f"training{end}": partial(training.losses, shown, **look),
            f"training-gain{end}": partial(training.gains, shown, **look),
            f"training-gain-by-loss{end}": partial(training.gains, shown, by_loss=True, **look),
        }

    return ReportSection(
        title=f"Over training: {selection.title}",
        drawings=drawings,
        tables=training.training_tables(known, shown),
        data={f"training{end}": known.loc[known["quantity"] != "note"]},
        summary=training.training_summary(known, shown),
    )


def _limit(note: str, series: Sequence[str], *, n_series: int) -> str:
    """Returns "rope, alibi: one seed"; "All: one seed" if there are no other series."""
    return f"{'All' if 1 < n_series == len(series) else ', '.join(series)}: {note}."


def headline(numbers: Numbers) -> str:
    """Returns which series is best at the longest length, what ties with it, and who fails where.

    Best is what the table of perplexities marks. The least that is compared with none, as that of
    one seed, is named before it.
    A series is harmed from the first length on from which every verdict is *harmed*.
    """
    n, best, ties = numbers.common[-1], list[str](), list[str]()
    lowest = [(numbers.perplexity(name, n), name) for name in numbers.series]
    lowest = [(cell, name) for cell, name in lowest if cell.text not in ("-", "n/a")]
    for cell, name in lowest:
        best += [f"{name} ({cell.text})"] * (cell.mark == "best")
        ties += [name] * (cell.mark == "tie")
    parts, of_compared = list[str](), f"lowest perplexity at {short(n)}"
    if len(lowest) > 1 and lowest[0][0].mark not in ("best", "tie"):
        (cell, name), *_ = lowest
        why = "one seed, " * (numbers.n_seeds[name] == 1)
        parts.append(f"{of_compared}: {name} ({cell.text}), {why}not compared")
        of_compared = "lowest of several seeds"
    if best:
        parts.append(f"{of_compared}: {', '.join(best)}")
        parts += [f"not distinguishable from it: {', '.join(ties)}"] if ties else []
    harmed: dict[int, list[str]] = {}
    for name in numbers.series:
        lengths = numbers.beyond(name)
        words = [numbers.finding(name, "gain", length)["word"] for length in lengths]
        first = max((i for i, word in enumerate(words, 1) if word != "harmed"), default=0)
        if first < len(words):
            harmed.setdefault(lengths[first], []).append(name)
    for length, names in sorted(harmed.items()):
        parts.append(f"harmed from {short(length)} on: {', '.join(names)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def sentences(numbers: Numbers, bases: Mapping[str, str]) -> Iterator[str]:
    """Yields a sentence on each series, the least loss first: the verdict at its longest length.

    Of many series it yields a sentence on each verdict. `bases`: the series without a variant.
    """
    longest = {series: max(numbers.beyond(series), default=0) for series in numbers.series}
    words = {
        series: _word(numbers.finding(series, "gain", n)) for series, n in longest.items() if n
    }
    if len(words) > MOST_SENTENCES:
        for word, phrase in PHRASES.items():
            if names := [name for name, verdict in words.items() if verdict == word]:
                yield f"{phrase[0].upper()}{phrase[1:]}: {', '.join(names)}."
    else:
        for name, word in words.items():
            at = (bases[name], numbers.T[name]), (name, longest[name])
            T, n = (f"{numbers.perplexity(series, n).text} at {short(n)}" for series, n in at)
            without = " without the variant" if bases[name] != name else ""
            yield f"{name} {PHRASES[word]}: perplexity {T} tokens{without}, {n}."
    if words and (others := [series for series, n in longest.items() if not n]):
        yield f"Without a value beyond T: {', '.join(others)}."


def _word(gain: Mapping[str, Any]) -> str:
    """Returns the verdict; of an unclear one whose interval does not include 0 the reason."""
    if gain["word"] != "unclear" or gain["low"] <= 0 <= gain["high"]:
        return gain["word"]
    return "seeds disagree" if math.isfinite(gain["low"]) else "no interval"


def terminal(
    paths: Sequence[Path],
    measured: Sequence[Mapping[str, Any]] | None = None,
    *,
    lengths: Sequence[int] = (),
    checkpoints: bool = False,
) -> str:
    """Returns what a command that evaluated runs shows: by settings of rows, at these lengths."""
    rows = load_rows(paths, checkpoints=checkpoints)
    return short_tables(
        sections(rows if measured is None else only(rows, measured), lengths=lengths)
    )


def short_tables(made: Sequence[ReportSection]) -> str:
    """Returns the short tables of sections, for standard output."""
    return "\n".join(tables.shown(table) for section in made for table in section.summary)


def method(rows: pd.DataFrame, notes: list[str]) -> ReportSection:
    """Returns what decides the numbers: protocols, corpora, settings, machines; and the notes."""
    runs = rows.drop_duplicates("run")
    environments = [*map(json.loads, runs["environment"])]
    trained = runs.loc[runs["tokens_seen"] > 0]  # the others are imported
    facts = {
        "protocols": [f"{p}: {named(p).summary}" for p in rows["protocol"].unique()],
        "corpora": rows["corpus"] + " " + rows["fingerprint"].str[:12],
        "documents": _documents(rows),
        "trained": trained["model"] + ", " + trained["tokens_seen"].map("{:,} tokens".format),
        "learning rates": trained["scheme"] + " " + learning_rates(trained).astype(str),
        "commits": [e.get("commit") for e in environments],
        "machines": [", ".join(e.get("devices") or []) or e.get("processor") for e in environments],
        "versions": [" ".join(x) for e in environments for x in e.get("libraries", {}).items()],
    }
    texts = {name: "; ".join(dict.fromkeys(filter(None, values))) for name, values in facts.items()}
    shown = {name: text for name, text in texts.items() if text}
    typed = [e.get("command", "").split() for e in environments]
    commands = [*_commands(zip(typed, runs["seed"], strict=True))]
    return ReportSection(title="Method", facts=shown, notes=notes, commands=commands)


def _documents(rows: pd.DataFrame) -> Iterator[str]:
    """Yields how many documents of how many groups the matched tail scores, where it has groups."""
    scored = rows[rows["protocol"] == HEADLINE]
    for corpus, n in scored.groupby("corpus")["document"].nunique().items():
        if groups := tables.in_groups(scored[scored["corpus"] == corpus]):
            yield f"{corpus}: {n}{groups}"


def _commands(commands: Iterable[tuple[Sequence[str], int]]) -> Iterator[str]:
    """Yields the command of each run, one of seeds that share all else, without folders."""
    by_words: dict[tuple[str, ...], list[int]] = {}
    for words, seed in commands:
        key = tuple(word for word in words if not word.startswith("seed="))
        by_words.setdefault(key, []).append(seed)
    for words, seeds in by_words.items():
        text = " ".join(words)
        if len({*seeds}) > 1:
            text = text.replace("lengthgen train", "lengthgen sweep", 1)
        if text:
            yield f"{escaping.without_folders(text)} seed={','.join(map(str, sorted({*seeds})))}"


def table_text(made: Sequence[ReportSection]) -> str:
    """Returns the tables and notes of sections as Markdown: table.md."""
    texts: list[str] = []
    for section in made:
        texts += map(tables.markdown, section.tables)
        texts += (f"{escaping.escape_markdown(note)}\n" for note in section.notes)
    return "\n".join(texts)


def page(title: str, made: Sequence[ReportSection], svgs: Mapping[str, bytes]) -> str:
    """Returns one HTML file that holds its figures, loads nothing and runs only its own scripts.

    Every text may come from a file, and is escaped. Figures are images, so that what an SVG holds
    can neither run nor load anything. The page's policy names its scripts by their hashes.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from lengthgen.report import interactive

    environment = Environment(
        loader=PackageLoader("lengthgen.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=escaping.html,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    images = {name: Markup(quote(svg, safe=" <>/=:;,()'!*+@?")) for name, svg in svgs.items()}
    room = files("lengthgen.report")
    scripts = [(room / "page.js").read_text()]
    if any(interactive.charts(figure) for section in made for figure in section.figures.values()):
        scripts += [interactive.vega(), (room / "charts.js").read_text()]
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    template = environment.get_template("report.html.j2")
    return template.render(
        title=title,
        sections=made,
        images=images,
        charts=interactive.charts,
        scripts=[*map(Markup, scripts)],
        hashes=hashes,
    )


def page_title(rows: pd.DataFrame) -> str:
    """Returns the title of a page, which names the schemes, and models that are imported."""
    names = sorted({*rows["scheme"].where(rows["tokens_seen"] > 0, rows["model"])})
    few = ", ".join(names) if len(names) <= MOST_NAMES else f"{len(names)} schemes"
    return f"Length generalization of {few}"


def write_pages(
    rows: pd.DataFrame,
    made: Sequence[ReportSection],
    out: Path,
    *,
    again: bool = False,
    latex: bool = False,
) -> list[Path]:
    """Writes the files of a report into a folder and returns their paths, the page first.

    All but manifest.json follows from the rows: the same rows give the same bytes. `again`: the
    rows come from this folder, whose rows and manifest stay as they are. `latex`: for a paper, too,
    tables.tex and figures as PDF. Raises UserError for a folder that cannot be written.
    """
    from lengthgen.report.style import saved

    svgs = {n: saved(drawn, "svg") for section in made for n, drawn in section.figures.items()}
    written = {
        "report.html": page(page_title(rows), made, svgs).encode(),
        "table.md": table_text(made).encode(),
        **{f"{name}.svg": svg for name, svg in svgs.items()},
    }
    for section in made:
        written |= {f"{n}.csv": tables.csv_text(t).encode() for n, t in section.data.items()}
    if latex:
        every = [table for section in made for table in section.tables]
        text = "\n".join(["% \\usepackage{booktabs,graphicx}", *map(tables.latex, every)])
        written["tables.tex"] = text.encode()
        for section in made:
            written |= {f"{n}.pdf": saved(drawn, "pdf") for n, drawn in section.figures.items()}
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        if not again:
            save_rows(rows, out)
    for name, content in written.items():
        replace_file(out / name, content)
    return [out / name for name in (*written, ROWS, MANIFEST)]


def matching(rows: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    """Returns the rows of the runs that meet conditions, as `runs_matching` reads them."""
    runs = rows.drop_duplicates("run").set_index("run")[["config", "state"]]
    states = zip(runs.index, runs["config"], runs["state"], strict=True)
    configs = {str(run): {**json.loads(text), "state": state} for run, text, state in states}
    return rows[rows["run"].isin(runs_matching(configs, conditions))]
