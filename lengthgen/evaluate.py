"""Nats of target tokens at every length, under each protocol: rows of sums per document.

Protocols, on endpoints e that all lie `reach` targets or more deep in their document:
  tail        the last K targets before e from a window of C targets that ends at e, so that every
              length C scores the same tokens
  nonoverlap  floor(reach / C) windows of C targets that end at e, e - C, ...; all targets, one
              endpoint per document
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from lengthgen import corpora, devices, runs
from lengthgen.batches import Endpoint, Windows, endpoints, manifest, n_targets, window
from lengthgen.config import Config
from lengthgen.corpora import TokenizedCorpus
from lengthgen.errors import UserError
from lengthgen.model import Transformer, seed_of, with_parts
from lengthgen.ranks import Ranks
from lengthgen.tracking import append_rows, read_rows

BATCH_TOKENS = 8192  # of one forward pass; fixed, so that sums do not depend on the world size


class Show(Protocol):
    """Where long work says what it does."""

    def say(self, message: str) -> None: ...
    def start(self, task: str, total: int, unit: str = "tokens", *, done: int = 0) -> None: ...
    def advance(self, amount: int, **fields: float | str) -> None: ...
    def finish(self) -> None: ...


class Cell(NamedTuple):
    """One number of the curve: what is scored together."""

    protocol: str
    variant: str | None
    length: int


class Span(NamedTuple):
    """A window of `length` targets that ends at `end`; its last `scored` targets count."""

    document: int
    end: int
    length: int
    scored: int


class Sum(NamedTuple):
    """Nats, tokens and bytes of one document's scored targets."""

    document: int
    nats: float
    n_tokens: int
    n_bytes: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an evaluation scores: fixed before a model is built."""

    corpus: TokenizedCorpus
    reach: int
    endpoints: list[Endpoint]
    manifest: str


def plan(config: Config, corpus: TokenizedCorpus) -> Plan:
    """Chooses the endpoints: how deep they lie, _reach says.

    Raises UserError, with changes that help, if no document has the longest length asked, or none
    of the training split a window.
    """
    longest = int(n_targets(corpus, corpus.validation).max(initial=0))
    _refuse_short_documents(config, corpus, longest)
    reach = _reach(config, longest)
    uneven = [length for length in config.eval.lengths if reach % length]
    if uneven and "nonoverlap" in config.eval.protocols:
        raise UserError(
            f"eval.lengths: {uneven[0]} does not divide the {reach} tokens before an endpoint, so "
            "that nonoverlap would score other tokens at it than at other lengths; drop it, or use "
            "eval.protocols=[tail] (lengthgen eval: --protocols tail)"
        )
    drawn = endpoints(
        corpus,
        reach=reach,
        count=config.eval.endpoints,
        per_document=config.eval.endpoints if corpus.packed else config.eval.endpoints_per_document,
        targets=config.eval.targets,
        seed=config.eval.seed,
    )
    return Plan(corpus=corpus, reach=reach, endpoints=drawn, manifest=manifest(corpus, drawn))


def evaluate(config: Config, run_dir: Path, *, ranks: Ranks, show: Show) -> list[dict[str, Any]]:
    """Computes the cells of the curve that eval.jsonl lacks, and returns all rows of this plan.

    Raises UserError if the run has no checkpoint or a length that no document has.
    """
    device = devices.device_of(config.runtime, ranks)
    devices.prepare(config.runtime, device)
    corpus = corpora.load(config.corpus, cache_dir=config.runtime.cache_dir, say=show.say)
    runs.check_corpus(run_dir, corpus)
    planned = plan(config, corpus)
    checkpoint = runs.newest_checkpoint(run_dir, say=show.say)
    if checkpoint is None:
        raise UserError(f"{run_dir} has no checkpoint yet; lengthgen train continues it")
    if len(set(ranks.gather(checkpoint.step))) > 1:
        raise UserError(f"{run_dir} is being trained; evaluate it afterwards, or with one process")
    about = _about(config, run_dir, planned, tokens_seen=_tokens(config, checkpoint.step))
    with runs.claimed(run_dir, "eval") if ranks.is_main else nullcontext():
        _fill(config, run_dir, planned, checkpoint, about, device, ranks=ranks, show=show)
        ranks.barrier()
    found = read_rows(run_dir / "eval.jsonl")
    return [row for row in found if all(row.get(key) == about[key] for key in about)]


def _fill(
    config: Config,
    run_dir: Path,
    planned: Plan,
    checkpoint: runs.Checkpoint,
    about: dict[str, Any],
    device: torch.device,
    *,
    ranks: Ranks,
    show: Show,
) -> None:
    """Appends the rows of the cells that are missing, as rank 0 sees them."""
    todo = ranks.of_main(missing(config, about, read_rows(run_dir / "eval.jsonl")))
    if todo and planned.reach != config.eval.reach:
        show.say(_depth(config, planned))
    if todo and len(planned.endpoints) < config.eval.endpoints:
        show.say(
            f"{len(planned.endpoints)} of the {config.eval.endpoints} endpoints asked fit into the "
            f"validation documents of at least {planned.reach:,} tokens"
        )
    if todo:
        model = Transformer(config, vocab_size=planned.corpus.vocab_size)
        model.load_state_dict(checkpoint.weights)
        model.to(device).eval()
        trained = model.scheme
        for cell in todo:
            model.scheme = trained
            if cell.variant is not None:
                model.scheme = with_parts(model, config, config.variant(cell.variant))
            rows = _rows(model, cell, config, planned, ranks=ranks, show=show)
            if ranks.is_main:
                append_rows(run_dir / "eval.jsonl", [{**about, **row} for row in rows])


def missing(config: Config, about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[Cell]:
    """Returns the cells that the configuration asks for and the rows do not hold completely."""
    present: dict[tuple[object, ...], tuple[set[str], int]] = {}
    for row in rows:
        if all(row.get(key) == about[key] for key in about):
            cell = (row["protocol"], row["targets"], row.get("parts"), row["length"])
            documents, _ = present.setdefault(cell, (set(), row["n_documents"]))
            if row["document"] is not None:
                documents.add(row["document"])
    wanted = [
        Cell(protocol, variant, length)
        for protocol in config.eval.protocols
        for variant in (None, *config.eval.variants)
        for length in sorted(set(config.eval.lengths))
    ]

    def complete(cell: Cell) -> bool:
        parts = _parts_hash(config, cell.variant)
        key = (cell.protocol, _targets(config, cell.protocol), parts, cell.length)
        documents, expected = present.get(key, (set[str](), None))
        return len(documents) == expected

    return [cell for cell in wanted if not complete(cell)]


def spans(cell: Cell, planned: Plan, *, targets: int) -> list[Span]:
    """Returns the windows that a cell scores."""
    if cell.protocol == "tail":
        return [Span(e.document, e.end, cell.length, targets) for e in planned.endpoints]
    first: dict[int, int] = {}
    for e in planned.endpoints:
        first.setdefault(e.document, e.end)
    return [
        Span(document, end - n * cell.length, cell.length, cell.length)
        for document, end in first.items()
        for n in range(planned.reach // cell.length)
    ]


@torch.inference_mode()
def score(
    model: Transformer,
    wanted: Sequence[Span],
    corpus: TokenizedCorpus,
    *,
    precision: str,
    generator_seed: int,
    ranks: Ranks,
    advance: Callable[[int], None],
) -> list[Sum]:
    """Returns the sums of each document, in float64, the same for any number of processes.

    All spans have one length and one number of scored targets. Forward passes hold the same windows
    whatever the world size; each process takes every n-th of them.
    """
    device = model.embedding.weight.device
    mine: list[tuple[int, float, int]] = []
    passes = list(_passes(wanted))
    for first, batch in passes[ranks.rank :: ranks.world_size]:
        cut = _windows(batch, corpus)
        scored = batch[0].scored
        inputs = torch.from_numpy(cut.inputs_BT).to(device)
        targets = torch.from_numpy(cut.targets_BT[:, -scored:].copy()).to(device)
        generator = torch.Generator().manual_seed(seed_of("evaluation", generator_seed))
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            x_BTD = model(inputs, n_last=scored, generator=generator)
            nats_B = model.nats(x_BTD, targets).cpu().double().sum(1)
        n_bytes = corpus.token_bytes[cut.targets_BT[:, -scored:]].sum(1)
        mine += [
            (first + i, nats, int(n))
            for i, (nats, n) in enumerate(zip(nats_B.tolist(), n_bytes, strict=True))
        ]
        advance(inputs.numel() * ranks.world_size)
    every = sorted(one for part in ranks.gather(mine) for one in part)
    sums: dict[int, Sum] = {}
    for (_, nats, n_bytes), span in zip(every, wanted, strict=True):
        old = sums.get(span.document, Sum(span.document, 0.0, 0, 0))
        sums[span.document] = Sum(
            span.document, old.nats + nats, old.n_tokens + span.scored, old.n_bytes + n_bytes
        )
    return list(sums.values())


def _rows(
    model: Transformer, cell: Cell, config: Config, planned: Plan, *, ranks: Ranks, show: Show
) -> list[dict[str, Any]]:
    """Returns the rows of one cell: one per document, or one that says why it is skipped."""
    targets = _targets(config, cell.protocol)
    said = {**cell._asdict(), "targets": targets, "parts": _parts_hash(config, cell.variant)}
    reason = model.scheme.undefined_at(cell.length)
    if reason:
        show.say(f"{_name(cell)}: skipped, {reason}")
        nothing = {"document": None, "n_documents": 0, "nats": 0.0, "n_tokens": 0, "n_bytes": 0}
        return [{**said, **nothing, "skipped": reason}]
    wanted = spans(cell, planned, targets=config.eval.targets)
    show.start(_name(cell), len(wanted) * cell.length)
    sums = score(
        model,
        wanted,
        planned.corpus,
        precision=config.eval.precision,
        generator_seed=config.eval.seed,
        ranks=ranks,
        advance=show.advance,
    )
    show.finish()
    names = planned.corpus.validation.names
    diverged = [names[one.document] for one in sums if not math.isfinite(one.nats)]
    if diverged:
        show.say(
            f"{_name(cell)}: the loss is not finite in {len(diverged)} of {len(sums)} documents"
        )
    return [
        {
            **said,
            "n_documents": len(sums),
            **one._asdict(),
            "document": names[one.document],
            "nats": one.nats if math.isfinite(one.nats) else None,
        }
        for one in sums
    ]


def _passes(wanted: Sequence[Span]) -> Iterator[tuple[int, Sequence[Span]]]:
    """Yields the spans of every forward pass, with the number of the first."""
    n = max(1, BATCH_TOKENS // wanted[0].length)
    for first in range(0, len(wanted), n):
        yield first, wanted[first : first + n]


def _windows(batch: Sequence[Span], corpus: TokenizedCorpus) -> Windows:
    cut = [
        window(corpus, corpus.validation, s.document, s.end - s.length, s.length, s.length)
        for s in batch
    ]
    return Windows(*(np.stack(column) for column in zip(*cut, strict=True)))


def _reach(config: Config, longest: int) -> int:
    """Returns how deep endpoints lie, in documents of at most `longest` tokens.

    Only a length that is longer than _common_reach has endpoints of its own.
    """
    return max(_common_reach(config, longest), *config.eval.lengths)


def _common_reach(config: Config, longest: int) -> int:
    """Returns the depth that no length asked changes, so that all evaluations score the same.

    eval.reach; where no document is that long, what the trained length can be doubled to in one.
    """
    if config.eval.reach <= longest:
        return config.eval.reach
    return _doubled(config.train.length, longest)


def _depth(config: Config, planned: Plan) -> str:
    """Says how deep endpoints lie, and why not eval.reach."""
    longest = int(n_targets(planned.corpus, planned.corpus.validation).max())
    common = _common_reach(config, longest)
    if planned.reach > common:
        why = f"more than the {common:,} of other evaluations, for the longest of eval.lengths"
    else:
        why = f"no validation document has the {config.eval.reach:,} of eval.reach"
    return f"endpoints lie {planned.reach:,} tokens deep: {why}"


def _doubled(length: int, limit: int) -> int:
    """Returns the length doubled, or halved, until it is the last one within the limit."""
    while length > max(1, limit):
        length //= 2
    while 2 * length <= limit:
        length *= 2
    return length


def _refuse_short_documents(config: Config, corpus: TokenizedCorpus, longest: int) -> None:
    """Raises UserError, naming all that must change, if no document holds a window of a length."""
    asked, trained = max(config.eval.lengths), config.train.length
    in_training = int(corpus.train.lengths.max())
    if asked <= longest and trained <= in_training:
        return
    enough = asked <= corpus.validation.lengths.sum() and trained <= corpus.train.lengths.sum()
    changes: dict[str, object] = {}
    if trained > in_training:
        trained = changes["train.length"] = _doubled(trained, in_training)
        if config.train.batch_tokens % trained:
            changes["train.batch_tokens"] = config.train.batch_tokens // trained * trained
    lengths = [n for n in config.eval.lengths if n <= longest] or [_doubled(trained, longest)]
    if "tail" in config.eval.protocols and min(lengths) < config.eval.targets:
        changes["eval.targets"] = min(lengths)
    written = ",".join(map(str, lengths))
    if asked > longest:
        changes["eval.lengths"] = f"[{written}]"
    remedy = "try " + " ".join(f"{key}={changes[key]}" for key in sorted(changes))
    if enough and not corpus.packed:
        remedy += ", or train with corpus.packed=true"
    if asked > longest:
        raise UserError(
            f"eval.lengths: no validation document of corpus {corpus.name} has {asked} tokens "
            f"(the longest has {longest}); {remedy} (lengthgen eval: --lengths {written})"
        )
    raise UserError(
        f"train.length={config.train.length}: the longest training document of corpus "
        f"{corpus.name} has {in_training} tokens; {remedy}"
    )


def _about(config: Config, run_dir: Path, planned: Plan, *, tokens_seen: int) -> dict[str, Any]:
    """Returns what all rows of an evaluation share."""
    return {
        "run": run_dir.name,
        "scheme": config.scheme.name,
        "model": config.model.name,
        "seed": config.seed,
        "corpus": config.corpus.name,
        "fingerprint": planned.corpus.fingerprint,
        "packed": planned.corpus.packed,
        "train_length": config.train.length,
        "tokens_seen": tokens_seen,
        "precision": config.eval.precision,
        "endpoints": planned.manifest,
        "reach": planned.reach,
    }


def _parts_hash(config: Config, variant: str | None) -> str:
    """Returns 8 hexadecimal digits that name what a cell's scheme computes.

    A variant or a plugin may be redefined after it was evaluated: its name does not say which one
    was.
    """
    parts = config.scheme.parts if variant is None else config.variant(variant)
    plugins = [plugin.digest for plugin in config.plugins]
    said = json.dumps([variant, parts, config.scheme.layers, *plugins], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:8]


def _targets(config: Config, protocol: str) -> int | None:
    return config.eval.targets if protocol == "tail" else None


def _tokens(config: Config, step: int) -> int:
    return step * config.train.batch * config.train.length


def _name(cell: Cell) -> str:
    variant = f" + {cell.variant}" if cell.variant else ""
    return f"{cell.protocol} {cell.length:,}{variant}"
