# pyright: basic, reportArgumentType=false
"""The report: its files, the page, and what of a run's words the page may hold."""

import base64
import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import vl_convert
from commands import Shell
from frames import CONFIG, frame, write_run
from matplotlib.figure import Figure
from small import refusal

from lengthgen.cli.arguments import chosen_runs
from lengthgen.config.conf import choices
from lengthgen.report import interactive, load, report, style
from lengthgen.report.series import select
from lengthgen.report.statistics import findings, shown_number

AtLength = Callable[[int, str], float | None]  # the loss of a seed and a document
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>'\"&{{ 7 * 7 }}"


def rows_of(
    schemes: Sequence[str] = ("rope", "alibi"),
    *,
    seeds: Sequence[int] = (1, 2),
    corpus: str = "toy",
    **columns: Any,
) -> pd.DataFrame:
    """Rows of runs whose loss grows with the length, but for ALiBi."""

    def loss(seed: int, document: str, length: int) -> float:
        return 3 + ord(document) / 99 + seed / 99 + rises * math.log2(length / 256)

    tables: list[pd.DataFrame] = []
    for scheme in schemes:
        rises = scheme != "alibi"
        config = {**CONFIG, "scheme": {"name": scheme, "parts": {}}}
        of_text = {"corpus": corpus, "fingerprint": corpus * 8, **columns}
        tables.append(frame(loss, scheme=scheme, seeds=seeds, config=config, **of_text))
    return load.typed(pd.concat(tables, ignore_index=True))


class Elements(HTMLParser):
    """The elements and addresses of a page, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def written(rows: pd.DataFrame, out: Path) -> dict[str, bytes]:
    report.write_pages(rows, report.sections(rows), out)
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(rows_of(), tmp_path_factory.mktemp("report"))["report.html"].decode()


def test_a_folder_that_is_reported_again_keeps_its_bytes(shell: Shell, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", losses={256: 3.0, 512: 2.9, 1024: 3.1})
    assert shell.run("report", "--out", "rep").code == 0
    before = {path.name: path.read_bytes() for path in Path("rep").iterdir()}
    assert shell.run("report", "rep").code == 0
    assert {path.name: path.read_bytes() for path in Path("rep").iterdir()} == before
    assert shell.refused("report", "rep", "seed=1").endswith("--out DIR")
    said = shell.refused("report", "rep", "seed=1", "--out", "rep")
    assert said.endswith("a part of its rows would replace all; give another folder")
    more = write_run(tmp_path / "more", losses={256: 3.0, 512: 2.9, 1024: 3.0}, seed=2)
    assert shell.run("report", "rep", str(more), "--out", "rep").code == 0
    assert {*load.load_rows([Path("rep")])["seed"]} == {1, 2}


def test_the_page_holds_its_figures_loads_nothing_and_runs_only_its_own_scripts(page: str) -> None:
    elements = Elements(page)
    assert not any(name.startswith("on") for name in elements.attributes)
    assert all(link.startswith(("data:", "#")) for link in elements.links)
    assert elements.tags.count("img") >= 2
    assert "default-src 'none'" in page
    policy = page[: page.index("</title>")]
    assert "@import" not in page[: page.index("<script>")]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == page.count("<script>") == 3
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


@pytest.mark.parametrize("root", ["runs", "others", "my runs"])
def test_the_command_for_a_run_that_is_not_shown_finds_it_and_the_page_names_no_folder(
    root: str, shell: Shell, tmp_path: Path
) -> None:
    lengths = {256: 3.0, 512: 2.9, 1024: 3.1}
    paths = [write_run(tmp_path / root, losses=lengths, seed=seed) for seed in (1, 2)]
    left = write_run(tmp_path / root, losses={256: 3.0}, seed=3)
    ran = shell.run("report", *map(str, [*paths, left]), "--out", "rep")
    (command,) = re.findall(r"Not shown: .*: lengthgen eval (.*)", ran.out)
    words = [word for word in shlex.split(command) if not word.startswith(("eval.", "--"))]
    (found,), _ = chosen_runs(words, "runtime")
    assert found.resolve() == left.resolve()
    assert any(word.startswith("runtime.root=") for word in words) == (root != "runs")
    for name in ("report.html", "table.md"):
        text = Path("rep", name).read_text()
        assert f"lengthgen eval {left.name}" in text
        assert "runtime.root" not in text


def test_no_text_of_a_figure_is_cut() -> None:
    names = sorted(choices("scheme", config_dir=None), key=len, reverse=True)
    for n in (2, 8, 12):
        for name, figure in report.sections(rows_of(names[:n]))[0].figures.items():
            style.styled()(figure.draw_without_rendering)()
            beside = [text for axes in figure.axes for text in axes.texts]
            beside += [text for axes in figure.axes for text in axes.get_yticklabels()]
            for text in [*figure.texts, *beside]:
                left, _, right, _ = text.get_window_extent().extents
                assert 0 <= left <= right <= figure.bbox.width, (name, text)


def test_a_page_without_curves_carries_no_charts(tmp_path: Path) -> None:
    rows = rows_of(lengths=(512,))
    assert len(written(rows, tmp_path)["report.html"]) < 1e5


def charts_of(page: str) -> list[Any]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return [chart for text in found for chart in json.loads(text)]


def test_a_chart_shows_the_lines_of_its_figure_and_vega_lite_reads_it(page: str) -> None:
    curve, *others = charts_of(page)
    assert others
    known = findings(select(rows_of())[0].rows)
    losses = known[known["quantity"] == "loss"].set_index(["series", "length"])
    shown = [value for value in curve["datasets"]["lines"] if not value["thin"]]
    assert {(value["of"], value["x"]) for value in shown} == {*losses.index}
    for value in shown:
        row = losses.loc[(value["of"], value["x"])]
        assert value["y"] == pytest.approx(math.exp(row["value"]))
        assert shown_number(math.exp(row["low"])) in value["hint"]
    assert len([value for value in shown if "label" in value]) == 2
    for chart in (curve, *others):
        drawn = vl_convert.vegalite_to_vega({**chart, "width": 600})
        assert any(mark["name"].endswith("voronoi") for mark in drawn["marks"])


def test_charts_of_tasks_have_the_accuracies_of_their_table() -> None:
    section, _ = report.sections(load.load_rows([Path("results/tasks")]))
    known: Any = section.data["tasks"].set_index(["task", "series", "length"])["accuracy"]
    for name, figure in section.figures.items():
        (chart,) = interactive.charts(figure)
        vl_convert.vegalite_to_vega({**chart, "width": 600})
        shown = {(v["of"], v["x"]): v["y"] for v in chart["datasets"]["lines"] if not v["thin"]}
        assert shown == pytest.approx(known[name.removeprefix("accuracy-")].to_dict())


def test_charts_of_retrieval_have_the_shares_of_the_rows() -> None:
    rows = load.load_rows([Path("results/context")])
    rows = rows[rows["protocol"].isin(["tail", "retrieval"])]
    (section,) = (s for s in report.sections(rows) if s.title == "Use of context")
    charts = interactive.charts(section.figures["retrieval"])
    assert {chart["title"] for chart in charts} >= {"rope", "rope + yarn"}
    (chart,) = (chart for chart in charts if chart["title"] == "rope")
    vl_convert.vegalite_to_vega({**chart, "width": 600})
    own = rows.query("scheme == 'rope' and variant.isna()")
    own = own.query("protocol == 'retrieval' and length == 1024")
    found, tries = (np.sum([*own[key]], axis=0).reshape(4, 5) for key in ("hits", "tries"))
    shown = [value for value in chart["data"]["values"] if value["x"] == "1k"]
    assert [v["share"] for v in shown] == pytest.approx((found / tries).mean(axis=0))
    assert [value["y"] for value in shown] == chart["encoding"]["y"]["sort"]
    assert all(
        f"single {x:.0%}" in v["hint"] for v, x in zip(shown, (found / tries)[0], strict=True)
    )


def test_a_page_of_many_schemes_stays_small(tmp_path: Path) -> None:
    page = written(rows_of([f"s{i}" for i in range(12)]), tmp_path)["report.html"].decode()
    assert len(page) < 1.5e6
    curve, *_ = charts_of(page)
    lines = curve["datasets"]["lines"]
    assert len({value["of"] for value in lines}) == 12
    assert len({value["of"] for value in lines if "label" in value}) == style.MAX_LINES


def test_method_has_a_command_a_line_and_no_path_of_a_machine(tmp_path: Path) -> None:
    commands = [
        "lengthgen train scheme=rope corpus.path=/home/me/books/train seed=1",
        "lengthgen train scheme=rope corpus.path=/home/me/books/train seed=2",
        "lengthgen import /home/me/models/llama --name x corpus.path=books/train",
    ]
    frames = [
        rows_of([name], seeds=[seed], environment=json.dumps({"command": command}))
        for name, seed, command in zip(("rope", "rope", "llama"), (1, 2, 1), commands, strict=True)
    ]
    rows = pd.concat(frames, ignore_index=True)
    assert [*report.sections(rows)[-1].commands] == [
        "lengthgen sweep scheme=rope corpus.path=.../train seed=1,2",
        "lengthgen import .../llama --name x corpus.path=books/train seed=1",
    ]
    tokenizers = [
        json.dumps({**CONFIG, "corpus": {"name": "toy", "tokenizer": f"/home/me/{n}/t.json"}})
        for n in "ab"
    ]
    texts = [rows.assign(config=c, fingerprint=c[-9:] + str(i)) for i, c in enumerate(tokenizers)]
    page = written(pd.concat(texts, ignore_index=True), tmp_path)["report.html"].decode()
    assert "/home/me" not in page
    assert page.count('<pre class="command">') == 2


def test_the_page_shows_the_curve_sentences_and_verdicts(page: str) -> None:
    order = (
        "Lowest perplexity at",
        'alt="Perplexity by context length',
        "alibi neither",
        "<h3>Verdicts",
        "<h2>Method",
    )
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    assert "rope is harmed by context beyond T: perplexity" in page
    coloured = re.findall(r'<td class=" (\w*)">(\w+)\*', page)  # also where it holds jointly
    assert coloured
    assert all(colour == word for colour, word in coloured)


@pytest.mark.parametrize(
    ("holds_to", "seeds", "said"),
    [
        ({"rope": 600, "t5": 20_000}, (1, 2), ["at 16k: t5 (20.09);", "1k on: rope."]),
        ({"rope": 600, "t5": 20_000, "alibi": 20_000}, (1, 2), ["not distinguishable from it: "]),
        ({"rope": 600, "t5": 5000}, (1, 2), ["1k on: rope; harmed from 8k on: t5."]),
        ({"rope": 600, "t5": 20_000}, (1,), ["at 16k: t5 (20.09), one seed, not compared;"]),
        ({"rope": 20_000}, (1, 2), []),
    ],
)
def test_the_headline_says_who_is_lowest_what_ties_and_who_is_harmed_from_where(
    holds_to: dict[str, int], seeds: Sequence[int], said: list[str]
) -> None:
    lengths = [256 << i for i in range(7)]
    frames = [
        frame(lambda s, d, n, to=to: 3.0 + (n > to), scheme=name, seeds=seeds, lengths=lengths)
        for name, to in holds_to.items()
    ]
    headline = report.sections(pd.concat(frames))[0].headline
    assert all(part in headline for part in said), headline
    assert bool(headline) == bool(said)


def test_the_headline_names_a_lower_series_of_one_seed_before_the_best_of_several() -> None:
    alone = frame(2.0, scheme="t5", seeds=(1,))
    others = frame(3.0, scheme="rope"), frame(3.5, scheme="alibi")
    headline = report.sections(pd.concat([alone, *others]))[0].headline
    assert headline.startswith(
        "Lowest perplexity at 2k: t5 (7.39), one seed, not compared; lowest of several seeds: rope"
    )


def test_the_sentence_on_a_variant_has_the_perplexity_that_its_gain_counts_from() -> None:
    changed = frame(4.0, lengths=[1024], variant="yarn")
    _, last = report.sections(pd.concat([frame(3.0), changed]))[0].sentences
    assert last.endswith("perplexity 20.09 at 512 tokens without the variant, 54.60 at 1k.")


@pytest.mark.parametrize(
    ("documents", "n_seeds", "at_2k", "why", "noted"),
    [
        ("a", 1, lambda _s, _d: 4, "there is no interval", "one document: no intervals"),
        ("ab", 2, lambda s, _d: 4 if s else None, "there is no interval", "diverged: "),
        ("ab", 1, lambda _s, d: 4 if d == "a" else 3, "the interval includes 0", "one seed: "),
        ("ab", 12, lambda s, _d: 4 if s else 2.9, "its seeds disagree", ""),
    ],
)
@pytest.mark.parametrize("n_schemes", [1, 13])
def test_an_unclear_verdict_says_why_it_is_unclear(
    n_schemes: int, documents: str, n_seeds: int, at_2k: AtLength, why: str, noted: str
) -> None:
    def loss(seed: int, document: str, length: int) -> float | None:
        return at_2k(seed, document) if length == 2048 else 3

    of_runs = {"documents": documents, "seeds": range(n_seeds)}
    frames = [frame(loss, scheme=f"s{i}", **of_runs) for i in range(n_schemes)]
    made = report.sections(pd.concat(frames))[0]
    assert f"ay gain or lose from context beyond T ({why})" in made.sentences[0]
    assert bool(made.notes) == bool(noted)
    assert all(noted in note for note in made.notes)


def test_a_series_without_a_value_beyond_T_is_named() -> None:
    rows = rows_of()
    beyond = (rows["scheme"] == "rope") & (rows["length"] > rows["train_length"])
    (*others, last) = report.sections(rows[~beyond])[0].sentences
    assert last == "Without a value beyond T: rope."
    assert [words.split()[0] for words in others] == ["alibi"]
    assert not report.sections(rows[rows["length"] <= rows["train_length"]])[0].sentences


def test_lengths_none_of_which_has_a_value_are_reported_with_the_reason(tmp_path: Path) -> None:
    rows = rows_of().drop_duplicates(["run", "length"])
    rows = rows.assign(document=None, nats=None, n_documents=0, skipped="it has 512 rows")
    assert "it has 512 rows" in written(rows, tmp_path)["report.html"].decode()
    assert "n/a" in report.short_tables(report.sections(rows))


@pytest.mark.parametrize(
    ("has", "said"),
    [
        ({"protocol": "nonoverlap"}, "Perplexity, "),
        ({"lengths": (256,)}, "256"),
        ({"lengths": (256, 512)}, "512"),
    ],
)
def test_runs_without_the_headline_or_a_length_beyond_T_are_reported(
    has: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in written(frame(3.0, **has), tmp_path)["report.html"].decode()


def test_a_text_that_cannot_be_compared_is_named_beside_tasks() -> None:
    rows = load.load_rows([Path("results/tasks")])
    torn = frame(3.0)[lambda rows: rows["document"] != "a"]
    *_, method = report.sections(pd.concat([rows, torn]))
    assert [note for note in method.notes if "rope-s1" in note]


def test_the_words_of_a_run_stand_on_the_page_as_text(tmp_path: Path) -> None:
    about = json.dumps(dict.fromkeys(["command", "commit", "processor"], HOSTILE))
    words = {"corpus": HOSTILE, "model": HOSTILE, "precision": HOSTILE, "environment": about}
    rows = rows_of([HOSTILE, "rope"], **words)
    page = written(rows, tmp_path)["report.html"].decode()
    about = json.dumps({"command": "lengthgen train"})
    others = rows_of(["x", "rope"], environment=about)
    plain = Elements(written(others, tmp_path / "plain")["report.html"].decode())
    hostile = Elements(page)
    assert {*hostile.tags} == {*plain.tags}
    assert hostile.attributes == plain.attributes
    assert "&lt;script&gt;alert(1)" in page
    assert "{{ 7 * 7 }}" in page


def test_the_title_names_an_imported_model_by_its_own_name() -> None:
    imported = rows_of(["rope"], model="my-llama", tokens_seen=0, run="my-llama")
    rows = pd.concat([rows_of(["alibi"]), imported])
    assert report.page_title(rows).endswith(" of alibi, my-llama")
    assert report.page_title(rows_of([f"s{i}" for i in range(9)])).endswith(" of 9 schemes")


def test_each_text_has_a_section_and_figures_of_its_own() -> None:
    rows = pd.concat([rows_of(seeds=(1, 2, 3)), rows_of(["rope"], corpus="Prose")])
    made = report.sections(rows)
    assert [section.title.split(",")[0] for section in made[:2]] == ["Corpus toy", "Corpus Prose"]
    assert "curve-2" in made[1].figures
    assert {*made[0].figures}.isdisjoint(made[1].figures)
    titles = [table.title for section in made for table in section.summary]
    assert titles == [f"Perplexity by context length; corpus {name}" for name in ("toy", "Prose")]


def colours(figure: Figure, width: float) -> set[str]:
    """The colours of the lines of a width: 1.8, or 0.9 of references."""
    lines = [line for axes in figure.axes for line in axes.lines if line.get_linewidth() == width]
    return {str(line.get_color()) for line in lines}


def test_a_scheme_has_one_colour_in_all_figures_and_a_setting_where_there_is_one_scheme() -> None:
    rows = rows_of(names := ["s1", "s6"])  # of which both want the same
    made = report.sections(rows[(rows["scheme"] == "s6") | (rows["length"] <= 512)])[0]
    assert colours(made.figures["gain"], 1.8) == {style.scheme_colours(names)["s6"]}
    assert len(colours(made.figures["curve"], 1.8)) == 2
    settings = [rows_of(["rope"], run=f"rope{T}", train_length=T) for T in (512, 1024)]
    windows = [rows.assign(variant="window", reference=True) for rows in settings]
    curve = report.sections(pd.concat([*settings, *windows]))[0].figures["curve"]
    assert colours(curve, 0.9) == colours(curve, 1.8)
    assert len(colours(curve, 0.9)) == 2


def test_the_summary_says_where_its_verdicts_are_or_what_they_take() -> None:
    assert " verdict at 2k |" in report.short_tables(report.sections(frame(3.0)))
    text = report.short_tables(report.sections(frame(3.0, lengths=[256, 512])))
    assert "verdict at" not in text
    assert "No verdict: it takes T and beyond, --lengths 512,2048" in text


def test_the_summary_fits_eighty_columns_and_has_a_row_for_each_scheme() -> None:
    text = report.short_tables(report.sections(rows_of()))
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^\| alibi .*\bflat \|$", text, re.MULTILINE)
    assert re.search(r"^\| rope .*\bharmed \|$", text, re.MULTILINE)
    short = rows_of(["cope"])[lambda rows: rows["length"] <= 1024]
    text = report.short_tables(report.sections(pd.concat([rows_of(), short])))
    assert re.search(r"^\| cope .*\bharmed at 1k \|$", text, re.MULTILINE)
    others = rows_of(["rope"]).assign(targets=7)
    text = report.short_tables(report.sections(pd.concat([rows_of(), others])))
    assert text.count("has eval.targets=7") == others["run"].nunique()


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        (["scheme=rpoe"], "scheme=rpoe: no run here has this value; did you mean rope?"),
        (["train.lrr=1"], "train.lrr: no run here has this key; did you mean train.lr?"),
        (["scheme=rope", "train.lr=3e-3", "seed=9"], "seed=9: no run here has this value"),
        (["seed=false"], "seed=false: no run here has this value; known: 1, 2, 3"),
        (["scheme=rope", "seed=3"], "no run here has all of scheme=rope seed=3; name fewer"),
    ],
)
def test_runs_are_chosen_by_their_words_and_what_none_meets_is_named(
    conditions: list[str], said: str
) -> None:
    rows = pd.concat([rows_of(), rows_of(["cope"], seeds=[3])])
    found = report.matching(rows, ["scheme=rope", "seed=2", "train.length=0.5k"])
    assert set(found["run"]) == {"rope-s2"}
    assert said in refusal(report.matching, rows, conditions)
    assert set(report.matching(rows.assign(config='{"seed": "10M"}'), ["seed=10M"])["run"])


def test_an_extra_length_of_one_run_changes_no_column_order_or_verdict_of_the_others() -> None:
    first = report.sections(rows_of())[0]
    more = rows_of(["rope"], lengths=(256, 512, 768, 1024, 2048, 32768))
    second = report.sections(pd.concat([rows_of(["alibi"]), more]))[0]
    assert [row[0] for row in second.tables[0].rows] == [row[0] for row in first.tables[0].rows]
    assert second.summary == first.summary


def test_a_report_for_a_paper_has_figures_as_pdf_and_tables_of_latex(tmp_path: Path) -> None:
    rows = rows_of()
    report.write_pages(rows, report.sections(rows), tmp_path, latex=True)
    drawn = {path.stem for path in tmp_path.glob("*.svg")}
    assert {path.stem for path in tmp_path.glob("*.pdf")} == drawn != set()
    text = (tmp_path / "tables.tex").read_text()
    assert text.count("\\toprule") == text.count("\\end{table}") > 0
    for special in "%&#_^":  # is none of LaTeX's own, but for the comment at the top
        lines = [line for line in text.splitlines()[1:] if not line.endswith("{%")]
        plain = [line.replace(f"\\{special}", "") for line in lines]
        assert special == "&" or not any(special in line for line in plain)


def test_the_script_of_charts_that_is_kept_is_that_of_the_library() -> None:
    bundle: Any = vl_convert.javascript_bundle  # whose stub requires an argument
    made = interactive.vega()
    interactive.vega.cache_clear()
    assert made == interactive.vega() == bundle()
