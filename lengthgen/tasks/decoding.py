"""Free decoding of a task's tests: what a model writes when its own tokens stand before the next.

One teacher-forced pass decides whether greedy decoding is right, not how far off it is. Here tests
are decoded: the edit distance of what is written, and whether the result behind a scratchpad is
right.

B tests, N new tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lengthgen.data.tokenizer import read_tokenizer
from lengthgen.data.windows import Span
from lengthgen.evaluation.protocols import Evaluation
from lengthgen.evaluation.scoring import BATCH_TOKENS
from lengthgen.model.kv_cache import forward_cached
from lengthgen.model.transformer import Transformer
from lengthgen.tasks.base import Task
from lengthgen.tasks.scratchpad import result_of

LIMIT = 2  # times the tokens of the longest answer: decoding stops there at the latest

Tokens = list[int]


def decoded(spans: Sequence[Span], evaluation: Evaluation, rule: Task) -> dict[str, list[Any]]:
    """Returns what a row has of decoded tests: lists of a value for each, in their order.

    edit_distances: Levenshtein distance from the true answer, over the length of the longer one.
    results_right: of a task with a scratchpad, whether what follows the scratchpad is right.
    """
    corpus = evaluation.plan.corpus
    split, end = corpus.validation, int(corpus.validation.tokens[-1])  # all documents end with it
    texts = [split.document(span.document).tolist() for span in spans]
    given = [split.prompt_length(span.document) for span in spans]
    prompts = [[*corpus.beginning, *text[:n]] for text, n in zip(texts, given, strict=True)]
    answers = [text[n:-1] for text, n in zip(texts, given, strict=True)]
    pairs = [*zip(_written(prompts, answers, evaluation, end=end), answers, strict=True)]
    row: dict[str, list[Any]] = {
        "edit_distances": [
            round(edit_distance(got, true) / max(1, len(got), len(true)), 6) for got, true in pairs
        ]
    }
    if rule.parts:
        tokenizer = read_tokenizer(corpus.tokenizer_path)
        results = [[result_of(tokenizer.decode(tokens)) for tokens in pair] for pair in pairs]
        row["results_right"] = [result == true for result, true in results]
    return row


def _written(
    prompts: Sequence[Tokens], answers: Sequence[Tokens], evaluation: Evaluation, *, end: int
) -> list[Tokens]:
    """Returns what the model writes behind each prompt.

    Prompts of one length are decoded together, the same ones whatever the world size.
    """
    alike: dict[int, list[int]] = {}
    for i, prompt in enumerate(prompts):
        alike.setdefault(len(prompt), []).append(i)
    batches: list[list[int]] = []
    for n_given, members in alike.items():
        size = max(1, BATCH_TOKENS // (n_given + max(len(answers[i]) for i in members)))
        batches += [members[n : n + size] for n in range(0, len(members), size)]
    wanted = evaluation.config.eval

    def written(batch: Sequence[int]) -> dict[int, Tokens]:
        texts = greedy(
            evaluation.model,
            [prompts[i] for i in batch],
            limit=LIMIT * max(len(answers[i]) + 1 for i in batch),
            end=end,
            seed=wanted.seed,
            precision=wanted.precision,
        )
        return dict(zip(batch, texts, strict=True))

    every = evaluation.ranks.divided(batches, written)
    return [every[i] for i in range(len(prompts))]


@torch.inference_mode()
def greedy(
    model: Transformer,
    prompts: Sequence[Tokens],
    *,
    limit: int,
    end: int,
    seed: int,
    precision: str,
) -> list[Tokens]:
    """Returns the likeliest tokens behind each of several prompts of one length.

    Up to `end`, which is left out, at most `limit`, and no further than the scheme is defined. A
    model whose logits are not finite writes nothing more.
    """
    new_BN = torch.tensor(prompts, device=model.embedding.weight.device)
    n_given = new_BN.shape[1]
    is_open = torch.ones(len(prompts), dtype=torch.bool, device=new_BN.device)
    written: list[torch.Tensor] = []
    cache = None
    while len(written) < limit and is_open.any():
        if model.scheme.unsupported_reason(n_given + len(written)) is not None:
            break
        cache = forward_cached(model, new_BN, cache, seed=seed, precision=precision)
        is_finite = cache.logits_BV.isfinite().all(dim=-1)
        new_BN = cache.logits_BV.argmax(dim=-1).where(is_finite, end)[:, None]
        written.append(new_BN)
        is_open &= new_BN[:, 0] != end
    rows: list[Tokens] = torch.cat(written, dim=1).tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


def edit_distance(text: Sequence[int], other: Sequence[int]) -> int:
    """Returns the fewest insertions, deletions and substitutions that turn a text into the other.

    Levenshtein 1966, by the recurrence of Wagner and Fischer 1974, row by row.
    """
    offsets = np.arange(len(other) + 1)
    row, columns = offsets, np.array(other, dtype=np.int64)
    for i, token in enumerate(text, start=1):
        above = np.minimum(row[1:] + 1, row[:-1] + (columns != token))
        # An insertion adds 1 per column: the least of all cells to the left, less their columns.
        row = np.minimum.accumulate(np.concatenate(([i], above)) - offsets) + offsets
    return int(row[-1])
