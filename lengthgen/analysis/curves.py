"""Numbers from eval rows: curves, context gain, and which points are comparable.

Rows hold sums of nats and counts; they are added exactly (fsum) and divided once, here.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

from lengthgen.analysis.eval_rows import (
    FORMAT,
    LATER,
    CellFacts,
    Condition,
    EvalRow,
    damaged,
    fact_values,
    parse,
)
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import HEADLINE, named

Curve = tuple[str, str | None]  # a run and a variant of its scheme


@dataclass(frozen=True, kw_only=True)
class Point(CellFacts):
    """One complete cell: a run at one length, under one protocol; numbers are None if skipped."""

    n_tokens: int
    loss: float | None
    ppl: float | None
    bits_per_byte: float | None
    skipped: str | None
    rows: tuple[EvalRow, ...] = field(repr=False)  # one per document, sorted by its name

    @cached_property
    def documents(self) -> tuple[str, ...]:
        return tuple(row.document or "" for row in self.rows)

    @cached_property
    def sums(self) -> dict[Any, Any]:
        """Sums over its documents that paired_sums has computed; each is compared many times."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What context beyond (or short of) T is worth at a point, on the same targets."""

    point: Point
    nats: float  # G(C) = loss(T) - loss(C): positive if the context beyond T is used
    ratio: float  # ppl(C) / ppl(T)


def perplexity(loss: float) -> float:
    """Returns exp(loss); infinity where that is beyond a float, nan for nan."""
    return math.inf if loss >= 709 else math.exp(loss)


def curve(rows: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Returns a point for each complete cell, sorted; of a document's rows the last counts.

    Rows of another FORMAT are skipped, and those of a scheme or variant that was evaluated
    again under another definition.

    Raises UserError, naming run and field, if a field is missing or holds no possible value.
    """
    return curve_and_gaps(rows)[0]


def curve_and_gaps(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Point], list[str]]:
    """Returns the curve, and the cells that lack documents: of a killed writer, or cut since."""
    points: list[Point] = []
    messages: list[str] = []
    for cell in _cells(rows).values():
        point = _point(cell)
        if point is not None:
            points.append(point)
        else:
            first = next(iter(cell.values()))
            variant = f" + {first.variant}" if first.variant else ""
            messages.append(
                f"{first.protocol}{variant} at {first.length:,} of {first.run} has {len(cell)} of "
                f"{first.n_documents} documents"
            )
    points.sort(
        key=lambda p: (
            *(p.run, p.protocol, p.variant or "", p.targets or 0, p.precision),
            *(p.endpoints, p.tokens_seen, p.length),
        )
    )
    return points, messages


def _cells(
    rows: Iterable[Mapping[str, Any]],
) -> dict[tuple[object, ...], dict[str | None, EvalRow]]:
    """Returns the rows of each cell, by document."""
    cells: dict[tuple[object, ...], dict[str | None, EvalRow]] = {}
    read = [_row(raw) for raw in rows if raw.get("format", FORMAT) == FORMAT]
    newest = {(row.run, row.variant): row.parts for row in read}  # the last row's
    for row in read:
        if row.parts != newest[row.run, row.variant]:
            continue
        cell = (row.run, row.protocol, row.variant, row.targets, row.precision, row.endpoints)
        cells.setdefault((*cell, row.tokens_seen, row.length), {})[row.document] = row
    return cells


def _row(raw: Mapping[str, Any]) -> EvalRow:
    row = parse(raw)
    if row.document is None and row.skipped is None:
        raise damaged(row.run, "a row has neither document nor skipped")
    return row


def _point(cell: Mapping[str | None, EvalRow]) -> Point | None:
    """Returns the point of a cell's rows, by document; None if documents are still missing."""
    rows = [row for name, row in cell.items() if name is not None]
    if rows and len(rows) == rows[0].n_documents:
        return _measured(rows)
    if None not in cell:
        return None
    nothing: dict[str, Any] = {"loss": None, "ppl": None, "bits_per_byte": None}
    return Point(**cell[None].facts(), **nothing, n_tokens=0, skipped=cell[None].skipped, rows=())


def _measured(rows: Sequence[EvalRow]) -> Point:
    facts, values = rows[0].facts(), fact_values(rows[0])
    for row in rows:
        for name, value in row.facts().items() if fact_values(row) != values else ():
            pair = (value, facts[name])
            if value != facts[name] and not (name in LATER and None in pair):
                raise damaged(row.run, f"field {name} is {facts[name]!r} and {value!r} in one cell")
    if named(rows[0].protocol).predicts:
        for row in rows:
            counts = (row.token_hits, row.stop_errors)
            if None in counts or len(row.first_wrong or ()) != row.n_windows or not row.n_windows:
                raise damaged(row.run, "field first_wrong is not of every answer")
            lists = (row.edit_distances, row.results_right, row.answer_ranks)
            n_decoded = {len(values) for values in lists if values is not None}
            if len(n_decoded) > 1 or not n_decoded <= {*range(1, row.n_windows + 1)}:
                raise damaged(row.run, "field edit_distances is not of every decoded answer")
    of_windows = named(rows[0].protocol).mean == "windows"
    n_tokens, n_windows = sum(row.n_tokens for row in rows), sum(row.n_windows for row in rows)
    nats = _sum(row.nats for row in rows)
    n_bytes = sum(row.n_bytes for row in rows)
    if n_tokens == 0:
        raise damaged(rows[0].run, f"field n_tokens is 0 in all rows of length {rows[0].length}")
    loss = _sum(row.window_nats for row in rows) / n_windows if of_windows else nats / n_tokens
    return Point(
        **facts,
        n_tokens=n_tokens,
        loss=loss,
        ppl=perplexity(loss),
        bits_per_byte=nats / (math.log(2) * n_bytes) if n_bytes else None,
        skipped=None,
        rows=tuple(sorted(rows, key=lambda row: row.document or "")),
    )


def _sum(nats: Iterable[float | None]) -> float:
    return math.fsum(math.inf if x is None else x for x in nats)


def context_gain(points: Iterable[Point]) -> list[Gain]:
    """Returns G(C) at each scored point of the headline curves that have a loss at T.

    A curve is a run and variant under one condition at one checkpoint.
    """
    curves: dict[tuple[object, ...], list[Point]] = {}
    for p in points:
        if p.protocol == HEADLINE:
            curves.setdefault((p.run, p.variant, p.condition, p.tokens_seen), []).append(p)
    gains: list[Gain] = []
    for members in curves.values():
        at_T = next((p.loss for p in members if p.length == p.train_length), None)
        for p in members:
            if at_T is not None and p.loss is not None:
                ratio = perplexity(p.loss - at_T)
                gains.append(Gain(point=p, nats=at_T - p.loss, ratio=ratio))
    return gains


def comparable(points: Sequence[Point]) -> list[Point]:
    """Returns the points that can be compared.

    Of each run the newest checkpoint; under each protocol the one condition (precision, targets,
    endpoints) that all curves share, and of several the one that covers the most lengths. Raises
    UserError, naming two runs, if the texts differ or no condition is shared.
    """
    _refuse_mixed_texts(points)
    newest: dict[str, int] = {}
    for p in points:
        newest[p.run] = max(newest.get(p.run, 0), p.tokens_seen)
    kept: list[Point] = []
    preferred: Condition | None = None  # the headline's: what is compared with it goes along
    for protocol in sorted({p.protocol for p in points}, key=lambda name: (name != HEADLINE, name)):
        current = [p for p in points if p.protocol == protocol and p.tokens_seen == newest[p.run]]
        if current:
            condition = _shared_condition(current, preferred)
            preferred = condition if protocol == HEADLINE else preferred
            kept += [p for p in current if p.condition == condition]
    return kept


def _refuse_mixed_texts(points: Sequence[Point]) -> None:
    texts: dict[tuple[str, bool], dict[str, None]] = {}
    for p in points:
        texts.setdefault((p.fingerprint, p.packed), {})[p.run] = None
    remedy = " or ".join(f"lengthgen report {' '.join(runs)}" for runs in texts.values())
    for a, b in pairwise(points):
        if a.fingerprint != b.fingerprint:
            one, other = a.fingerprint[:12], b.fingerprint[:12]
            raise UserError(
                f"runs {a.run} and {b.run} were measured on different tokens (corpus {a.corpus} "
                f"with fingerprint {one}, {b.corpus} with {other}); report those of one: {remedy}"
            )
        if a.packed != b.packed:
            raise UserError(
                f"runs {a.run} and {b.run} differ in corpus.packed ({a.packed}, {b.packed}); "
                f"report those of one kind: {remedy}"
            )


def _shared_condition(points: Sequence[Point], preferred: Condition | None) -> Condition:
    """Returns the condition that all curves of a protocol share: the preferred one, or that of
    most lengths.
    """
    lengths: dict[Curve, dict[Condition, set[int]]] = {}
    n_tokens = Counter[Condition]()
    for p in points:
        found = lengths.setdefault((p.run, p.variant), {})
        found.setdefault(p.condition, set()).add(p.length)
        n_tokens[p.condition] += p.n_tokens
    shared = set[Condition].intersection(*(set(found) for found in lengths.values()))
    if not shared:
        raise _nothing_shared({curve: set(found) for curve, found in lengths.items()})

    def coverage(condition: Condition) -> tuple[object, ...]:
        covered = [found[condition] for found in lengths.values()]
        in_all, in_any = set[int].intersection(*covered), set[int].union(*covered)
        precision, targets, endpoints = condition
        return (
            condition == preferred,
            len(in_all),
            len(in_any),
            n_tokens[condition],
            precision,
            targets or 0,
            endpoints,
        )

    return max(shared, key=coverage)


def _nothing_shared(conditions: Mapping[Curve, set[Condition]]) -> UserError:
    """Returns the error that names two curves without a shared condition, and their difference."""
    pairs = [(a, b) for a, b in combinations(conditions, 2) if not conditions[a] & conditions[b]]
    (run_a, _), (run_b, _) = a, b = pairs[0] if pairs else tuple(conditions)[:2]
    runs = " ".join(dict.fromkeys((run_a, run_b)))
    where = " and ".join(f"{run} + {variant}" if variant else run for run, variant in (a, b))
    for position, what in enumerate(("precision", "targets")):
        of_a, of_b = ({c[position] for c in conditions[curve]} for curve in (a, b))
        if not of_a & of_b:
            values = " and ".join(", ".join(map(str, sorted(of, key=str))) for of in (of_a, of_b))
            return UserError(
                f"{where} were evaluated with eval.{what} {values}; report runs of one "
                f"{what}, or evaluate both the same way: lengthgen eval {runs} --lengths ..."
            )
    return UserError(
        f"{where} share no endpoints, so they scored different tokens; report other runs, or "
        f"evaluate both with one eval.reach and eval.endpoints: lengthgen eval {runs} --lengths ..."
    )
