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

from lengthgen.files import read_rows
from lengthgen.report import figures, style
from lengthgen.report.load import load
from lengthgen.report.series import select
from lengthgen.report.statistics import findings
from lengthgen.tasks import report as tasks

ROOT = Path(__file__).parents[1]
NAMES = {
    **{"alibi": "ALiBi", "kerple": "KERPLE", "nope": "NoPE", "rope": "RoPE", "t5": "T5"},
    "sinusoidal": "sinusoidal",
}


def study(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the comparable rows of a committed study, and its findings on the matched tail."""
    rows = select(load([ROOT / "results" / name]))[0].rows
    found = findings(rows)
    return rows, found[(found["protocol"] == "tail") & ~found["reference"]]


def leaderboard() -> pd.DataFrame:
    """Returns the findings on schemes with a short convolution, under the names of the schemes."""
    found = study("leaderboard")[1]
    found = found[found["scheme"].str.endswith("_conv")]
    plain = found["scheme"].str.removesuffix("_conv")
    return found.assign(series=plain.map(NAMES), scheme=plain)


def hero() -> Figure | None:
    found = study("plain_pilot")[1]
    found = found.assign(series=found["scheme"].map(NAMES))
    crop = figures.cropped(found[found["scheme"] == "rope"])
    crop = crop.assign(series="RoPE, last 512 tokens", reference=False)
    title = "Trained on 512 tokens: RoPE and ALiBi are harmed, T5 gains"
    return figures.curve(pd.concat([found, crop]), title=title, width=6.0)  # legible on a phone


def six_schemes() -> Figure | None:
    title = "Six schemes with a short convolution; dotted: last 512 tokens only"
    found = leaderboard()
    return figures.curve(pd.concat([found, figures.cropped(found)]), title=title)


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
def position(layer: int = 3) -> Figure:
    """Draws the positions that the probe reads off NoPE's states, by those where it reads."""
    drawn = style.new_figure("NoPE: the position in its states", width=5.2, height=3.6)
    axes = drawn.subplots()
    axes.plot([0, 4], [0, 4], ":", color="grey", label="the true one")
    for row in read_rows(ROOT / "results" / "conv_masks" / "probes.jsonl"):
        masked, first = row["variant"] is not None, row["seed"] == 1
        label = "last 512 tokens in sight" if masked else "all tokens in sight"
        line = (row["positions"], row["predicted"][layer])
        axes.plot(*line, color=style.COLOURS[masked], label=label if first else None)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set(xlim=(0, 4), ylim=(0, 2), xlabel="position / T", ylabel="position / T, as read off")
    axes.legend(frameon=False, fontsize=style.FONT_SIZE)
    return drawn


@style.styled()
def second_bos(layers: tuple[int, int] = (1, 3)) -> Figure:
    """Draws NoPE's loss behind a mask by length, and the position in its states, by the text."""
    rows = [*read_rows(ROOT / "results" / "second_bos" / "rows.jsonl")]
    rows = [row for row in rows if row["scheme"] == "nope"]
    texts = {"unchanged": "as it is", "other_token": "another token", "second_bos": "BOS"}
    looks = {name: {"color": style.COLOURS[n]} for n, name in enumerate(texts)}
    looks["other_token"]["linestyle"] = ":"
    drawn = style.new_figure(
        "NoPE trained on 512 tokens, with a BOS or another token as every 256th one",
        width=9.5,
        height=3.7,
    )
    loss, *reads = drawn.subplots(1, 3)
    masked = [row for row in rows if row["probe"] == "second_bos" and row["variant"] == "window"]
    lengths = [row["length"] for row in masked]
    [read] = [row for row in rows if row["probe"] == "position_after_bos"]
    at = (np.arange(16) + 0.5) / 16
    for name, label in texts.items():
        loss.plot(
            lengths, [np.mean(row[name]) for row in masked], marker="o", label=label, **looks[name]
        )
        for axes, layer in zip(reads, layers, strict=True):
            axes.plot(at, read[name][layer], **looks[name])
    loss.set(xlabel="length, last 512 tokens in sight", ylabel="loss, nats", xticks=lengths)
    loss.legend(frameon=False, fontsize=style.FONT_SIZE)
    for axes, layer in zip(reads, layers, strict=True):
        axes.axvline(0.5, color="grey", linewidth=0.8)
        axes.set_title(f"after layer {layer}", loc="left", fontsize=style.FONT_SIZE)
        axes.set(xlabel="position / T", ylabel="position / T, as read off", ylim=(0, 1))
    return drawn


def accuracy(name: str, task: str) -> Figure | None:
    """Draws the accuracy of a task of a committed study over length."""
    section = tasks.section(load([ROOT / "results" / name]))
    return None if section is None else section.figures[f"accuracy-{task}"]


@style.styled()
def training_loss() -> Figure:
    """Draws the perplexity in training over tokens, without and with the short convolution."""
    short, long = (
        pd.read_csv(ROOT / "results" / name / "training.csv")
        for name in ("leaderboard", "more_tokens")
    )
    has_conv = short["scheme"].str.endswith("_conv")
    panels = {
        "without the convolution": short[~has_conv],
        "with a short convolution": short[has_conv],
        "without it, longer": long,
    }
    colours = style.scheme_colours(short["scheme"][~has_conv])
    drawn = style.new_figure(
        "Perplexity in training by tokens seen, T = 512", width=9.5, height=3.9
    )
    for axes, (title, log) in zip(drawn.subplots(1, 3, sharey=True), panels.items(), strict=True):
        ends: list[style.LineEnd] = []
        for scheme, line in log[log["tokens"] > 500_000].groupby("scheme"):
            mean = np.exp(line.groupby("tokens")["loss"].mean())
            plain = str(scheme).removesuffix("_conv")
            axes.plot(mean.index / 1e6, mean, color=colours[plain])
            ends.append(style.LineEnd(mean.iloc[-1], NAMES[plain], colours[plain]))
        axes.set_ylim(0.9 * np.exp(long["loss"].min()), 200)
        style.log_axis(axes)
        style.label_ends(axes, ends)
        axes.set_title(title, loc="left", fontsize=style.FONT_SIZE)
        axes.set_xlabel("millions of tokens")
    drawn.axes[0].set_ylabel("perplexity")
    return drawn


FIGURES: dict[str, Callable[[], Figure | None]] = {
    **{"hero": hero, "leaderboard": six_schemes, "training-loss": training_loss},
    "smollm2": smollm2,
    "accuracy-copy": partial(accuracy, "tasks", "copy"),
    "encoders-copy": partial(accuracy, "encoder_decoder", "copy"),
    **{"position": position, "second_bos": second_bos},
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
