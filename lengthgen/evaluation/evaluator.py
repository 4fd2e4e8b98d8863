"""Evaluation of a run: the cells that are missing, scored, as rows of sums per document."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lengthgen.config.schema import Config
from lengthgen.data.objective import objective_of
from lengthgen.data.windows import Ints, Span
from lengthgen.errors import UserError
from lengthgen.evaluation import plan, protocols, scoring
from lengthgen.evaluation import rows as eval_rows
from lengthgen.evaluation.plan import cells, windows
from lengthgen.evaluation.scored_text import Cell, Evaluation, Plan, Scored
from lengthgen.evaluation.scoring import Replace
from lengthgen.files import append_rows, write_rows
from lengthgen.model.build import build_model, seed_of, with_parts
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, devices, directory, signals, status
from lengthgen.runs.distributed import Ranks
from lengthgen.schemes import Scheme
from lengthgen.terminal import Progress

REPLACEMENTS = 3  # donors of a swap, orders of a shuffle: one donor may be an unusual document
Row = dict[str, Any]
Schemes = Mapping[str | None, Scheme | str]  # by variant; a reason in place of one


class OpenedRun(NamedTuple):
    """A trained run, ready to be scored."""

    device: torch.device
    planned: Plan
    weights: Mapping[str, Tensor]
    sha256: str  # of the weights' file
    tokens_seen: int


@signals.interruptible()
def evaluate(config: Config, run_dir: Path, *, ranks: Ranks, show: Progress) -> list[Row]:
    """Computes the cells of the configuration that eval.jsonl lacks, and returns the rows of all.

    A run that lacks none is only read: it may lie where nothing can be written.

    Raises UserError if the run has no checkpoint or a length that no document has.
    """
    opened = open_run(config, run_dir, ranks=ranks, show=show)
    if len(set(ranks.gather(opened.tokens_seen))) > 1:
        raise UserError(f"{run_dir} is being trained; evaluate it afterwards, or with one process")
    facts = {cell: cell_facts(cell, config, opened) for cell in cells(config)}

    def stored() -> dict[Cell, list[Row]]:
        rows = eval_rows.stored(run_dir, run=config.run_id)
        return {cell: [row for row in rows if facts[cell].items() <= row.items()] for cell in facts}

    def lacking() -> list[Cell]:
        rows = stored() if ranks.is_main else {}
        return ranks.gather([cell for cell in rows if not _is_complete(rows[cell], config)])[0]

    if lacking():
        with status.run_lock(run_dir, "eval") if ranks.is_main else nullcontext():
            if todo := lacking():  # another process may have written them meanwhile
                planned = opened.planned
                if ranks.is_main:  # which targets are scored
                    names, K = planned.corpus.validation.names, planned.targets
                    about = {"run": config.run_id, "targets": K}
                    rows = [{**about, "document": names[d], "end": n} for d, n in planned.endpoints]
                    write_rows(run_dir / "endpoints.jsonl", rows)
                for message in plan.messages(config, planned):
                    show.say(message)
                model = trained_model(config, opened)
                evaluation = Evaluation(
                    config=config, plan=planned, model=model, ranks=ranks, show=show
                )
                for measured in _measured(evaluation, todo):
                    if ranks.is_main:
                        rows = [facts[cell] | row for cell in measured for row in measured[cell]]
                        append_rows(run_dir / "eval.jsonl", rows)
            ranks.barrier()
    return [{**row, "run": run_dir.name} for rows in stored().values() for row in rows]


def open_run(config: Config, run_dir: Path, *, ranks: Ranks, show: Progress) -> OpenedRun:
    """Returns what is needed to score a run's newest checkpoint; the process is set up for it.

    Raises UserError if there is none, if the last one of a trained run is damaged, or if the corpus
    or its documents do not serve.
    """
    device = devices.device_of(config.runtime, ranks)
    devices.prepare(config.runtime, device)
    corpus = directory.load_corpus(config, run_dir, say=show.say)
    planned = plan.plan(config, corpus)
    checkpoint = checkpoints.final(config, run_dir)
    return OpenedRun(
        device=device,
        planned=planned,
        weights=checkpoint.weights,
        sha256=checkpoint.sha256,
        tokens_seen=checkpoint.step * config.train.batch_tokens,
    )


def trained_model(config: Config, opened: OpenedRun) -> Transformer:
    model = build_model(config, vocab_size=opened.planned.corpus.vocab_size)
    model.load_state_dict(opened.weights)
    return model.to(opened.device).eval()


def cell_facts(cell: Cell, config: Config, opened: OpenedRun) -> Row:
    """Returns what identifies a cell: its rows share it, and no others have it."""
    protocol, planned = protocols.named(cell.protocol), opened.planned
    return {
        **cell._asdict(),
        "targets": None if protocol.block is None else config.eval.targets,  # K
        "parts": eval_rows.parts_hash(config, cell.variant),
        "endpoints": protocol.manifest(planned),
        "run": config.run_id,
        "weights": opened.sha256,
        "scheme": config.scheme.name,
        "model": config.model.label,
        "seed": config.seed,
        "corpus": config.corpus.name,
        "fingerprint": planned.corpus.fingerprint,
        "packed": planned.corpus.packed,
        "train_length": objective_of(config).train_length,  # in the unit of `length`
        "tokens_seen": opened.tokens_seen,
        "trained_in": config.train.precision,
        "precision": config.eval.precision,
        "reach": planned.max_context,  # targets before every endpoint
    }


def _is_complete(rows: Sequence[Row], config: Config) -> bool:
    """True if a cell has a row of each of its documents, or one that says why it has none."""
    complete = [row for row in rows if protocols.named(row["protocol"]).is_complete(row, config)]
    documents = {row["document"] for row in complete} - {None}
    return bool(complete) and len(documents) == complete[0]["n_documents"]


class Job(NamedTuple):
    """Cells that share forward passes."""

    cells: list[Cell]
    scheme: Scheme
    spans: list[Span]
    replacements: list[Replace]  # of far text, whose nats are averaged

    def n_tokens(self, model: Transformer) -> int:
        model.scheme = self.scheme
        predicts = protocols.named(self.cells[0].protocol).predicts
        passes = scoring.passes(model, self.spans, predicts=predicts)
        return sum(batch.n_tokens for batch in passes) * max(1, len(self.replacements))


def _measured(evaluation: Evaluation, todo: Sequence[Cell]) -> Iterator[dict[Cell, list[Row]]]:
    """Yields the rows of the cells to do, as soon as the forward passes of some are done."""
    schemes, show, model = _schemes(evaluation, todo), evaluation.show, evaluation.model
    for cell in todo:
        if reason := undefined(cell, schemes, evaluation.plan):
            show.say(f"{cell.title}: skipped, {reason}")
            yield {cell: [eval_rows.skipped(reason)]}
    jobs = _jobs(evaluation, schemes, todo)
    if not jobs:
        return
    total = sum(job.n_tokens(model) for job in jobs)
    show.start(f"evaluate {evaluation.config.scheme.name}", total)
    for job in jobs:
        nats = _scored(job, evaluation)
        measured: dict[Cell, list[Row]] = {}
        for cell in job.cells:
            if cell in todo:
                spans = windows(cell, evaluation.plan)
                measured[cell] = protocols.named(cell.protocol).rows(spans, nats, evaluation)
                if n_diverged := sum(row["nats"] is None for row in measured[cell]):
                    of_all = f"{n_diverged} of {len(measured[cell])} documents"
                    show.say(f"{cell.title}: the loss is not finite in {of_all}")
        yield measured
    show.finish()


def _schemes(evaluation: Evaluation, todo: Sequence[Cell]) -> Schemes:
    """Returns the scheme of each variant; why it has none, of a reference variant without one."""
    config, model = evaluation.config, evaluation.model
    schemes: dict[str | None, Scheme | str] = {None: model.scheme}
    for variant in dict.fromkeys(cell.variant for cell in todo if cell.variant is not None):
        try:
            schemes[variant] = with_parts(model, config, config.variant(variant))
        except UserError as error:  # pipeline.validate has refused it among eval.variants
            schemes[variant] = str(error)
    return schemes


def undefined(cell: Cell, schemes: Schemes, planned: Plan) -> str | None:
    """Returns why a cell has no value, or None."""
    scheme, altered = schemes[cell.variant], protocols.named(cell.protocol).altered
    if isinstance(scheme, str):
        return scheme
    if altered == "swap" and len(planned.segments) < 2:
        return "there is one document only, and none to swap text with"
    if altered and cell.length <= (kept := planned.train_length + planned.targets):
        return f"of windows of up to {kept} tokens, no token lies further than T from all targets"
    lengths = [span.length for span in windows(cell, planned)]
    if not lengths:
        return f"the corpus has nothing of length {cell.length} to score"
    return scheme.unsupported_reason(max(lengths))


def _jobs(evaluation: Evaluation, schemes: Schemes, todo: Sequence[Cell]) -> list[Job]:
    """Returns the cells to do, those of a protocol and variant together.

    A cell of the matched tail is alone. All cells of a job are scored if one of them is missing, so
    that what else is done, or was left by an evaluation that was killed, changes no digit.
    """
    planned, grouped = evaluation.plan, dict[tuple[object, ...], list[Cell]]()
    for cell in cells(evaluation.config):
        if cell.variant in schemes and undefined(cell, schemes, planned) is None:
            alone = protocols.named(cell.protocol).matched
            grouped.setdefault(cell if alone else cell[:2], []).append(cell)
    jobs: list[Job] = []
    for together in grouped.values():
        scheme = schemes[together[0].variant]
        if not isinstance(scheme, str) and not set(together).isdisjoint(todo):
            spans = [span for cell in together for span in windows(cell, planned)]
            seed = evaluation.config.eval.seed
            replaced = replacements(together[0].protocol, planned, seed=seed)
            jobs.append(Job(together, scheme, spans, replaced))
    return jobs


def _scored(job: Job, evaluation: Evaluation) -> dict[Span, Scored]:
    """Returns the nats of the spans of a job."""
    config, model = evaluation.config, evaluation.model
    model.scheme = job.scheme
    longest = max(job.cells, key=lambda cell: cell.length)
    scored = [
        scoring.score(
            model,
            job.spans,
            evaluation.plan.corpus,
            precision=config.eval.precision,
            seed=config.eval.seed,
            ranks=evaluation.ranks,
            advance=lambda n: evaluation.show.advance(n, at=longest.title),
            replace=replace,
            protocol=protocols.named(longest.protocol),
        )
        for replace in job.replacements or (None,)
    ]
    return {span: np.mean([nats[span] for nats in scored], axis=0) for span in job.spans}


def replacements(protocol: str, planned: Plan, *, seed: int) -> list[Replace]:
    """Returns what puts other text in place of far text: of other documents, or in random order."""
    kind = protocols.named(protocol).altered
    if kind is None:
        return []
    n_others = len(planned.segments) - 1 if kind == "swap" else REPLACEMENTS
    numbers = range(1, 1 + min(REPLACEMENTS, n_others))
    return [partial(_replaced, n=n, kind=kind, planned=planned, seed=seed) for n in numbers]


def _replaced(
    inputs_T: Ints, span: Span, *, n: int, kind: protocols.Alteration, planned: Plan, seed: int
) -> Ints:
    """Returns the inputs with other text further than T before every scored target."""
    first = len(planned.corpus.beginning)
    far = slice(first, first + n_replaced(span, planned.train_length))
    changed = inputs_T.copy()
    if kind == "swap":
        changed[far] = scoring.window_of(donor(span, n, planned), planned.corpus)[0][far]
    else:
        key = [seed_of(seed + n - 1, span.document, span.end), span.length]
        np.random.Generator(np.random.Philox(key=key)).shuffle(changed[far])
    return changed


def n_replaced(span: Span, train_length: int) -> int:
    """Returns how many of the first tokens of a window are replaced: T + S stay."""
    return max(0, span.length - train_length - span.scored)


def donor(span: Span, n: int, planned: Plan) -> Span:
    """Returns the window of the n-th document before a span's in the order of endpoints, cyclic."""
    clusters = [planned.cluster(*endpoint) for endpoint in planned.segments]
    own = clusters.index(planned.cluster(span.document, span.end))
    document, end = planned.segments[(own - n) % len(clusters)]
    return span._replace(document=document, end=end)
