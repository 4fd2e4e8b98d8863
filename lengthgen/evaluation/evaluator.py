"""Evaluation of a run: the cells that are missing, scored, as rows of sums per document."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from lengthgen.config.schema import Config
from lengthgen.data.windows import Ints, Span
from lengthgen.errors import Refused, UserError
from lengthgen.evaluation import plan, scoring
from lengthgen.evaluation import rows as eval_rows
from lengthgen.evaluation.protocols import Alteration, Cell, Evaluation, Protocol, TimeLimit
from lengthgen.evaluation.scored_text import Plan, Scored
from lengthgen.evaluation.scoring import Replace
from lengthgen.evaluation.stored import KEPT_ROWS
from lengthgen.files import append_rows, hash_of, read_rows, reading
from lengthgen.model.build import redesigned, seed_of
from lengthgen.model.transformer import Transformer
from lengthgen.model.trial import plugin_errors
from lengthgen.runs import checkpoints, signals, status
from lengthgen.runs.distributed import Ranks
from lengthgen.schemes import Scheme

REPLACEMENTS = 3  # donors of a swap, orders of a shuffle: one donor may be an unusual document
EvalRow = dict[str, Any]
Kept = Literal["all"] | Sequence[int]  # kept checkpoints, by the tokens seen
Todo = dict[Cell, set[str]]  # cells without a value, and the documents of each that have a row


@signals.interruptible()
@plugin_errors()
def evaluate(
    opening: Callable[[], Evaluation],
    ranks: Ranks,
    *,
    kept: Kept = (),
    limit: TimeLimit | None = None,
) -> list[EvalRow]:
    """Computes what eval.jsonl lacks of a run that is opened, and returns the rows of all cells.

    `kept` names kept checkpoints by about their tokens, or all: what kept.jsonl lacks of them is
    computed too. A run that lacks nothing is only read: it may lie where nothing can be written.
    Under a time limit the cheapest cells are computed, as many as fit.

    Raises Refused if the run has no such checkpoint or a length that no document has.
    """
    evaluation = replace(ranks.agreed(opening), limit=limit or TimeLimit())
    run_dir, run = evaluation.run_dir, evaluation.config.run_id
    if len(set(ranks.gather(evaluation.tokens_seen))) > 1:
        raise Refused(f"{run_dir} is being trained; evaluate it afterwards, or with one process")
    steps = ranks.agreed(partial(_kept_steps, evaluation, kept))
    model = evaluation.model
    said = plan.messages(evaluation.config, evaluation.plan)
    rows = _completed(evaluation, run_dir / "eval.jsonl", said)
    for step in steps:
        read = partial(checkpoints.kept, run_dir, run=run, step=step)
        kept_one, seen = ranks.agreed(read), step * evaluation.config.train.batch_tokens
        with reading(run_dir):
            model.load_state_dict(kept_one.weights)
        earlier = replace(evaluation, weights=kept_one.sha256, tokens_seen=seen, nats={})
        said = [f"{run} after {seen:,} tokens"]
        rows += _completed(earlier, run_dir / KEPT_ROWS, said)
    return rows


def _kept_steps(evaluation: Evaluation, kept: Kept) -> list[int]:
    """Returns the steps of the kept checkpoints before this one of about these tokens."""
    run_dir, each = evaluation.run_dir, evaluation.config.train.batch_tokens
    last, found = evaluation.tokens_seen // each, status.checkpoint_folders(run_dir, "kept")
    steps = [step for step in map(status.step_of, found) if step < last]
    if kept and not steps:
        raise Refused(
            f"--checkpoints: {run_dir} keeps no earlier weights; train it with "
            "train.keep_checkpoints=8"
        )
    if kept == "all":
        return steps
    chosen: list[int] = []
    for tokens in kept:
        nearest = min([*steps, last], key=lambda step: abs(step * each - tokens))
        if abs(nearest * each - tokens) > tokens / 20:
            known = ", ".join(f"{step * each:,}" for step in steps)
            raise Refused(f"--checkpoints {tokens:,}: {run_dir} keeps those of {known} tokens")
        chosen.append(nearest)
    return [step for step in chosen if step != last]


def _completed(evaluation: Evaluation, file: Path, messages: Sequence[str]) -> list[EvalRow]:
    """Computes the cells of the configuration that a file of rows lacks; returns those of all.

    The messages are said before.
    """
    config, ranks = evaluation.config, evaluation.ranks
    facts = {cell: cell_facts(cell, evaluation) for cell in evaluation.cells}

    def stored() -> dict[Cell, list[EvalRow]]:
        rows = read_rows(file, run=config.run_id)
        return {cell: [row for row in rows if facts[cell].items() <= row.items()] for cell in facts}

    def lacking() -> Todo:
        rows = ranks.agreed(lambda: stored() if ranks.is_main else {})
        is_whole = {cell: _is_complete(cell, rows[cell], config) for cell in rows}
        mine = [None if is_whole[c] else documents_of(rows[c]) for c in rows]
        done = zip(facts, ranks.gather(mine)[0], strict=True)
        return {cell: found for cell, found in done if found is not None}

    if lacking():
        for message in messages:
            evaluation.show.say(message)
        with ExitStack() as held:
            lock = status.run_lock(file.parent, "eval") if ranks.is_main else nullcontext()
            ranks.agreed(partial(held.enter_context, lock))
            todo = lacking()  # another process may have written some meanwhile
            for measured in _measured(evaluation, todo):
                if ranks.is_main:
                    append_rows(file, measured)
            ranks.barrier()
    return [*itertools.chain.from_iterable(stored().values())]


def measured_rows(evaluation: Evaluation) -> list[EvalRow]:
    """Returns the rows of all cells of an evaluation; nothing is read or written."""
    for message in plan.messages(evaluation.config, evaluation.plan):
        evaluation.show.say(message)
    measured = _measured(evaluation, {cell: set() for cell in evaluation.cells})
    return [*itertools.chain.from_iterable(measured)]


def cell_facts(cell: Cell, evaluation: Evaluation) -> EvalRow:
    """Returns what identifies a cell: its rows share it, and no others have it."""
    config, planned = evaluation.config, evaluation.plan
    return {
        "protocol": cell.protocol.name,
        "variant": cell.variant,
        "length": cell.length,
        "targets": None if cell.protocol.block is None else config.eval.targets,  # K
        "parts": _parts_hash(evaluation, cell.variant),
        "endpoints": cell.protocol.manifest(planned),
        "run": config.run_id,
        "weights": evaluation.weights,
        "scheme": config.scheme.name,
        "model": config.model.label,
        "seed": config.seed,
        "corpus": config.corpus.name,
        "fingerprint": planned.corpus.fingerprint,
        "packed": planned.corpus.packed,
        "train_length": evaluation.objective.train_length,  # in the unit of `length`
        "tokens_seen": evaluation.tokens_seen,
        "trained_in": config.train.precision if config.train.tokens else None,
        "precision": config.eval.precision,
        "max_context": planned.max_context,  # targets before every endpoint
    }


def _parts_hash(evaluation: Evaluation, variant: str | None) -> str:
    """Returns 8 hexadecimal digits that name what a cell's scheme computes.

    A variant or a plugin may be redefined after it was evaluated under the same name.
    """
    design, config = evaluation.designs[variant], evaluation.config
    parts = {"error": str(design)} if isinstance(design, UserError) else design.parts
    named = [variant, [*parts.items()], config.scheme.layers, *config.plugins]
    return hash_of(named, 8)


def _is_complete(cell: Cell, rows: Sequence[EvalRow], config: Config) -> bool:
    """True if a cell has a row of each of its documents, or one that says why it has none."""
    complete = [row for row in rows if cell.protocol.is_complete(row, config)]
    return bool(complete) and len(documents_of(complete)) == complete[0]["n_documents"]


def documents_of(rows: Sequence[EvalRow]) -> set[str]:
    return {row["document"] for row in rows} - {None}


class Job(NamedTuple):
    """Cells that share forward passes."""

    cells: list[Cell]
    scheme: Scheme
    spans: list[Span]
    replacements: list[Replace]  # of far text, whose nats are averaged

    def divided(self, evaluation: Evaluation, done: set[str]) -> list["Job"]:
        """Returns the job as jobs of one document for each process, without those that are done.

        Only windows that are scored by themselves and alone fill a forward pass are divided: no
        digit changes, and a long evaluation that is killed loses little. Others stay whole.
        """
        planned = evaluation.plan
        if not self.cells[0].protocol.matched or self.cells[0].length <= scoring.BATCH_TOKENS // 2:
            return [self]
        clusters = planned.by_cluster(self.spans).items()
        left = [spans for c, spans in clusters if eval_rows.cluster_name(c, planned) not in done]
        n = evaluation.ranks.world_size
        together = [itertools.chain(*left[i : i + n]) for i in range(0, len(left), n)]
        return [self._replace(spans=[*spans]) for spans in together]

    def cost(self, model: Transformer) -> int:
        protocol, hosts = self.cells[0].protocol, {span: span for span in self.spans}
        with model.under(self.scheme):
            if not protocol.texts:
                hosts = scoring.hosts(model, self.spans, predicts=protocol.predicts)
            cost = sum(batch.cost(model) for batch in scoring.passes(hosts))
        return cost * (protocol.texts or max(1, len(self.replacements)))


def _measured(evaluation: Evaluation, todo: Todo) -> Iterator[list[EvalRow]]:
    """Yields the rows of the cells to do, as soon as the forward passes of some are done.

    All cells of a job are scored if one of them is missing, so that what else is done, or was left
    by an evaluation that was killed, changes no digit.
    """
    planned, show = evaluation.plan, evaluation.show

    def whole(cell: Cell, rows: list[EvalRow]) -> list[EvalRow]:
        about = cell_facts(cell, evaluation)
        about["settings"] = cell.protocol.settings(evaluation.config, planned)
        return [about | row for row in rows]

    jobs, without = _jobs(evaluation, todo)
    for cell, reason in without.items():
        show.say(f"{cell.title}: skipped, {reason}")
        yield whole(cell, [eval_rows.skipped(reason)])
    if not jobs:
        return
    costs = [job.cost(evaluation.model) for job in jobs]
    if evaluation.limit.end < math.inf:
        for i, job in enumerate(jobs):
            if before := job.cells[0].protocol.before(planned):
                costs[i] += job._replace(spans=before).cost(evaluation.model)
        order = sorted(range(len(jobs)), key=lambda i: costs[i])
        jobs, costs = [jobs[i] for i in order], [costs[i] for i in order]
    show.start(f"evaluate {evaluation.config.scheme.name}", sum(costs), unit="")
    limit = evaluation.limit
    for n, (job, cost) in enumerate(zip(jobs, costs, strict=True)):
        if not evaluation.ranks.gather(limit.fits(cost))[0]:
            limit.left += [cell for job in jobs[n:] for cell in job.cells if cell in todo]
            limit.left_cost += sum(costs[n:])
            break
        begun = time.monotonic()
        nats, measured = _scored(job, evaluation), list[EvalRow]()
        for cell in (cell for cell in job.cells if cell in todo):
            spans = cell.windows(planned)
            rows = cell.protocol.rows(spans, nats, evaluation)
            if n_diverged := sum(row["nats"] is None for row in rows):
                values = np.concatenate([nats[span] for span in spans if span in nats])
                found = {"NaN": np.isnan(values).any(), "infinite": np.isinf(values).any()}
                what = " or ".join(kind for kind in found if found[kind])
                of_all = f"{n_diverged} of {len(rows)} documents"
                show.say(f"{cell.title}: the loss is {what} in {of_all}")
            measured += whole(cell, rows)
        yield measured
        limit.seconds += time.monotonic() - begun
        limit.cost += cost
    show.finish()


def _jobs(evaluation: Evaluation, todo: Todo) -> tuple[list[Job], dict[Cell, str]]:
    """Returns the jobs that score the cells to do, and why others of these have no value."""
    planned, jobs, without = evaluation.plan, list[Job](), dict[Cell, str]()
    scheme_of = cache(partial(_scheme, evaluation))
    for together in _sharing(evaluation.cells):
        if todo.keys().isdisjoint(together):
            continue
        protocol, variant, _ = together[0]
        scheme, defined = scheme_of(variant), list[Cell]()
        for cell in together:
            reason = undefined(cell, scheme, planned)
            if reason is None:
                defined.append(cell)
            elif cell in todo:
                without[cell] = reason
        if isinstance(scheme, Scheme) and not todo.keys().isdisjoint(defined):
            spans = [span for cell in defined for span in cell.windows(planned)]
            replaced = replacements(protocol, planned, seed=evaluation.config.eval.seed)
            done = set[str]().union(*(todo.get(cell, ()) for cell in defined))
            jobs += Job(defined, scheme, spans, replaced).divided(evaluation, done)
    return jobs, without


def seconds_needed(evaluation: Evaluation) -> float:
    """Returns about how long all cells of an evaluation take: one of the longest windows is timed.

    Windows are taken to last as long as their multiplications say.
    """
    jobs, _ = _jobs(evaluation, {cell: set() for cell in evaluation.cells})
    costs = [job.cost(evaluation.model) for job in jobs]
    timed = [job._replace(spans=job.spans[:1]) for job in jobs if not job.cells[0].protocol.texts]
    if not timed:
        return 0.0
    longest = max(timed, key=lambda job: job.spans[0].length)
    begun = time.perf_counter()
    _scored(longest, evaluation)
    return (time.perf_counter() - begun) * sum(costs) / longest.cost(evaluation.model)


def _sharing(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Returns the cells of each protocol and variant together; those that share no pass alone."""
    grouped: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        alone = cell.protocol.matched or cell.protocol.texts
        grouped.setdefault(cell if alone else cell[:2], []).append(cell)
    return [*grouped.values()]


def _scheme(evaluation: Evaluation, variant: str | None) -> Scheme | str:
    """Returns the scheme of a variant; why it has none, of a reference variant without one."""
    if variant is None:
        return evaluation.model.scheme
    design = evaluation.designs[variant]
    if isinstance(design, UserError):
        return str(design)
    try:
        return redesigned(evaluation.model, design)
    except UserError as error:  # among eval.variants it was refused before
        return str(error)


def undefined(cell: Cell, scheme: Scheme | str, planned: Plan) -> str | None:
    """Returns why a cell has no value under a scheme, or None."""
    altered = cell.protocol.altered
    if isinstance(scheme, str):
        return scheme
    if altered == "swap" and len(planned.segments) < 2:
        return "there is one document only, and none to swap text with"
    if altered and cell.length <= (kept := planned.train_length + planned.targets):
        return f"of windows of up to {kept} tokens, no token lies further than T from all targets"
    lengths = [span.length for span in cell.windows(planned)]
    if not lengths:
        return f"the corpus has no text to score at length {cell.length}"
    return scheme.unsupported_reason(max(lengths))


def _scored(job: Job, evaluation: Evaluation) -> dict[Span, Scored]:
    """Returns the nats of the spans of a job."""
    model = evaluation.model
    longest = max(job.cells, key=lambda cell: cell.length)
    protocol = longest.protocol

    def advance(n: int) -> None:
        evaluation.show.advance(n, at=longest.title)

    score = partial(scoring.evaluated, model, job.spans, evaluation, advance, protocol=protocol)
    with model.under(job.scheme):
        if protocol.texts:
            return protocol.scored(job.spans, evaluation, advance)
        scored = [score(replace=replace) for replace in job.replacements or (None,)]
    return {span: np.mean([nats[span] for nats in scored], axis=0) for span in job.spans}


def replacements(protocol: Protocol, planned: Plan, *, seed: int) -> list[Replace]:
    """Returns what puts other text in place of far text: of other documents, or in random order."""
    kind = protocol.altered
    if kind is None:
        return []
    n_others = len(planned.segments) - 1 if kind == "swap" else REPLACEMENTS
    numbers = range(1, 1 + min(REPLACEMENTS, n_others))
    return [partial(_replaced, n=n, kind=kind, planned=planned, seed=seed) for n in numbers]


def _replaced(
    inputs_T: Ints, span: Span, *, n: int, kind: Alteration, planned: Plan, seed: int
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
    number = clusters.index(planned.cluster(span.document, span.end))
    document, end = planned.segments[(number - n) % len(clusters)]
    return span._replace(document=document, end=end)
