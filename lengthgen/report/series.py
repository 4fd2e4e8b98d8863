# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportInvalidTypeArguments=false, reportOperatorIssue=false, reportReturnType=false
"""Series: which rows can be compared, and the names of runs that differ in the seed alone."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lengthgen import schemes
from lengthgen.config import compose
from lengthgen.escaping import visible
from lengthgen.evaluation.protocols import HEADLINE, named
from lengthgen.report.intervals import ratio
from lengthgen.report.load import CELL, config_of
from lengthgen.schemes.absolute.alignment import Aligned

UPPER_BOUND = " (upper bound)"  # ends the names of series that read alignment ids
LEADING = ["scheme", "variant", "length", "ppl", "loss", "low", "high"]  # columns of curves()


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rows of one text that can be compared, and what is left out or limits the comparison.

    `rows` are those of `load` with a column `series`: the name of its scheme and variant, and of
    what else differs. References are variants to compare a scheme with, not competitors.
    """

    rows: pd.DataFrame
    notes: list[str]

    @property
    def title(self) -> str:
        """Corpus, model, and the precisions of training and scoring."""
        first = self.rows.iloc[0]
        packed = " (packed)" if first["packed"] else ""
        trained = " and ".join(sorted(self.rows["trained_in"].dropna().unique()))
        trained = f"trained in {trained}, scored in " if trained else ""
        models, corpora, scored = (
            sorted(self.rows[name].unique()) for name in ("model", "corpus", "precision")
        )
        return (
            f"corpus {', '.join(corpora)}{packed}, model {', '.join(models)}, {trained}"
            f"{' and '.join(scored)}"
        )


def select(rows: pd.DataFrame) -> list[Selection]:
    """Returns the comparable rows of each text, the one with most runs first.

    Those are the complete cells; of each run those of its newest checkpoint; under each protocol
    those of the one condition (precision, targets, endpoints) that most curves have, of several the
    one that covers most lengths; and of runs of one seed the first by name.
    """
    rows = rows.reset_index(drop=True)
    name_models = rows["model"].nunique() > 1
    texts = [of_text for _, of_text in rows.groupby(["fingerprint", "packed"])]
    texts.sort(key=lambda of_text: (-of_text["run"].nunique(), of_text["corpus"].iloc[0]))
    selections = [_selected(of_text, name_models=name_models) for of_text in texts]
    return [selection for selection in selections if len(selection.rows)]


def _selected(rows: pd.DataFrame, *, name_models: bool) -> Selection:
    notes: list[str] = []
    n_scored = rows.groupby(CELL, dropna=False)["document"].transform("count")
    partial = n_scored < rows["n_documents"]
    for _, cell in rows[partial].groupby(CELL, dropna=False):
        notes.append(
            f"Not shown: {_what(cell)} of {cell['run'].iloc[0]} has {len(cell)} of "
            f"{cell['n_documents'].iloc[0]} documents; run lengthgen eval"
        )
    rows = rows[~partial]
    rows = rows[rows["tokens_seen"] == rows.groupby("run")["tokens_seen"].transform("max")]
    kept: list[pd.DataFrame] = []
    preferred: tuple[Any, ...] | None = None  # the headline's: what is compared with it goes along
    for protocol in sorted(set(rows["protocol"]), key=lambda name: (name != HEADLINE, name)):
        scored = rows[rows["protocol"] == protocol]
        targets = scored["targets"].astype(object).where(scored["targets"].notna(), None)
        conditions = pd.Series(
            [*zip(scored["precision"], targets, scored["endpoints"], strict=True)], scored.index
        )
        chosen = _condition(scored.assign(condition=conditions), preferred)
        preferred = chosen if protocol == HEADLINE else preferred
        kept.append(scored[[c == chosen for c in conditions]])
        for condition, cells in scored[[c != chosen for c in conditions]].groupby(conditions):
            notes.append(
                f"Not shown: {_what(cells)} of {', '.join(sorted(set(cells['run'])))} "
                f"({_difference(condition, chosen)}), evaluated otherwise than the rest; run "
                "lengthgen eval with the lengths, variants and eval.* of the others"
            )
    if not kept:
        return Selection(rows=rows.assign(series=""), notes=notes)
    rows = _labelled(pd.concat(kept), name_models=name_models)
    rows, repeated = _one_run_of_a_seed(rows)
    notes += [f"Not shown: {run}, another run of one seed" for run in repeated]
    return Selection(rows=rows.reset_index(drop=True), notes=[*notes, *_limits(rows)])


def _what(rows: pd.DataFrame) -> str:
    """Returns protocols, variants and lengths: "tail + yarn at 512, 1k"."""
    names = rows["protocol"] + rows["variant"].map(lambda v: f" + {v}" if v else "").astype(str)
    lengths = ", ".join(map(short, sorted(set(rows["length"]))))
    return f"{', '.join(sorted(set(names)))} at {lengths}"


def _condition(scored: pd.DataFrame, preferred: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Returns the condition of most curves: the preferred one, or that of most lengths."""
    lengths: dict[tuple[Any, ...], dict[tuple[Any, ...], set[int]]] = {}
    for condition, run, variant, length in zip(
        *(scored[name] for name in ("condition", "run", "variant", "length")), strict=True
    ):
        lengths.setdefault(condition, {}).setdefault((run, variant), set()).add(length)
    n_tokens = scored.groupby("condition")["n_tokens"].sum()

    def coverage(condition: tuple[Any, ...]) -> tuple[Any, ...]:
        covered = list(lengths[condition].values())
        in_all, in_any = set[int].intersection(*covered), set[int].union(*covered)
        return (
            *(len(covered), condition == preferred, len(in_all), len(in_any)),
            *(n_tokens[condition], str(condition)),
        )

    return max(lengths, key=coverage)


def _difference(condition: Any, chosen: tuple[Any, ...]) -> str:
    """Returns in what a condition differs from the chosen one."""
    texts = [
        text
        for text, value, other in zip(
            (f"precision {condition[0]}", f"K={condition[1]:g}" if condition[1] else "", ""),
            condition,
            chosen,
            strict=True,
        )
        if text and value != other
    ]
    return ", ".join(texts) or "other endpoints"


def _one_run_of_a_seed(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Returns the rows without further runs of one seed, which are no independent seeds."""
    first = rows.groupby(["series", "protocol", "seed"])["run"].transform("min")
    return rows[rows["run"] == first], sorted(set(rows.loc[rows["run"] != first, "run"]))


def _limits(rows: pd.DataFrame) -> Iterator[str]:
    """Yields what series differ in other than their schemes, and which runs are unfinished."""
    fields = {"model": "model", "train_length": "T", "tokens_seen": "tokens seen"}
    for field, name in fields.items():
        labels = rows.groupby(field)["series"].unique()
        if len(labels) > 1:
            values = [f"{value:,}" if isinstance(value, int) else value for value in labels.index]
            texts = [
                f"{value} ({', '.join(sorted(of))})"
                for value, of in zip(values, labels, strict=True)
            ]
            yield f"Not like with like: {name} is {' and '.join(texts)}"
    for row in rows.drop_duplicates("run").to_dict("records"):
        train = config_of(row).get("train", {})
        tokens, batch_tokens = train.get("tokens"), train.get("batch_tokens")
        if tokens and batch_tokens and row["tokens_seen"] < tokens:
            step, steps = (-(-n // batch_tokens) for n in (row["tokens_seen"], tokens))
            yield (
                f"Unfinished: {row['run']} is at step {step} of {steps}; the command that began it "
                "continues it"
            )


def _labelled(rows: pd.DataFrame, *, name_models: bool) -> pd.DataFrame:
    """Returns the rows with the name of their series; runs that differ in the seed share it.

    A series is a recipe at a checkpoint under a variant, as it was defined when it was evaluated.
    The name is the scheme's and the variant's; what differs between series of one name is added
    where it must be.
    """
    parts = rows["parts"].where(rows["variant"].notna(), "")
    keyed = rows.assign(parts=parts, variant=rows["variant"].fillna(""))
    keys = ["recipe", "variant", "parts", "tokens_seen"]
    first = keyed.sort_values(["seed", "run"]).drop_duplicates(keys)
    curves = [{str(k): v for k, v in row.items()} for row in first.to_dict("records")]
    several = {f for f in ("model", "train_length", "tokens_seen") if rows[f].nunique() > 1}
    names = [_name(curve, several | ({"model"} if name_models else set())) for curve in curves]
    shared = Counter(names)
    oracles = {name for name, part in schemes.registry().items() if issubclass(part, Aligned)}
    labels: dict[tuple[Any, ...], str] = {}
    for name, curve in zip(names, curves, strict=True):
        label = name
        if shared[name] > 1:
            twins = [c for c, other in zip(curves, names, strict=True) if other == name]
            label += f" ({_distinction(curve, twins)})"
        if oracles & _parts(curve):
            label += UPPER_BOUND
        labels[tuple(curve[key] for key in keys)] = visible(label)
    of_rows = [labels[key] for key in keyed[keys].itertuples(index=False, name=None)]
    return rows.assign(series=of_rows)


def _parts(curve: Mapping[str, Any]) -> set[str]:
    return set(config_of(curve).get("scheme", {}).get("parts") or {})


def _name(curve: Mapping[str, Any], several: set[str]) -> str:
    """Returns scheme and variant, and of model, T and tokens seen what varies."""
    texts = {
        "model": curve["model"],
        "train_length": f"T={curve['train_length']}",
        "tokens_seen": f"{millions(curve['tokens_seen'])} tokens",
    }
    details = ", ".join(text for field, text in texts.items() if field in several)
    variant = curve["variant"].replace("+", " + ")
    name = f"{curve['scheme']} + {variant}" if variant else curve["scheme"]
    return f"{name} ({details})" if details else name


def _distinction(curve: Mapping[str, Any], twins: Sequence[Mapping[str, Any]]) -> str:
    """Returns the keys in which series of one name differ, the scheme's first, three at most."""
    science = [_science(twin) for twin in twins]
    own = _science(curve)
    keys = {
        key
        for of_twin in science
        for key in of_twin
        if any(key not in other or other[key] != of_twin[key] for other in science)
    }
    ordered = sorted(keys, key=lambda key: (not key.startswith("scheme."), key))
    changes = [f"{k}={_value(own[k])}" if k in own else f"no {k}" for k in ordered[:3]]
    run = curve["run"].rsplit("-", 1)[-1]
    return ", ".join([*changes, run] if len(ordered) > 3 else changes)


def _science(curve: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what decides a curve's numbers but the seed, by dotted key."""
    flat = compose.flatten(config_of(curve))
    aside = ("seed", "eval.", "train.checkpoint_every", "train.tuned", "train.init_from")
    ratios = ("train.scheme_lr_ratio", "scheme.lr_ratio")
    variants = ("scheme.variants", "variants")
    kept = {k: v for k, v in flat.items() if not k.startswith((*aside, *ratios, *variants))}
    names = curve["variant"].split("+") if curve["variant"] else []
    used = tuple(f"{home}.{name}." for home in variants for name in names)
    return {
        **kept,
        "train.scheme_lr_ratio": next((flat[k] for k in ratios if flat.get(k) is not None), 1.0),
        "init_from": flat.get("train.init_from.recipe"),
        **{key: value for key, value in flat.items() if used and key.startswith(used)},
        "variant": curve["variant"],
        "parts": curve["parts"],
        "tokens_seen": curve["tokens_seen"],
    }


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    return value if isinstance(value, str) else json.dumps(value)


def loss_of(rows: pd.DataFrame) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Returns what a loss is a mean of: sums of nats, infinite where a model diverged, and counts.

    Of a protocol that averages windows they are sums of the means of windows, and windows.
    """
    of_windows = rows["protocol"].map(
        {p: named(p).mean == "windows" for p in set(rows["protocol"])}
    )
    nats = rows["nats"].where(~of_windows, rows["window_nats"]).fillna(math.inf)
    return nats, rows["n_tokens"].where(~of_windows, rows["n_windows"])


def curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per run, variant, protocol and length: loss and perplexity with their interval.

    The interval is that of this checkpoint on other documents. Incomplete cells are left out, and
    skipped ones have no loss.
    """
    facts = [c for c in rows.columns if c in {*CELL, "scheme", "model", "seed", "corpus"}]
    facts += ["fingerprint", "packed", "train_length", "reference", "trained_in", "n_documents"]
    found: list[dict[str, Any]] = []
    for _, cell in rows.groupby(CELL, dropna=False, sort=True):
        first, scored = cell.iloc[0], cell[cell["document"].notna()]
        if len(scored) < first["n_documents"]:
            continue
        point = {**first[facts].to_dict(), "skipped": first["skipped"]}
        if len(scored):
            nats, counts = loss_of(scored)
            loss = ratio(nats.to_numpy()[None], counts.to_numpy())
            bytes_ = scored["n_bytes"].sum()
            point |= {
                **{"loss": loss.value, "ppl": perplexity(loss.value)},
                **{"low": loss.low, "high": loss.high, "n_tokens": scored["n_tokens"].sum()},
                "bits_per_byte": nats.sum() / (math.log(2) * bytes_) if bytes_ else math.nan,
            }
        found.append(point)
    table = pd.DataFrame(found)
    return table[[*LEADING, *(c for c in table.columns if c not in LEADING)]]


def perplexity(loss: float) -> float:
    """Returns exp(loss); infinity where that is beyond a float, nan for nan."""
    return math.inf if loss >= 709 else math.exp(loss)


def short(length: float) -> str:
    """Returns a length as 512, 1k (1024), 1.5k (1536), 16k (16384); others whole."""
    length = int(length)
    return f"{length / 1024:g}k" if length >= 1024 and length % 512 == 0 else str(length)


def millions(tokens: float) -> str:
    """Returns a number of tokens as 12M, 1.5M; below a million whole, with commas."""
    return f"{tokens / 1e6:.3g}M" if tokens >= 1e6 else f"{tokens:,.0f}"
