"""The audit: a sample of an evaluation's targets scored again in another precision."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.data.spans import Span
from lengthgen.errors import UserError
from lengthgen.evaluation import scoring
from lengthgen.evaluation.evaluator import evaluate, open_run, trained_model
from lengthgen.evaluation.plan import Cell, Nats, Plan, spans
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.evaluation.rows import cluster_name
from lengthgen.runs.distributed import Ranks
from lengthgen.storage import append_rows
from lengthgen.terminal import Progress

Precision = Literal["fp32", "fp64"]
DOCUMENTS = 4  # of which the targets of one endpoint are scored again


@dataclass(frozen=True, kw_only=True)
class Audited:
    """How far nats per token move at one length."""

    length: int
    scored_in: str
    again_in: str
    n_windows: int
    n_tokens: int
    mean: float  # of the difference, nats per token: again - before
    mean_absolute: float
    max_absolute: float


def audit(
    config: Config, run_dir: Path, *, precision: Precision, ranks: Ranks, show: Progress
) -> list[Audited]:
    """Scores targets of the matched tail again, at every length, and appends to audit.jsonl.

    Cells that eval.jsonl lacks are evaluated first. Rows keep six digits of a token's nats. Raises
    UserError where evaluate does, if the matched tail is not among eval.protocols, and for models
    with an encoder.
    """
    if isinstance(config.corpus, TaskCorpus):
        raise UserError(f"--audit: scores text again, and {run_dir.name} is of a task; drop it")
    config.refuse_arch("eval --audit")
    if HEADLINE not in config.eval.protocols:
        raise UserError(f"--audit: scores {HEADLINE} again; add it to --protocols")
    rows = evaluate(config, run_dir, ranks=ranks, show=show)
    scored: dict[int, dict[str, Any]] = {}  # nats of each target, by length and document
    for row in rows:
        if row["protocol"] == HEADLINE and row["variant"] is None and row["document"] is not None:
            scored.setdefault(row["length"], {})[row["document"]] = row["token_nats"]
    opened = open_run(config, run_dir, ranks=ranks, show=show)
    planned, model = opened.planned, trained_model(config, opened)
    model = model.double() if precision == "fp64" else model
    samples = {
        length: dict(_sample(length, scored[length], planned))
        for length in sorted(scored.keys() & set(config.eval.lengths))
    }
    total = sum(span.length for sample in samples.values() for span in sample)
    show.start(f"score again in {precision}", total)
    found: list[Audited] = []
    for length, sample in samples.items():
        if not sample:
            continue
        again = scoring.score(
            model,
            list(sample),
            planned.corpus,
            precision=precision,
            generator_seed=config.eval.seed,
            ranks=ranks,
            advance=lambda n, length=length: show.advance(n, at=f"{length:,}"),
        )
        change = np.concatenate([again[span] - before for span, before in sample.items()])
        found.append(
            Audited(
                length=length,
                scored_in=config.eval.precision,
                again_in=precision,
                n_windows=len(sample),
                n_tokens=len(change),
                mean=float(change.mean()),
                mean_absolute=float(np.abs(change).mean()),
                max_absolute=float(np.abs(change).max()),
            )
        )
    show.finish()
    if ranks.is_main:
        about = {"run": config.run_id, "weights": opened.sha256}
        append_rows(run_dir / "audit.jsonl", [{**about, **asdict(one)} for one in found])
    return found


def _sample(
    length: int, nats: Mapping[str, list[float] | None], planned: Plan
) -> Iterator[tuple[Span, Nats]]:
    """Yields the windows of the first endpoint of a few documents, with the nats that rows hold.

    A document's row holds the targets of its windows one after another.
    """
    places, corpus = planned.places, planned.corpus
    done: dict[str, int] = {}
    for span in spans(Cell(HEADLINE, None, length), planned):
        name = cluster_name(places.cluster(span.document, span.end), corpus)
        first = done.get(name, 0)
        if first == places.targets or (name not in done and len(done) == DOCUMENTS):
            continue
        done[name] = first + span.scored
        before = nats[name]
        if before is not None:  # the model diverged here
            yield span, np.array(before[first : done[name]])
