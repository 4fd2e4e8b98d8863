"""The figure: ticks, lines, names and looks, drawn of synthetic rows."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from eval_rows import LENGTHS, LOSSES, Runs
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthgen import figures, report


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


def drawn(*run_dirs: Path, protocol: str = "tail") -> Figure:
    return figures.figure(report.gather(run_dirs).series(protocol))


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


def test_a_dotted_line_stands_at_the_perplexity_of_the_last_T_tokens_alone(runs: Runs) -> None:
    figure = drawn(runs.write("rope"), runs.write("alibi"))
    across = [512, LENGTHS[-1]]
    data = [np.asarray(one.get_data()) for one in axes_of(figure).lines]
    crops = [y for x, y in data if x.tolist() == across]
    heights = sorted(float(start) for start, end in crops if start == end)
    want = sorted(line(figure, name)[1][0] for name in ("rope", "alibi"))
    assert heights == pytest.approx(want)
    assert "dotted: from the last T tokens alone" in axes_of(figure).texts[-1].get_text()


def test_other_protocols_have_no_such_line(runs: Runs) -> None:
    figure = drawn(runs.write("rope", protocol="nonoverlap"), protocol="nonoverlap")
    assert "dotted" not in axes_of(figure).texts[-1].get_text()


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
        "; dotted: from the last T tokens alone"
    ) in texts


def test_one_point_makes_a_figure(runs: Runs) -> None:
    figure = drawn(runs.write("rope", (3.0,), lengths=(2048,)))
    assert axes_of(figure).get_xticks().tolist() == [2048]
    assert figures.rendered(figure, "png")


def test_a_loss_beyond_any_axis_leaves_the_rest_in_place(runs: Runs) -> None:
    figure = drawn(runs.write("rope", (3.0, 4.0, 5.0, 5000.0)))
    assert line(figure, "rope")[0] == [512, 1024, 2048]
    assert figures.rendered(figure, "png")


@pytest.mark.parametrize(
    ("low", "high"),
    [(9.8, 10.4), (20.0, 27.0), (10.0, 100.0), (24.0, 2e4), (10.0, 1e6), (1.1, 1e300)],
)
def test_perplexities_have_two_to_ten_plain_ticks(low: float, high: float) -> None:
    ticks = figures.plain_ticks(low, high)
    assert 2 <= len(ticks) <= 11
    assert all(low <= tick <= high for tick in ticks)


@pytest.mark.parametrize(
    ("tick", "name"),
    [(9.8, "9.8"), (20.0, "20"), (10_000.0, "10,000"), (1e6, "1e6"), (1e12, "1e12")],
)
def test_ticks_of_perplexity_are_written_plainly(tick: float, name: str) -> None:
    assert figures.plain(tick) == name


@pytest.mark.parametrize("wanted", [[0.9, 0.9, 0.9], [0.5, 0.02, 0.0, 0.0], [0.0]])
def test_names_are_moved_apart_and_stay_in_order(wanted: list[float]) -> None:
    placed = figures.spread(wanted, gap=0.1)
    steps = [above - below for above, below in itertools.pairwise(placed)]
    assert all(step > 0.1 - 1e-12 for step in steps)  # rounding of the sums
    assert min(placed) >= 0


def test_names_make_way_downwards_while_there_is_room() -> None:
    assert figures.spread([0.75, 0.75, 0.75], gap=0.25) == [0.75, 0.5, 0.25]


def test_names_that_are_far_apart_are_not_moved() -> None:
    assert figures.spread([0.9, 0.5, 0.1], gap=0.1) == [0.9, 0.5, 0.1]


def test_no_two_of_forty_schemes_look_alike() -> None:
    found = figures.looks(f"scheme{i}" for i in range(40))
    assert len(set(found.values())) == 40


def test_up_to_twelve_schemes_have_different_colours() -> None:
    for first in range(20):
        found = figures.looks(f"scheme{i}" for i in range(first, first + 12))
        assert len({look.colour for look in found.values()}) == 12


def test_a_look_does_not_depend_on_the_order_of_schemes() -> None:
    names = [f"scheme{i}" for i in range(20)]
    assert figures.looks(names) == figures.looks(reversed(names))


def test_a_scheme_keeps_its_look_whichever_others_are_shown_unless_they_collide() -> None:
    names = [f"scheme{i}" for i in range(100)]
    for one in names:
        alone = figures.looks([one])[one]
        for other in names:
            beside = figures.looks([one, other])
            if figures.looks([other])[other] != alone:
                assert beside[one] == alone


def test_a_displaced_scheme_takes_no_slot_that_another_one_wants() -> None:
    names = [f"scheme{i}" for i in range(10)]
    alone = {name: figures.looks([name])[name] for name in names}
    together = figures.looks(names)
    for look in set(alone.values()):
        first = min(name for name in names if alone[name] == look)
        assert together[first] == look


def test_variants_share_the_colour_of_their_scheme_in_another_line_style(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", variant="yarn")
    found = figures.line_looks(report.gather([path]).series("tail"))
    base, variant = found["rope"], found["rope + yarn"]
    assert (base["color"], base["marker"]) == (variant["color"], variant["marker"])
    assert base["linestyle"] == "-" != variant["linestyle"]


def test_eight_series_of_one_scheme_are_drawn_in_eight_ways(runs: Runs) -> None:
    paths = [runs.write("rope", parts={"rope": {"base": 10.0**i}}, suffix=str(i)) for i in range(8)]
    found = figures.line_looks(report.gather(paths).series("tail"))
    assert len({str(look) for look in found.values()}) == 8


def test_rendering_twice_gives_the_same_bytes(runs: Runs) -> None:
    path = runs.write("rope")
    for kind in ("png", "svg"):
        assert figures.rendered(drawn(path), kind) == figures.rendered(drawn(path), kind)


def test_an_svg_holds_no_date(runs: Runs) -> None:
    assert b"<dc:date>" not in figures.rendered(drawn(runs.write("rope")), "svg")
