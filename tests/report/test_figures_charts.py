"""The other charts: context gain, positions, ratios; and how many lines are laid out."""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eval_rows import LENGTHS, LOSSES, Row, Runs, gathered, row
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthgen.analysis import reference_results
from lengthgen.analysis.comparisons import difference
from lengthgen.analysis.curves import curve
from lengthgen.analysis.reference_results import PublishedCurve
from lengthgen.analysis.seed_groups import Series
from lengthgen.data.windows import position_bins
from lengthgen.errors import UserError
from lengthgen.report import pictures
from lengthgen.report.figures.chart import Chart
from lengthgen.report.figures.curve import gains, perplexities
from lengthgen.report.figures.layout import MOST_NAMED, laid_out, panels
from lengthgen.report.figures.overview import excess, ranking
from lengthgen.report.figures.positions import position_losses, positions
from lengthgen.report.figures.ratios import ratios
from lengthgen.report.figures.style import rendered
from lengthgen.report.page_charts import charts


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


def there(chart: Chart | None) -> Chart:
    assert chart is not None
    return chart


def texts(figure: Figure) -> str:
    found = [text.get_text() for axes in figure.axes for text in axes.texts]
    return " ".join(" ".join([*found, *(text.get_text() for text in figure.texts)]).split())


def data(axes: Axes, label: str) -> dict[float, float]:
    (found,) = (one for one in axes.lines if one.get_label() == label)
    x, y = (np.asarray(one).tolist() for one in found.get_data())
    return dict(zip(x, y, strict=True))


# Context gain


def gain_chart(*paths: Path) -> Chart:
    return there(gains(gathered(*paths).findings))


def test_the_gain_is_the_loss_at_T_minus_that_at_each_length(runs: Runs) -> None:
    axes = laid_out(gain_chart(runs.write("rope"))).axes[0]
    want = {n: LOSSES[0] - loss for n, loss in zip(LENGTHS, LOSSES, strict=True)}
    assert data(axes, "rope") == pytest.approx(want)


def test_the_gain_is_0_at_T_without_an_interval(runs: Runs) -> None:
    (line,) = gain_chart(runs.write("rope"), runs.write("rope", (3, 2, 2, 2), seed=2)).lines
    assert (line.values[512], line.low[512], line.high[512]) == (0.0, 0.0, 0.0)
    assert line.low[1024] < line.values[1024] < line.high[1024]


def test_a_zone_of_a_hundredth_of_a_nat_lies_around_0(runs: Runs) -> None:
    axes = laid_out(gain_chart(runs.write("rope"))).axes[0]
    (zone,) = axes.patches
    extent = zone.get_path().get_extents(zone.get_patch_transform())
    assert (extent.y0, extent.y1) == pytest.approx((-0.01, 0.01))


def test_the_axis_of_gains_is_linear_in_the_zone_and_logarithmic_beyond(runs: Runs) -> None:
    axes = laid_out(gain_chart(runs.write("rope"))).axes[0]
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [to_axes.transform((512, y))[1] for y in (-1, -0.1, -0.01, 0, 0.01, 0.1)]
    steps = np.diff(heights)
    assert steps[0] == pytest.approx(steps[1], rel=0.05)
    assert steps[2] == pytest.approx(steps[3])
    assert steps[1] == pytest.approx(steps[4], rel=0.05)


def test_without_a_loss_at_T_there_is_no_chart_of_gains(runs: Runs) -> None:
    path = runs.write("rope", (3.0, 3.0), lengths=(1024, 2048))
    assert gains(gathered(path).findings) is None


# Positions


def by_position(
    *seeds: Callable[[int], float], train_length: int = 8, length: int = 64, **changes: Any
) -> Series:
    """A series whose seeds have a loss at each position, of two documents of unequal weight."""
    return of_rows(
        {**one, "run": f"r{seed}", "seed": seed, **changes}
        for seed, loss in enumerate(seeds)
        for one in position_rows(loss, train_length=train_length, length=length)
    )


def position_rows(loss: Callable[[int], float], *, train_length: int, length: int) -> list[Row]:
    edges = position_bins(train_length, length).tolist()
    bins = [range(a + 1, b + 1) for a, b in itertools.pairwise([0, *edges])]
    return [
        row(
            **{"protocol": "per_position", "train_length": train_length, "length": length},
            **{"targets": None, "document": document},
            **{"position_nats": [weight * sum(map(loss, positions)) for positions in bins]},
            **{"position_tokens": [weight * len(positions) for positions in bins]},
        )
        for document, weight in (("a", 1), ("b", 3))
    ]


def of_rows(rows: Iterable[Row]) -> Series:
    return Series(label="rope", points=tuple(curve(rows)))


def flat(_position: int) -> float:
    return 1.0


def test_a_bin_holds_the_mean_over_its_positions_and_ends_at_its_key() -> None:
    found = position_losses(by_position(math.sqrt))
    ends = [0, *map(int, found)]
    for low, high in itertools.pairwise(ends):
        want = sum(math.sqrt(i) for i in range(low + 1, high + 1)) / (high - low)
        assert found[high] == pytest.approx(want)
    assert ends[-1] == 64


def test_a_bin_is_a_quarter_of_an_octave_and_T_ends_one() -> None:
    found = position_losses(by_position(math.sqrt, train_length=32, length=1024))
    beyond = [n for n in found if n >= 32]
    assert beyond == [math.floor(32 * 2 ** (k / 4)) for k in range(21)]


def test_the_curve_of_positions_is_the_mean_over_seeds() -> None:
    found = position_losses(by_position(flat, lambda i: 3.0 + 0 * i))
    assert list(found.values()) == pytest.approx([2.0] * len(found))


def test_documents_count_by_their_tokens() -> None:
    light, heavy = position_rows(flat, train_length=8, length=64)
    heavy["position_nats"] = [5 * nats for nats in heavy["position_nats"]]
    found = position_losses(of_rows([light, heavy]))
    assert list(found.values()) == pytest.approx([4.0] * len(found))  # (1 + 3 x 5) / 4


def test_a_seed_that_diverged_leaves_no_curve_of_positions() -> None:
    rows = position_rows(flat, train_length=8, length=64)
    broken = [{**one, "seed": 2, "run": "x", "nats": None, "position_nats": None} for one in rows]
    assert position_losses(of_rows(rows))
    assert position_losses(of_rows([*rows, *broken])) == {}


def test_the_longest_window_that_all_seeds_have_is_taken() -> None:
    rows = position_rows(flat, train_length=8, length=64)
    longer = position_rows(flat, train_length=8, length=128)
    other = [{**one, "seed": 2, "run": "x"} for one in rows]
    assert max(position_losses(of_rows([*rows, *longer]))) == 128
    assert max(position_losses(of_rows([*rows, *longer, *other]))) == 64


def test_sums_of_other_bins_are_refused_with_the_run() -> None:
    rows = position_rows(flat, train_length=128, length=1024)
    line = of_rows({**one, "train_length": 512, "run": "r0"} for one in rows)
    with pytest.raises(UserError, match=r"of r0: position_nats .* does not hold \d+ numbers; del"):
        position_losses(line)


def test_the_chart_of_positions_begins_at_a_32nd_of_T_and_marks_T() -> None:
    chart = there(positions([by_position(math.sqrt, train_length=128, length=1024)]))
    assert min(chart.lines[0].values) == 4
    assert list(chart.trained) == [128]
    assert list(chart.ticks) == [4, 8, 16, 32, 64, 128, 256, 512, 1024]


def test_positions_of_a_line_that_fails_leave_the_axis() -> None:
    rows = position_rows(flat, train_length=128, length=1024)
    worse = position_rows(lambda i: 1.0 + i / 100, train_length=128, length=1024)
    good = [Series(label=name, points=of_rows(rows).points) for name in "abc"]
    bad = Series(label="bad", points=of_rows(worse).points)
    chart = there(positions([*good, bad]))
    assert laid_out(chart).axes[0].get_ylim()[1] == pytest.approx(1 + math.log(8), rel=0.2)
    assert chart.lines[0].end.startswith("bad: 10.")


def test_rows_without_positions_make_no_chart() -> None:
    assert positions([by_position(flat, position_nats=None)]) is None


# Ratios beside published ones


AS_PRESS = "alibi_nonoverlap"  # the protocol of Press et al.'s Table 2


def paper(scheme: str, protocol: str = AS_PRESS) -> PublishedCurve:
    return next(
        a
        for a in reference_results.published_curves()
        if (a.scheme, a.protocol) == (scheme, protocol)
    )


def ratio_chart(paths: Sequence[Path], published_curves: Sequence[PublishedCurve]) -> Chart | None:
    return ratios(gathered(*paths).by_protocol[AS_PRESS], published_curves)


def as_press(runs: Runs, scheme: str, *losses: float, **changes: Any) -> Path:
    return runs.write(scheme, losses or LOSSES, protocol=AS_PRESS, targets=None, **changes)


def test_ratios_are_over_the_perplexity_at_T_by_multiples_of_T(runs: Runs) -> None:
    chart = there(ratio_chart([as_press(runs, "rope")], [paper("rope")]))
    want = {n / 512: math.exp(x - LOSSES[0]) for n, x in zip(LENGTHS, LOSSES, strict=True)}
    assert chart.lines[0].values == pytest.approx(want)


def test_a_ratio_is_of_the_mean_loss_and_each_seeds_is_drawn(runs: Runs) -> None:
    paths = [as_press(runs, "rope"), as_press(runs, "rope", 3.0, 2.0, 2.0, 2.0, seed=2)]
    (line,) = there(ratio_chart(paths, [paper("rope")])).lines
    assert line.values[2.0] == pytest.approx(math.exp((2.5 + 2.0) / 2 - 3.0))
    assert [seed[2.0] for seed in line.seeds] == pytest.approx([math.exp(-0.5), math.exp(-1.0)])


@pytest.mark.slow
def test_a_published_curve_of_another_protocol_is_in_no_figure(runs: Runs, tmp_path: Path) -> None:
    published_curves = [
        paper("alibi", "nope_f"),
        paper("alibi", "alibi_sliding1"),
    ]
    assert ratio_chart([as_press(runs, "alibi")], published_curves) is None
    chart = there(ratio_chart([as_press(runs, "alibi")], [*published_curves, paper("alibi")]))
    assert [one.label.split("; ")[1] for one in chart.behind] == ["alibi_nonoverlap, T=512"]
    tail = gathered(runs.write("rope"))
    assert not [name for name in pictures.draw_text(tail) if "ratios" in name]  # none is of tail
    both = gathered(as_press(runs, "rope"), runs.write("rope"))
    drawn = [name for name in pictures.draw_text(both) if "ratios" in name]
    assert drawn == ["ratios-alibi_nonoverlap.png", "ratios-alibi_nonoverlap.svg"]


def test_without_a_loss_at_T_a_series_has_no_ratio(runs: Runs) -> None:
    paths = [as_press(runs, "rope", lengths=(1024, 2048)), as_press(runs, "alibi")]
    (line,) = there(ratio_chart(paths, [paper("rope"), paper("alibi")])).lines
    assert line.name == "alibi"


def test_published_curves_of_schemes_that_are_shown_are_grey_with_a_letter(runs: Runs) -> None:
    published_curves = [paper("rope"), paper("alibi"), paper("t5")]
    paths = [as_press(runs, name) for name in ("rope", "alibi", "bam")]
    chart = there(ratio_chart(paths, published_curves))
    assert {line.name for line in chart.lines} == {"alibi", "rope", "bam"}
    figure = laid_out(chart)
    axes = figure.axes[0]
    grey = [np.asarray(one.get_ydata()).tolist() for one in axes.lines if one.get_color() == "0.72"]
    assert grey == [[*a.ratios().values()] for a in published_curves[:2]]
    assert {" a", " b"} <= {text.get_text() for text in axes.texts}
    assert "b alibi; alibi_nonoverlap, T=512; 247M on wikitext-103" in texts(figure)


def test_without_published_curves_of_its_schemes_there_is_no_chart(runs: Runs) -> None:
    assert ratio_chart([as_press(runs, "bam")], [paper("rope")]) is None


def test_variants_have_a_ratio_and_references_have_none(runs: Runs) -> None:
    path = as_press(runs, "rope")
    for variant in ("window", "yarn"):
        as_press(runs, "rope", variant=variant)
    config = path / "config.yaml"
    config.write_text(config.read_text() + "eval: {reference_variants: [window]}\n")
    chart = there(ratio_chart([path], [paper("rope")]))
    assert {line.name for line in chart.lines} == {"rope", "rope + yarn"}


def test_published_curves_are_named_behind_small_axes_as_well(runs: Runs) -> None:
    names = ("rope", *map("scheme{}".format, range(MOST_NAMED)))
    figure = laid_out(there(ratio_chart([as_press(runs, one) for one in names], [paper("rope")])))
    assert "a rope; alibi_nonoverlap" in texts(figure)
    for axes in (axes for axes in figure.axes if axes.axison):
        assert " a" in {text.get_text() for text in axes.texts}


# Many lines, and panels


def curves(*paths: Path) -> Chart:
    found = gathered(*paths)
    return perplexities(found.by_protocol["tail"], found.findings)


def test_more_lines_than_can_be_named_have_axes_of_their_own(runs: Runs) -> None:
    names = [f"scheme{i}" for i in range(MOST_NAMED + 1)]
    figure = laid_out(curves(*(runs.write(name) for name in names)))
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.axison]
    assert sorted(titles) == sorted(names)


def test_small_axes_stand_in_the_order_of_the_table_the_best_first(runs: Runs) -> None:
    ends = [5.0, 3.0, 9.0, 4.0, 8.0, 2.5, 7.0, 6.0, 3.5]
    paths = [runs.write(f"scheme{i}", (3.0, 2.0, 2.5, end)) for i, end in enumerate(ends)]
    found = gathered(*paths)
    wanted = [f"scheme{i}" for i in sorted(range(len(ends)), key=lambda i: ends[i])]
    for chart in (perplexities(found.by_protocol["tail"], found.findings), gains(found.findings)):
        figure = laid_out(there(chart))
        titles = [axes.get_title(loc="left") for axes in figure.axes if axes.axison]
        assert [title.partition(":")[0] for title in titles] == wanted


def test_small_axes_show_one_line_in_front_of_all_the_others(runs: Runs) -> None:
    names = [f"scheme{i}" for i in range(MOST_NAMED + 1)]
    figure = laid_out(curves(*(runs.write(name) for name in names)))
    for axes in (axes for axes in figure.axes if axes.axison):
        own = [one for one in axes.lines if one.get_label() in names]
        assert [one.get_label() for one in own] == [axes.get_title(loc="left")]
        assert sum(one.get_color() == "0.85" for one in axes.lines) == len(names)


def test_small_axes_show_the_references_of_their_own_checkpoints(runs: Runs) -> None:
    paths = [runs.write(f"scheme{i}") for i in range(MOST_NAMED + 1)]
    longer = runs.write("scheme0", suffix="1b1b1b1b", train_length=1024)
    with (longer / "config.yaml").open("a") as file:
        file.write("train: {length: 1024}\n")
    paths.append(longer)
    for path, scheme in ((paths[0], "scheme0"), (paths[1], "scheme1")):
        runs.write(scheme, variant="window")
        config = path / "config.yaml"
        config.write_text(config.read_text() + "eval: {reference_variants: [window]}\n")
    shown: dict[str, set[str]] = {
        axes.get_title(loc="left"): {
            label for line in axes.lines if "window" in (label := str(line.get_label()))
        }
        for axes in laid_out(curves(*paths)).axes
    }
    assert shown["scheme0 (T=512)"] == {"scheme0 + window (T=512)"}
    assert shown["scheme1 (T=512)"] == {"scheme1 + window (T=512)"}
    assert shown["scheme0 (T=1024)"] == shown["scheme2 (T=512)"] == set()


@pytest.mark.parametrize(
    ("seeds", "phrase"),
    [
        ({"rope": 1, "alibi": 2}, "mean of 1 to 2 seeds"),
        ({"rope": 2, "alibi": 2}, "mean of 2 seeds"),
    ],
)
def test_a_figure_says_of_how_many_seeds_its_lines_are(
    runs: Runs, seeds: dict[str, int], phrase: str
) -> None:
    paths = [runs.write(name, seed=n + 1) for name, count in seeds.items() for n in range(count)]
    assert phrase in curves(*paths).notes


def overview(runs: Runs, n: int) -> dict[str, bytes]:
    paths = [
        runs.write(f"scheme{i}", (3.0, 2.0, 2.5, 2.0 + i), seed=seed)
        for i in range(n)
        for seed in (1, 2)
    ]
    return pictures.overview(gathered(*paths))


def test_series_that_fit_one_chart_need_no_overview_and_more_have_one(runs: Runs) -> None:
    assert overview(runs, MOST_NAMED) == {}
    more = overview(Runs(runs.root / "more"), MOST_NAMED + 1)
    assert [*more] == ["excess.png", "excess.svg", "ranking.png", "ranking.svg"]


def test_a_cell_of_the_heat_map_is_the_loss_less_the_least_at_T(runs: Runs) -> None:
    found = gathered(
        runs.write("rope", (3.0, 4.5), lengths=(512, 1024)),
        runs.write("alibi", (3.5, 3.25), lengths=(512, 1024)),
        runs.write("nope", (4.0,), lengths=(512,)),
    )
    figure = excess(found.by_protocol["tail"])
    assert figure is not None
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["alibi", "rope", "nope"]
    shown = [text.get_text() for text in axes.texts]
    assert shown == ["+0.50", "+0.25", "+0.00", "+1.50", "+1.00"]
    assert excess([]) is None


def test_the_ranking_has_a_dot_with_its_interval_and_ranks_for_each_series(runs: Runs) -> None:
    paths = [
        runs.write(name, (3.0, last + noise * seed), lengths=(512, 1024), seed=seed)
        for name, last, noise in (("rope", 5.0, 0.01), ("alibi", 3.0, 0.02))
        for seed in (1, 2, 3)
    ]
    found = gathered(*paths)
    figure = ranking(found.findings)
    assert figure is not None
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["alibi", "rope"]
    assert [text.get_text() for text in axes.texts] == ["1", "2"]
    assert axes.get_ylim() == (1.5, -0.5)  # the least loss at the top
    series = {line.label: line for line in found.by_protocol["tail"]}
    apart = difference(series["rope"], series["alibi"], 1024)
    assert apart is not None
    assert apart.value == pytest.approx(1.98)
    assert apart.low < apart.value < apart.high
    rows = [
        (np.asarray(line.get_xdata()).tolist(), line.get_markerfacecolor() == "white")
        for line in axes.lines
        if np.asarray(line.get_ydata()).tolist() in ([1], [1, 1])
    ]
    at_T = pytest.approx(3.0 - 3.04)  # less the best's loss at 1,024
    assert rows == [([apart.low, apart.high], False), ([apart.value], False), ([at_T], True)]
    assert ranking(found.findings[:1]) is None


def test_bars_of_one_seed_are_dashed_where_others_have_several(runs: Runs) -> None:
    paths = [
        runs.write(name, (3.0, last), lengths=(512, 1024), seed=seed)
        for name, seeds, last in (("rope", (1, 2), 5.0), ("alibi", (1, 2), 3.0), ("t5", (1,), 4.0))
        for seed in seeds
    ]
    note = "dashed: one seed, over documents alone"
    for given, dashed in ((paths, ["--"]), (paths[:-1], [])):
        figure = ranking(gathered(*given).findings)
        assert figure is not None
        (axes,) = figure.axes
        bars = [line for line in axes.lines if len({*np.asarray(line.get_ydata()).tolist()}) == 1]
        kinds = [bar.get_linestyle() for bar in bars if len(np.asarray(bar.get_xdata())) == 2]
        assert [kind for kind in kinds if kind != "-"] == dashed
        assert (note in " ".join(figure.get_suptitle().split())) == bool(dashed)


def test_series_of_other_seeds_are_ranked_by_what_they_share_with_the_best(runs: Runs) -> None:
    """The one seed of nope is an easy one: its mean is below that of alibi, with two seeds."""
    paths = [
        runs.write(name, (3.0, last), lengths=(512, 1024), seed=seed)
        for name, losses in (("alibi", (2.0, 3.0)), ("rope", (4.0, 5.0)), ("nope", (2.1,)))
        for seed, last in enumerate(losses, start=1)
    ]
    figure = ranking(gathered(*paths).findings)
    assert figure is not None
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["alibi", "nope", "rope"]


def test_a_diverged_series_stands_last_in_the_ranking_without_a_dot(runs: Runs) -> None:
    runs.write("rope", (3.0,), lengths=(512,))
    found = gathered(
        runs.write("rope", (3.0,), lengths=(1024,), nats=None),
        runs.write("alibi", (3.5, 3.25), lengths=(512, 1024)),
        runs.write("nope", (4.0, 4.5), lengths=(512, 1024)),
    )
    figure = ranking(found.findings)
    assert figure is not None
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["alibi", "nope", "rope"]
    drawn = {float(y) for line in axes.lines[:-1] for y in np.asarray(line.get_ydata())}
    assert drawn == {0, 1}
    assert ranking([one for one in found.findings if one.series.label == "rope"] * 2) is None


@pytest.mark.parametrize(("seeds", "over"), [((1,), "documents"), ((1, 2), "seeds and documents")])
def test_captions_say_what_the_intervals_are_over(
    runs: Runs, seeds: tuple[int, ...], over: str
) -> None:
    found = gathered(
        *(
            runs.write(name, (3.0, 3.0 + 0.01 * seed), lengths=(512, 1024), seed=seed)
            for name in ("rope", "alibi")
            for seed in seeds
        )
    )
    figure = ranking(found.findings)
    assert figure is not None
    assert f"bar: 95% over {over}, paired; hollow" in " ".join(figure.get_suptitle().split())
    captions = {chart.name: chart.caption for chart in charts(found)}
    for name in ("perplexity", "gain", "ratios"):
        assert f"the 95% interval over {over}." in captions[name]


def test_small_axes_have_one_scale(runs: Runs) -> None:
    paths = [runs.write(f"scheme{i}", (3.0, 2.0, 2.5, 2.0 + i)) for i in range(MOST_NAMED + 1)]
    figure = laid_out(curves(*paths))
    assert len({axes.get_ylim() for axes in figure.axes if axes.axison}) == 1


def test_as_many_lines_as_can_be_named_share_their_axes(runs: Runs) -> None:
    figure = laid_out(curves(*(runs.write(f"scheme{i}") for i in range(MOST_NAMED))))
    assert len(figure.axes) == 1


def test_names_of_many_lines_and_a_long_title_lie_within_the_figure(runs: Runs) -> None:
    names = [f"a_long_name_of_a_scheme_{i}" for i in range(MOST_NAMED - 1)]
    names.append("longer_" * 20)
    figure = laid_out(curves(*(runs.write(name) for name in names)))
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    around = axes.get_tightbbox()
    assert around is not None
    title = [one.get_window_extent() for one in figure.texts if one.get_text()]
    parts = [legend.get_window_extent(), around, *title]
    for part in parts:
        assert figure.bbox.x0 <= part.x0 < part.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= part.y0 < part.y1 <= figure.bbox.y1
    assert not any(a.overlaps(b) for i, a in enumerate(parts) for b in parts[:i])
    assert axes.get_window_extent().width > figure.bbox.width / 2


def test_panels_show_each_chart_and_one_legend(runs: Runs) -> None:
    found = gathered(runs.write("rope"), runs.write("alibi"))
    charts = [curves(*runs.root.iterdir()), there(gains(found.findings))]
    figure = panels(charts)
    assert [axes.get_ylabel() for axes in figure.axes] == ["perplexity", "G(C), nats per token"]
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"rope", "alibi"}
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title[:16] for title in titles] == ["(a) matched tail", "(b) context gain"]
    assert rendered(figure, "png")


def test_panels_say_once_what_all_are_about_and_each_its_own_else(runs: Runs) -> None:
    found = gathered(runs.write("rope"))
    charts = [perplexities(found.by_protocol["tail"], []), there(gains(found.findings))]
    about = charts[0].about
    assert about == "corpus toy, model tiny, fp32"
    shown = panels(charts)
    assert shown.get_suptitle().startswith(about)
    assert not any("corpus" in axes.get_title(loc="left") for axes in shown.axes)
    apart = panels([charts[0], replace(charts[1], about="corpus other")])
    assert "corpus" not in apart.get_suptitle()
    titles = [axes.get_title(loc="left") for axes in apart.axes]
    assert ["corpus toy" in titles[0], "corpus other" in titles[1]] == [True, True]
    assert about in " ".join(laid_out(charts[0]).get_suptitle().split())


def test_a_line_that_diverged_in_one_seed_is_drawn_up_to_there(runs: Runs) -> None:
    path = runs.write("rope", (3.0, 2.5))
    lines = (path / "eval.jsonl").read_text().splitlines()
    broken = [json.loads(text) for text in lines if '"length": 1024' in text]
    kept = [text for text in lines if '"length": 1024' not in text]
    broken = [json.dumps({**r, "nats": None, "window_nats": None}) for r in broken]
    (path / "eval.jsonl").write_text("".join(f"{text}\n" for text in [*kept, *broken]))
    figure = laid_out(curves(path))
    assert list(data(figure.axes[0], "rope")) == [512]
