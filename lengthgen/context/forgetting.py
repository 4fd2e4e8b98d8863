"""The forgetting curve: how far back a model copies a text that it has read.

Wang et al. 2024 (Forgetting Curve, arXiv 2410.04727) let a model read [bos] x [bos] x under teacher
forcing, and count how often the likeliest token is right in the second half of the second x, the
first half being there to show what is asked. They compare it with [bos] y [bos] x, y other text of
the same length. The length is that of [bos] x, the distance to the token that is to be copied, so
that the model reads twice as many tokens. Here x ends at the endpoints of the evaluation, one for
each document, and y is text of the document before in their order.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lengthgen.context.reading import Text, read_answers
from lengthgen.data.windows import Ints, Span, targets_of
from lengthgen.evaluation.evaluator import donor
from lengthgen.evaluation.protocols import Evaluation, Protocol
from lengthgen.evaluation.scored_text import Advance, Plan, Scored, ScoredSpans


def _place(length: int, plan: Plan) -> Iterator[Span]:
    """Yields a window of the tokens read for each document, if there is another one."""
    n = length - len(plan.corpus.beginning)  # of x
    if len(plan.segments) > 1 and n > 0:
        for document, end in plan.segments:
            yield Span(document, end, 2 * length, max(1, n // 2))


def copied(span: Span, plan: Plan) -> Ints:
    """Returns x, the tokens that are repeated."""
    n = span.length // 2 - len(plan.corpus.beginning)
    return targets_of(span._replace(length=n, scored=n), plan.corpus)


class Forgetting(Protocol):
    """Copies of a text behind itself, and behind another one; `score` is the difference."""

    texts = 2
    bounds = (-1, 1)

    def targets(self, span: Span, plan: Plan) -> Ints:
        return copied(span, plan)[-span.scored :]

    def scored(
        self, spans: Sequence[Span], evaluation: Evaluation, advance: Advance
    ) -> dict[Span, Scored]:
        """Returns for each target its nats, whether it is copied, whether it is right anyway."""
        plan, texts = evaluation.plan, list[Text]()
        for span in spans:
            x, bos = copied(span, plan), np.array(plan.corpus.beginning, dtype=np.int64)
            for before in (x, copied(donor(span, 1, plan), plan)):
                tokens = np.concatenate([bos, before, bos, x])
                places = np.arange(len(tokens) - span.scored - 1, len(tokens) - 1)
                texts.append(Text(tokens[:-1], places, x[-span.scored :, None]))
        answers = iter(read_answers(texts, evaluation, advance))
        scored: dict[Span, Scored] = {}
        for span in spans:
            copy, other = next(answers), next(answers)
            right = (answer.likeliest_P == self.targets(span, plan) for answer in (copy, other))
            scored[span] = np.stack([copy.nats_PC[:, 0], *right], axis=-1).astype(np.float64)
        return scored

    def sums(self, windows: Sequence[Span], scored: ScoredSpans, plan: Plan) -> dict[str, Any]:
        found = np.concatenate([scored[span] for span in windows])
        copies, others = found[:, 1:].sum(0).tolist()
        counted = {"hits": [copies, others], "tries": [len(found)] * 2}
        return counted | {"score": copies - others, "n_scores": len(found)}


FORGETTING = Forgetting(
    name="forgetting",
    summary="second half of a repeated text: share copied, minus that behind other text",
    source="Forgetting curve, arXiv 2410.04727",
    place=_place,
)
