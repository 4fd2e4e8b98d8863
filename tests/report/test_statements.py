"""README and the pages of results say what the committed rows give: results/statements.yaml.

A statement is a sentence of a page: `says`, with {} for each of `values`. It may have a condition,
`holds`; for the word of a headline, `verdict: [study, series, length]`. One without any of these
says what follows from no row. `table` is one that the page shows.
"""

import math
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from typing import Any

import pandas as pd
import pytest
import yaml
from repository import ROOT

from lengthgen.context import lengths as use
from lengthgen.context import report as of_context
from lengthgen.context.retrieval import DEPTHS, FORMS
from lengthgen.report.intervals import Estimate
from lengthgen.report.load import load_rows
from lengthgen.report.series import select, short
from lengthgen.report.statistics import CurvePoint, Sums, copies, loss_of, shown_number, unchanged
from lengthgen.report.statistics import verdict as verdict_of
from lengthgen.tasks.accuracy import accuracies

RESULTS = ROOT / "results"
STATEMENTS = yaml.safe_load((RESULTS / "statements.yaml").read_text(encoding="utf-8"))
OWN_TEST = ("published.md",)  # which scripts/claims.py writes
PAGES = ["README.md", "docs/leaderboard.md", "docs/context.md"] + [
    f"docs/results/{path.name}"
    for path in sorted((ROOT / "docs/results").glob("*.md"))
    if path.name not in OWN_TEST
]
STATED = sorted({*PAGES, *(statement["in"] for statement in STATEMENTS)})
HEADLINE = re.compile(r"^#.*|\*\*.+?\*\*", re.MULTILINE)
WORDS = {
    **{"holds": "flat", "flat": "flat", "gains": "uses", "uses": "uses"},
    **{"breaks": "harmed", "fails": "harmed", "harmed": "harmed"},
}
SIX = ("t5", "kerple", "alibi", "rope", "sinusoidal", "nope")  # of the recipe, by loss at T
ADAMW = {"optimizer": "adamw", "schedule": "cosine"}
MEASURED = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.]|[MkB]\b)|\b(?!95)\d+ %")


@cache
def texts(study: str) -> list[Any]:
    """Returns the comparable rows of a study; those of each task."""
    return [*select(load_rows([RESULTS / study]))]


def rows(study: str) -> Any:
    return texts(study)[0].rows


@cache
def sums(study: str, quantity: Any) -> Sums:
    return Sums(rows(study), quantity)


def cell(study: str, name: str, length: int | None) -> CurvePoint:
    """Returns the cell of a series at a length, by default at T."""
    T = rows(study).groupby("series")["train_length"].first()
    return CurvePoint("tail", name, length or int(T[name]))


def ppl(study: str, name: str, length: int | None = None, protocol: str = "tail") -> float:
    at = cell(study, name, length)._replace(protocol=protocol)
    sample = sums(study, loss_of).sample([at])
    return math.exp(sample.mean(0).value) if sample else math.nan


def above(study: str, a: str, b: str, length: int | None = None) -> Any:
    """Returns the loss of one series minus that of another."""
    return sums(study, loss_of).difference(*(cell(study, name, length) for name in (a, b)))


def gain(study: str, name: str, length: int, quantity: Any = loss_of) -> Any:
    """Returns the loss at T, without a variant, minus that at a length."""
    first = cell(study, name, None)
    first = first._replace(series=unchanged(rows(study))[first.series])
    return sums(study, quantity).difference(first, cell(study, name, length))


def rise(study: str, name: str, length: int) -> Any:
    """Returns the loss at a length minus that at T, without a variant."""
    first = cell(study, name, None)
    first = first._replace(series=unchanged(rows(study))[first.series])
    return sums(study, loss_of).difference(cell(study, name, length), first)


def copy_gain(study: str, name: str, length: int) -> Any:
    """Returns the gain on targets after two tokens that were last seen beyond T."""
    return gain(study, name, length, copies)


def verdict(study: str, name: str, length: int) -> str:
    return verdict_of(gain(study, name, length))


def side_by_side(study: str, name: str, length: int) -> Any:
    """Returns the loss of windows side by side at a length minus that at T."""
    at = (CurvePoint("nonoverlap", *cell(study, name, n)[1:]) for n in (length, None))
    return sums(study, loss_of).difference(*at)


def found(name: str, length: int, *, at: float | None = None) -> float:
    """Returns the share of single values that a series finds; of all forms at a depth, in %."""
    places = use.form_places("single")
    if at is not None:
        places = range(DEPTHS.index(at), len(FORMS) * len(DEPTHS), len(DEPTHS))
    hits = use.hits(use.own_rows(rows("context"), "retrieval"), places)
    return 100 * use.share(hits, CurvePoint("retrieval", name, length)).value


def smollm2_finds(name: str, length: int, *, at: float | None = None) -> str:
    """Returns the share of values of all forms that SmolLM2 finds, at one depth or all, in %."""
    n = len(FORMS) * len(DEPTHS)
    places = range(n) if at is None else range(DEPTHS.index(at), n, len(DEPTHS))
    hits = use.hits(use.own_rows(rows("smollm2_retrieval"), "retrieval"), places)
    share = use.share(hits, CurvePoint("retrieval", name, length))
    return "{:.0f} [{:.0f}, {:.0f}]".format(
        *(100 * x for x in (share.value, share.low, share.high))
    )


def more_of_smollm2(a: str, b: str, length: int) -> Any:
    """Returns the share of values of all forms that one series finds minus that of another."""
    of_study = use.own_rows(rows("smollm2_retrieval"), "retrieval")
    hits = use.hits(of_study, range(len(FORMS) * len(DEPTHS)))
    return hits.difference(*(CurvePoint("retrieval", name, length) for name in (a, b)))


def more_of_keys(a: str, b: str, length: int) -> Any:
    """Returns the share of the values of five keys that one series finds minus that of another."""
    hits = use.hits(use.own_rows(rows("context"), "retrieval"), use.form_places("keys"))
    return hits.difference(*(CurvePoint("retrieval", name, length) for name in (a, b)))


def copied(name: str, length: int, *, behind: int = 0) -> float:
    """Returns the share of a text that a series has right behind itself (0), or other text (1)."""
    hits = use.hits(use.own_rows(rows("context"), "forgetting"), [behind])
    return 100 * use.share(hits, CurvePoint("forgetting", name, length)).value


def reaches(*names: str) -> str:
    """Returns the table of how much context series use."""
    every = {name: of_context.reaches_of(rows("context"), name) for name in names}
    heads = ["scheme", *next(iter(every.values()))]
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)]]
    for name, own in every.items():
        lines.append([name, *(reach.text if reach else "-" for reach in own.values())])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def audited(name: str) -> str:
    """Returns the sentence of an audit."""
    of_study = rows("context")
    reached = of_context.reaches_of(of_study, name)
    return of_context.sentence(name, 512, reached, of_context.found_at_shortest(of_study, name))


def claimed(start: str) -> str:
    """Returns the verdict of the published claim that begins with these words."""
    page = (ROOT / "docs/results/published.md").read_text(encoding="utf-8")
    [verdict] = re.findall(rf"^\| {re.escape(start)}.*\*\*(.+)\*\* \|$", page, re.MULTILINE)
    return verdict


def right(study: str, task: str, name: str, *, digits: int = 0) -> str:
    """Returns the percentage of right answers at lengths beyond L, with its interval."""
    [of_task] = (t.rows for t in texts(study) if task in set(t.rows["corpus"]))
    [share] = [a.unseen for a in accuracies(of_task) if a.series == name]
    assert share is not None, (study, task, name)
    value, low, high = (100 * x for x in (share.value, share.low, share.high))
    return "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(value, low, high, d=digits)


def curves(study: str, lengths: list[int], *names: str) -> str:
    """Returns a table of series: perplexity by length, gain and verdict at the last length."""
    heads = ["series", *map(short, lengths), f"gain at {short(lengths[-1])}, nats", "verdict"]
    lines = [heads, ["---", *["--:"] * len(lengths), "---", "---"]]
    every = {name: ppl(study, name, lengths[-1]) for name in {*rows(study)["series"]}}
    for name in names or sorted(every, key=every.__getitem__):
        at_end, shown = gain(study, name, lengths[-1]), (ppl(study, name, n) for n in lengths)
        lines += [[name, *map(text, shown), text(at_end), verdict_of(at_end) if at_end else "-"]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def recipe(
    scheme: str,
    *,
    norm: bool = False,
    lr: float = 0.01,
    optimizer: str = "muon",
    schedule: str = "linear",
) -> str:
    """Returns the series of a scheme in the study of the recipe, by default of train=default."""
    train = f"train.lr={lr}, train.optimizer={optimizer}, train.schedule={schedule}"
    return f"{scheme} (model.qk_norm={str(norm).lower()}, {train})"


def by_setting(schemes: Sequence[str], settings: dict[str, dict[str, Any]]) -> str:
    """Returns a table of schemes: perplexity at T by recipe, under the names given for it."""
    lines = [["scheme", *settings], ["---", *["--:"] * len(settings)]]
    for scheme in schemes:
        names = (recipe(scheme, **own) for own in settings.values())
        lines.append([scheme, *(text(ppl("recipe", name)) for name in names)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def costs(scheme: str, **settings: Any) -> Any:
    """Returns the loss at T of a recipe minus that of train=default."""
    return above("recipe", recipe(scheme, **settings), recipe(scheme))


def saves(scheme: str, **settings: Any) -> Any:
    """Returns the loss at T of train=default minus that of a recipe."""
    return above("recipe", recipe(scheme), recipe(scheme, **settings))


def learned(scheme: str, **settings: Any) -> bool:
    """Returns whether the loss of a recipe is lower with 512 tokens than with 256."""
    name = recipe(scheme, **settings)
    return gain("recipe", name, 256).high < 0


def section(path: str, title: str = "") -> str:
    """Returns the table of a Markdown file in results/, the first one below a title."""
    page = (RESULTS / path).read_text(encoding="utf-8")
    return re.findall(r"(?:^\|.*\n)+", page[page.index(title) :], re.MULTILINE)[0]


def faster(what: str, precision: str) -> str:
    """Returns the least and the highest speed of lengthgen over that of another implementation."""
    peers = pd.read_csv(RESULTS / "cost/peers.csv")
    ratios = peers.query("what == @what and precision == @precision")["ratio"]
    return f"{ratios.min():.2f} to {ratios.max():.2f}"


def projects() -> str:
    """Returns the projects of the corpus python by licence, with their versions."""
    pinned = tomllib.loads((ROOT / "conf/corpus/python.toml").read_text(encoding="utf-8"))
    named: dict[str, dict[str, list[str]]] = {}
    for split, of_split in pinned.items():
        for project, about in of_split.items():
            own = named.setdefault(about["license"], {"train": [], "validation": []})
            own[split].append(f"{project} {about['wheel'].split('-')[1]}")
    cells = {key: [", ".join(own) or "-" for own in named[key].values()] for key in sorted(named)}
    lines = [f"| {key} | {' | '.join(row)} |" for key, row in cells.items()]
    return "\n".join(["| licence | training | held out |", "|---|---|---|", *lines])


def text(value: Any) -> str:
    """Returns 13.56, 176.9, 512 (a length) or 0.066 [0.019, 0.112]."""
    if isinstance(value, Estimate):
        digits = 3 if abs(value.value) < 1 else 2 if abs(value.value) < 10 else 0
        return "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(value.value, value.low, value.high, d=digits)
    if isinstance(value, str | int):
        return str(value)
    return "-" if math.isnan(value) else shown_number(value)


def sentence(statement: dict[str, Any]) -> str:
    """Returns what the page is to say, spaces and ends of lines alike."""
    if "table" in statement:
        return " ".join(eval(statement["table"]).split())
    values = [text(eval(value)) for value in statement.get("values", [])]
    return " ".join(statement["says"].format(*values).split())


def prose(page: str) -> str:
    """Returns a page without what states nothing: commands, code, papers and where links lead."""
    page = re.sub(r"arXiv \d{4}\.\d{5}", "", page)
    page = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<=\])\([^)]*\)", "", page)


@pytest.mark.slow
@pytest.mark.parametrize("page", STATED)
def test_a_page_says_what_its_statements_say_and_no_other_number(page: str) -> None:
    left = " ".join(prose((ROOT / page).read_text(encoding="utf-8")).split())
    missing: list[str] = []
    for statement in (s for s in STATEMENTS if s["in"] == page):
        said = sentence(statement)
        if said not in left:
            table = "table" in statement
            missing.append(eval(statement["table"]) if table else said)
        left = left.replace(said, "")
        if "holds" in statement:
            assert eval(statement["holds"]), f"{said}: {statement['holds']} does not hold"
    assert not missing, f"{page} is to say:\n" + "\n".join(missing)
    uncovered = MEASURED.findall(re.sub(r"`[^`]*`", "", left))
    assert page not in PAGES or not uncovered, (
        f"{page}: no statement of results/statements.yaml covers {uncovered}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_word_of_a_headline_is_its_verdict(page: str) -> None:
    given = {s["says"]: s["verdict"] for s in STATEMENTS if s["in"] == page and "verdict" in s}
    for headline in HEADLINE.findall(prose((ROOT / page).read_text(encoding="utf-8"))):
        for word in WORDS.keys() & {*re.findall(r"\w+", headline.lower())}:
            of_word = [at for says, at in given.items() if says in headline and word in says]
            assert of_word, f"{page}: {headline!r}: no statement has a verdict for {word!r}"
            assert {verdict(*at) for at in of_word} == {WORDS[word]}, f"{page}: {headline!r}"


def test_markdown_holds_no_code() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        marks = set(re.findall(r"<!-- ?(\S+)", path.read_text(encoding="utf-8")))
        assert marks <= {"table:", "end", "example:", "mechanisms"}, path
