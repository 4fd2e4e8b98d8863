"""Draws the figures of the documentation: results/NAME/rows.parquet -> docs/figures/NAME.svg.

python docs/figures.py [NAME ...]
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from lengthgen.context import lengths as use
from lengthgen.report import figures, over_training, style
from lengthgen.report.load import load_rows
from lengthgen.report.series import select
from lengthgen.report.statistics import findings
from lengthgen.report.statistics import over_training as known_over_training
from lengthgen.tasks import report as tasks

ROOT = Path(__file__).parents[1]
NAMES = {
    **{"alibi": "ALiBi", "kerple": "KERPLE", "nope": "NoPE", "rope": "RoPE", "t5": "T5"},
    "sinusoidal": "sinusoidal",
}


def study(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the comparable rows of a committed study, and its findings on the matched tail."""
    rows = select(load_rows([ROOT / "results" / name]))[0].rows
    found = findings(rows)
    return rows, found[(found["protocol"] == "tail") & ~found["reference"]]


def hero() -> Figure | None:
    """Draws the plain schemes that use all of T, by the rule of docs/results/plain.md."""
    found = study("plain")[1]
    found = found[found["variant"].isna()].assign(series=lambda rows: rows["scheme"].map(NAMES))
    c_star = found[(found["quantity"] == "c_star") & (found["value"] == found["train_length"])]
    found = found[found["series"].isin(c_star["series"])]
    crop = figures.cropped(found[found["scheme"] == "rope"])
    crop = crop.assign(series="RoPE, last 512 tokens", reference=False)
    title = "Trained on 512 tokens: KERPLE gains, RoPE and ALiBi are harmed"
    return figures.curve(pd.concat([found, crop]), title=title, width=6.0)  # legible on a phone


def budget() -> Figure | None:
    """Draws the gains of plain schemes beyond T over training tokens, of their kept checkpoints."""
    selection = select(load_rows([ROOT / "results" / "plain"], checkpoints=True))[0]
    shown = over_training.training_points(known_over_training(selection))
    several = shown.groupby(["length", "series"])["tokens"].transform("nunique") > 1
    return over_training.gains(shown[several])


@style.styled()
def smollm2(lengths: tuple[int, ...] = (12288, 16384, 32768), most: float = 1.3) -> Figure:
    """Draws the perplexity of the model as it is, and its loss under variants by length."""
    found = study("smollm2")[1]
    drawn = style.new_figure(
        "SmolLM2-135M-Instruct, whose stated maximum is 8,192 tokens", width=9.5, height=4.3
    )
    left, right = drawn.subplots(1, 2, width_ratios=(1, 1.15))
    plain = found[found["variant"].isna() & (found["quantity"] == "loss")].sort_values("length")
    left.plot(plain["length"], np.exp(plain["value"]), "o-", color=style.COLOURS[0], markersize=4)
    left.set_ylim(15, 1.2 * np.exp(plain["value"].max()))
    style.log_axis(left)
    style.length_axis(left, plain["length"], trained=8192, name="stated maximum")
    left.set_title("as it is: perplexity", loc="left", fontsize=style.FONT_SIZE)
    left.set_xlabel("context in tokens")
    gains = found[found["quantity"] == "gain"].assign(name=found["variant"].fillna("as it is"))
    order = gains[gains["length"] == lengths[0]].sort_values("value")["name"]
    for n, length in enumerate(lengths):
        at = gains[gains["length"] == length].set_index("name").reindex(order)
        y = np.arange(len(at)) - 0.27 * n
        reach = np.array([at["high"] - at["value"], at["value"] - at["low"]])
        look = {"fmt": "o", "color": style.COLOURS[(2, 1, 3)[n]], "markersize": 4}
        right.errorbar(-at["value"], y, xerr=reach, label=f"at {length:,} tokens", **look)
        for value, height in zip(-at["value"], y, strict=True):
            if value > most:  # beyond the axis
                off = {"ha": "right", "va": "center", "size": 8, "color": look["color"]}
                right.text(most, height, f"{value:.2f} \N{RIGHTWARDS ARROW}", **off)
    right.axvline(0, color=style.GREY, linewidth=0.8, zorder=0)
    right.set_yticks(range(len(order)), order.str.removesuffix("_2x"))
    right.set(xlim=(-0.06, most), ylim=(-0.9, len(order) - 0.4))
    right.set_title(
        "loss above that of the last 8,192 tokens", loc="left", fontsize=style.FONT_SIZE
    )
    right.set_xlabel("nats per token, with 95 % intervals; right of 0 it is worse")
    right.legend(frameon=False, fontsize=style.FONT_SIZE, loc="upper right")
    return drawn


@style.styled()
def context() -> Figure:
    """Draws the perplexity of plain schemes, and how many values they find, by context length."""
    rows, found = study("context")
    sums = use.hits(use.own_rows(rows, "retrieval"), use.form_places("single"))
    drawn = style.new_figure("What is predicted, and what is found", width=9.5, height=3.6)
    left, right = drawn.subplots(1, 2)
    names = {n: NAMES[n] for n in ("t5", "kerple", "alibi", "rope")}
    names |= {f"rope + {v}": f"RoPE, {v}" for v in ("yarn", "streaming_llm")}
    for colour, (series, name) in zip(style.COLOURS, names.items(), strict=False):
        losses = found[(found["quantity"] == "loss") & (found["series"] == series)]
        losses = losses[losses["value"].notna()].sort_values("length")
        look = {"color": colour, "marker": "o", "markersize": 4, "label": name}
        look["linestyle"] = "--" if "," in name else "-"
        left.plot(losses["length"], np.exp(losses["value"]), **look)
        shares = [(p.length, use.share(sums, p).value) for p in use.curve_points(sums, series)]
        shares = [(n, value) for n, value in shares if n >= 512 or "," not in name]
        right.plot(*zip(*shares, strict=True), **look)
    right.axhline(use.CHANCE, color=style.GREY, linewidth=0.8, linestyle=":")
    left.set_ylim(10, 120)
    style.log_axis(left)
    right.set_ylim(0, 1)
    right.yaxis.set_major_formatter(PercentFormatter(1))
    for axes, title in ((left, "perplexity"), (right, "values found; dotted: by chance")):
        style.length_axis(axes, sorted({*rows["length"]}), trained=512)
        axes.set_title(title, loc="left", fontsize=style.FONT_SIZE)
        axes.set_xlabel("context in tokens")
    left.legend(frameon=False, fontsize=style.FONT_SIZE)
    return drawn


def accuracy(name: str, task: str) -> Figure | None:
    """Draws the accuracy of a task of a committed study over length."""
    section = tasks.tasks_section(load_rows([ROOT / "results" / name]))
    return None if section is None else section.figures[f"accuracy-{task}"]


FIGURES: dict[str, Callable[[], Figure | None]] = {
    **{"hero": hero, "budget": budget, "smollm2": smollm2, "context": context},
    "accuracy-copy": partial(accuracy, "tasks", "copy"),
    "encoders-copy": partial(accuracy, "encoder_decoder", "copy"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*FIGURES], help=", ".join(FIGURES))
    for name in parser.parse_args().names:
        drawn = FIGURES[name]()
        assert drawn is not None, name
        path = ROOT / "docs" / "figures" / f"{name}.svg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(style.saved(drawn, "svg"))


if __name__ == "__main__":
    main()
