"""report: what the figure, the table and the CSV say of synthetic rows."""

import csv
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthgen import report
from lengthgen.errors import UserError

LENGTHS = (512, 1024, 2048, 16384)
LOSSES = (3.0, 2.5, 4.0, 5.0)


class Runs:
    """Writes run directories with losses of one's choice."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(
        self,
        scheme: str,
        losses: Sequence[float] = LOSSES,
        *,
        lengths: Sequence[int] = LENGTHS,
        seed: int = 1,
        parts: Mapping[str, Any] | None = None,
        suffix: str = "0a0a0a0a",
        **changes: Any,
    ) -> Path:
        """Writes a run; lengths beyond the losses are skipped ones."""
        path = self.root / f"{scheme}-tiny-toy-s{seed}-{suffix}"
        path.mkdir(parents=True, exist_ok=True)
        plain = {"seed": seed, "scheme": {"name": scheme, "parts": parts or {scheme: {}}}}
        (path / "config.yaml").write_text(yaml.safe_dump(plain))
        about = {"run": path.name, "scheme": scheme, "model": "tiny", "seed": seed, **changes}
        with (path / "eval.jsonl").open("a") as file:
            for i, length in enumerate(lengths):
                for row in _cell(losses[i] if i < len(losses) else None):
                    file.write(json.dumps({**DEFAULTS, "length": length, **row, **about}) + "\n")
        return path


DEFAULTS: dict[str, Any] = {
    "corpus": "toy",
    "fingerprint": "f" * 64,
    "packed": False,
    "train_length": 512,
    "tokens_seen": 4096,
    "protocol": "tail",
    "targets": 64,
    "variant": None,
    "precision": "fp32",
    "endpoints": "0123456789ab",
    "reach": 16384,
}


def _cell(loss: float | None) -> list[dict[str, Any]]:
    """One row that says n/a, or two documents of 64 and 128 tokens with this loss."""
    if loss is None:
        nothing = {"document": None, "n_documents": 0, "nats": 0.0, "n_tokens": 0, "n_bytes": 0}
        return [{**nothing, "skipped": "the table has 512 rows"}]
    return [
        {"document": name, "n_documents": 2, "nats": n * loss, "n_tokens": n, "n_bytes": 3 * n}
        for name, n in (("a", 64), ("b", 128))
    ]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


def drawn(*run_dirs: Path, protocol: str = "tail") -> Figure:
    return report.figure(report.gather(run_dirs).series(protocol))


def axes_of(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def said(figure: Figure) -> list[str]:
    """The names at the line ends, from the top down."""
    texts = axes_of(figure).texts
    ends = [text for text in texts if 1 < text.get_position()[0] < 2 and text.get_text()]
    return [t.get_text() for t in sorted(ends, key=lambda t: -t.get_position()[1])]


def line(figure: Figure, label: str) -> tuple[list[float], list[float]]:
    (found,) = (one for one in axes_of(figure).lines if one.get_label() == label)
    x, y = (np.asarray(one).tolist() for one in found.get_data())
    return x, y


def rows_of(table: str) -> dict[str, list[str]]:
    """The cells of a Markdown table by the first cell of each row."""
    cells = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in table.splitlines()
        if row.startswith("|")
    ]
    return {row[0]: row[1:] for row in cells}


def test_the_ticks_are_the_evaluated_lengths(runs: Runs) -> None:
    axes = axes_of(drawn(runs.write("rope")))
    assert axes.get_xticks().tolist() == list(LENGTHS)


def test_the_ticks_are_named_in_units_of_1024(runs: Runs) -> None:
    axes = axes_of(drawn(runs.write("rope")))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["512", "1k", "2k", "16k"]


def test_lengths_have_a_base_2_axis_without_minor_ticks(runs: Runs) -> None:
    axis = axes_of(drawn(runs.write("rope"))).xaxis
    assert axis.get_transform().base == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert len(axis.get_minorticklocs()) == 0


def test_a_tick_too_near_a_rounder_one_keeps_its_place_but_not_its_name(runs: Runs) -> None:
    lengths = (512, 1000, 1024, 16384)
    axes = axes_of(drawn(runs.write("rope", lengths=lengths)))
    assert axes.get_xticks().tolist() == list(lengths)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["512", "", "1k", "16k"]


@pytest.mark.parametrize(
    ("length", "name"), [(512, "512"), (640, "640"), (1536, "1.5k"), (2048, "2k"), (16000, "16000")]
)
def test_a_length_is_shortened_only_where_that_is_exact(length: int, name: str) -> None:
    assert report.short(length) == name


def test_a_dashed_line_stands_at_T_with_its_name(runs: Runs) -> None:
    axes = axes_of(drawn(runs.write("rope")))
    (at_T,) = (one for one in axes.lines if list(one.get_xdata()) == [512, 512])  # pyright: ignore
    assert at_T.is_dashed()
    assert "trained at T=512" in [text.get_text() for text in axes.texts]


def test_each_T_has_its_line(runs: Runs) -> None:
    figure = drawn(runs.write("rope"), runs.write("alibi", train_length=1024))
    texts = [text.get_text() for text in axes_of(figure).texts]
    assert {"trained at T=512", "trained at T=1024"} <= set(texts)


def test_a_line_goes_through_the_perplexities(runs: Runs) -> None:
    lengths, values = line(drawn(runs.write("rope")), "rope")
    assert lengths == list(LENGTHS)
    assert values == pytest.approx([math.exp(loss) for loss in LOSSES], rel=1e-13)


def test_the_line_of_several_seeds_is_the_mean_of_their_losses(runs: Runs) -> None:
    one, two = (
        runs.write("rope", (3.0,), lengths=(512,)),
        runs.write("rope", (5.0,), lengths=(512,), seed=2),
    )
    _, values = line(drawn(one, two), "rope")
    assert values == pytest.approx([math.exp(4.0)], rel=1e-13)


def test_several_seeds_are_also_drawn_one_by_one(runs: Runs) -> None:
    figure = drawn(runs.write("rope"), runs.write("rope", (2.0, 2.0, 2.0, 2.0), seed=2))
    thin = [one for one in axes_of(figure).lines if one.get_linewidth() < 1 and one.get_alpha()]
    assert len(thin) == 2


def test_names_stand_at_the_line_ends_in_the_order_of_their_values(runs: Runs) -> None:
    best = runs.write("aaa", (3.0, 3.0, 3.0, 3.0))
    worst = runs.write("bbb", (3.0, 3.0, 3.0, 9.0))
    middle = runs.write("ccc", (9.0, 9.0, 9.0, 4.0))
    assert said(drawn(best, worst, middle)) == ["bbb", "ccc", "aaa"]


def test_a_skipped_series_is_named_with_the_length_up_to_which_it_is_drawn(runs: Runs) -> None:
    figure = drawn(runs.write("rope"), runs.write("learned_absolute", (3.0,)))
    assert said(figure) == ["rope", "learned_absolute (n/a past 512)"]
    assert line(figure, "learned_absolute")[0] == [512]


def test_a_series_that_is_skipped_everywhere_is_still_named(runs: Runs) -> None:
    figure = drawn(runs.write("rope"), runs.write("learned_absolute", ()))
    assert said(figure) == ["rope", "learned_absolute (n/a)"]


def test_the_title_says_what_was_scored_and_where(runs: Runs) -> None:
    texts = [text.get_text() for text in axes_of(drawn(runs.write("rope"))).texts]
    assert (
        "matched tail: last K=64 tokens of 3 windows in 2 documents\ncorpus toy, model tiny, fp32"
    ) in texts


def test_one_point_makes_a_figure(runs: Runs) -> None:
    figure = drawn(runs.write("rope", (3.0,), lengths=(2048,)))
    assert axes_of(figure).get_xticks().tolist() == [2048]
    assert report.rendered(figure, "png")


def test_a_loss_beyond_any_axis_leaves_the_rest_in_place(runs: Runs) -> None:
    figure = drawn(runs.write("rope", (3.0, 4.0, 5.0, 5000.0)))
    assert line(figure, "rope")[0] == [512, 1024, 2048]
    assert report.rendered(figure, "png")


@pytest.mark.parametrize(
    ("low", "high"),
    [(9.8, 10.4), (20.0, 27.0), (10.0, 100.0), (24.0, 2e4), (10.0, 1e6), (1.1, 1e300)],
)
def test_perplexities_have_two_to_ten_plain_ticks(low: float, high: float) -> None:
    ticks = report.plain_ticks(low, high)
    assert 2 <= len(ticks) <= 11
    assert all(low <= tick <= high for tick in ticks)


@pytest.mark.parametrize(
    ("tick", "name"),
    [(9.8, "9.8"), (20.0, "20"), (10_000.0, "10,000"), (1e6, "1e6"), (1e12, "1e12")],
)
def test_ticks_of_perplexity_are_written_plainly(tick: float, name: str) -> None:
    assert report.plain(tick) == name


@pytest.mark.parametrize("wanted", [[0.9, 0.9, 0.9], [0.5, 0.02, 0.0, 0.0], [0.0]])
def test_names_are_moved_apart_and_stay_in_order(wanted: list[float]) -> None:
    placed = report.spread(wanted, gap=0.1)
    steps = [above - below for above, below in itertools.pairwise(placed)]
    assert all(step > 0.1 - 1e-12 for step in steps)  # rounding of the sums
    assert min(placed) >= 0


def test_names_make_way_downwards_while_there_is_room() -> None:
    assert report.spread([0.75, 0.75, 0.75], gap=0.25) == [0.75, 0.5, 0.25]


def test_names_that_are_far_apart_are_not_moved() -> None:
    assert report.spread([0.9, 0.5, 0.1], gap=0.1) == [0.9, 0.5, 0.1]


def test_no_two_of_forty_schemes_look_alike() -> None:
    found = report.looks(f"scheme{i}" for i in range(40))
    assert len(set(found.values())) == 40


def test_up_to_twelve_schemes_have_different_colours() -> None:
    for first in range(20):
        found = report.looks(f"scheme{i}" for i in range(first, first + 12))
        assert len({look.colour for look in found.values()}) == 12


def test_a_look_does_not_depend_on_the_order_of_schemes() -> None:
    names = [f"scheme{i}" for i in range(20)]
    assert report.looks(names) == report.looks(reversed(names))


def test_a_scheme_keeps_its_look_whichever_others_are_shown_unless_they_collide() -> None:
    names = [f"scheme{i}" for i in range(100)]
    for one in names:
        alone = report.looks([one])[one]
        for other in names:
            beside = report.looks([one, other])
            if report.looks([other])[other] != alone:
                assert beside[one] == alone


def test_a_displaced_scheme_takes_no_slot_that_another_one_wants() -> None:
    names = [f"scheme{i}" for i in range(10)]
    alone = {name: report.looks([name])[name] for name in names}
    together = report.looks(names)
    for look in set(alone.values()):
        first = min(name for name in names if alone[name] == look)
        assert together[first] == look


def test_variants_share_the_colour_of_their_scheme_in_another_line_style(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", variant="yarn")
    found = report.line_looks(report.gather([path]).series("tail"))
    base, variant = found["rope"], found["rope + yarn"]
    assert (base["color"], base["marker"]) == (variant["color"], variant["marker"])
    assert base["linestyle"] == "-" != variant["linestyle"]


def test_eight_series_of_one_scheme_are_drawn_in_eight_ways(runs: Runs) -> None:
    paths = [runs.write("rope", parts={"rope": {"base": 10.0**i}}, suffix=str(i)) for i in range(8)]
    found = report.line_looks(report.gather(paths).series("tail"))
    assert len({str(look) for look in found.values()}) == 8


def test_rendering_twice_gives_the_same_bytes(runs: Runs) -> None:
    path = runs.write("rope")
    for kind in ("png", "svg"):
        assert report.rendered(drawn(path), kind) == report.rendered(drawn(path), kind)


def test_an_svg_holds_no_date(runs: Runs) -> None:
    assert b"<dc:date>" not in report.rendered(drawn(runs.write("rope")), "svg")


def test_the_table_has_perplexity_per_length_and_the_ratio_of_the_longest_to_T(runs: Runs) -> None:
    rows = rows_of(report.table([runs.write("rope", (math.log(20), 3.0, 4.0, math.log(45)))]))
    assert rows["scheme"] == ["seeds", "512", "1k", "2k", "16k", "16k/512"]
    assert rows["rope"] == ["1", "20.00", "20.09", "54.60", "45.00", "2.25"]


def test_the_table_says_why_a_cell_is_not_available(runs: Runs) -> None:
    table = report.table([runs.write("rope"), runs.write("learned_absolute", (3.0,))])
    cells = rows_of(table)["learned_absolute"]
    assert cells == ["1", "20.09", "n/a (1)", "n/a (1)", "n/a (1)", "n/a"]
    assert "1. the table has 512 rows" in table


def test_the_table_shows_a_dash_where_nothing_was_evaluated(runs: Runs) -> None:
    table = report.table([runs.write("rope"), runs.write("alibi", (3.0,), lengths=(512,))])
    assert rows_of(table)["alibi"] == ["1", "20.09", "-", "-", "-", "n/a"]
    assert "`-`: not evaluated" in table


def test_the_table_lists_a_run_without_rows_of_a_protocol(runs: Runs) -> None:
    one, two = runs.write("rope"), runs.write("alibi")
    runs.write("rope", protocol="nonoverlap", targets=None)
    _, other = report.table([one, two]).split("Perplexity, nonoverlap")
    assert rows_of(other)["alibi"] == ["-"] * 6


def test_the_headline_table_comes_first(runs: Runs) -> None:
    path = runs.write("rope", protocol="nonoverlap", targets=None)
    runs.write("rope")
    titles = [row for row in report.table([path]).splitlines() if row.startswith("Perplexity")]
    assert [title.split()[1] for title in titles] == ["matched", "nonoverlap:"]


def test_runs_that_differ_in_the_seed_alone_are_one_row(runs: Runs) -> None:
    rows = rows_of(report.table([runs.write("rope"), runs.write("rope", seed=2)]))
    assert set(rows) == {"scheme", "-" * 6, "rope"}
    assert rows["rope"][0] == "2"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.054, "1.05"), (20.0, "20.00"), (173.04, "173.0"), (16024.2, "16,024"), (3e9, "3.0e+09")],
)
def test_a_number_is_as_long_as_its_reader_needs(value: float, text: str) -> None:
    assert report.number(value) == text


def test_the_csv_parses_back_to_the_same_numbers(runs: Runs, tmp_path: Path) -> None:
    path = runs.write("rope", (3.1, 1 / 3, 7.7))
    report.write_report([path], tmp_path / "out")
    with (tmp_path / "out" / "curve.csv").open(newline="") as file:
        parsed = list(csv.DictReader(file))
    for point, row in zip(report.gather([path]).points, parsed, strict=True):
        for name in ("loss", "ppl", "bits_per_byte"):
            number = getattr(point, name)
            assert row[name] == "" if number is None else float(row[name]) == number
        assert int(row["length"]) == point.length
        assert row["skipped"] == (point.skipped or "")


def test_the_csv_holds_gain_and_ratio_of_the_headline(runs: Runs) -> None:
    parsed = list(csv.DictReader(report.long_csv(report.gather([runs.write("rope")])).splitlines()))
    assert [float(row["context_gain"]) for row in parsed] == [0.0, 0.5, -1.0, -2.0]
    assert float(parsed[-1]["ratio_to_T"]) == math.exp(2.0)


def test_a_report_is_two_figures_a_table_and_a_csv(runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    written = report.write_report([runs.write("rope")], out)
    assert [path.name for path in written] == ["curve.png", "curve.svg", "table.md", "curve.csv"]
    assert sorted(out.iterdir()) == sorted(written)
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in written[1].read_bytes()


def test_other_protocols_have_figures_of_their_own_name(runs: Runs, tmp_path: Path) -> None:
    path = runs.write("rope")
    runs.write("rope", protocol="nonoverlap", targets=None)
    written = {path.name for path in report.write_report([path], tmp_path / "out")}
    assert {"curve.png", "curve-nonoverlap.png", "curve-nonoverlap.svg"} <= written


def test_a_directory_that_cannot_be_made_is_refused(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file.*: cannot be written \(.*\); give --out DIR"):
        report.write_report([runs.write("rope")], tmp_path / "file")


def test_a_run_without_evaluation_is_refused_with_the_command(runs: Runs) -> None:
    empty = runs.root / "rope-tiny-toy-s1-0a0a0a0a"
    empty.mkdir(parents=True)
    with pytest.raises(UserError, match=f"no evaluation in .*; run lengthgen eval {empty.name}"):
        report.read([empty])


def test_a_run_of_incomplete_cells_is_refused_with_the_command(runs: Runs) -> None:
    half = runs.write("alibi", n_documents=3)
    with pytest.raises(UserError, match=f"no complete evaluation in {half.name}; run lengthgen"):
        report.gather([runs.write("rope"), half])


def test_no_run_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="no run is named"):
        report.read([])


def test_a_run_named_twice_counts_once(runs: Runs) -> None:
    path = runs.write("rope")
    assert report.table([path, path.parent / "." / path.name]) == report.table([path])


def test_two_runs_of_one_name_are_refused(runs: Runs, tmp_path: Path) -> None:
    other = Runs(tmp_path / "others").write("rope")
    with pytest.raises(UserError, match=r"lies in .*runs and in .*others; name one"):
        report.read([runs.write("rope"), other])


@pytest.mark.parametrize("content", [None, "- a\n- b\n", "a: [", b"\xff\xfe\x00"])
def test_a_damaged_configuration_is_refused(runs: Runs, content: str | bytes | None) -> None:
    path = runs.write("rope")
    (path / "config.yaml").unlink()
    if content is not None:
        raw = content if isinstance(content, bytes) else content.encode()
        (path / "config.yaml").write_bytes(raw)
    with pytest.raises(UserError, match=r"config.yaml: missing or damaged"):
        report.gather([path])


def test_runs_on_different_tokens_are_refused_in_a_report(runs: Runs) -> None:
    one, other = runs.write("rope"), runs.write("alibi", fingerprint="e" * 64)
    with pytest.raises(UserError, match="were measured on different tokens"):
        report.table([one, other])
