"""The numbers of the gallery are those of independent formulas."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest

from lengthgen.report import gallery
from lengthgen.report.figures.gallery import Panel, draw


def curves(panel: Panel) -> dict[str, list[float]]:
    return {name: [*values] for name, values in panel.curves.items()}


def near(want: Sequence[float] | np.ndarray) -> object:
    return pytest.approx(np.asarray(want), rel=1e-6, abs=1e-9, nan_ok=True)


def omega(base: float) -> np.ndarray:
    return base ** (-np.arange(32) / 32)


def test_the_decay_of_rope_is_the_mean_partial_sum_of_roformer() -> None:
    bound, logit = gallery.rope_decay()[1]
    distances = np.arange(251)[:, None]
    for base in (100.0, 1e4, 5e5):
        w = omega(base)
        sums = [np.abs(np.exp(1j * distances * w[:j]).sum(-1)) for j in range(1, 33)]
        name = f"base {base:,.0f}"
        assert curves(bound)[name] == near(np.mean(sums, axis=0))
        assert curves(logit)[name] == near(np.cos(distances * w).mean(-1))


def test_wavelengths_are_those_of_the_published_scalings_at_32_T() -> None:
    title, (lengths, speeds) = gallery.rope_wavelengths()
    w, m, s = omega(1e4), np.arange(32), 32
    low, high = (64 * math.log(512 / (n * 2 * math.pi)) / (2 * math.log(1e4)) for n in (32, 1))
    ramp = np.clip((m - math.floor(low)) / (math.ceil(high) - math.floor(low)), 0, 1)
    ntk = (1e4 * s ** (64 / 62)) ** (-m / 32)
    want = {"RoPE": w, "PI": w / s, "NTK-aware": ntk, "YaRN": w * (1 - ramp) + w / s * ramp}
    for name, angles in want.items():
        assert curves(lengths)[name] == near(2 * math.pi / angles)
        assert curves(speeds)[name] == near(angles / w)
    assert title.startswith(f"RoPE: {sum(2 * math.pi / w > 512)} of 32 channel pairs")
    assert [*lengths.levels.values()] == [512, 16384]


def test_sinusoids_are_sines_and_cosines_and_their_products_sums_of_cosines() -> None:
    heat, products = gallery.sinusoids()[1]
    for p, row in enumerate(curves(heat).values()):
        angles = p * 1e4 ** (-np.arange(64) / 64)
        assert row == near(np.stack([np.sin(angles), np.cos(angles)], -1).ravel())
    distances = products.first + np.arange(501)[:, None]
    for width in (512, 128):
        w = 1e4 ** (-np.arange(0, width, 2) / width)
        assert curves(products)[f"{width} channels"] == near(np.cos(distances * w).mean(-1))


def test_buckets_of_t5_are_those_of_its_release() -> None:
    buckets, biases = gallery.t5_buckets()[1]
    exact, distances = 16, np.arange(1, 512)
    wide = exact + (np.log(distances / exact) / np.log(128 / exact) * 16 + 1e-9).astype(int)
    want = np.where(distances < exact, distances, np.minimum(wide, 31))
    assert curves(buckets)[""] == want.tolist()
    given, random = curves(biases).values()
    assert given == near(-0.01 * want)
    assert len(set(random)) == 31
    assert np.std(sorted(set(random))) == pytest.approx(0.02, rel=0.5)


def test_slopes_and_biases_of_alibi_are_those_of_the_paper() -> None:
    slopes, biases = gallery.alibi()[1]
    assert curves(slopes)["8 heads"] == near([2.0**-h for h in range(1, 9)])
    assert curves(slopes)["16 heads"] == near([2 ** (-h / 2) for h in range(1, 17)])
    assert curves(slopes)["12 heads"][8:] == near([2 ** (-h / 2) for h in (1, 3, 5, 7)])
    for h, values in enumerate(curves(biases).values(), start=1):
        assert values == near(-np.arange(512) * 2.0**-h)


def test_the_window_of_alibi_holds_the_geometric_weights_of_its_slopes() -> None:
    weights, shares = gallery.alibi_window()[1]
    names = [*shares.curves]
    for h in range(1, 9):
        of_keys = np.exp(-np.arange(2048) * 2.0**-h)
        of_keys /= of_keys.sum()
        shown = np.where(of_keys >= 1e-6, of_keys, np.nan)[1:]
        assert curves(weights)[f"head {h}"] == near(shown)
        assert curves(shares)[names[h - 1]] == near(of_keys.cumsum())
        assert names[h - 1] == f"head {h}: {int((of_keys.cumsum() < 0.99).sum()) + 1:,}"


def test_the_curves_of_kerple_are_its_two_formulas() -> None:
    log, power = gallery.kerple()[1]
    d = np.arange(512)
    for name in log.curves:
        r1, r2 = map(float, re.findall(r"[\d.]+", re.sub(r"r[12]", "", name)))
        assert curves(log)[name] == near(-r1 * np.log(1 + r2 * d))
        want = -r1 * d.astype(float) ** r2
        assert curves(power)[name] == near(np.where(want >= -20, want, np.nan))


def test_a_panel_is_drawn_with_its_numbers_axes_and_marks() -> None:
    panel = Panel(title="(a)", first=1, curves={"f": [1.0, 2.0], "g": [3.0, 4.0]}, marks={"T": 2})
    [axes] = draw([panel], title="a title").axes
    assert [line.get_label() for line in axes.lines[:2]] == ["f", "g"]
    assert np.asarray(axes.lines[1].get_xydata()).tolist() == [[1, 3], [2, 4]]
    assert [text.get_text() for text in axes.texts] == ["T"]


def test_a_point_of_a_training_curve_is_the_mean_of_a_quarter_octave() -> None:
    steps = [(64, 4.0), (70, 2.0), (80, 1.0), (128, 0.5)]
    rows = [{"train/tokens": tokens, "train/loss": loss} for tokens, loss in steps]
    assert gallery.by_quarter_octave(rows) == {70: 3.0, 80: 1.0, 128: 0.5}
