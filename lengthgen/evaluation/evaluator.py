"""Evaluation of a run: the cells that are missing, scored, as rows of sums per document."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lengthgen.config.schema import Config
from lengthgen.data import corpora
from lengthgen.data.objective import objective_of
from lengthgen.data.spans import Span
from lengthgen.errors import UserError
from lengthgen.evaluation import plan, protocols, scoring
from lengthgen.evaluation import rows as eval_rows
from lengthgen.evaluation.plan import cells, windows
from lengthgen.evaluation.scored_text import Cell, Plan, Scored
from lengthgen.evaluation.scoring import Altered
from lengthgen.files import append_rows, write_rows
from lengthgen.model.build import build_model, with_parts
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, devices, directory, signals, status
from lengthgen.runs.distributed import Ranks
from lengthgen.schemes import Scheme
from lengthgen.terminal import Progress

REPLACEMENTS = 3  # donors of a swap, orders of a shuffle: one donor may be an unusual document


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A trained run, ready to be scored."""

    device: torch.device
    planned: Plan
    weights: Mapping[str, Tensor]
    sha256: str  # of the weights' file
    tokens_seen: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """Cells of one protocol and scheme that are scored together; `wanted` may hold more than they
    need, so that forward passes are the same whichever of their cells are missing.
    """

    cells: list[Cell]
    scheme: Scheme
    wanted: list[Span]
    needed: list[Span]
    altered: tuple[Altered, ...]  # replacements of far text, whose nats are averaged

    @property
    def title(self) -> str:
        """The cell, or the protocols of several."""
        if len(self.cells) == 1:
            return self.cells[0].title
        return " ".join(dict.fromkeys(cell.protocol for cell in self.cells))

    def passes(self, model: Transformer) -> list[scoring.Pass]:
        """Returns the forward passes, those of each replacement one after another."""
        model.scheme = self.scheme
        return scoring.passes(model, self.wanted, self.needed) * max(1, len(self.altered))


@signals.interruptible()
def evaluate(
    config: Config, run_dir: Path, *, ranks: Ranks, show: Progress
) -> list[dict[str, Any]]:
    """Computes the cells of the curve that eval.jsonl lacks, and returns all rows of this plan.

    A run that lacks none is only read: it may lie where nothing can be written.

    Raises UserError if the run has no checkpoint or a length that no document has.
    """
    opened = open_run(config, run_dir, ranks=ranks, show=show)
    planned = opened.planned
    if len(set(ranks.gather(opened.tokens_seen))) > 1:
        raise UserError(f"{run_dir} is being trained; evaluate it afterwards, or with one process")
    shared = _shared_facts(config, opened)
    log = run_dir / "eval.jsonl"

    def todo() -> list[Cell]:
        rows = eval_rows.stored(run_dir, run=config.run_id) if ranks.is_main else []
        return ranks.of_main(missing(config, planned, shared, rows))

    if todo():
        with status.run_lock(run_dir, "eval") if ranks.is_main else nullcontext():
            if lacking := todo():  # another process may have written them meanwhile
                if ranks.is_main:
                    _write_endpoints(config, run_dir, planned)
                for message in plan.messages(config, planned):
                    show.say(message)
                model = trained_model(config, opened)
                for rows in _rows(config, planned, model, lacking, ranks=ranks, show=show):
                    if ranks.is_main:
                        append_rows(log, [eval_rows.checked({**shared, **row}) for row in rows])
            ranks.barrier()
    rows = eval_rows.stored(run_dir, run=config.run_id)
    kept = [row for row in rows if _is_of(row, shared, planned) and _is_current(row, config)]
    return [{**row, "run": run_dir.name} for row in kept]  # which the run is shown by


def open_run(config: Config, run_dir: Path, *, ranks: Ranks, show: Progress) -> OpenedRun:
    """Returns what is needed to score a run's newest checkpoint; the process is set up for it.

    Raises UserError if there is none, if the last one of a trained run is damaged, or if the corpus
    or its documents do not serve.
    """
    device = devices.device_of(config.runtime, ranks)
    devices.prepare(config.runtime, device)
    corpus = corpora.load(
        config.corpus,
        cache_dir=config.runtime.cache_dir,
        say=show.say,
        fingerprint=directory.corpus_fingerprint(run_dir, run=config.run_id),
    )
    directory.check_corpus(run_dir, corpus, run=config.run_id)
    planned = plan.plan(config, corpus)
    checkpoint = checkpoints.final(config, run_dir, say=show.say)
    return OpenedRun(
        device=device,
        planned=planned,
        weights=checkpoint.weights,
        sha256=checkpoint.sha256,
        tokens_seen=checkpoint.step * config.train.batch_tokens,
    )


def trained_model(config: Config, opened: OpenedRun) -> Transformer:
    """Returns the checkpoint's model, ready to be evaluated."""
    model = build_model(config, vocab_size=opened.planned.corpus.vocab_size)
    model.load_state_dict(opened.weights)
    return model.to(opened.device).eval()


# Which cells


def missing(
    config: Config, planned: Plan, shared: Mapping[str, Any], rows: Sequence[dict[str, Any]]
) -> list[Cell]:
    """Returns the cells of the configuration that the rows do not hold completely."""
    present: dict[tuple[object, ...], tuple[set[str], int]] = {}
    for row in rows:
        protocol = protocols.named(row["protocol"])
        if _is_of(row, shared, planned) and protocol.is_complete(row, config):
            cell = (row["protocol"], row["targets"], row["parts"], row["length"])
            documents, _ = present.setdefault(cell, (set(), row["n_documents"]))
            if row["document"] is not None:
                documents.add(row["document"])

    def complete(cell: Cell) -> bool:
        parts = eval_rows.parts_hash(config, cell.variant)
        key = (cell.protocol, _targets_scored(config, cell.protocol), parts, cell.length)
        documents, expected = present.get(key, (set[str](), None))
        return len(documents) == expected

    return [cell for cell in cells(config) if not complete(cell)]


def _shared_facts(config: Config, opened: OpenedRun) -> dict[str, Any]:
    """Returns what all rows of an evaluation share."""
    planned = opened.planned
    return {
        "run": config.run_id,
        "weights": opened.sha256,
        "scheme": config.scheme.name,
        "model": config.model.label,
        "seed": config.seed,
        "corpus": config.corpus.name,
        "fingerprint": planned.corpus.fingerprint,
        "packed": planned.corpus.packed,
        "train_length": objective_of(config).train_length,
        "tokens_seen": opened.tokens_seen,
        "trained_in": config.train.precision,
        "precision": config.eval.precision,
        "reach": planned.max_context,
    }


def _cell_facts(cell: Cell, config: Config, planned: Plan) -> dict[str, Any]:
    """Returns what all rows of a cell share."""
    return {
        **cell._asdict(),
        "targets": _targets_scored(config, cell.protocol),
        "parts": eval_rows.parts_hash(config, cell.variant),
        "endpoints": protocols.manifest_of(cell.protocol, planned),
    }


def _targets_scored(config: Config, protocol: str) -> int | None:
    return config.eval.targets if protocols.named(protocol).scores_k else None


def _is_of(row: Mapping[str, Any], shared: Mapping[str, Any], planned: Plan) -> bool:
    """True if a row belongs to this evaluation: one checkpoint, one set of scored tokens."""
    if any(row.get(key) != value for key, value in shared.items()):
        return False
    return row["endpoints"] == protocols.manifest_of(row["protocol"], planned)


def _is_current(row: Mapping[str, Any], config: Config) -> bool:
    """True if a row of this evaluation has the K and the definitions of parts that it has."""
    if row["targets"] != _targets_scored(config, row["protocol"]):
        return False
    names = (None, *config.eval.variants, *config.eval.reference_variants)
    variant = row["variant"]
    return variant not in names or row["parts"] == eval_rows.parts_hash(config, variant)


# Scoring


def _rows(
    config: Config,
    planned: Plan,
    model: Transformer,
    todo: Sequence[Cell],
    *,
    ranks: Ranks,
    show: Progress,
) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows of the cells to do, as soon as the forward passes of some are done."""
    schemes, reasons = _schemes(config, model, todo)
    for cell in todo:
        reason = reasons.get(cell.variant) or undefined(cell, schemes, planned)
        if reason:
            show.say(f"{cell.title}: skipped, {reason}")
            yield [{**_cell_facts(cell, config, planned), **eval_rows.skipped(reason)}]
    jobs = _jobs(config, planned, schemes, todo)
    if not jobs:
        return
    total = sum(batch.n_tokens for job in jobs for batch in job.passes(model))
    show.start(f"evaluate {config.scheme.name}", total)
    log_frequency = eval_rows.unigram(planned.corpus)
    for job in jobs:
        model.scheme = job.scheme
        nats = _scored(job, config, planned, model, ranks=ranks, show=show)
        rows: list[dict[str, Any]] = []
        for cell in job.cells:
            protocol, scored = protocols.named(cell.protocol), windows(cell, planned)
            measured = protocol.rows(scored, config, planned, nats, log_frequency)
            n_diverged = sum(row["nats"] is None for row in measured)
            if n_diverged:
                show.say(
                    f"{cell.title}: the loss is not finite in {n_diverged} of {len(measured)} "
                    "documents"
                )
            for row in measured:
                protocol.extend(row, scored, config, planned, model, ranks=ranks, show=show)
                rows.append({**_cell_facts(cell, config, planned), **row})
        yield rows
    show.finish()


def _scored(
    job: Job, config: Config, planned: Plan, model: Transformer, *, ranks: Ranks, show: Progress
) -> dict[Span, Scored]:
    """Returns the nats of the spans that a job needs; the model is under the job's scheme."""
    protocol = protocols.named(job.cells[0].protocol)
    scored = [
        scoring.score(
            model,
            job.wanted,
            planned.corpus,
            precision=config.eval.precision,
            generator_seed=config.eval.seed,
            ranks=ranks,
            advance=lambda n: show.advance(n, at=job.title),
            needed=job.needed,
            altered=altered,
            protocol=protocol,
        )
        for altered in job.altered or (None,)
    ]
    return {span: np.mean([nats[span] for nats in scored], axis=0) for span in job.needed}


def _schemes(
    config: Config, model: Transformer, todo: Sequence[Cell]
) -> tuple[dict[str | None, Scheme], dict[str | None, str]]:
    """Returns the scheme of each variant, and why a reference variant has none."""
    schemes: dict[str | None, Scheme] = {None: model.scheme}
    reasons: dict[str | None, str] = {}
    for variant in dict.fromkeys(cell.variant for cell in todo if cell.variant is not None):
        try:
            schemes[variant] = with_parts(model, config, config.variant(variant))
        except UserError as error:  # pipeline.validate has refused it among eval.variants
            reasons[variant] = str(error)
    return schemes, reasons


def undefined(cell: Cell, schemes: Mapping[str | None, Scheme], planned: Plan) -> str | None:
    """Returns why a cell has no value, or None."""
    altered, text = protocols.named(cell.protocol).altered, planned.text
    if altered == "swap" and len(text.segments) < 2:
        return "there is one document only, and none to swap text with"
    if altered and cell.length <= (kept := text.train_length + text.targets):
        return f"of windows of up to {kept} tokens, no token lies further than T from all targets"
    lengths = [span.length for span in windows(cell, planned)]
    if not lengths:
        return f"the corpus has nothing of length {cell.length} to score"
    return schemes[cell.variant].unsupported_reason(max(lengths))


def _jobs(
    config: Config,
    planned: Plan,
    schemes: Mapping[str | None, Scheme],
    todo: Sequence[Cell],
) -> list[Job]:
    """Returns the cells to do, together where they can share forward passes."""
    jobs: list[Job] = []
    for variant, scheme in schemes.items():
        scored = {
            cell: windows(cell, planned)
            for cell in cells(config)
            if cell.variant == variant and undefined(cell, schemes, planned) is None
        }
        for together in _together(scored):
            to_score = [cell for cell in together if cell in todo]
            if to_score:
                wanted = [span for cell in together for span in scored[cell]]
                needed = [span for cell in to_score for span in scored[cell]]
                replaced = replacements(config, planned, to_score[0].protocol, wanted)
                jobs.append(
                    Job(
                        cells=to_score,
                        scheme=scheme,
                        wanted=wanted,
                        needed=needed,
                        altered=replaced,
                    )
                )
    return jobs


def _together(scored: Mapping[Cell, Sequence[Span]]) -> list[list[Cell]]:
    """Returns the cells in groups of which no two have windows that begin at one token.

    A cell of the matched tail is alone: what else is scored changes no digit.
    """
    groups: list[tuple[list[Cell], set[tuple[int, int]]]] = []
    for cell, spans in scored.items():
        starts = {(span.document, span.start) for span in spans}
        members = [cell]
        if not protocols.named(cell.protocol).matched:
            touching = [group for group in groups if group[1] & starts]
            for group in touching:
                groups.remove(group)
                members, starts = [*group[0], *members], starts | group[1]
        else:
            starts = set[tuple[int, int]]()  # none is added
        groups.append((members, starts))
    return [members for members, _ in groups]


def replacements(
    config: Config, planned: Plan, protocol: str, wanted: Collection[Span]
) -> tuple[Altered, ...]:
    """Returns what a protocol puts in place of far text: REPLACEMENTS donors, or random orders.

    A document takes the text of the ones before it in the order of endpoints, the first ones that
    of the last.
    """
    kind, text = protocols.named(protocol).altered, planned.text
    if kind is None:
        return ()
    segments = text.segments
    number = {text.cluster(*endpoint): i for i, endpoint in enumerate(segments)}

    def donor(span: Span, n: int) -> Span:
        own = number[text.cluster(span.document, span.end)]
        document, end = segments[(own - n) % len(segments)]
        return span._replace(document=document, end=end)

    n_replacements = min(REPLACEMENTS, len(segments) - 1) if kind == "swap" else REPLACEMENTS
    return tuple(
        Altered(
            kind=kind,
            train_length=text.train_length,
            donors={span: donor(span, n) for span in wanted},
            seed=config.eval.seed + n - 1,
        )
        for n in range(1, 1 + n_replacements)
    )


def _write_endpoints(config: Config, run_dir: Path, planned: Plan) -> None:
    """Writes which targets are scored: a line for each endpoint."""
    names, K = planned.corpus.validation.names, planned.text.targets
    write_rows(
        run_dir / "endpoints.jsonl",
        [
            {"run": config.run_id, "document": names[document], "end": end, "targets": K}
            for document, end in planned.endpoints
        ],
    )
