"""Writes the numbers of README.md and docs/ from results/: python docs/fill.py.

A page holds each value before its expression, in a comment that GitHub and mkdocs hide:

  0.066 [0.019, 0.112]<!-- = gain('figure1', 'kerple', 16384) -->
  <!-- holds: gain('figure1', 'kerple', 16384).low > 0 -->
  <!-- begin: curves('figure1', [512, 16384], 'kerple') --> a table <!-- end -->

Series have the names of table.md; what stands there in parentheses may be left out if it is clear.
"""

import math
import re
import statistics
import sys
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from lengthgen.files import read_rows
from lengthgen.report.intervals import Estimate, gap, student
from lengthgen.report.load import load
from lengthgen.report.series import select, short
from lengthgen.report.statistics import (
    CurvePoint,
    Sums,
    copies,
    loss_of,
    number,
    unchanged,
    used_context,
    verdict,
)
from lengthgen.tasks.accuracy import accuracies

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
VALUE = re.compile(r"(-?\d[\d.,]*(?: \[[^\]]*\])?|-)<!-- = (.+?) -->", re.DOTALL)
CLAIM = re.compile(r"<!-- holds: (.+?) -->", re.DOTALL)
BLOCK = re.compile(r"<!-- begin: (.+?) -->\n.*?<!-- end -->", re.DOTALL)
SIX = ["rope", "nope", "alibi", "kerple", "t5", "sinusoidal"]  # of the leaderboard
CONV = [f"{scheme}_conv" for scheme in SIX]
texts = cache(lambda study: select(load([RESULTS / study])))  # of tasks several
rows = cache(lambda study: texts(study)[0].rows)
sums = cache(lambda study, quantity=loss_of: Sums(rows(study), quantity))
tuned = cache(lambda of="rates": yaml.safe_load(include(f"{of}/tuned.yaml")))


def cell(study: str, name: str, length: int | None, protocol: str = "tail") -> CurvePoint:
    """Returns the cell of a series at a length, by default at T."""
    T = rows(study).groupby("series")["train_length"].first()
    [series] = {name} & {*T.index} or {s for s in T.index if s.startswith(f"{name} (")}
    return CurvePoint(protocol, series, length or int(T[series]))


def ppl(study: str, name: str, length: int | None = None, protocol: str = "tail") -> float:
    sample = sums(study).sample([cell(study, name, length, protocol)])
    return math.exp(sample.mean(0).value) if sample else math.nan


def apart(
    study: str, a: str, b: str, length: int | None = None, protocol: str = "tail"
) -> Estimate:
    """Returns the loss of one series minus that of another."""
    return sums(study).difference(*(cell(study, name, length, protocol) for name in (a, b)))


def gain(
    study: str,
    name: str,
    length: int,
    protocol: str = "tail",
    quantity: Any = loss_of,
    start: int | None = None,
) -> Any:
    """Returns the loss at T, or at `start`, without a variant, minus that at a length."""
    at, first = cell(study, name, length, protocol), cell(study, name, start, protocol)
    first = first._replace(series=unchanged(rows(study))[first.series])
    return sums(study, quantity).difference(first, at)


def others(rows: pd.DataFrame) -> tuple[Any, Any]:
    """Returns nats and number of the targets that are no copy opportunities."""
    (nats, counts), (copy_nats, copy_counts) = loss_of(rows), copies(rows)
    return nats - copy_nats, counts - copy_counts


def gaining(study: str, name: str, length: int) -> tuple[float, float, float]:
    """Returns what share of documents gains, what of the sum the five largest have, the median.

    The median is in nats per token, over documents of equally many targets.
    """
    sample = sums(study).sample([cell(study, name, None), cell(study, name, length)])
    gains_D = np.sort(np.mean(np.subtract(*sample.sums), axis=0))
    five, each = gains_D[-5:].sum() / gains_D.sum(), gains_D / sample.counts_D.mean()
    return float((gains_D > 0).mean()), float(five), float(np.median(each))


def opposite(estimate: Estimate) -> Estimate:
    """Returns a gain as a rise of the loss."""
    return replace(estimate, value=-estimate.value, low=-estimate.high, high=-estimate.low)


def copy_gain(study: str, name: str, length: int) -> Any:
    """Returns the gain at a length after two tokens that were last seen beyond T."""
    return gain(study, name, length, quantity=copies)


def used(study: str, name: str) -> int | None:
    """Returns c*, the shortest length up to T whose loss is within 0.01 nats of the lowest."""
    _, series, T = cell(study, name, None)
    lengths = {*rows(study).loc[rows(study)["series"] == series, "length"]}
    losses = {n: math.log(ppl(study, name, n)) for n in lengths if n <= T}
    return used_context(losses, T)


def read_off(study: str, at: float, variant: str | None = None, layer: int = 3) -> float:
    """Returns the position over T that the probe reads off a layer where the true one is `at`."""
    runs = (r for r in read_rows(RESULTS / study / "probes.jsonl") if r["variant"] == variant)
    return statistics.fmean(np.interp(at, r["positions"], r["predicted"][layer]) for r in runs)


@cache
def of_bos(run: str, probe: str) -> list[dict[str, Any]]:
    """Returns the rows of results/second_bos of the one run whose name begins so."""
    kept = (r for r in read_rows(RESULTS / "second_bos" / "rows.jsonl") if r["probe"] == probe)
    return [row for row in kept if row["run"].startswith(run)]


def read_after_bos(run: str, at: float, text: str, layer: int) -> float:
    """Returns the position over T that is read off a layer where the true one is `at`."""
    [row] = of_bos(run, "position_after_bos")
    return row[text][layer][int(16 * at)]


def bos(
    run: str, at: int, variant: str | None, text: str, since: Any = (1, None, "unchanged")
) -> Any:
    """Returns the loss at a multiple of T with a text of results/second_bos, minus that at T."""
    rows = of_bos(run, "second_bos")
    found = {(r["length"] // r["train_length"], r["variant"]): r for r in rows}
    a, b = (np.array([found[n, v][name]]) for n, v, name in ((at, variant, text), since))
    return gap(a, b, np.ones(a.shape[1]))


def second_bos(*runs: str) -> str:
    """Returns the rise of the loss from T to 4T of runs: by what is in sight, and in the text."""
    sights = {None: "all tokens", "window": "last T tokens", "window_sinks": "last T, first four"}
    texts = {"unchanged": "as it is", "second_bos": "BOS", "other_token": "another token"}
    lines = [["in sight", "every T/2-th token", *runs], ["---"] * (2 + len(runs))]
    for variant, sight in sights.items():
        for name, what in texts.items():
            rises = (text(bos(run, 4, variant, name)).replace(" ", "&nbsp;") for run in runs)
            lines.append([sight, what, *rises])
    return markdown(lines)


def trained_apart(study: str, a: str, b: str, millions: int) -> Estimate:
    """Returns the training loss of `a` minus that of `b`, over the million tokens before."""
    log = pd.read_csv(RESULTS / study / "training.csv")
    log = log[log["tokens"].between((millions - 1) * 1e6, millions * 1e6)]
    means = log.pivot_table("loss", index="seed", columns="scheme")
    gaps = [*(means[a] - means[b])]
    value, n = statistics.fmean(gaps), len(gaps)
    half = student(0.975, n - 1) * statistics.stdev(gaps) / math.sqrt(n) if n > 1 else math.nan
    return Estimate(value=value, low=value - half, high=value + half, seeds=tuple(gaps))


def right(study: str, task: str, name: str, part: str = "unseen") -> Estimate:
    """Returns the percentage of right answers at lengths beyond L, or up to L (`seen`)."""
    [of_task] = (t.rows for t in texts(study) if task in set(t.rows["corpus"]))
    [share] = (getattr(a, part) for a in accuracies(of_task) if a.series == name)
    percent = {name: 100 * getattr(share, name) for name in ("value", "low", "high")}
    return replace(share, **percent, seeds=tuple(100 * x for x in share.seeds), spread=None)


def curves(study: str, lengths: list[int], *names: str) -> str:
    """Returns a table of series: perplexity by length, gain and verdict at the last length."""
    heads = ["series", *map(short, lengths), f"gain at {short(lengths[-1])}, nats", "verdict"]
    lines = [heads, ["---", *["--:"] * len(lengths), "---", "---"]]
    for name in names or sorted({*rows(study)["series"]}, key=lambda s: ppl(study, s, lengths[-1])):
        at_end, shown = gain(study, name, lengths[-1]), (ppl(study, name, n) for n in lengths)
        gained = text(at_end).replace(" ", "&nbsp;")
        lines += [[name, *map(text, shown), gained, verdict(at_end) if at_end else "-"]]
    return markdown(lines)


def screen(study: str, name: str, lengths: list[int]) -> str:
    """Returns a series as a command shows it at its end."""
    at_end = verdict(gain(study, name, lengths[-1]))
    lines = [
        ["scheme", *map(short, lengths), "verdict"],
        [name, *(text(ppl(study, name, n)) for n in lengths), at_end],
    ]
    head, row = ("".join(cell.rjust(9) for cell in line) for line in lines)
    title = "Perplexity by context length".center(len(head)).rstrip()
    rule = " " + "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * len(head)
    return f"```text\n{title}\n\n{head}\n{rule}\n{row}\n```"


def markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rate(scheme: str, key: str = "lr", of: str = "rates") -> str:
    """Returns the learning rate, or the scheme_lr_ratio, that `lengthgen tune` chose."""
    return f"{tuned(of)[scheme][key]:g}"


def excess(scheme: str, lr: float, ratio: float | None = None) -> float:
    """Returns how far the loss at other rates is above that at the chosen ones, in nats."""
    chosen = tuned()[scheme]
    mean = {(t["lr"], t["scheme_lr_ratio"]): statistics.fmean(t["losses"]) for t in chosen["grid"]}
    return mean[lr, ratio] - mean[chosen["lr"], chosen["scheme_lr_ratio"]]


def by_rate(scheme: str) -> dict[float, list[float]]:
    """Returns the losses of a scheme of the leaderboard by multiples of the chosen rate."""
    of = tuned("rates/leaderboard")[scheme]
    return {t["lr"] / of["lr"]: t["losses"] for t in sorted(of["grid"], key=lambda t: t["lr"])}


def rate_costs(*schemes: str) -> list[float]:
    """Returns how far mean losses at other rates are above those at the chosen ones, ascending."""
    means = [{n: statistics.fmean(x) for n, x in by_rate(s).items()} for s in schemes]
    return sorted(mean - of[1] for of in means for n, mean in of.items() if n != 1)


def rates_table() -> str:
    """Returns the mean losses of the leaderboard's schemes by learning rate."""
    lines = [["scheme", "rate", "half", "loss at this rate", "twice"], ["---", *["--:"] * 4]]
    for s in [*CONV, *SIX]:
        lines.append([s, rate(s, of="rates/leaderboard")])
        lines[-1] += [f"{statistics.fmean(losses):.2f}" for losses in by_rate(s).values()]
    return markdown(lines)


def seeds_differ(study: str) -> float:
    """Returns the largest difference of two seeds of a series, of the loss at T."""
    samples = (sums(study).sample([cell(study, s, None)]) for s in {*rows(study)["series"]})
    return max(max(e.seeds) - min(e.seeds) for e in (sample.mean(0) for sample in samples))


def column(path: str, name: str, title: str, row: str = "") -> list[float]:
    """Returns the numbers of a table in results/ below a title, in columns and rows so named."""
    page = include(path)
    head, _, *lines = cells_of(page[page.index(title) :])
    places = [i for i, text in enumerate(head) if name in text]
    cells = (line[i] for line in lines if row in ("", *line) for i in places)
    return [float(cell) for cell in cells if cell not in ("-", "n/a")]


def cells_of(page: str) -> list[list[str]]:
    """Returns the cells of the first table of a page, from 1 on, by line."""
    lines = re.findall(r"(?:^\|.*\n)+", page, re.M)[0].splitlines()
    return [[text.strip() for text in line.split("|")] for line in lines]


def speeds() -> dict[str, float]:
    """Returns the training speed of each scheme over that of none."""
    return {line[1]: float(line[4]) for line in cells_of(include("cost/schemes.md"))[2:]}


def peers(what: str) -> list[float]:
    """Returns the speed of lengthgen over that of each other library."""
    table = pd.read_csv(RESULTS / "cost" / "peers.csv").query("peer != 'plain + mask'")
    return [*table.loc[table["what"].str.startswith(what), "ratio"]]


def table(study: str, title: str = "") -> str:
    """Returns the table of table.md below a title; without one the whole file, folded."""
    page = include(f"{study}/table.md")
    if not title:
        return f"<details markdown>\n<summary>All tables</summary>\n\n{page}\n</details>"
    [below] = re.findall(rf"^({title}.*\n\n(?:\|.*\n)+)", page, re.M)
    return below


def projects() -> str:
    """Returns the table of the projects of the corpus python by licence, with their versions."""
    pinned = tomllib.loads((DOCS.parent / "conf/corpus/python.toml").read_text(encoding="utf-8"))
    named: dict[str, dict[str, list[str]]] = {}
    for split, of_split in pinned.items():
        for project, about in of_split.items():
            parts = named.setdefault(about["license"], {"train": [], "validation": []})
            parts[split].append(f"{project} {about['wheel'].split('-')[1]}")
    head = ["| licence | training | held out |", "|---|---|---|"]
    cells = ([", ".join(names) or "-" for names in named[key].values()] for key in sorted(named))
    lines = (
        f"| {key} | {' | '.join(row)} |" for key, row in zip(sorted(named), cells, strict=True)
    )
    return "\n".join([*head, *lines])


def include(path: str) -> str:
    """Returns the text of a file of results/."""
    return (RESULTS / path).read_text(encoding="utf-8")


def text(value: Any) -> str:
    """Returns 13.56, 176.9, 512 (a length) or 0.066 [0.019, 0.112]."""
    if isinstance(value, Estimate):
        digits = 3 if abs(value.value) < 1 else 2 if abs(value.value) < 10 else 0
        return "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(value.value, value.low, value.high, d=digits)
    if isinstance(value, str | int):
        return str(value)
    return "-" if value is None or math.isnan(value) else number(value)


def value_of(expression: str) -> Any:
    try:
        return eval(expression)
    except Exception as error:
        raise ValueError(f"{expression}: {error!r}") from error


def filled(page: str) -> str:
    """Returns the page with the value of each expression.

    Raises:
        ValueError: if an expression has no value, or a claim does not hold.
    """
    for claim in CLAIM.findall(page):
        if not value_of(claim):
            raise ValueError(f"{claim}: this does not hold")
    page = BLOCK.sub(
        lambda m: f"<!-- begin: {m[1]} -->\n{value_of(m[1]).strip()}\n<!-- end -->", page
    )
    return VALUE.sub(lambda m: f"{text(value_of(m[2]))}<!-- = {m[2]} -->", page)


def main() -> None:
    wrong = list[str]()
    for path in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]:
        page = path.read_text(encoding="utf-8")
        try:
            path.write_text(filled(page), encoding="utf-8")
        except ValueError as error:
            wrong.append(f"{path.relative_to(DOCS.parent)}: {error}")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
