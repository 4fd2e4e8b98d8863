"""Retrieval: does a model find a value behind its key, wherever in the text the pair stands?

The forms are those of RULER (Hsieh et al. 2024, arXiv 2404.06654): one pair, several keys, several
values of a key, and a chain as in its variable tracking, for models without instructions. A pair is
a key, a few tokens, and a value, one token, which stands in held-out prose behind it. The text
ends with the key, and one forward pass gives the probability of every token that could follow:

    hit     the value is likelier than each of DRAWN others; of 5 keys 4 of these are other values
    exact   it is the likeliest of all tokens, what greedy decoding would write
    chain   the value of a key begins the key of another one, whose value is asked for next: both
            are to be right, the first one given; its depth is that of the first

Keys and values are tokens of middling frequency that the prose does not have, if there are enough;
they are drawn from the endpoint alone, the same for every model, variant and length. A length is
what the model reads. Effective length: `lengths.py`.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lengthgen.context.reading import Text, read_answers
from lengthgen.data.windows import Endpoint, Ints, Span, targets_of
from lengthgen.evaluation.protocols import Evaluation, Protocol
from lengthgen.evaluation.scored_text import Advance, Plan, Scored, ScoredSpans

FORMS = ("single", "keys", "values", "chain")
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the prose before a pair
DRAWN = 9  # values that the true one is compared with, so that chance is 1 in 10
POOL = 512  # tokens that keys and values are drawn from
COMMON = 64  # the most frequent tokens, which are none of them
N_KEYS = 1 << 18  # different keys at least


class Pair(NamedTuple):
    key: tuple[int, ...]
    value: tuple[int, ...]
    depth: float


class Query(NamedTuple):
    """A place after which a value is asked for: the true one first, then the drawn ones."""

    place: int
    asked: tuple[int, ...]
    right: frozenset[int]  # what is right as the likeliest token
    depth: int  # of DEPTHS


class Haystack(NamedTuple):
    tokens_T: Ints
    queries: list[Query]


def examples(span: Span, plan: Plan) -> list[Haystack]:
    """Returns an example of each form in the prose that ends at a span."""
    number = plan.endpoints.index(Endpoint(span.document, span.end))
    random = np.random.Generator(np.random.Philox(key=[span.document, span.end]))
    prose = targets_of(span._replace(scored=span.length), plan.corpus)
    pool, n_key, made = _known(plan), key_length(plan), list[Haystack]()
    absent = pool[~np.isin(pool, prose)]
    pool = np.sort((absent if len(absent) >= COMMON else pool)[:POOL])
    for form in FORMS:
        n_pairs = {"single": 1, "chain": 2}.get(form, len(DEPTHS))
        depths = [(number + 2 * i) % len(DEPTHS) for i in range(n_pairs)]  # 5: each of them once
        n_drawn = n_pairs * (1 + n_key) + DRAWN
        drawn = random.choice(pool, size=n_drawn, replace=len(pool) < n_drawn).tolist()
        values, others = drawn[:n_pairs], drawn[n_pairs : n_pairs + DRAWN]
        rest = drawn[n_pairs + DRAWN :]
        keys = [tuple(rest[i : i + n_key]) for i in range(0, len(rest), n_key)]
        ends = [(value,) for value in values]
        if form == "values":
            keys = keys[:1] * n_pairs
        elif form == "chain":
            ends = [keys[1][:1], (values[1],)]
        pairs = [Pair(*pair) for pair in zip(keys, ends, [DEPTHS[d] for d in depths], strict=True)]
        asked = pairs[:1] if form == "values" else pairs
        tail = [token for pair in asked for token in (*pair.key, *pair.value)]
        if form == "chain":  # key, the other key, value
            tail = [*keys[0], *keys[1], values[1]]
        tokens = _inserted(prose, pairs, tail, span.length, plan.corpus.beginning)
        queries, begin = list[Query](), len(tokens) - len(tail)
        for i, depth in enumerate(depths):
            true = values[i]
            if form == "chain":
                place, true = begin + n_key * (i + 1) - 1, ends[i][0]
            else:
                place = begin + n_key - 1 + (0 if form == "values" else i * (n_key + 1))
            rivals = values[:i] + values[i + 1 :] if form == "keys" else []
            right = frozenset(values if form == "values" else [true])
            chosen = (true, *[*rivals, *others][:DRAWN])
            queries.append(Query(place, chosen, right, depths[0] if form == "chain" else depth))
        made.append(Haystack(tokens[:-1], queries))
    return made


def _known(plan: Plan) -> Ints:
    """Returns the ids that occur in the text, the most frequent first, without COMMON ones."""
    frequency = plan.log_frequency
    known = np.flatnonzero((frequency > frequency.min()) | (frequency.min() == frequency.max()))
    ranked = known[np.argsort(-frequency[known], kind="stable")]
    ranked = ranked[~np.isin(ranked, plan.corpus.beginning)]
    return ranked[COMMON:] if len(ranked) > 2 * COMMON else ranked


def key_length(plan: Plan) -> int:
    """Returns the tokens of a key: enough for N_KEYS different ones."""
    return max(2, math.ceil(math.log(N_KEYS) / math.log(max(2, min(POOL, len(_known(plan)))))))


def _inserted(
    prose: Ints, pairs: Sequence[Pair], tail: Sequence[int], length: int, beginning: Sequence[int]
) -> Ints:
    """Returns `length` tokens and the last one that is asked for: prose with pairs, and the tail.

    The prose is the last of what there is, less what is put into it.
    """
    n = length + 1 - len(beginning) - len(tail) - sum(len(p.key) + len(p.value) for p in pairs)
    kept, pieces, done = prose[len(prose) - n :], [np.array(beginning, dtype=np.int64)], 0
    for pair in sorted(pairs, key=lambda pair: pair.depth):
        at = round(pair.depth * n)
        pieces += [kept[done:at], np.array([*pair.key, *pair.value])]
        done = at
    return np.concatenate([*pieces, kept[done:], np.array(tail)]).astype(np.int64)


def _place(length: int, plan: Plan) -> Iterator[Span]:
    """Yields a window for each endpoint, if it has room for all pairs, and for prose."""
    if length >= 2 * len(DEPTHS) * (2 + key_length(plan)):
        for document, end in plan.endpoints:
            yield Span(document, end, length, 1 + 2 * len(DEPTHS) + 2)


class Retrieval(Protocol):
    """Values behind keys in prose; `score` is the number of hits."""

    texts = len(FORMS)
    bounds = (0, 1)

    def targets(self, span: Span, plan: Plan) -> Ints:
        queries = [query for example in examples(span, plan) for query in example.queries]
        return np.array([query.asked[0] for query in queries])

    def scored(
        self, spans: Sequence[Span], evaluation: Evaluation, advance: Advance
    ) -> dict[Span, Scored]:
        """Returns for each query the nats of its value, whether it is a hit, and exact."""
        made = {span: examples(span, evaluation.plan) for span in spans}
        texts = [
            Text(
                example.tokens_T,
                np.array([query.place for query in example.queries]),
                np.array([query.asked for query in example.queries]),
            )
            for asked in made.values()
            for example in asked
        ]
        answers = iter(read_answers(texts, evaluation, advance))
        scored: dict[Span, Scored] = {}
        for span, asked in made.items():
            lines: list[tuple[float, bool, bool]] = []
            for example in asked:
                answer = next(answers)
                rows = zip(example.queries, answer.nats_PC, answer.likeliest_P, strict=True)
                lines += [
                    (nats[0], bool(nats[0] < nats[1:].min()), int(likeliest) in query.right)
                    for query, nats, likeliest in rows
                ]
            both = np.array(lines, dtype=np.float64)
            both[-2:, 1:] = both[-2:, 1:].min(0)  # of a chain both are to be right
            scored[span] = both
        return scored

    def sums(self, windows: Sequence[Span], scored: ScoredSpans, plan: Plan) -> dict[str, Any]:
        """Returns lists with a number for each form at each depth."""
        counted = np.zeros((3, len(FORMS), len(DEPTHS)))
        for span in windows:
            lines = iter(scored[span])
            for form, example in enumerate(examples(span, plan)):
                for i, query in enumerate(example.queries):
                    _, hit, right = next(lines)
                    if not (FORMS[form] == "chain" and i):
                        counted[:, form, query.depth] += hit, right, 1
        n_found, _, n_tries = counted[:, 0].sum(-1).tolist()
        lists = zip(("hits", "exact", "tries"), counted.reshape(3, -1).tolist(), strict=True)
        return dict(lists) | {"score": n_found, "n_scores": n_tries}


RETRIEVAL = Retrieval(
    name="retrieval",
    summary="values of keys at 5 depths of a text: found if likelier than 9 random values",
    source="forms of RULER, arXiv 2404.06654, scored without generating",
    place=_place,
)
