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
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lengthgen.config.schema import Config
from lengthgen.data.windows import Mask, Span
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import HEADLINE, PROTOCOLS, Evaluation, Protocol, matched_block
from lengthgen.evaluation.scored_text import Advance, Nats, Plan, Scored, ScoredSpans
from lengthgen.evaluation.scoring import evaluated
from lengthgen.experiment import of_run
from lengthgen.files import read_bytes
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, directory

ALPHA = 2.0  # nats that the full context saves at least
BETA = 2.0  # nats that the loss in it is below
TRUNCATED = 8  # T over the tokens of the truncated context

Target = tuple[int, int]  # a document, and a token of it

_chosen = WeakKeyDictionary[Evaluation, set[Target]]()


def is_key(truncated: Nats, full: Nats) -> Mask:
    """Returns which tokens are key tokens, by their losses in both contexts."""
    return (truncated - full > ALPHA) & (full < BETA)


def chosen(evaluation: Evaluation) -> set[Target]:
    """Returns the key tokens, found once in an evaluation."""
    if evaluation not in _chosen:
        plan, model, losses = evaluation.plan, _evaluator(evaluation), list[dict[Target, float]]()
        for length in _both(plan):
            windows = PROTOCOLS[HEADLINE].windows(length, plan)
            with evaluation.model.under(evaluation.scheme):
                nats = evaluated(model, windows, evaluation)
            of_targets = ((targets(span), nats[span]) for span in windows)
            losses.append({t: loss for of in of_targets for t, loss in zip(*of, strict=True)})
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


class KeyTokens(Protocol):
    """The targets of the tail; `score` are the nats of the key tokens among them."""

    texts = 1
    bounds = (0, math.inf)

    def depth(self, length: int, config: Config) -> int:
        return max(super().depth(length, config), super().depth(config.train.length, config))

    def before(self, plan: Plan) -> list[Span]:
        return [span for n in _both(plan) for span in PROTOCOLS[HEADLINE].windows(n, plan)]

    def scored(
        self, spans: Sequence[Span], evaluation: Evaluation, advance: Advance
    ) -> dict[Span, Scored]:
        """Returns the nats of each target, and whether it is a key token."""
        keys = chosen(evaluation)
        nats = evaluated(evaluation.model, spans, evaluation, advance)
        return {
            span: np.stack([nats_of, [target in keys for target in targets(span)]], axis=-1)
            for span, nats_of in nats.items()
        }

    def sums(self, windows: Sequence[Span], scored: ScoredSpans, plan: Plan) -> dict[str, Any]:
        nats, key = np.concatenate([scored[span] for span in windows]).T
        return {"score": float(nats[key > 0].sum()), "n_scores": int(key.sum())}


def targets(span: Span) -> list[Target]:
    """Returns the targets that a window scores."""
    return [(span.document, t) for t in range(span.end - span.scored, span.end)]


KEY_TOKENS = KeyTokens(
    name="key_tokens",
    summary="of the targets of tail, those that T tokens predict and T/8 do not: their loss alone",
    source="LongPPL, arXiv 2410.23771",
    block=matched_block,
    reads=("evaluator", "train_length"),
)
