"""Training batches and evaluation windows: pure functions of the tokens, the seed and the step.

A window of length T is T targets and the T tokens that precede them: <|bos|> and T-1 tokens of the
document if the corpus has bos, T tokens of the document if not. It never leaves its document.
"""

import math
from collections import defaultdict
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lengthgen.data.corpora import Split, TokenizedCorpus
from lengthgen.files import hash_of

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
IGNORED = -100  # target of a position past the document's end
MOST_SEEN = 0.5  # of a validation document's tokens, in runs that training has too
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Windows(NamedTuple):
    """Input tokens and targets, both [B, T] int64; targets past a document's end are IGNORED."""

    inputs_BT: Ints
    targets_BT: Ints


class Endpoint(NamedTuple):
    """Where a scored span ends: `end` targets of the document lie before it."""

    document: int
    end: int


class Span(NamedTuple):
    """A window of `length` targets that ends at `end`; its last `scored` targets count.

    A document of -1 - b is block b of the stream: the validation documents one after another.
    """

    document: int
    end: int
    length: int
    scored: int

    @property
    def start(self) -> int:
        return self.end - self.length


class TrainingWindows:
    """The windows of one epoch: every training document cut into ceil(targets / T) of them."""

    def __init__(self, corpus: TokenizedCorpus, length: int) -> None:
        self.corpus, self.length = corpus, length
        self.targets_N = n_targets(corpus, corpus.train)
        # windows before each document
        self.first_N = np.concatenate([[0], np.cumsum(-(-self.targets_N // length))])
        self.count = int(self.first_N[-1])


def train_batch(windows: TrainingWindows, *, seed: int, step: int, batch: int) -> Windows:
    """Returns the global batch of a step: the same windows whatever the number of processes.

    Windows are drawn without replacement, each epoch in an order of its own. A document that is no
    multiple of T is cut differently in each epoch; only windows at its ends overlap.
    """
    T = windows.length
    drawn = np.arange(step * batch, (step + 1) * batch)
    epoch = drawn // windows.count
    index = permuted(drawn % windows.count, windows.count, key=_hash(np.uint64(seed), epoch))
    document = np.searchsorted(windows.first_N, index, side="right") - 1
    targets = windows.targets_N[document]
    slack = -targets % T
    key = _hash(_hash(np.uint64(seed), epoch), document + 1)
    shift = (key % (slack + 1).astype(np.uint64)).astype(np.int64)
    start = (index - windows.first_N[document]) * T - shift
    return _cut(windows, document, np.clip(start, 0, np.maximum(targets - T, 0)))


def consecutive_batch(
    windows: TrainingWindows, *, seed: int, step: int, batch: int
) -> tuple[Windows, Mask]:
    """Returns the global batch of a step whose rows continue those of the step before.

    Each row reads its own part of the corpus in order, from another position in every epoch. The
    second array marks the rows that do not continue: those at the first token of a document, or in
    the first step of an epoch. BOS stands before these alone.
    """
    steps = max(1, windows.count // batch)
    epoch, step_of_epoch = divmod(step, steps)
    place = int(_hash(np.uint64(seed), np.array([epoch]))[0] % np.uint64(windows.count))
    index = (place + np.arange(batch) * steps + step_of_epoch) % windows.count
    document = np.searchsorted(windows.first_N, index, side="right") - 1
    start = (index - windows.first_N[document]) * windows.length
    begins = (start == 0) | (step_of_epoch == 0)
    cut, corpus = _cut(windows, document, start), windows.corpus
    if corpus.bos_id is not None:  # the text goes on: no BOS in place of its last token
        last = (corpus.train.offsets[document] + start - 1)[~begins]
        cut.inputs_BT[~begins, 0] = corpus.train.tokens[last]
    return cut, begins


def _cut(windows: TrainingWindows, document: Ints, start: Ints) -> Windows:
    """Returns the windows at these targets of these documents, padded at a document's end."""
    corpus, T = windows.corpus, windows.length
    targets = np.minimum(T, windows.targets_N[document] - start)
    places = zip(document.tolist(), start.tolist(), targets.tolist(), strict=True)
    cut = [window(corpus, corpus.train, *place, T) for place in places]
    return Windows(*(np.stack(column) for column in zip(*cut, strict=True)))


def window(
    corpus: TokenizedCorpus, split: Split, document: int, start: int, targets: int, length: int
) -> tuple[Ints, Ints]:
    """Returns inputs and targets of the window whose first target is number `start`.

    It holds `targets` targets, padded to `length` with ignored ones; those of a prompt are ignored.
    """
    tokens = split.document(document)
    if corpus.bos_id is None:
        piece = tokens[start : start + targets + 1].astype(np.int64)
    else:
        piece = np.empty(targets + 1, dtype=np.int64)
        piece[0], piece[1:] = corpus.bos_id, tokens[start : start + targets]
    inputs, wanted = np.zeros(length, dtype=np.int64), np.full(length, IGNORED, dtype=np.int64)
    inputs[:targets], wanted[:targets] = piece[:-1], piece[1:]
    wanted[: max(0, split.prompt_length(document) - start)] = IGNORED
    return inputs, wanted


def text_of(span: Span, corpus: TokenizedCorpus) -> tuple[Split, int]:
    """Returns the split and the document that a span lies in; the stream is a single document."""
    validation = corpus.validation
    if span.document >= 0:
        return validation, span.document
    ends = np.array([0, len(validation.tokens)])
    stream = ["stream"]
    return Split(tokens=validation.tokens, offsets=ends, names=stream, groups=stream), 0


def targets_of(span: Span, corpus: TokenizedCorpus) -> Ints:
    """Returns the scored tokens of a span, [scored]."""
    split, document = text_of(span, corpus)
    return window(corpus, split, document, span.end - span.scored, span.scored, span.scored)[1]


def n_targets(corpus: TokenizedCorpus, split: Split) -> Ints:
    """Returns the number of predictable tokens of each document: without bos, all but the first."""
    return np.maximum(split.lengths - corpus.first_target, 0)


def endpoints(
    corpus: TokenizedCorpus,
    *,
    depth: int,
    count: int,
    per_document: int,
    spacing: int,
    targets: int,
    seed: int,
    seen: Mask | None,
) -> list[Endpoint]:
    """Draws where scored spans end: at least `depth` targets deep in a validation document.

    Each document that is long enough gives at most `per_document` endpoints, at least `spacing`
    targets apart. Groups take turns, in a seeded order, so that none has more than its share; each
    gives one endpoint of each of its documents before a second.
    No span of `targets` holds a validation token that was `seen` in training, and a document of
    which more than MOST_SEEN was gives none. Fewer than `count` if there are no more.
    """
    long = np.flatnonzero(n_targets(corpus, corpus.validation) >= depth)
    queues: dict[str, defaultdict[int, list[Endpoint]]] = {}
    for document in long[np.argsort(_hash(np.uint64(seed), long))].tolist():
        ends = _unseen_ends(corpus, document, depth, targets, seen)
        if not len(ends):
            continue
        room = len(ends) - 1
        n = min(per_document, 1 + room // spacing)
        random = np.random.Generator(np.random.Philox(key=[seed, document]))
        rounds = queues.setdefault(corpus.validation.groups[document], defaultdict(list))
        free = np.sort(random.random(n)) * (room - (n - 1) * spacing)
        for j, gap in enumerate(np.floor(free).astype(int).tolist()):
            rounds[j].append(Endpoint(document, int(ends[j * spacing + gap])))
    in_order = ([end for j in sorted(of) for end in of[j]] for of in queues.values())
    drawn = [end for turn in zip_longest(*in_order) for end in turn if end is not None]
    return drawn[:count]


def _unseen_ends(
    corpus: TokenizedCorpus, document: int, depth: int, targets: int, seen: Mask | None
) -> Ints:
    """Returns where spans of `targets` may end in a document, ascending."""
    begin, stop = corpus.validation.offsets[document : document + 2]
    first = corpus.first_target  # target t of a document is token t + first
    ends = np.arange(depth, stop - begin - first + 1)
    if seen is None:
        return ends
    here = seen[begin:stop]
    if not corpus.packed and here.mean() > MOST_SEEN:
        return ends[:0]
    n_seen = np.concatenate([[0], np.cumsum(here)])
    return ends[n_seen[ends + first] == n_seen[ends + first - targets]]


def share_seen(corpus: TokenizedCorpus, seen: Mask, *, depth: int, targets: int) -> float:
    """Returns the share of the tokens deep enough to be scored that were `seen` in training."""
    offsets, first = corpus.validation.offsets, corpus.first_target
    long = np.flatnonzero(n_targets(corpus, corpus.validation) >= depth)
    deep = [seen[offsets[i] + first + depth - targets : offsets[i + 1]] for i in long]
    return float(np.concatenate(deep).mean())


def manifest(corpus: TokenizedCorpus, *places: object) -> str:
    """Returns 12 hexadecimal digits that name places in a corpus, such as sorted endpoints."""
    return hash_of([corpus.fingerprint, corpus.bos_id is None, *places], 12)


def position_bins(length: int, longest: int) -> Ints:
    """Returns the last position of every bin, for positions 1 ... longest.

    One bin per position up to `length`, then 64 to an octave (fewer where positions run out).
    """
    octaves = math.log2(max(1.0, longest / length))
    beyond = length * 2.0 ** (np.arange(1, math.ceil(64 * octaves) + 1) / 64)
    edges = np.concatenate([np.arange(1, length + 1), np.floor(beyond).astype(int), [longest]])
    return np.unique(edges[edges <= longest]).astype(np.int64)


def permuted(index: Ints, n: int, *, key: NDArray[np.uint64]) -> Ints:
    """Returns where the permutation of 0 ... n-1 named by `key` sends each index.

    A Feistel network over the next even number of bits, walked until it is back below n: any
    entry of a permutation of any size, without forming it.
    """
    half = np.uint64(max(1, (max(n - 1, 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    out = np.asarray(index).astype(np.uint64)
    todo = np.ones(out.shape, dtype=bool)
    while todo.any():
        left, right = out[todo] >> half, out[todo] & low
        for turn in range(4):
            left, right = right, left ^ (_hash(key[todo] + np.uint64(turn), right) & low)
        out[todo] = (left << half) | right
        todo = out >= n
    return out.astype(np.int64)


def _hash(
    key: NDArray[np.uint64] | np.uint64, value: Ints | NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Mixes two integers into 64 random-looking bits (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        other = np.uint64(0xD1B54A32D192ED03)
        x = np.asarray(key) * _MIX + np.asarray(value).astype(np.uint64) * other
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
