"""The page: what stands in it, that text stays text, and how it behaves in a real browser."""

import base64
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeVar
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from page_example import DOCUMENTS, LENGTHS, PICTURE, SCHEMES, T, example
from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright
from repository import ROOT
from safetensors.torch import save_model
from torch import nn

from lengthgen.analysis.curves import perplexity
from lengthgen.analysis.formatting import number, short
from lengthgen.config import compose
from lengthgen.report.collect import Report
from lengthgen.report.curve_tables import NOT_MARKED, judged, warnings
from lengthgen.report.figures.inline import Picture
from lengthgen.report.figures.layout import MOST_NAMED
from lengthgen.report.html import MEANINGS, Tasks, render
from lengthgen.report.page_charts import Exhibit, charts, times
from lengthgen.report.page_method import duration, protocols, shared
from lengthgen.report.page_sections import perplexities
from lengthgen.report.run_records import cost
from lengthgen.report.table_formats import TIE, Cell, Table
from lengthgen.runs import directory

pytestmark = pytest.mark.slow

Made = TypeVar("Made")
FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
needs_browser = pytest.mark.skipif(not FOUND, reason="no chromium; apt-get install chromium")

HOSTILE = {
    "rope": "<script>window.hit = 1</script>",
    "alibi": "\"><img src=x onerror='window.hit=1'>",
    "kerple": "</style></script><svg onload=window.hit=1>" + "long" * 30,
}
TWO = {name: SCHEMES[name] for name in ("alibi", "rope")}
THREE = {name: SCHEMES[name] for name in HOSTILE}


@pytest.fixture(scope="module")
def contents() -> Report:
    return example()


@pytest.fixture(scope="module")
def hostile() -> Report:
    bad = '<script>window.hit = 1</script><img src="http://example.org/x.png">'
    found = example(THREE, names=HOSTILE, corpus=bad, model=bad, fingerprint=bad)
    environment = {"commit": bad, "libraries": {bad: bad}, "devices": [bad], "platform": bad}
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><script>parent.hit = 1</script></svg>'
    runs = {
        run: replace(
            record,
            environment=environment,
            config={**record.config, "scheme": {bad: bad}},
            probes={bad: svg},
        )
        for run, record in found.runs.items()
    }
    return replace(found, remarks=[bad], runs=runs)


def once(make: Callable[[Report], Made]) -> Callable[[Report], Made]:
    """Returns what makes something of each report once: drawing one takes a second."""
    made: dict[int, tuple[Report, Made]] = {}

    def of(report: Report) -> Made:
        if id(report) not in made:
            made[id(report)] = report, make(report)  # kept: another report could take its id
        return made[id(report)][1]

    return of


page_of, charts_of = once(render), once(charts)


def chart(contents: Report, name: str) -> Exhibit:
    [found] = [one for one in charts_of(contents) if one.name == name]
    return found


def groups(chart: Exhibit, class_: str) -> list[Element]:
    """Returns the parts of a drawing of a class: "line curve", "line band", "behind"."""
    svg = ElementTree.fromstring(chart.svg)
    return [g for g in svg.iter("g") if g.get("class") == class_]


def series_of(chart: Exhibit, class_: str) -> set[str | None]:
    return {g.get("data-series") for g in groups(chart, class_)}


def text_of(element: Element) -> str:
    return "".join(element.itertext())


def element(page: str, pattern: str) -> Element:
    """Returns the first element of a page whose source matches a pattern."""
    found = re.search(pattern, page, flags=re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0].replace("&times;", ""))


def verdicts(contents: Report) -> dict[str, list[Element]]:
    """Returns the cells of the table of verdicts by scheme."""
    table = element(page_of(contents), r'<table class="verdicts">.*?</table>')
    found = [list(row) for row in table.iter("tr")]
    return {text_of(first).strip(): cells for first, *cells in found[1:]}


def cells(table: Table) -> dict[str, list[Cell]]:
    return {name.text: found for name, *found in table.rows}


# What is in it


def test_a_section_shows_its_own_line_and_what_was_published_of_the_scheme(
    contents: Report,
) -> None:
    page = page_of(contents)
    for label in ("alibi", "kerple"):
        key = contents.keys[label]
        found = re.search(rf'<details id="{key}">.*?</details>', page, flags=re.DOTALL)
        assert found is not None
        own = element(found[0], r'<div class="own">.*?</div>')
        curves = [one for one in own.iter("g") if one.get("class") == "line curve"]
        assert {one.get("data-series") for one in curves} == {f"own-{key}"}
        published = {one.citation for one in contents.published_curves if one.scheme == label}
        assert bool(published) == (label == "alibi")
        table = found[0].partition("<h4>Published</h4>")[2].partition("</table>")[0]
        assert all(source in table for source in published)
        assert ("this report" in table) == bool(published)


def test_a_section_names_the_paper_and_what_it_claims_beyond_t() -> None:
    page = unescape(page_of(example(TWO, names={"rope": "mine"})))
    sections = re.findall(r"<details id=.*?</details>", page, flags=re.DOTALL)
    described = f"<p>{compose.describe('scheme', 'alibi', config_dir=None)}</p>"
    shown = {name: section for section in sections for name in re.findall(r"<b>(.*?)</b>", section)}
    assert described in shown["alibi"]
    assert described in shown["alibi + window"]
    assert (
        f"<p>{compose.describe('variant', 'window', config_dir=None)}</p>"
        in shown["alibi + window"]
    )
    assert f"</b> {compose.claim('alibi', config_dir=None)}</p>" in shown["alibi"]
    assert page.count("Claimed beyond T") == 1  # not of variants, nor of a scheme of the user's own


def test_the_page_has_a_leaderboard_and_the_figures_of_all_series(contents: Report) -> None:
    page = render(contents, None, [Picture("excess", PICTURE)])
    assert page.index("<h3>Leaderboard</h3>") < page.index("Matched tail")
    assert "<figcaption>excess</figcaption>" in page


def test_verdicts_come_first_and_the_parts_follow_in_their_order(contents: Report) -> None:
    ids = re.findall(r'<section id="(\w+)"', page_of(contents))
    assert ids == ["verdicts", "curves", "tables", "schemes", "method", "costs", "warnings"]


def test_each_verdict_is_a_word_with_a_sign_its_interval_and_its_sentence(
    contents: Report,
) -> None:
    table = verdicts(contents)
    assert set(table) == set(SCHEMES)
    for finding in contents.findings:
        for i, (_, verdict) in enumerate(sorted(finding.verdicts.items())):
            if not finding.series.reference:
                cell = table[finding.series.label][2 + i]  # behind seeds and c*
                gain, text = verdict.gain, text_of(cell)
                assert verdict.word in text
                assert text[0] in "\u25b2\u25c6\u25a0\u25bc?"
                for bound in (gain.value, gain.low, gain.high):
                    assert f"{abs(bound):.3f}" in text
                assert cell.get("title") == verdict.why


def test_verdicts_of_different_words_differ_in_sign_and_in_class(contents: Report) -> None:
    badges = [
        one
        for row in verdicts(contents).values()
        for cell in row
        for one in cell.iter("span")
        if "badge" in one.get("class", "")
    ]
    signs = {text_of(one)[1:]: (text_of(one)[0], one.get("class")) for one in badges}
    assert len(signs) > 3
    assert {word: sign for word, (sign, _) in signs.items()}.items() <= {
        word: sign for word, (sign, _) in MEANINGS.items()
    }.items()
    for alike in zip(*signs.values(), strict=True):
        assert len(set(alike)) == len(signs)


def test_every_line_has_a_curve_and_those_that_compete_a_band(contents: Report) -> None:
    drawn = chart(contents, "perplexity")
    keys = contents.keys
    competing = {keys[line.label] for line in contents.lines if not line.reference}
    assert competing < set(keys.values()) == series_of(drawn, "line curve")
    assert series_of(drawn, "line band") == series_of(drawn, "line level") == competing


def test_values_are_read_at_the_evaluated_lengths_from_left_to_right(contents: Report) -> None:
    stops = chart(contents, "perplexity").stops
    assert [name for _, name in stops] == [f"{short(n)} tokens" for n in LENGTHS]
    places = [place for place, _ in stops]
    step = (places[-1] - places[0]) / (len(LENGTHS) - 1)
    assert places == pytest.approx([places[0] + i * step for i in range(len(LENGTHS))], abs=1e-3)
    assert 0 < places[0] < places[-1] < 1


def test_the_legend_holds_the_value_of_each_line_at_each_length(contents: Report) -> None:
    entries = {one.label: one.values for one in chart(contents, "perplexity").entries}
    for finding in contents.findings:
        for i, (_, loss) in enumerate(sorted(finding.loss.items())):
            value, low, high = (number(math.exp(n)) for n in (loss.value, loss.low, loss.high))
            assert entries[finding.series.label][i] == f"{value} [{low}, {high}]"


def test_what_holds_exactly_at_T_has_no_interval(contents: Report) -> None:
    for name, text in (("gain", "0"), ("ratios", "1")):
        values = [one.values[LENGTHS.index(T)] for one in chart(contents, name).entries]
        assert {*values} <= {text, ""}


def test_lines_of_one_label_share_a_key_in_all_charts(contents: Report) -> None:
    for drawn in charts_of(contents):
        for entry in drawn.entries:
            assert entry.key == contents.keys.get(entry.label, entry.key)
            assert (entry.label not in contents.keys) == entry.key.startswith("published-")
    of_positions = series_of(chart(contents, "positions"), "line curve")
    assert of_positions < set(contents.keys.values())


def test_the_drawings_of_a_page_share_no_id(contents: Report) -> None:
    ids = [re.findall(r' id="([^"]+)"', drawn.svg) for drawn in charts_of(contents)]
    assert len({one for of in ids for one in of}) == sum(map(len, ids)) > 10


def test_published_curves_of_the_same_schemes_stand_behind(contents: Report) -> None:
    drawn = chart(contents, "ratios")
    behind = groups(drawn, "behind")
    expected = [paper for paper in contents.published_curves if paper.scheme in SCHEMES]
    assert len(behind) == len(expected) > 5
    for group, paper in zip(behind, expected, strict=True):
        label = group.get("aria-label", "")
        assert all(part in label for part in (paper.citation, paper.scheme, paper.corpus))
        assert f"arXiv {paper.arxiv}, {paper.table}" in label
        assert group.get("tabindex") == "0"
    order = re.findall(r'class="(behind|line curve)', drawn.svg)
    assert order == sorted(order)


def test_published_curves_of_another_protocol_are_dashed_and_hidden_behind_their_button(
    contents: Report,
) -> None:
    drawn = chart(contents, "ratios")
    hidden = groups(drawn, "behind")
    assert {g.get("hidden") for g in hidden} == {""}
    assert all(dashed(g) for g in hidden)
    buttons = {one.key: one for one in drawn.entries}
    of_unlike = {buttons[g.get("data-series", "")].label for g in hidden}
    assert {"Press et al. 2022, alibi_nonoverlap", "Press et al. 2022, alibi_sliding1"} < of_unlike
    assert {buttons[g.get("data-series", "")].pressed for g in hidden} == {False}


def test_published_curves_of_the_same_protocol_are_solid_and_shown(contents: Report) -> None:
    lines = [
        replace(one, points=tuple(replace(p, protocol="alibi_nonoverlap") for p in one.points))
        for one in contents.by_protocol["nonoverlap"]
    ]
    alike = replace(contents, by_protocol={**contents.by_protocol, "alibi_nonoverlap": lines})
    drawn = chart(alike, "ratios-alibi-nonoverlap")
    behind = groups(drawn, "behind")
    wanted = [a for a in contents.published_curves if a.protocol == "alibi_nonoverlap"]
    assert len(behind) == sum(paper.scheme in SCHEMES for paper in wanted) > 2
    assert {g.get("hidden") for g in behind} == {None}
    assert not any(dashed(g) for g in behind)
    published = [one for one in drawn.entries if one.label.startswith("Press et al. 2022")]
    assert [one.pressed for one in published] == [True]
    losses = next(line for line in lines if line.label == "rope").losses()
    [entry] = [one for one in drawn.entries if one.label == "rope"]
    assert entry.values[-1] == times(perplexity(losses[LENGTHS[-1]] - losses[T]))


def dashed(group: Element) -> bool:
    """Whether the visible path of a published curve is dashed."""
    [path] = [one for one in group.iter("path") if one.get("class") != "reach"]
    return "stroke-dasharray" in path.get("style", "")


def test_on_the_page_the_best_is_bold_and_what_ties_with_it_is_marked(contents: Report) -> None:
    part = page_of(contents).split("<h3>Matched tail</h3>")[1]
    [best] = [line.label for line in contents.by_protocol["tail"] if line.label == "kerple"]
    table = element(part, r"<table>.*?</table>")
    found = {text_of(row[0]): list(row)[1:] for row in table.iter("tr")}
    for name, cell in zip(LENGTHS[3:], found[best][4:], strict=False):
        assert (cell.get("class"), cell[0].tag) == ("best", "b"), name
    assert text_of(found[best][1]).endswith(TIE)  # 0.02 nats from alibi's, and seeds disagree


def test_in_a_table_of_tasks_the_best_is_bold_and_what_does_not_count_is_grey() -> None:
    row = [Cell("rope"), Cell("9.1", "best"), Cell("not learned", "faint"), Cell("2.0")]
    one = Table(key="tasks", title="Tasks", head=["scheme", *"abc"], rows=[row], notes=[])
    page = render(None, Tasks(pictures=[], tables=[one], remarks=[]))
    found = element(page, "<tbody>.*?</tbody>")
    assert {td.get("class"): [child.tag for child in td] for td in found.iter("td")} == {
        "best": ["b"],
        "faint": [],
        None: [],
    }
    assert [text_of(td) for td in found.iter("td")] == ["9.1", "(not learned)", "2.0"]


def test_from_one_seed_nothing_is_marked_and_verdicts_are_of_the_checkpoint() -> None:
    found = example(TWO, seeds=(1,))
    (_, _, table), *_ = perplexities(found)
    assert NOT_MARKED in table.notes
    assert not any(cell.mark == "tie" for row in table.rows for cell in row)
    assert {text_of(of[0]) for of in verdicts(found).values()} == {"1 (this checkpoint)"}


def test_what_is_relative_to_T_is_grey_where_little_was_learnt(contents: Report) -> None:
    """nope's loss at T is 0.09 nats above kerple's, rope's 0.03."""
    table = verdicts(contents)
    assert {cell.get("class") for cell in table["nope"][-2:]} == {"faint"}
    assert {cell.get("class") for cell in table["rope"][-2:]} == {None}
    assert "<li>Grey: " in page_of(contents)


def test_every_protocol_has_a_table_that_says_what_is_scored(contents: Report) -> None:
    titles = [title for title, _, _ in perplexities(contents)]
    assert titles[:1] == ["Matched tail"]
    assert {"nonoverlap", "per_position", "swap"} <= set(titles)
    assert all(said for title, said, _ in perplexities(contents) if title != "RECL")


def test_recl_stands_below_the_headline_where_rows_hold_the_loss_of_each_target() -> None:
    _, (title, _, table), *_ = perplexities(example(TWO, token_nats=[1.0] * 64))
    assert title == "RECL"
    # no target gains from more text
    assert {label: [c.text for c in of] for label, of in cells(table).items()} == dict.fromkeys(
        TWO, ["256"] * 3
    )
    assert "RECL" not in [title for title, _, _ in perplexities(example(TWO))]


def test_a_skipped_length_gives_its_reason() -> None:
    found = example(TWO)
    reason = "the table has 512 rows"
    line = found.by_protocol["tail"][0]
    points = tuple(
        p if p.length < 4096 else replace(p, loss=None, ppl=None, skipped=reason, rows=())
        for p in line.points
    )
    changed = replace(found, findings=(), by_protocol={"tail": [replace(line, points=points)]})
    page = render(changed)
    assert page.count("n/a (1)</td>") == 3
    assert f"1. {reason}" in page


def test_equal_warnings_are_said_once_with_all_that_they_concern(contents: Report) -> None:
    some = [replace(f, warnings=("one seed",)) for f in contents.findings[:3]]
    found = warnings(some, ["Unfinished: x"])
    labels = ", ".join(f.series.label for f in some)
    assert found == [f"{labels}: one seed.", "Unfinished: x"]


@pytest.mark.parametrize(
    "setting",
    ["0123456789ab", "f" * 64, "997ac56", "torch 2.13.0", "bf16", "Wilson", "16,384", "lr: 0.004"],
)
def test_the_method_holds_each_setting_and_fingerprint(contents: Report, setting: str) -> None:
    page = page_of(contents)
    assert setting in page[page.index('id="method"') : page.index('id="costs"')]


def test_settings_of_evaluation_are_not_shown_as_settings_of_the_runs(contents: Report) -> None:
    page = page_of(contents)
    settings = page.split("All settings of training")[1].split("</details>")[0]
    assert "d_model: 128" in settings
    assert "reference_variants" not in settings


def test_a_convention_shows_its_own_number_of_targets() -> None:
    found = example(TWO)
    scored = {"dape": "256", "nope_f": "200", "nonoverlap": "all", "tail": "64"}
    lines = {
        name: [
            replace(line, points=tuple(replace(p, protocol=name) for p in line.points))
            for line in found.by_protocol["tail" if name == "tail" else "nonoverlap"]
        ]
        for name in scored
    }
    table = protocols(replace(found, by_protocol=lines))
    assert {name: of[0].text for name, of in cells(table).items()} == scored


def test_a_factor_without_an_interval_stands_alone() -> None:
    found = example(TWO, documents=DOCUMENTS[:1])
    for finding in found.findings:
        row = verdicts(found).get(finding.series.label, [])
        if row:
            texts = [text_of(cell) for cell in row[-len(finding.factors) :]]
            assert texts == [factor.text for factor in finding.factors]
    assert "interval n/a" not in render(found)


def test_a_scheme_without_a_factor_has_dashes_in_its_place(contents: Report) -> None:
    first, *others = contents.findings
    found = replace(contents, findings=[replace(first, factors=()), *others])
    row = verdicts(found)[first.series.label]
    assert [text_of(cell) for cell in row[-len(first.factors) :]] == ["-"] * len(first.factors)


def test_a_scheme_has_its_own_part_with_probes_and_yaml(contents: Report) -> None:
    page = page_of(contents)
    for label, key in contents.keys.items():
        part = page.split(f'<details id="{key}">')[1].split("</details>")[0]
        assert f"<b>{label}</b>" in part
        assert "base: 10000.0" in part
        assert ("data:image/svg+xml;base64," in part) == (label in SCHEMES)


def test_without_the_headline_protocol_the_page_says_so() -> None:
    found = example(TWO)
    page = render(
        replace(found, findings=[], by_protocol={"nonoverlap": found.by_protocol["nonoverlap"]})
    )
    assert "no run was evaluated under the protocol tail" in page
    assert "<h3>nonoverlap</h3>" in page
    assert 'class="chart"' not in page


@pytest.mark.parametrize("seeds", [(1,), (1, 2, 3)])
def test_one_document_or_a_diverged_one_still_gives_a_page(seeds: tuple[int, ...]) -> None:
    one = render(example(TWO, seeds=seeds, documents=DOCUMENTS[:1]))
    assert "unclear" in one
    diverged = render(example(TWO, seeds=seeds, diverged=("rope", 16384)))
    for page in (one, diverged):
        coordinates = " ".join(re.findall(r""" (?:d|x|y|data-stops)=["']([^"']*)""", page))
        assert "nan" not in coordinates
        assert "inf" not in coordinates


# Parts of it


def test_shared_settings_are_those_that_all_have_at_every_depth() -> None:
    a = {"x": 1, "in": {"y": 2, "z": 3}, "none": None, "empty": {}}
    b = {"x": 1, "in": {"y": 2, "z": 4}, "empty": {}}
    assert shared([a, b]) == {"x": 1, "in": {"y": 2}, "empty": {}}
    assert shared([a]) == a
    assert shared([]) == {}


def test_a_cost_adds_the_time_of_every_stretch() -> None:
    stretches = [(100, 50.0), (300, 100.0), (340, 10.0)]  # 2 + 2 + 4 seconds
    logged = [{"train/tokens": n, "train/tokens_per_s": rate} for n, rate in stretches]
    found = cost(logged, parameters=7)
    assert (found.tokens, found.seconds, found.tokens_per_s) == (340, 8.0, 42.5)
    assert cost([], parameters=None).tokens_per_s is None


def test_parameters_are_counted_with_tied_ones_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))
    model[1].weight = model[0].weight
    path = tmp_path / "checkpoints" / "step-00000001" / "model.safetensors"
    path.parent.mkdir(parents=True)
    save_model(model, str(path), metadata={"lengthgen": '{"run": "rope-s1", "step": 1}'})
    expected = sum(p.numel() for p in model.parameters())
    assert directory.n_parameters(tmp_path, run="rope-s1") == expected
    assert directory.n_parameters(tmp_path, run="rope-s2") is None  # another run's weights


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(41.6, "42 s"), (185, "3 min 5 s"), (3599.7, "1 h 0 min"), (7800, "2 h 10 min")],
)
def test_a_duration_is_said_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# Text stays text


class Markup(HTMLParser):
    """Collects tags, attributes and text as a browser's parser would meet them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def test_names_never_become_markup(contents: Report, hostile: Report) -> None:
    page = Markup(page_of(hostile))
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert set(page.tags) == set(Markup(page_of(contents)).tags)
    assert [name for name, _ in page.attributes if name.startswith("on")] == []


def test_no_address_in_the_page_leads_elsewhere(hostile: Report) -> None:
    links = [v for name, v in Markup(page_of(hostile)).attributes if name in ("href", "src")]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert page_of(hostile).isascii()


def test_a_picture_is_the_file_itself(contents: Report) -> None:
    picture = base64.b64encode(PICTURE.encode()).decode()
    assert f"data:image/svg+xml;base64,{picture}" in page_of(contents)


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=FOUND, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files(
    contents: Report, hostile: Report, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Returns the address of each written page."""
    folder = tmp_path_factory.mktemp("pages")
    written = {"contents": contents, "hostile": hostile}
    for name, one in written.items():
        (folder / f"{name}.html").write_text(page_of(one), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in written}


class Opened:
    """A page in the browser, with all that it asked for and complained about."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.page: Page = context.new_page()
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def line(self, chart: str, key: str) -> Locator:
        return self.page.locator(f"#{chart} g.curve[data-series='{key}']")

    def button(self, chart: str, key: str) -> Locator:
        return self.page.locator(f"#{chart} button[data-series='{key}']")

    def place(self, chart: str, across: float) -> tuple[float, float]:
        """Returns where in the window a place of a drawing lies, from 0 (left) to 1 (right)."""
        drawing = self.page.locator(f"#{chart} .drawing")
        drawing.scroll_into_view_if_needed()
        box = drawing.bounding_box()
        assert box is not None
        return box["x"] + across * box["width"], box["y"] + box["height"] / 2

    def values(self, chart: str) -> dict[str, str]:
        entries = self.page.locator(f"#{chart} .legend li").all()
        return {
            one.locator(".label").inner_text(): one.locator(".value").inner_text()
            for one in entries
        }


def opened(browser: Browser, address: str, *, width: int = 1400, **options: bool) -> Opened:
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        has_touch=options.get("has_touch", False),
        java_script_enabled=options.get("java_script_enabled", True),
    )
    return Opened(context, address)


@pytest.fixture
def shown(browser: Browser, files: dict[str, str]) -> Iterator[Opened]:
    found = opened(browser, files["contents"])
    yield found
    found.page.context.close()


@needs_browser
@pytest.mark.parametrize("name", ["contents", "hostile"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_opens_from_disk_alone_without_a_complaint_and_fits(
    browser: Browser, files: dict[str, str], name: str, width: int
) -> None:
    found = opened(browser, files[name], width=width)
    found.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    found.page.wait_for_load_state("networkidle")
    assert found.troubles == []
    assert [one for one in found.requests if not one.startswith("data:")] == [files[name]]
    assert found.page.evaluate("document.documentElement.scrollWidth") == width
    assert found.page.evaluate("window.hit") is None
    found.page.context.close()


@needs_browser
def test_hostile_names_are_read_as_they_are(browser: Browser, files: dict[str, str]) -> None:
    found = opened(browser, files["hostile"])
    assert set(HOSTILE.values()) <= set(found.values("perplexity"))
    found.page.context.close()


@needs_browser
def test_a_click_hides_a_line_in_all_charts_and_another_shows_it(
    shown: Opened, contents: Report
) -> None:
    key, other = contents.keys["rope"], contents.keys["alibi"]
    names = ("perplexity", "gain", "positions", "ratios")
    shown.button("perplexity", key).click()
    for name in names:
        assert not shown.line(name, key).is_visible()
        assert shown.line(name, other).is_visible()
        assert shown.button(name, key).get_attribute("aria-pressed") == "false"
    shown.button("gain", key).click()
    for name in names:
        assert shown.line(name, key).is_visible()
        assert shown.button(name, key).get_attribute("aria-pressed") == "true"
    assert shown.troubles == []


@needs_browser
def test_of_many_lines_a_page_shows_those_of_least_loss_until_all_are_requested(
    browser: Browser,
) -> None:
    found = opened(browser, (ROOT / "results" / "schemes" / "report.html").as_uri())
    names = ("perplexity", "gain")
    every = found.page.locator("#perplexity .every")

    def visible(name: str) -> set[str]:
        buttons = found.page.locator(f"#{name} li:has(button[aria-pressed=true]) .label")
        labels = set(buttons.all_inner_texts())
        lines = found.page.locator(f"#{name} g.line.curve")
        assert sum(line.is_visible() for line in lines.all()) == len(labels)
        return labels

    first = visible("perplexity")
    every.click()
    values = found.values("perplexity")
    assert all(visible(name) == set(values) for name in names)
    known = {name: float(text.split(" ")[0]) for name, text in values.items() if text != "-"}
    assert first == set(sorted(known, key=known.__getitem__)[:MOST_NAMED])
    every.click()
    assert all(visible(name) == first for name in names)
    assert found.troubles == []
    found.page.context.close()


@needs_browser
def test_of_few_lines_a_page_shows_all(shown: Opened) -> None:
    assert shown.page.locator(".every").count() == 0


@needs_browser
@pytest.mark.parametrize("press", ["Enter", "Space"])
def test_the_keyboard_hides_and_shows_a_line(shown: Opened, contents: Report, press: str) -> None:
    key = contents.keys["kerple"]
    shown.button("gain", key).focus()
    shown.page.keyboard.press(press)
    assert not shown.line("gain", key).is_visible()
    shown.page.keyboard.press(press)
    assert shown.line("gain", key).is_visible()


@needs_browser
def test_published_curves_of_a_protocol_can_be_shown_and_hidden(shown: Opened) -> None:
    behind = shown.page.locator("#ratios g.behind")
    assert not any(one.is_visible() for one in behind.all())
    button = shown.page.locator("#ratios button", has_text="alibi_sliding1")
    button.click()
    seen = [one for one in behind.all() if one.is_visible()]
    assert 0 < len(seen) < behind.count()
    assert all("alibi_sliding1" in (one.get_attribute("aria-label") or "") for one in seen)
    button.click()
    assert not any(one.is_visible() for one in behind.all())
    assert shown.troubles == []


@needs_browser
@pytest.mark.parametrize("length", [256, 512, 4096, 16384])
def test_the_pointer_reads_the_values_at_the_nearest_length(
    shown: Opened, contents: Report, length: int
) -> None:
    across, _ = chart(contents, "perplexity").stops[LENGTHS.index(length)]
    shown.page.mouse.move(*shown.place("perplexity", across + 0.03))
    assert shown.page.locator("#perplexity output").inner_text() == f"{short(length)} tokens"
    values = shown.values("perplexity")
    for line in contents.by_protocol["tail"]:
        expected = number(math.exp(line.losses()[length]))
        assert values[line.label].split(" ")[0] == expected
    cross = shown.page.locator("#perplexity .cross")
    box = cross.bounding_box()
    assert box is not None
    assert box["x"] == pytest.approx(shown.place("perplexity", across)[0], abs=1)
    assert cross.evaluate("one => getComputedStyle(one).visibility") == "visible"


@needs_browser
def test_the_keyboard_reads_values_step_by_step(shown: Opened, contents: Report) -> None:
    slider = shown.page.locator("#gain input")
    slider.focus()
    shown.page.keyboard.press("ArrowLeft")
    shown.page.keyboard.press("ArrowLeft")
    assert shown.page.locator("#gain output").inner_text() == "4k tokens"
    gain = next(f.gain[4096] for f in contents.findings if f.series.label == "rope")
    assert shown.values("gain")["rope"].startswith(f"{gain.value:+.3f} [")
    spoken = slider.get_attribute("aria-valuetext") or ""
    assert spoken.startswith("4k tokens, ")
    assert f"rope {gain.value:+.3f}" in spoken


@needs_browser
def test_a_touch_reads_values(browser: Browser, files: dict[str, str]) -> None:
    found = opened(browser, files["contents"], width=400, has_touch=True)
    found.page.touchscreen.tap(*found.place("gain", 0.15))
    assert found.page.locator("#gain output").inner_text() == "256 tokens"
    found.page.context.close()


@needs_browser
def test_a_verdict_and_a_published_curve_are_explained_on_hover_and_focus(
    shown: Opened, contents: Report
) -> None:
    cells, why = shown.page.locator(".verdict"), shown.page.locator(".why")
    sentences = [
        verdict.why
        for finding in judged(contents.findings)
        for _, verdict in sorted(finding.verdicts.items())
    ]
    cells.nth(3).hover()
    assert why.inner_text() == f"{sentences[3]}."
    cells.nth(7).focus()
    assert why.inner_text() == f"{sentences[7]}."
    shown.page.locator("#ratios button", has_text="alibi_nonoverlap").click()
    behind, line = shown.page.locator(".behind").nth(2), shown.page.locator("#ratios .about")
    behind.focus()
    assert line.inner_text() == behind.get_attribute("aria-label")


@needs_browser
@pytest.mark.parametrize(("width", "narrow"), [(400, True), (1400, False)])
def test_a_narrow_page_says_that_tables_scroll_and_breaks_no_protocols_name(
    browser: Browser, files: dict[str, str], width: int, narrow: bool
) -> None:
    found = opened(browser, files["contents"], width=width)
    assert found.page.locator(".narrow").is_visible() == narrow
    name = found.page.locator("#method th", has_text="per_position")
    lines = "one => { const r = document.createRange(); r.selectNodeContents(one);"
    assert name.evaluate(f"{lines} return r.getClientRects().length; }}") == 1
    found.page.context.close()


@needs_browser
def test_a_link_to_a_scheme_opens_its_part(shown: Opened, contents: Report) -> None:
    part = shown.page.locator(f"#{contents.keys['rope']}")
    assert part.get_attribute("open") is None
    shown.page.locator(".verdicts a", has_text="rope").click()
    shown.page.wait_for_function(f"document.getElementById('{contents.keys['rope']}').open")


@needs_browser
def test_without_scripts_everything_is_shown(
    browser: Browser, files: dict[str, str], contents: Report
) -> None:
    found = opened(browser, files["contents"], java_script_enabled=False)
    for key in contents.keys.values():
        assert found.line("perplexity", key).is_visible()
    at_last = contents.by_protocol["tail"][0].losses()[LENGTHS[-1]]
    value = found.values("perplexity")[contents.by_protocol["tail"][0].label]
    assert value.startswith(number(math.exp(at_last)))
    assert not any(one.is_visible() for one in found.page.locator(".script").all())
    found.page.context.close()


@needs_browser
def test_a_script_that_slips_in_cannot_run(
    browser: Browser, contents: Report, tmp_path: Path
) -> None:
    spoilt = page_of(contents).replace("</main>", "<script>window.hit = 1</script></main>")
    (tmp_path / "spoilt.html").write_text(spoilt)
    found = opened(browser, (tmp_path / "spoilt.html").as_uri())
    assert found.page.evaluate("window.hit") is None
    found.page.context.close()
