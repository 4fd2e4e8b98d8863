"""The loss at T and 4T while a run trains, on a few windows that stay the same."""

import math
from collections.abc import Callable

from lengthgen.config.schema import Config
from lengthgen.data.objective import Objective
from lengthgen.data.windows import Span
from lengthgen.evaluation.scored_text import Plan
from lengthgen.evaluation.scoring import score
from lengthgen.model.transformer import Transformer
from lengthgen.runs.distributed import Ranks

WINDOWS = 64  # windows of a length
SHARE = 1 / 128  # of the tokens that are trained on meanwhile: of the time, at most 3 %


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

    def loss(model: Transformer, spans: list[Span]) -> float:
        nats = score(model, spans, corpus, precision=train.precision, seed=config.seed, ranks=ranks)
        return math.fsum(x for of_span in nats.values() for x in of_span) / (len(nats) * scored)

    def validate(model: Transformer) -> dict[str, float]:
        model.eval()
        losses = {
            f"val/loss@{length}": loss(model, spans)
            for length, spans in windows.items()
            if model.scheme.unsupported_reason(length) is None
        }
        model.train()
        return losses

    return validate
