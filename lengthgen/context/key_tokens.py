"""Key tokens: the loss of the tokens that need far context.

LongPPL (Fang et al. 2024, arXiv 2410.23771, equations 4 to 6) is the perplexity of the tokens whose
loss in a truncated context is more than ALPHA nats above that in the full one, which is below BETA.
Losses of an evaluator choose the tokens, and a block of targets shares each truncated window.

Here the targets are those of the matched tail, the full context is T, the truncated one T/8 (4k of
32k in the paper), and the blocks are those of the tail. The same tokens are chosen for all lengths
and variants. The evaluator is eval.evaluator, or else the run itself without a variant: tokens that
it predicts well at T by chance are chosen then, and its loss rises at every other length.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lengthgen.config.schema import Config
from lengthgen.data.windows import Mask, Span
from lengthgen.errors import UserError
from lengthgen.evaluation import scoring
from lengthgen.evaluation.protocols import HEADLINE, PROTOCOLS, Evaluation, Protocol, matched_block
from lengthgen.evaluation.scored_text import Nats, Plan, Scored
from lengthgen.experiment import of_run
from lengthgen.files import read_bytes
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, directory

ALPHA = 2.0  # nats that the full context saves at least
BETA = 2.0  # nats that the loss in it is below
TRUNCATED = 8  # T over the tokens of the truncated context

_chosen = WeakKeyDictionary[Evaluation, set[tuple[int, int]]]()


def is_key(truncated: Nats, full: Nats) -> Mask:
    """Returns which tokens are key tokens, by their losses in both contexts."""
    return (truncated - full > ALPHA) & (full < BETA)


def chosen(evaluation: Evaluation) -> set[tuple[int, int]]:
    """Returns the key tokens as pairs of document and target, found once in an evaluation."""
    if evaluation not in _chosen:
        plan, tail = evaluation.plan, PROTOCOLS[HEADLINE]
        model, held = _evaluator(evaluation), evaluation.model.scheme
        evaluation.model.scheme = evaluation.scheme
        losses: list[dict[tuple[int, int], float]] = []
        for length in _both(plan):
            nats = _score(model, tail.windows(length, plan), evaluation, tail)
            losses.append(
                {
                    target: loss
                    for span in nats
                    for target, loss in zip(targets(span), nats[span], strict=True)
                }
            )
        evaluation.model.scheme = held
        truncated, full = (np.array([at[target] for target in losses[1]]) for at in losses)
        keys = is_key(truncated, full)
        _chosen[evaluation] = {target for target, key in zip(losses[1], keys, strict=True) if key}
    return _chosen[evaluation]


def _both(plan: Plan) -> tuple[int, int]:
    """Returns the truncated and the full context."""
    return max(1, plan.train_length // TRUNCATED), plan.train_length


def _evaluator(evaluation: Evaluation) -> Transformer:
    """Returns the model whose losses choose. Raises UserError for one of another tokenizer."""
    config, name = evaluation.config, evaluation.config.eval.evaluator
    if name is None:
        return evaluation.model
    run_dir = directory.find(name, config.runtime.root)
    other = of_run(run_dir)
    corpus = directory.load_corpus(other.config, other.source, run_dir, say=evaluation.show.say)
    here = evaluation.plan.corpus.tokenizer_path
    if read_bytes(corpus.tokenizer_path) != read_bytes(here):
        raise UserError(
            f"eval.evaluator={name}: it has another tokenizer; give a run that shares it"
        )
    model = other.build(vocab_size=corpus.vocab_size)
    model.load_state_dict(checkpoints.final(other.config, run_dir).weights)
    if reason := model.scheme.unsupported_reason(evaluation.plan.train_length):
        raise UserError(f"eval.evaluator={name}: {reason}; give a run of T or more")
    return model.to(evaluation.model.embedding.weight.device).eval()


def _score(
    model: Transformer,
    spans: Sequence[Span],
    evaluation: Evaluation,
    protocol: Protocol,
    advance: Callable[[int], None] = lambda n: None,
) -> dict[Span, Scored]:
    config, known = evaluation.config, evaluation.nats
    if all((model.scheme, span) in known for span in spans):  # those of an evaluator have another
        passes = scoring.passes(scoring.hosts(model, spans, predicts=False))
        advance(sum(batch.cost(model) for batch in passes))
        return {span: known[model.scheme, span] for span in spans}
    how: dict[str, Any] = {"precision": config.eval.precision, "seed": config.seed}
    how |= {"ranks": evaluation.ranks, "advance": advance, "protocol": protocol}
    return scoring.score(model, spans, evaluation.plan.corpus, **how)


@dataclass(frozen=True, kw_only=True)
class KeyTokens(Protocol):
    """The targets of the tail; `score` are the nats of the key tokens among them."""

    def depth(self, length: int, config: Config) -> int:
        return max(super().depth(length, config), super().depth(config.train.length, config))

    def before(self, plan: Plan) -> list[Span]:
        return [span for n in _both(plan) for span in PROTOCOLS[HEADLINE].windows(n, plan)]

    def scored(
        self, spans: Sequence[Span], evaluation: Evaluation, advance: Callable[[int], None]
    ) -> dict[Span, Scored]:
        """Returns the nats of each target, and whether it is a key token."""
        keys = chosen(evaluation)
        nats = _score(evaluation.model, spans, evaluation, self, advance)
        return {
            span: np.stack([nats_of, [target in keys for target in targets(span)]], axis=-1)
            for span, nats_of in nats.items()
        }

    def rows(
        self, spans: Sequence[Span], scored: Mapping[Span, Scored], evaluation: Evaluation
    ) -> list[dict[str, Any]]:
        rows = super().rows(spans, {span: scored[span][:, 0] for span in scored}, evaluation)
        for row, windows in zip(rows, evaluation.plan.by_cluster(spans).values(), strict=True):
            nats, key = np.concatenate([scored[span] for span in windows]).T
            row |= {"score": float(nats[key > 0].sum()), "n_scores": int(key.sum())}
        return rows


def targets(span: Span) -> list[tuple[int, int]]:
    """Returns document and number of each target that a window scores."""
    return [(span.document, t) for t in range(span.end - span.scored, span.end)]


KEY_TOKENS = KeyTokens(
    name="key_tokens",
    summary="of the targets of tail, those that T tokens predict and T/8 do not: their loss alone",
    source="LongPPL, arXiv 2410.23771",
    block=matched_block,
    reads=("evaluator", "train_length"),
    texts=1,
    bounds=(0, math.inf),
)
