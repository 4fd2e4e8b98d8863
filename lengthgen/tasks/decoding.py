"""Free decoding of a task's tests: what a model writes when its own tokens stand before the next.

One teacher-forced pass decides whether greedy decoding is right, not how far off it is. Here tests
are decoded: the edit distance of what is written, whether the result behind a scratchpad is right,
and, from a pass over each candidate, the rank of the true answer among others of its form.

B tests, N new tokens, T tokens, S scored tokens, C candidates.
"""

from collections.abc import Callable, Hashable, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.spans import Span
from lengthgen.data.tokenizer import encode, read_tokenizer
from lengthgen.data.windows import IGNORED
from lengthgen.evaluation.scoring import BATCH_TOKENS
from lengthgen.model.build import generator_of
from lengthgen.model.kv_cache import forward_cached
from lengthgen.model.transformer import Transformer
from lengthgen.runs.distributed import Ranks
from lengthgen.tasks import task_of
from lengthgen.tasks.scratchpad import result_of

LIMIT = 2  # times the tokens of the longest answer: decoding stops there at the latest
ALTERNATIVES = 9  # answers that the true one is ranked among

Tokens = list[int]
V = TypeVar("V")


class Item(NamedTuple):
    """A test as tokens, its answer without the end."""

    prompt: Tokens
    answer: Tokens
    alternatives: list[Tokens]  # as long as the answer


def decoded(
    model: Transformer,
    spans: Sequence[Span],
    config: Config,
    corpus: TokenizedCorpus,
    *,
    ranks: Ranks,
) -> dict[str, list[Any]]:
    """Returns what a row has of decoded tests: lists of a value for each, in their order.

    edit_distances: Levenshtein distance from the true answer, over the length of the longer one.
    results_right: of a task with a scratchpad, whether what follows the scratchpad is right.
    answer_ranks: of a task with alternatives, the rank of the true answer among ALTERNATIVES.
    """
    assert isinstance(config.corpus, TaskCorpus)
    rule, tokenizer = task_of(config.corpus), read_tokenizer(corpus.tokenizer_path)
    end = int(corpus.validation.tokens[-1])  # which all documents end with
    seed, precision = config.eval.seed, config.eval.precision
    tests: list[Item] = []
    for span in spans:
        tokens = corpus.validation.document(span.document).tolist()
        given = corpus.validation.prompt_length(span.document)
        drawn = Random(f"{config.corpus.task.seed} {tokenizer.decode(tokens[:given])}")
        others = rule.alternatives(tokenizer.decode(tokens[given:-1]), ALTERNATIVES, drawn)
        raw = [other.encode() for other in others]
        alternatives = [ids.tolist() for ids in encode(raw, config.corpus, tokenizer)]
        tests.append(Item([*corpus.beginning, *tokens[:given]], tokens[given:-1], alternatives))

    def written(together: Sequence[Item]) -> list[Tokens]:
        prompts = [test.prompt for test in together]
        limit = LIMIT * max(len(test.answer) + 1 for test in together)
        return greedy(model, prompts, limit=limit, end=end, seed=seed, precision=precision)

    def ranked(together: Sequence[Item]) -> list[int]:
        return answer_ranks(model, together, end=end, seed=seed, precision=precision)

    got = _in_batches(tests, written, lambda test: len(test.prompt), ranks=ranks)
    pairs = [(answer, test.answer) for answer, test in zip(got, tests, strict=True)]
    row: dict[str, list[Any]] = {
        "edit_distances": [
            round(edit_distance(answer, true) / max(1, len(answer), len(true)), 6)
            for answer, true in pairs
        ]
    }
    if rule.parts:
        results = [[result_of(tokenizer.decode(tokens)) for tokens in pair] for pair in pairs]
        row["results_right"] = [result == true for result, true in results]
    if all(test.alternatives for test in tests):
        alike = _in_batches(
            tests, ranked, lambda test: (len(test.prompt), len(test.answer)), ranks=ranks
        )
        row["answer_ranks"] = alike
    return row


def _in_batches(
    tests: Sequence[Item],
    function: Callable[[Sequence[Item]], Sequence[V]],
    key: Callable[[Item], Hashable],
    *,
    ranks: Ranks,
) -> list[V]:
    """Returns a function's values of tests, called on some that are alike in `key`.

    Each process takes every n-th batch; batches are the same whatever the world size.
    """
    alike: dict[Hashable, list[int]] = {}
    for i, test in enumerate(tests):
        alike.setdefault(key(test), []).append(i)
    batches: list[list[int]] = []
    for members in alike.values():
        tokens = max(
            len(tests[i].prompt + tests[i].answer) * (1 + len(tests[i].alternatives))
            for i in members
        )
        size = max(1, BATCH_TOKENS // tokens)
        batches += [members[n : n + size] for n in range(0, len(members), size)]
    mine: dict[int, V] = {}
    for batch in batches[ranks.rank :: ranks.world_size]:
        mine |= dict(zip(batch, function([tests[i] for i in batch]), strict=True))
    found = {i: value for part in ranks.gather(mine) for i, value in part.items()}
    return [found[i] for i in range(len(tests))]


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
    first = torch.tensor([[IGNORED] * (n_given - 1) + [0]])
    starts = model.answer_starts(first.expand(len(prompts), -1))
    is_open = torch.ones(len(prompts), dtype=torch.bool, device=new_BN.device)
    written: list[torch.Tensor] = []
    cache = None
    while len(written) < limit and is_open.any():
        if model.scheme.unsupported_reason(n_given + len(written)) is not None:
            break
        cache = forward_cached(model, new_BN, cache, seed=seed, precision=precision, starts=starts)
        is_finite = cache.logits_BV.isfinite().all(dim=-1)
        new_BN = cache.logits_BV.argmax(dim=-1).where(is_finite, end)[:, None]
        written.append(new_BN)
        is_open &= new_BN[:, 0] != end
    rows: list[Tokens] = torch.cat(written, dim=1).tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


@torch.inference_mode()
def answer_ranks(
    model: Transformer, tests: Sequence[Item], *, end: int, seed: int, precision: str
) -> list[int]:
    """Returns the rank of each true answer among its alternatives by log probability; 1 is best.

    The tests are alike in the lengths of prompts and answers. Ends are a part of answers, and ties
    count against the true one, as do losses that are not finite.
    """
    rows = [(test.prompt, text) for test in tests for text in (test.answer, *test.alternatives)]
    inputs_BT = torch.tensor([[*prompt, *answer] for prompt, answer in rows])
    wanted_BS = torch.tensor([[*answer, end] for _, answer in rows])
    S = wanted_BS.shape[1]
    targets_BT = torch.full_like(inputs_BT, IGNORED)
    targets_BT[:, -S:] = wanted_BS
    device = model.embedding.weight.device
    generator = generator_of("evaluation", seed)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        starts = model.answer_starts(targets_BT)
        x_BTD = model(inputs_BT.to(device), n_last=S, generator=generator, **starts)
        nats_BS = model.token_nll(x_BTD, wanted_BS.to(device)).cpu().double()
    nats_BC = nats_BS.sum(dim=1).view(len(tests), -1)
    return (nats_BC.shape[1] - (nats_BC[:, :1] < nats_BC[:, 1:]).sum(dim=1)).tolist()


def edit_distance(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the fewest insertions, deletions and substitutions that make one the other.

    Levenshtein 1966, by the recurrence of Wagner and Fischer 1974, row by row.
    """
    offsets = np.arange(len(other) + 1)
    row, columns = offsets, np.array(other, dtype=np.int64)
    for i, token in enumerate(one, start=1):
        above = np.minimum(row[1:] + 1, row[:-1] + (columns != token))
        # An insertion adds 1 per column: the least of all cells to the left, less their columns.
        row = np.minimum.accumulate(np.concatenate(([i], above)) - offsets) + offsets
    return int(row[-1])
