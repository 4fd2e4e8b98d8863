"""Repeated text: validation text that is also in the training split, and chances to copy far text.

Lee et al. 2022 (Deduplicating Training Data Makes Language Models Better, arXiv 2107.06499) compare
runs of 50 tokens. These are shorter: a file of which 39 % was in training had no run of 50.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.errors import UserError
from lengthgen.files import hash_of, replace_file

GRAM = 20  # tokens
BYTES = 50  # where every token is one byte
CHUNK = 1 << 22  # tokens hashed at a time
DIGEST = 32  # bytes of the SHA-256 that a stored result begins with


def run_length(corpus: TokenizedCorpus) -> int:
    """Returns the length of a run of tokens that must not be in both splits."""
    return GRAM if corpus.token_bytes.max() > 1 else BYTES


def in_training(corpus: TokenizedCorpus, *, cache_dir: Path) -> NDArray[np.bool_]:
    """Returns which validation tokens lie in a run of tokens that training has too, [n].

    The result is stored next to the token cache, since a long corpus takes minutes to read.
    """
    name = hash_of(f"{corpus.fingerprint} {run_length(corpus)}")
    path = cache_dir / f".overlap-{name[:16]}.bin"
    n = len(corpus.validation.tokens)
    stored = path.read_bytes() if path.exists() else b""
    bits = stored[DIGEST:]
    if stored[:DIGEST] == hashlib.sha256(bits).digest():
        return np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=n).astype(bool)
    mask = _covered(corpus, _known_runs(corpus))
    if cache_dir.is_dir():
        bits = np.packbits(mask).tobytes()
        with suppress(UserError):  # of one that can only be read
            replace_file(path, hashlib.sha256(bits).digest() + bits)
    return mask


def _known_runs(corpus: TokenizedCorpus) -> NDArray[np.bool_]:
    """Returns for every place where a run can begin in the validation tokens if training has it."""
    import pandas as pd  # not before: evaluation without it starts sooner

    n = run_length(corpus)
    hashes = pd.Series(np.concatenate([*_hashes_of(corpus.validation.tokens, n)]))
    known = np.zeros(len(hashes), dtype=bool)
    for chunk in _hashes_of(corpus.train.tokens, n):
        known |= hashes.isin(chunk).to_numpy()  # by a hash table; np.isin sorts
    return known


def _hashes_of(tokens: NDArray[np.integer], n: int) -> Iterator[NDArray[np.uint64]]:
    for begin in range(0, max(1, len(tokens)), CHUNK):
        yield gram_hashes(tokens[begin : begin + CHUNK + n - 1], n)


def gram_hashes(tokens: NDArray[np.integer], n: int) -> NDArray[np.uint64]:
    """Returns a hash of every run of n tokens: a random number of each, times that of its place.

    Sums are modulo 2^64.
    """
    if len(tokens) < n:
        return np.zeros(0, dtype=np.uint64)
    numbers, places = (np.random.Generator(np.random.Philox(key)) for key in (0, 1))
    number_of = numbers.integers(2**64, size=int(tokens.max()) + 1, dtype=np.uint64)
    return np.convolve(number_of[tokens], places.integers(2**64, size=n, dtype=np.uint64), "valid")


def _covered(corpus: TokenizedCorpus, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns which validation tokens lie in a known run that stays in its document, [n]."""
    n, offsets = run_length(corpus), corpus.validation.offsets
    begins = np.flatnonzero(known)
    begins = begins[begins + n <= offsets[np.searchsorted(offsets, begins, side="right")]]
    change = np.zeros(len(corpus.validation.tokens) + 1, dtype=np.int32)
    change[begins] += 1
    change[begins + n] -= 1
    return np.cumsum(change)[:-1] > 0


def copy_opportunities(
    corpus: TokenizedCorpus, document: int, end: int, *, targets: int, near: int, far: int
) -> NDArray[np.bool_]:
    """Returns which of the last K targets before an endpoint may copy from far text, bool [K].

    The two tokens before such a target occurred before, and what last followed them stands more
    than `near` (T) and at most `far` tokens before the target. Whether the target is that token
    does not count: the choice rests on the past alone. Sun et al. 2021 (arXiv 2109.09115) choose
    targets by their own last occurrence.
    """
    stop = end + corpus.first_target
    text = corpus.validation.document(document)[max(0, stop - targets - far - 2) : stop - 1]
    wide = text.astype(np.int64)
    bigrams = wide[:-1] * corpus.vocab_size + wide[1:]  # the last stands before the last target
    may_copy = np.zeros(targets, dtype=bool)
    first = len(bigrams) - targets
    for at in range(max(0, first), len(bigrams)):
        before = np.flatnonzero(bigrams[max(0, at - far) : at] == bigrams[at])
        distance = min(at, far) - before[-1] if len(before) else 0
        may_copy[at - first] = distance > near
    return may_copy
