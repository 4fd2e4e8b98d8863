"""The figure of a protocol: ticks, lines, names and looks, drawn of synthetic rows."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eval_rows import LENGTHS, LOSSES, Runs, gathered
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from lengthgen.analysis.formatting import number
from lengthgen.report.figures.curve import perplexities
from lengthgen.report.figures.layout import laid_out
from lengthgen.report.figures.scales import plain, plain_ticks, signed, signed_ticks
from lengthgen.report.figures.style import line_styles, rendered, scheme_styles


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


def drawn(*run_dirs: Path, protocol: str = "tail") -> Figure:
    found = gathered(*run_dirs)
    return laid_out(perplexities(found.by_protocol[protocol], found.findings))


def axes_of(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def said(figure: Figure) -> list[str]:
    """The names in the legend, from the top down."""
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def band(figure: Figure, colour: str) -> tuple[dict[float, float], dict[float, float]]:
    """The lower and the upper bound of the only band of a colour, by length."""
    bands = [c for c in axes_of(figure).collections if isinstance(c, PolyCollection)]
    faces = [np.asarray(c.get_facecolor())[0, :3].tolist() for c in bands]
    (found,) = (c for c, face in zip(bands, faces, strict=True) if same_color(face, colour))
    low: dict[float, float] = {}
    high: dict[float, float] = {}
    for x, y in np.asarray(found.get_paths()[0].vertices).tolist():
        low[x] = min(y, low.get(x, math.inf))
        high[x] = max(y, high.get(x, 0.0))
    return low, high


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
    assert "dotted: from the last T tokens alone" in caption(figure)


def spread_runs(runs: Runs, scheme: str, *, by: float = 0.05, **changes: Any) -> list[Path]:
    """Two seeds of which the second is so many nats worse at every length."""
    worse = [loss + by for loss in LOSSES]
    return [runs.write(scheme, **changes), runs.write(scheme, worse, seed=2, **changes)]


def test_the_band_is_the_interval_of_the_finding(runs: Runs) -> None:
    paths = spread_runs(runs, "rope")
    low, high = band(drawn(*paths), scheme_styles(["rope"])["rope"].colour)
    (finding,) = gathered(*paths).findings
    assert low == pytest.approx({n: math.exp(e.low) for n, e in finding.loss.items()})
    assert high == pytest.approx({n: math.exp(e.high) for n, e in finding.loss.items()})
    assert all(high[n] > low[n] * 1.1 for n in LENGTHS)


def test_a_band_that_is_far_wider_than_the_lines_is_cut_and_said_to_be(runs: Runs) -> None:
    figure = drawn(*spread_runs(runs, "rope", by=1.0))  # 95% are +- 6.4 nats
    least, most = math.exp(min(LOSSES)), math.exp(max(LOSSES) + 1.0)
    bottom, top = axes_of(figure).get_ylim()
    assert least / 3 < bottom < least
    assert most < top < 3 * most
    assert "band: 95% over seeds and documents, cut where it leaves the axis" in caption(figure)
    assert "cut" not in caption(drawn(*spread_runs(runs, "alibi")))


def test_a_curve_without_findings_has_no_band(runs: Runs) -> None:
    figure = drawn(*spread_runs(runs, "rope", protocol="nonoverlap"), protocol="nonoverlap")
    assert not [c for c in axes_of(figure).collections if isinstance(c, PolyCollection)]
    assert "band" not in caption(figure)


def with_reference(
    runs: Runs, scheme: str, losses: Sequence[float] = LOSSES, window: Sequence[float] = LOSSES
) -> Path:
    """A run with a variant that its configuration lists as a line of reference."""
    runs.write(scheme, window, variant="window")
    path = runs.write(scheme, losses)
    config = path / "config.yaml"
    config.write_text(config.read_text() + "eval: {reference_variants: [window]}\n")
    return path


def test_a_reference_is_thin_without_markers_in_the_colour_of_its_scheme(runs: Runs) -> None:
    figure = drawn(with_reference(runs, "rope"), runs.write("alibi"))
    (thin,) = (one for one in axes_of(figure).lines if one.get_label() == "rope + window")
    (whole,) = (one for one in axes_of(figure).lines if one.get_label() == "rope")
    assert thin.get_linewidth() < whole.get_linewidth() / 1.5
    assert (thin.get_color(), thin.get_marker()) == (whole.get_color(), "")


def test_a_reference_has_the_colour_of_its_checkpoints_if_all_are_of_one_scheme(runs: Runs) -> None:
    paths: list[Path] = []
    for n in (1, 2, 3):
        changes: dict[str, Any] = {"parts": {"rope": {"base": 10.0**n}}, "suffix": str(n)}
        for variant in ("window", "yarn"):
            runs.write("rope", variant=variant, **changes)
        paths.append(runs.write("rope", **changes))
        with (paths[-1] / "config.yaml").open("a") as file:
            file.write("eval: {reference_variants: [window]}\n")
    lines = gathered(*paths).by_protocol["tail"]
    styles = line_styles(lines)
    colours = {tuple(line.runs): styles[line.label]["color"] for line in lines if not line.variant}
    thin = {tuple(line.runs): styles[line.label]["color"] for line in lines if line.reference}
    assert thin == colours
    assert len(set(colours.values())) == 3


def test_a_reference_is_named_in_the_caption_alone(runs: Runs) -> None:
    figure = drawn(with_reference(runs, "rope"), runs.write("alibi"))
    assert set(said(figure)) == {"rope", "alibi"}
    assert "thin dashes: the same checkpoint + window" in caption(figure)


def with_floor(runs: Runs, ppl: float) -> Figure:
    """A curve from 12.2 to 148 beside a unigram floor: a loss over the 192 tokens of two rows."""
    return drawn(runs.write("rope", unigram_nats=192 * math.log(ppl) / 2))


@pytest.mark.parametrize("ppl", [8.0, 50.0, 200.0])
def test_the_unigram_floor_is_a_line_where_it_is_near(runs: Runs, ppl: float) -> None:
    figure = with_floor(runs, ppl)
    flat = [np.asarray(one.get_ydata()).tolist() for one in axes_of(figure).lines]
    assert any(y == pytest.approx([ppl, ppl]) for y in flat)
    low, high = axes_of(figure).get_ylim()
    assert low < ppl < high
    (name,) = [text for text in axes_of(figure).texts if text.get_text() == "unigram floor"]
    figure.draw_without_rendering()
    assert name.get_window_extent().y1 < axes_of(figure).get_window_extent().y1  # not in the title


@pytest.mark.parametrize("ppl", [2.0, 445.9])
def test_the_unigram_floor_is_a_number_where_it_is_far(runs: Runs, ppl: float) -> None:
    figure = with_floor(runs, ppl)
    assert f"unigram floor: {number(ppl)}" in caption(figure)
    low, high = axes_of(figure).get_ylim()
    assert not low < ppl < high
    assert "unigram floor" not in [text.get_text() for text in axes_of(figure).texts]


def test_other_protocols_have_no_such_line(runs: Runs) -> None:
    figure = drawn(runs.write("rope", protocol="nonoverlap"), protocol="nonoverlap")
    assert "dotted" not in caption(figure)


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
    heights = [np.asarray(one.get_ydata()).tolist() for one in thin]
    assert heights == [pytest.approx([math.exp(x) for x in LOSSES]), [math.exp(2.0)] * 4]


def test_the_legend_is_in_the_order_of_the_line_ends(runs: Runs) -> None:
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


def caption(figure: Figure) -> str:
    """The title without its line breaks."""
    return " ".join(figure.get_suptitle().split())


def test_the_title_says_what_was_scored_and_where(runs: Runs) -> None:
    assert caption(drawn(runs.write("rope"))) == (
        "matched tail: K=64 targets before each of 3 endpoints in 2 documents; corpus toy, model "
        "tiny, fp32 "
        "band: 95% over documents; dotted: from the last T tokens alone"
    )


FLAT = (2.0, 2.0, 2.0, 2.0)


def test_a_few_lines_that_fail_do_not_flatten_the_others(runs: Runs) -> None:
    good = [runs.write(f"good{i}", FLAT) for i in range(3)]
    figure = drawn(*good, runs.write("bad", (2.0, 3.0, 6.0, math.log(5000))))
    assert axes_of(figure).get_ylim()[1] == pytest.approx(8 * math.exp(2.0), rel=0.2)
    assert "bad: 5,000" in said(figure)
    assert line(figure, "bad")[1][-1] == pytest.approx(5000)


def test_a_name_with_a_number_is_explained_only_if_a_named_line_leaves_the_axis(runs: Runs) -> None:
    explained = "a name with a number"
    fails = (2.0, 3.0, 6.0, math.log(5000))
    good = [runs.write(f"good{i}", FLAT) for i in range(3)]
    assert explained in caption(drawn(*good, runs.write("bad", fails)))
    thin = with_reference(runs, "rope", FLAT, fails)
    figure = drawn(*good, thin)
    assert axes_of(figure).get_ylim()[1] < 5000
    assert explained not in caption(figure)


def test_lines_stay_within_the_axis_if_many_of_them_fail(runs: Runs) -> None:
    bad = [runs.write(f"bad{i}", (2.0, 3.0, 6.0, math.log(5000))) for i in range(2)]
    figure = drawn(*bad, runs.write("good", FLAT), runs.write("fine", FLAT))
    assert axes_of(figure).get_ylim()[1] > 5000
    assert "bad0" in said(figure)


def test_one_point_makes_a_figure(runs: Runs) -> None:
    figure = drawn(runs.write("rope", (3.0,), lengths=(2048,)))
    assert axes_of(figure).get_xticks().tolist() == [2048]
    assert rendered(figure, "png")


def test_a_loss_beyond_any_axis_leaves_the_rest_in_place(runs: Runs) -> None:
    figure = drawn(runs.write("rope", (3.0, 4.0, 5.0, 5000.0)))
    assert line(figure, "rope")[0] == [512, 1024, 2048]
    assert rendered(figure, "png")


@pytest.mark.parametrize(
    ("low", "high"),
    [(9.8, 10.4), (20.0, 27.0), (10.0, 100.0), (24.0, 2e4), (10.0, 1e6), (1.1, 1e300)],
)
def test_perplexities_have_two_to_ten_plain_ticks(low: float, high: float) -> None:
    ticks = plain_ticks(low, high)
    assert 2 <= len(ticks) <= 11
    assert all(low <= tick <= high for tick in ticks)


@pytest.mark.parametrize(
    ("tick", "name"),
    [(9.8, "9.8"), (20.0, "20"), (10_000.0, "10,000"), (1e6, "1e6"), (1e12, "1e12")],
)
def test_ticks_of_perplexity_are_written_plainly(tick: float, name: str) -> None:
    assert plain(tick) == name


@pytest.mark.parametrize(("low", "high"), [(-0.02, 0.02), (-3.0, 0.05), (-0.5, 400.0)])
def test_signed_ticks_hold_0_and_both_ends_of_the_linear_part(low: float, high: float) -> None:
    ticks = signed_ticks(low, high, linear=0.01)
    assert {-0.01, 0.0, 0.01} <= set(ticks)
    assert ticks == sorted(ticks)
    assert all(low <= tick <= high for tick in ticks)
    assert len(ticks) <= 16


def test_signed_ticks_are_written_with_their_sign() -> None:
    assert [signed(tick) for tick in (-0.03, 0.0, 1.0)] == ["-0.03", "0", "+1"]


def test_no_two_of_forty_schemes_look_alike() -> None:
    found = scheme_styles(f"scheme{i}" for i in range(40))
    assert len(set(found.values())) == 40


def test_up_to_twelve_schemes_have_different_colours() -> None:
    for first in range(20):
        found = scheme_styles(f"scheme{i}" for i in range(first, first + 12))
        assert len({style.colour for style in found.values()}) == 12


def test_a_look_does_not_depend_on_the_order_of_schemes() -> None:
    names = [f"scheme{i}" for i in range(20)]
    assert scheme_styles(names) == scheme_styles(reversed(names))


def test_a_scheme_keeps_its_look_whichever_others_are_shown_unless_they_collide() -> None:
    names = [f"scheme{i}" for i in range(100)]
    for one in names:
        alone = scheme_styles([one])[one]
        for other in names:
            beside = scheme_styles([one, other])
            if scheme_styles([other])[other] != alone:
                assert beside[one] == alone


def test_a_displaced_scheme_takes_no_slot_that_another_one_wants() -> None:
    names = [f"scheme{i}" for i in range(10)]
    alone = {name: scheme_styles([name])[name] for name in names}
    together = scheme_styles(names)
    for style in set(alone.values()):
        first = min(name for name in names if alone[name] == style)
        assert together[first] == style


def test_variants_share_the_colour_of_their_scheme_in_another_line_style(runs: Runs) -> None:
    paths = [runs.write("rope"), runs.write("alibi")]
    runs.write("rope", variant="yarn")
    found = line_styles(gathered(*paths).by_protocol["tail"])
    base, variant = found["rope"], found["rope + yarn"]
    assert (base["color"], base["marker"]) == (variant["color"], variant["marker"])
    assert base["linestyle"] == "-" != variant["linestyle"]


def test_variants_of_one_scheme_alone_have_colours_of_their_own(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", variant="yarn")
    found = line_styles(gathered(path).by_protocol["tail"])
    assert found["rope"]["color"] == scheme_styles(["rope"])["rope"].colour
    assert found["rope"]["color"] != found["rope + yarn"]["color"]


def test_eight_series_of_one_scheme_are_drawn_in_eight_ways(runs: Runs) -> None:
    paths = [runs.write("rope", parts={"rope": {"base": 10.0**i}}, suffix=str(i)) for i in range(8)]
    found = line_styles(gathered(*paths).by_protocol["tail"])
    assert len({str(style) for style in found.values()}) == 8


def test_rendering_twice_gives_the_same_bytes(runs: Runs) -> None:
    path = runs.write("rope")
    for kind in ("png", "svg"):
        assert rendered(drawn(path), kind) == rendered(drawn(path), kind)


def test_an_svg_holds_no_date(runs: Runs) -> None:
    assert b"<dc:date>" not in rendered(drawn(runs.write("rope")), "svg")
