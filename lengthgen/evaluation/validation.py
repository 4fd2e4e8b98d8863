"""The loss at T and 4T while a run trains, on a few windows that stay the same."""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from lengthgen.config.schema import Config
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.objective import Objective
from lengthgen.data.windows import Span
from lengthgen.evaluation.scored_text import Plan
from lengthgen.evaluation.scoring import score
from lengthgen.model.transformer import Transformer
from lengthgen.runs.distributed import Ranks

WINDOWS = 64  # windows of a length
SHARE = 1 / 128  # of the tokens that are trained on meanwhile: of the time, at most 3 %


def mean_loss(
    model: Transformer, spans: Sequence[Span], corpus: TokenizedCorpus, **how: Any
) -> float:
    """Returns the mean nats of the scored tokens of spans, as `score` takes them."""
    nats = score(model, spans, corpus, **how)
    return math.fsum(chain(*nats.values())) / sum(map(len, nats.values()))


def validator(
    config: Config, objective: Objective, planned: Plan, *, ranks: Ranks
) -> Callable[[Transformer], dict[str, float]] | None:
    """Returns what measures val/loss@LENGTH of a model, in nats per token.

    Each length scores the same targets, the last T/2 before endpoints of the evaluation, as many as
    train.val_every leaves time for. None where that is 0 or a run does not learn the next token.
    """
    train, T = config.train, config.train.length
    if not train.validates_every or type(objective) is not Objective:
        return None
    corpus, scored = planned.corpus, T - T // 2
    meanwhile = train.validates_every * train.batch_tokens
    n = min(WINDOWS, len(planned.endpoints), max(1, int(meanwhile * SHARE / T)))
    endpoints = planned.endpoints[:: len(planned.endpoints) // n][:n]
    windows = {
        length: [Span(document, end, length, scored) for document, end in endpoints]
        for length in (T, 4 * T)
        if length <= planned.max_context
    }
    how: Any = {"precision": train.precision, "seed": config.seed, "ranks": ranks}

    def validate(model: Transformer) -> dict[str, float]:
        model.eval()
        losses = {
            f"val/loss@{length}": mean_loss(model, spans, corpus, **how)
            for length, spans in windows.items()
            if model.scheme.unsupported_reason(length) is None
        }
        model.train()
        return losses

    return validate
