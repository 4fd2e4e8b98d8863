"""What series show, with intervals: losses, gains from context beyond T, verdicts, comparisons.

Every number is a mean over seeds and documents of sums of nats, divided once; gains and differences
are paired by seed and document. Intervals are clustered by the groups of documents.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from lengthgen.evaluation.protocols import HEADLINE, named
from lengthgen.report.intervals import (
    Estimate,
    Floats,
    Ints,
    as_share,
    compare,
    gap,
    ratio,
    signs,
)
from lengthgen.report.series import Selection, select, short

EPS = 0.01  # nats per token that count as nothing
FACTS = ["scheme", "variant", "reference", "train_length", "model", "tokens_seen", "lr", "n_seeds"]
MEASURED = ["protocol", "quantity", "length", "value", "low", "high", "word", "mark", "bits"]

Verdict = Literal["uses", "flat", "harmed", "unclear", "not trained"]
Quantity = Callable[[pd.DataFrame], tuple["pd.Series[float]", "pd.Series[float]"]]
Record = dict[str, Any]  # a row of findings


class CurvePoint(NamedTuple):
    protocol: str
    series: str
    length: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The sums of several points over the seeds and documents that all of them share."""

    seeds: Sequence[int]
    documents: Sequence[str]
    sums: Sequence[Floats]  # [R, D] of each point, in their order; infinite if diverged
    counts_D: Floats
    groups_D: Ints  # the number of each document's group

    def mean(self, i: int) -> Estimate:
        return ratio(self.sums[i], self.counts_D, self.groups_D)

    def gap(self, i: int, j: int) -> Estimate:
        """Returns the mean of point i minus that of point j, paired; nan if both are infinite."""
        return gap(self.sums[i], self.sums[j], self.counts_D, self.groups_D)


class Sums:
    """Sums and counts of one quantity: a row per point and seed, a column per document."""

    def __init__(self, rows: pd.DataFrame, quantity: Quantity) -> None:
        self.rows: dict[CurvePoint, dict[int, int]] = {}  # the row of each seed
        scored = rows.loc[rows["document"].notna()]
        if scored.empty:
            return
        nats, counts = quantity(scored)
        index = ["protocol", "series", "length", "seed"]
        table = scored[[*index, "document"]].assign(nats=nats, counts=counts)
        wide = table.pivot(index=index, columns="document", values=["nats", "counts"])
        self._nats, self._counts = (wide[key].to_numpy(np.float64) for key in ("nats", "counts"))
        self._documents = wide["counts"].columns.to_numpy(str)
        named = scored.groupby("document")["group"].first().reindex(self._documents)
        self._groups = pd.factorize(named.where(named.notna(), self._documents))[0]
        for row, (*point, seed) in enumerate(wide.index):
            self.rows.setdefault(CurvePoint(*point), {})[seed] = row

    def sample(self, points: Sequence[CurvePoint]) -> Sample | None:
        """Returns the sums of points; None if they share no seed, or no document.

        Documents without such targets, or with others at one of the points, are no part of it.
        """
        by_seed = [self.rows.get(point, {}) for point in points]
        seeds = sorted(set[int].intersection(*map(set[int], by_seed))) if points else []
        if not seeds:
            return None
        rows_PR = np.array([[of_point[seed] for seed in seeds] for of_point in by_seed])
        counts_PRD = self._counts[rows_PR]
        counts_D = counts_PRD[0, 0]
        shared = (counts_PRD == counts_D).all((0, 1)) & (counts_D > 0)
        if not shared.any():
            return None
        sums = [*self._nats[rows_PR][:, :, shared]]
        of = {"documents": self._documents, "counts_D": counts_D, "groups_D": self._groups}
        of_shared: dict[str, Any] = {name: values[shared] for name, values in of.items()}
        return Sample(seeds=seeds, sums=sums, **of_shared)

    def difference(self, a: CurvePoint, b: CurvePoint) -> Estimate | None:
        """Returns the loss of a minus that of b; None if they share no seed or document."""
        sample = self.sample([a, b])
        return None if sample is None else sample.gap(0, 1)


def loss_of(rows: pd.DataFrame) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Returns what a loss is a mean of: sums of nats, infinite where a model diverged, and counts.

    Of a protocol that averages windows they are sums of the means of windows, and windows.
    """
    averaging = {p for p in set(rows["protocol"]) if named(p).mean == "windows"}
    of_tokens = ~rows["protocol"].isin(averaging)
    nats = rows["nats"].where(of_tokens, rows["window_nats"]).fillna(math.inf)
    return nats, rows["n_tokens"].where(of_tokens, rows["n_windows"])


def copies(rows: pd.DataFrame) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Returns nats and number of copy opportunities (data/overlap.py)."""
    return rows["copy_nats"].fillna(math.inf), rows["copy_tokens"].fillna(0)


def scores(rows: pd.DataFrame) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Returns what a protocol of context scores: sums, infinite if diverged, and counts."""
    return rows["score"].fillna(math.inf), rows["n_scores"].fillna(0)


def bounded(sample: Sample, bounds: tuple[float, float]) -> Estimate:
    """Returns the mean of the first point with its interval within bounds; (0, 1): of a share."""
    mean = sample.mean(0)
    if bounds == (0, 1) and math.isfinite(mean.value):
        return as_share(mean, int(sample.counts_D.sum()))
    low, high = (float(np.clip(end, *bounds)) for end in (mean.low, mean.high))
    return replace(mean, low=low, high=high)


def used_context(losses: Mapping[int, float], train_length: int) -> int | None:
    """Returns c*, the shortest length up to T whose loss is within EPS of the lowest up to T.

    None without a loss at T and at a shorter length, and if one of them is infinite.
    """
    known = {n: loss for n, loss in losses.items() if n <= train_length}
    if len(known) < 2 or train_length not in known or not np.isfinite([*known.values()]).all():
        return None
    return min(n for n, loss in known.items() if loss <= min(known.values()) + EPS)


def verdict(gain: Estimate) -> Verdict:
    """Returns what the context beyond T does to a series, by G = loss(T) - loss(C).

    flat: the interval lies within EPS of 0. uses, harmed: the interval and each seed lie above 0,
    below 0. unclear: neither.
    """
    if gain.low >= -EPS and gain.high <= EPS:
        return "flat"
    if gain.value == math.inf or not gain.has_sign:
        return "unclear"
    return "uses" if gain.low > 0 else "harmed"


def findings(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns what series show: a row per series, protocol, quantity and length.

    `rows` are a Selection's; those of load_rows are selected first and get a column, corpus.
    Columns: series, FACTS and MEASURED.

    loss: the word of a skipped length is the reason; the mark compares it with the best (best, tie,
    unknown: not comparable with it); bits: per byte of the scored tokens' text.
    score: of a protocol of context, its own number.
    Under the headline protocol also gain: G(C) = loss(T) - loss(C) with the verdict as word, where
    loss(T) is that of the model as it is, also for a variant; marked joint where uses or harmed
    holds for all gains beyond T at once; copy_gain: G on copy opportunities; c_star; and note: a
    sentence on what limits the numbers.
    """
    if "series" not in rows:
        of_texts = [findings(s.rows).assign(corpus=s.text) for s in select(rows)]
        return pd.concat(of_texts, ignore_index=True)
    rows, curve = rows.assign(lr=learning_rates(rows)), ["protocol", "series"]
    facts = rows.groupby("series")[FACTS[:-1]].first()
    sums, by_curve = Sums(rows, loss_of), rows.groupby(curve).agg(n_seeds=("seed", "nunique"))
    n_seeds = by_curve["n_seeds"].to_dict()
    points = [p for p, seeds in sums.rows.items() if len(seeds) == n_seeds[p[:2]]]  # of all seeds
    records, bases = [*_losses(rows, sums, points, facts)], unchanged(rows)
    of_context = Sums(rows[rows["n_scores"].notna()], scores)
    for p in of_context.rows:
        if len(of_context.rows[p]) == n_seeds[p[:2]] and (sample := of_context.sample([p])):
            records.append(
                p._asdict() | _numbers("score", bounded(sample, named(p.protocol).bounds))
            )
    headline, both = rows[rows["protocol"] == HEADLINE], (sums, Sums(rows, copies))
    for series, T in zip(facts.index, facts["train_length"], strict=True):
        tail = [p for p in points if (p.protocol, p.series) == (HEADLINE, series)]
        at_T = [p for p in points if p == CurvePoint(HEADLINE, bases[series], int(T))]
        about, of_series = {"protocol": HEADLINE, "series": series}, headline["series"] == series
        records += [about | record for record in _headline(headline[of_series], tail, at_T, *both)]
    _mark_jointly(records, facts)
    table = pd.DataFrame(records, columns=["series", *MEASURED])
    table = table.astype({"word": object, "mark": object}).fillna({"word": "", "mark": ""})
    table = table.sort_values("protocol", key=lambda p: p != HEADLINE, kind="stable")
    joined = table.join(facts, on="series").join(by_curve, on=curve)
    return joined[["series", *FACTS, *MEASURED]].reset_index(drop=True)


def over_training(selection: Selection) -> pd.DataFrame:
    """Returns the findings of series at every checkpoint; `tokens` are those seen there.

    Runs of which no earlier checkpoint is evaluated are left out of a series that has others: at
    the end it would be a mean of more seeds than before.
    """
    earlier, rows = selection.earlier, selection.rows
    alone = rows["series"].isin(earlier["series"]) & ~rows["run"].isin(earlier["run"])
    every = pd.concat([earlier, rows[~alone]])
    tables = [findings(part).assign(tokens=n) for n, part in every.groupby("tokens_seen")]
    return pd.concat(tables, ignore_index=True)


def unchanged(rows: pd.DataFrame) -> dict[str, str]:
    """Returns for each series that of the model without a variant; itself where it is missing."""
    first = rows.drop_duplicates("series")
    of_model = [*zip(first["recipe"], first["tokens_seen"], strict=True)]
    is_plain = first["variant"].isna()
    plain = {m: s for m, s, p in zip(of_model, first["series"], is_plain, strict=True) if p}
    return {s: plain.get(m, s) for m, s in zip(of_model, first["series"], strict=True)}


def curves(findings: pd.DataFrame) -> pd.DataFrame:
    """Returns the perplexity and loss of each series, protocol and length, with their interval.

    Beside them bits per byte, and under protocols of context the score with its interval.
    """
    table = findings[findings["quantity"] == "loss"].drop(columns=["quantity", "mark"])
    table = table.rename(columns={"value": "loss", "word": "skipped", "bits": "bits_per_byte"})
    names = {"value": "score", "low": "score_low", "high": "score_high"}
    key = [*({"corpus"} & {*findings}), "series", "protocol", "length"]
    scored = findings.loc[findings["quantity"] == "score", [*key, *names]]
    scored = scored.rename(columns=names)
    table = table.merge(scored, how="left", on=key)
    table = table.astype({"length": int, "loss": float})
    ends = {"ppl": "loss", "ppl_low": "low", "ppl_high": "high"}
    table = table.assign(**{name: table[key].map(perplexity) for name, key in ends.items()})
    table = table.rename(columns={} if "tokens" in table else {"tokens_seen": "tokens"})
    first = ["scheme", "variant", "length", *ends, *ends.values()]
    return table[[*first, *table.columns.difference(first)]].reset_index(drop=True)


def by_run(rows: pd.DataFrame, *, documents: bool = False) -> pd.DataFrame:
    """Returns the loss of each run, protocol and length, or of each of its documents.

    `rows` are a Selection's. Beside it perplexity, bits per byte, the score of protocols of context
    and what the losses are means of; nan where nothing is scored.
    """
    nats, n = loss_of(rows)
    rows = rows.assign(nats=nats, n=n, tokens=rows["tokens_seen"], lr=learning_rates(rows))
    key = ["scheme", "variant", "length", "protocol", "series", "run", "seed", "lr", "model"]
    key += ["tokens", "train_length", *(["document", "group"] if documents else [])]
    sums = ["nats", "n", "n_tokens", "n_bytes", "score", "n_scores"]
    grouped: Any = rows.groupby(key, dropna=False, sort=False)
    table: Any = grouped[sums].sum().reset_index()
    loss = (table["nats"] / table["n"]).where(table["n"] > 0)
    bits = loss / math.log(2) * table["n_tokens"] / table["n_bytes"].where(table["n_bytes"] > 0)
    score = table["score"] / table["n_scores"].where(table["n_scores"] > 0)
    values = {"ppl": loss.map(perplexity), "loss": loss, "bits_per_byte": bits, "score": score}
    return table.assign(**values)[[*key[:3], *values, *key[3:], "n_tokens", "n_bytes"]]


def learning_rates(rows: pd.DataFrame) -> "pd.Series[float]":
    """Returns train.lr of the run of each row; nan of one that was not trained here."""
    configs = rows["config"].astype(object)
    of_config = {c: json.loads(c).get("train", {}).get("lr") for c in configs.unique()}
    return configs.map(of_config).astype("float64").where(rows["tokens_seen"] > 0)


def _losses(
    rows: pd.DataFrame, sums: Sums, points: Sequence[CurvePoint], facts: pd.DataFrame
) -> Iterator[Record]:
    """Yields the loss of each point with its mark; of skipped lengths the reason."""
    losses = {p: sample.mean(0) for p in points if (sample := sums.sample([p]))}
    competing: dict[tuple[str, int], dict[str, CurvePoint]] = defaultdict(dict)
    for p in losses:
        if not facts.at[p.series, "reference"]:
            competing[p.protocol, p.length][p.series] = p
    marks: dict[CurvePoint, str] = {}
    for by_series in competing.values():
        pairs = {
            (a, b): difference
            for a, b in combinations(by_series, 2)
            if (difference := sums.difference(by_series[a], by_series[b]))
        }
        if compared := compare({name: losses[p].value for name, p in by_series.items()}, pairs):
            marks |= {by_series[name]: mark for name, mark in compared.marks.items()}
    counted = rows.groupby([*CurvePoint._fields]).agg({"n_tokens": "sum", "n_bytes": "sum"})
    of_point = counted.to_dict("index")
    for p, loss in losses.items():
        n_tokens, n_bytes = of_point[p].values()
        bits = loss.value / math.log(2) * n_tokens / n_bytes if n_bytes else math.nan
        yield p._asdict() | _numbers("loss", loss) | {"mark": marks.get(p, ""), "bits": bits}
    reasons = rows[rows["skipped"].notna()].groupby(["protocol", "series", "length"])["skipped"]
    of_key: dict[Any, str] = reasons.first().to_dict()
    for key, reason in of_key.items():
        if key not in losses:
            yield {**CurvePoint(*key)._asdict(), "quantity": "loss", "word": reason}


def _headline(
    rows: pd.DataFrame,
    points: Sequence[CurvePoint],
    at_T: Sequence[CurvePoint],
    sums: Sums,
    of_copies: Sums,
) -> Iterator[Record]:
    """Yields what a series shows under the headline protocol, over documents of all lengths.

    `at_T` is what gains count from: the model without a variant at T, if it has a loss there.
    """
    lengths = [p.length for p in points]
    sample = sums.sample([*points, *at_T]) if points else None
    for note in _notes(rows, lengths, sample, has_T=bool(at_T)):
        yield {"quantity": "note", "word": note}
    if sample is None or not points or not at_T:
        return
    T = at_T[0].length
    losses = {n: sample.mean(i).value for i, n in enumerate(lengths)}
    if (used := used_context(losses, T)) is not None:
        low, high = _used_bounds(sample, [n for n in lengths if n <= T])
        word = f"<= {short(used)}" if used == lengths[0] else short(used)
        word += f" [{short(low)}, {short(high)}]" if low < high else ""
        yield {"quantity": "c_star", "value": used, "low": low, "high": high, "word": word}
    last = len(lengths)
    is_trained = not _unigram(rows, sample) <= sample.mean(last).value < math.inf  # inf: diverged
    may_copy = of_copies.sample([*points, *at_T])
    for i, n in enumerate(lengths):
        if points[i] != at_T[0]:
            gain = sample.gap(last, i)
            word = "" if n <= T else verdict(gain) if is_trained else "not trained"
            yield _numbers("gain", gain) | {"length": n, "word": word}
            if may_copy is not None:
                yield _numbers("copy_gain", may_copy.gap(last, i)) | {"length": n}


def _used_bounds(sample: Sample, lengths: Sequence[int]) -> tuple[float, float]:
    """Returns the bounds of c* from the first points of a sample, of these lengths up to T.

    The shortest length whose loss may lie within EPS of the lowest, and the shortest shown to, by
    the 95% intervals of paired differences. Both are nan without intervals.
    """
    best = min(range(len(lengths)), key=lambda i: sample.mean(i).value)
    excess = {n: sample.gap(i, best) for i, n in enumerate(lengths)}
    if any(math.isnan(e.low) for e in excess.values()):
        return math.nan, math.nan
    may, does = ([n for n in lengths if getattr(excess[n], b) <= EPS] for b in ("low", "high"))
    return min(may), min(does)


def _mark_jointly(records: Sequence[Record], facts: pd.DataFrame) -> None:
    """Marks the verdicts uses and harmed that hold for all gains beyond T at once (Holm)."""
    judged = {
        i: record["estimate"]
        for i, record in enumerate(records)
        if record["quantity"] == "gain"
        and record["word"] in ("uses", "harmed", "flat", "unclear")
        and not facts.at[record["series"], "reference"]
    }
    for i in signs(judged):
        if records[i]["word"] in ("uses", "harmed"):
            records[i]["mark"] = "joint"


def _numbers(quantity: str, estimate: Estimate) -> Record:
    bounds = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {"quantity": quantity, "estimate": estimate, **bounds}


def _unigram(rows: pd.DataFrame, sample: Sample) -> float:
    """Returns the loss of training's token frequencies, the same at all lengths; nan if unknown."""
    scored = rows[rows["document"].isin(sample.documents) & (rows["seed"] == sample.seeds[0])]
    scored = scored[scored["length"] == scored["length"].min()]
    return math.fsum(scored["unigram_nats"]) / scored["n_tokens"].sum()


def _notes(
    rows: pd.DataFrame, lengths: Sequence[int], sample: Sample | None, *, has_T: bool
) -> Iterator[str]:
    """Yields a sentence for each limit of the numbers of a series, and what they leave out."""
    n_documents = 0 if sample is None else len(sample.documents)
    if n_documents == 1:
        yield "one document: no intervals, so every verdict is unclear"
    elif sample is not None:
        if len(sample.seeds) == 1:
            yield "one seed: this checkpoint on other documents, not the scheme"
        if len(set(sample.groups_D.tolist())) == 1:
            yield "documents of one group: intervals hold for others of it, not for other groups"
    T = rows["train_length"].max()
    if not has_T and max(lengths, default=0) > T:
        yield f"no loss at T={T}: no context gain and no verdict; add {T} to --lengths"
    scored = rows.loc[rows["document"].notna()]
    if lost := sorted(set(scored["length"]) - set(lengths)):
        yield f"left out: {', '.join(map(short, lost))}, which not every seed has"
    n_scored = scored[scored["length"].isin(lengths)]["document"].nunique()
    if lost := n_scored - n_documents:
        yield f"left out: {lost} of {n_scored} documents, which not every seed and length has"
    for run, at in scored[scored["nats"].isna()].groupby("run")["length"]:
        texts = ", ".join(map(short, sorted(set(at))))
        yield f"diverged: {run} at {texts}, counted as an infinite loss"


def perplexity(loss: float) -> float:
    """Returns exp(loss); infinity where that is beyond a float, nan for nan."""
    return math.inf if loss >= 709 else math.exp(loss)


def shown_number(value: float) -> str:
    """Returns a perplexity or ratio with two digits after the point, fewer where it is large."""
    if value >= 1e7:
        return f"{value:.1e}"
    return f"{value:,.{2 if value < 100 else 1 if value < 1000 else 0}f}"
