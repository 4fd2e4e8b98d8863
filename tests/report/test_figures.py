# pyright: basic, reportArgumentType=false, reportIndexIssue=false
"""Figures: what they hold, that names stand apart, and that the same rows give the same bytes."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from lengthgen.report import figures
from lengthgen.report.style import MAX_LINES

Draw = Callable[[pd.DataFrame], Figure | None]
FLAT = [20.0, 18.0, 16.0, 16.0, 16.0]  # perplexity at LENGTHS
STEEP = [20.0, 18.0, 16.0, 90.0, 400.0]
LENGTHS = (128, 256, 512, 1024, 4096)


def findings_of(perplexities: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """Returns the losses of series at LENGTHS; the name of one begins with its scheme's."""
    rows = [
        _finding(name, "loss", length, math.log(ppl))
        for name, values in perplexities.items()
        for length, ppl in zip(LENGTHS, values, strict=False)
    ]
    return pd.DataFrame(rows)


def gains_of(names: Sequence[str]) -> pd.DataFrame:
    """Returns gains of -0.2 at the lengths beyond 512."""
    shown = {"low": -0.22, "high": -0.18, "word": "harmed"}
    rows = [_finding(name, "gain", n, -0.2, **shown) for name in names for n in LENGTHS[3:]]
    return pd.DataFrame(rows)


def _finding(name: str, quantity: str, length: int, value: float, **columns: Any) -> dict[str, Any]:
    scheme, _, variant = name.partition(" + ")
    return {
        **{"series": name, "scheme": scheme.partition(" ")[0], "variant": variant or None},
        **{"reference": False, "train_length": 512, "n_seeds": 1, "protocol": "tail"},
        **{"quantity": quantity, "length": length, "value": value},
        **{"low": math.nan, "high": math.nan, "word": "", "mark": "", **columns},
    }


def drawn(draw: Draw, findings: pd.DataFrame) -> Figure:
    figure = draw(findings)
    assert figure is not None
    figure.draw_without_rendering()
    return figure


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.axison]


def names(axes: Axes) -> list[Text]:
    """The names at the ends of lines."""
    return [t for t in axes.texts if t.get_transform() is axes.transAxes and t.get_text()]


CLASSIC = ["alibi", "kerple", "nope", "rope", "sinusoidal", "t5"]


@pytest.mark.parametrize("draw", [figures.curve, figures.gain])
def test_lines_that_end_alike_are_named_once_apart_and_in_the_figure(draw: Draw) -> None:
    findings = pd.concat([findings_of(dict.fromkeys(CLASSIC, FLAT)), gains_of(CLASSIC)])
    figure = drawn(draw, findings)
    (axes,) = panels(figure)
    assert sorted(text.get_text() for text in names(axes)) == CLASSIC
    boxes = sorted((text.get_window_extent() for text in names(axes)), key=lambda box: box.y0)
    assert all(below.y1 < above.y0 + 3 for below, above in itertools.pairwise(boxes))
    assert all(box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)


def test_long_names_lie_within_the_figure_and_leave_the_next_panel_free() -> None:
    keys = "scheme.parts.yarn.beta_slow=1, scheme.parts.yarn.factor=4"
    long = [f"rope_yarn (scheme.parts.yarn.beta_fast={n}, {keys})" for n in "12"]
    two = [findings_of(dict.fromkeys(long, FLAT)).assign(train_length=T) for T in (512, 1024)]
    figure = drawn(figures.curve, pd.concat(two))
    left, right = panels(figure)
    for axes, end in ((left, right.get_window_extent().x0), (right, figure.bbox.x1)):
        assert [text.get_text() for text in names(axes)] == long
        assert all(text.get_window_extent().x1 <= end for text in names(axes))


def test_a_line_goes_through_its_perplexities_and_says_where_it_ends_early() -> None:
    findings = findings_of({"rope": STEEP, "learned": FLAT[:3]})
    (axes,) = panels(drawn(figures.curve, findings))
    assert {text.get_text() for text in names(axes)} == {"rope", "learned (to 512)"}
    line = next(line for line in axes.lines if len(line.get_xdata()) == len(LENGTHS))
    assert np.allclose(line.get_xdata(), LENGTHS)
    assert np.allclose(line.get_ydata(), STEEP)


def test_of_many_series_the_answer_comes_first_and_all_figures_have_the_order_of_the_tables() -> (
    None
):
    order = [f"s{n}" for n in (3, 11, 0, 7, 1, 10, 2, 9, 5, 4, 8, 6)]
    findings = findings_of({name: [*FLAT[:4], 20.0 + n] for n, name in enumerate(order)})
    of_all = {"colours": dict.fromkeys(order, "#000000")}
    T = dict.fromkeys(order, 512)
    overview = figures.dots(findings, T, 4096, **of_all)
    assert overview is not None
    (axes,) = overview.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == order
    assert [text.get_text() for text in axes.texts] == [f"{20 + n:.2f}" for n in range(12)]
    (axes,) = panels(drawn(partial(figures.curve, **of_all), findings))
    ends = sorted(names(axes), key=lambda text: text.get_position()[1])
    assert [text.get_text() for text in ends] == order[:MAX_LINES]
    assert len([line for line in axes.lines if len(line.get_xdata()) == len(LENGTHS)]) == 12
    small = drawn(partial(figures.curve, each=True, **of_all), findings)
    assert [axes.get_title(loc="left") for axes in panels(small)] == order
    few = findings[findings["series"].isin(order[:MAX_LINES])]
    assert figures.dots(few, T, 4096, **of_all) is None
    assert figures.curve(few, each=True) is None


def test_a_model_that_reads_the_last_T_tokens_keeps_its_loss_at_T() -> None:
    crop = figures.cropped(findings_of({"rope": STEEP, "untrained at T": FLAT[:2]}))
    assert dict(zip(crop["length"], np.exp(crop["value"]), strict=True)) == pytest.approx(
        dict.fromkeys([512, 1024, 4096], STEEP[2])
    )
    of_variant = findings_of({"rope": STEEP, "rope + yarn": FLAT})
    crop = figures.cropped(of_variant, {"rope + yarn": "rope"})  # that of the model without it
    assert np.exp(crop["value"]).tolist() == pytest.approx([STEEP[2]] * 6)


def test_a_gain_at_T_is_0_without_a_variant_and_what_was_measured_with_one() -> None:
    names = ["rope", "rope + yarn", "rope + ntk"]
    at_T = pd.DataFrame([_finding("rope + yarn", "gain", 512, -0.7)])
    assert figures.gain(at_T) is None
    (axes,) = panels(drawn(figures.gain, pd.concat([gains_of(names), at_T])))
    starts = {(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines[:3]}
    assert starts == {(512, 0.0), (512, -0.7), (1024, -0.2)}


def test_an_infinite_loss_does_not_set_the_axis() -> None:
    findings = findings_of({"rope": [*FLAT[:4], math.inf], "alibi": FLAT})
    (axes,) = panels(drawn(figures.curve, findings))
    assert axes.get_ylim()[1] < 30


def test_a_loss_by_position_is_the_mean_over_documents_and_seeds() -> None:
    edges = figures.position_bins(64, 256)
    rows = [
        {
            **{"series": "rope", "scheme": "rope", "variant": None, "reference": False},
            **{"train_length": 64, "length": 256, "run": f"run{seed}"},
            "position_nats": [loss] * len(edges),
            "position_tokens": [1] * len(edges),
        }
        for seed, losses in enumerate([(2.0, 4.0), (5.0, 5.0)])
        for loss in losses
    ]
    (axes,) = panels(drawn(figures.positions, pd.DataFrame(rows)))
    curve = max(axes.lines, key=lambda line: len(line.get_xdata()))
    assert np.allclose(curve.get_ydata(), 4.0)
    assert curve.get_xdata()[-1] == 256
