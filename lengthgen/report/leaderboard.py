"""The rules of a table of schemes: which rows it takes, and which of them is better."""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from typing import Any

import pandas as pd

from lengthgen.config.sections import flatten
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.report.intervals import signs
from lengthgen.report.load import is_complete, is_last
from lengthgen.report.series import select, short
from lengthgen.report.statistics import CurvePoint, Sums, findings, loss_of
from lengthgen.report.tables import Numbers, Table, TableCell

SEEDS = 3  # at least, of a row
SHARED = ("model.", "train.")  # sections of a configuration that all rows share
FREE = (
    *("train.lr", "train.scheme_lr_ratio", "train.tuned", "train.checkpoint_every"),
    *("train.keep_checkpoints", "train.keep_optimizer", "train.val_every"),
)
SCORED = ("corpus", "fingerprint", "packed", "precision", "targets", "endpoints")  # what is scored
Facts = Mapping[str, Any]


def broken_rules(rows: pd.DataFrame, candidates: Collection[str]) -> list[str]:
    """Returns a line on each rule that rows of candidates break, of those that most rows keep.

    `rows` are those of load_rows, a row of the table is the seeds of a recipe. All rows share text,
    scored targets, model, budget and optimizer, all but the learning rates; each has SEEDS seeds
    that are trained to the end, and T and its doubles and halves up to the longest length.
    """
    mine = {*rows.loc[rows["run"].isin(candidates), "recipe"]}
    of_model = rows[rows["variant"].isna() & (rows["protocol"] == HEADLINE)]
    plain = of_model[is_complete(of_model) & is_last(of_model)]
    by_recipe = {name: plain[plain["recipe"] == name] for name in plain["recipe"].unique()}
    facts = {name: _facts(of_recipe) for name, of_recipe in by_recipe.items()}
    keys = dict.fromkeys(key for each in facts.values() for key in each)
    usual = {k: _most_common([each[k] for each in facts.values() if k in each]) for k in keys}
    held = Counter(n for of_recipe in by_recipe.values() for n in set(of_recipe["length"]))
    needed = {n for n, count in held.items() if 2 * count > len(by_recipe)}
    lines = [
        f"{name}: no loss under {HEADLINE}; run lengthgen eval --protocols {HEADLINE}"
        for name in sorted(mine - {*by_recipe})
    ]
    for name in sorted(mine & {*by_recipe}):
        lines += (f"{name}: {line}" for line in _lines(by_recipe[name], facts[name], usual, needed))
    return lines


def _facts(rows: pd.DataFrame) -> dict[str, Any]:
    """Returns what a row of the table shares with the others, by key; a list if it is divided."""
    flat = flatten(json.loads(rows["config"].iloc[0]))
    rows = rows.assign(fingerprint=rows["fingerprint"].str[:12], targets=rows["targets"].map(int))
    scored = {key: sorted({*rows[key].astype(object)}) for key in SCORED}
    return {
        **{key: values[0] if len(values) == 1 else values for key, values in scored.items()},
        **{key: v for key, v in flat.items() if key.startswith(SHARED) and key not in FREE},
    }


def _most_common(values: Collection[Any]) -> Any:
    return max(values, key=[*values].count)  # of several the first


def _lines(
    rows: pd.DataFrame, facts: Facts, usual: Facts, needed: Collection[int]
) -> Iterator[str]:
    """Yields what is wrong with the rows of a recipe."""
    for key, value in facts.items():
        if value != usual[key]:
            yield f"{key}={value}, and {usual[key]} in the other rows"
    if (n := rows["seed"].nunique()) < SEEDS:
        yield f"{n} seed{'s' * (n > 1)}, and at least {SEEDS} are needed"
    for run, state in rows.groupby("run")["state"].first().items():
        if state != "done":
            yield f"{run} is {state}; train it to the end"
    T = rows["train_length"].iloc[0]
    for run, lengths in rows.groupby("run")["length"].unique().items():
        lacking = sorted(n for n in {*needed} - {*lengths} if math.log2(n / T).is_integer())
        if lacking:
            yield f"{run} lacks the lengths {', '.join(map(short, lacking))}; run lengthgen eval"


def better(rows: pd.DataFrame, candidates: Collection[str]) -> Table:
    """Returns which rows of the table those of candidates, runs, are better than, and worse.

    At the longest length that most rows have, by the paired intervals of all pairs of the table.
    """
    (chosen, *_) = select(rows)
    table = chosen.rows[chosen.rows["variant"].isna() & (chosen.rows["protocol"] == HEADLINE)]
    numbers, sums = Numbers(findings(table)), Sums(table, loss_of)
    last = numbers.common[-1]
    points = {name: CurvePoint(HEADLINE, name, last) for name in numbers.series}
    pairs = {
        pair: difference
        for pair in combinations(points, 2)
        if (difference := sums.difference(*(points[name] for name in pair)))
        and len(difference.seeds) >= SEEDS
    }
    shown = {(a, b) if pairs[a, b].value < 0 else (b, a) for a, b in signs(pairs)}
    mine = {*table.loc[table["run"].isin(candidates), "series"]}
    return Table(
        title=f"Better at {short(last)}",
        head=["scheme", "seeds", short(last), "better than", "worse than"],
        rows=[
            [
                *numbers.about(name),
                numbers.perplexity(name, last),
                TableCell(", ".join(b for b in points if (name, b) in shown) or "-"),
                TableCell(", ".join(b for b in points if (b, name) in shown) or "-"),
            ]
            for name in points
            if name in mine
        ],
        notes=[
            f"By 95 % intervals of paired differences, clustered by project, of the {len(pairs)} "
            f"pairs of rows with {SEEDS} seeds in common, corrected for all of them (Holm)."
        ],
    )
