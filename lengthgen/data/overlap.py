"""Repeated text: validation text that is also in the training split, and copies of far text.

Lee et al. 2022 (Deduplicating Training Data Makes Language Models Better, arXiv 2107.06499) compare
runs of 50 tokens. These are shorter: a file of which 39 % was in training had no run of 50.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.files import replace_file

GRAM = 20  # tokens
BYTES = 50  # where every token is one byte
CHUNK = 1 << 22  # tokens hashed at a time
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_MODULUS = 1 << 64

Hashes = NDArray[np.uint64]
Mask = NDArray[np.bool_]


def run_length(corpus: TokenizedCorpus) -> int:
    """Returns the length of a run of tokens that must not be in both splits."""
    return GRAM if corpus.token_bytes.max() > 1 else BYTES


def in_training(corpus: TokenizedCorpus, *, cache_dir: Path) -> Mask:
    """Returns which validation tokens lie in a run of tokens that training has too, [n].

    The result is stored next to the token cache, since a long corpus takes minutes to read.
    """
    name = hashlib.sha256(f"{corpus.fingerprint} {run_length(corpus)}".encode()).hexdigest()
    path = cache_dir / f".overlap-{name[:16]}.bin"
    n = len(corpus.validation.tokens)
    if path.exists():
        packed = np.fromfile(path, dtype=np.uint8)
        if len(packed) == -(-n // 8):
            return np.unpackbits(packed, count=n).astype(bool)
    mask = _covered(corpus, _known_runs(corpus))
    if cache_dir.is_dir():
        replace_file(path, np.packbits(mask).tobytes())
    return mask


def _known_runs(corpus: TokenizedCorpus) -> Mask:
    """Returns for every place where a run can begin in the validation tokens if training has it."""
    n = run_length(corpus)
    held_out = np.concatenate([*_hashes_of(corpus.validation.tokens, n)])
    hashes, where = np.unique(held_out, return_inverse=True)
    bits = (8 * len(hashes)).bit_length()
    unused = np.uint64(64 - bits)
    maybe = np.zeros(1 << bits, dtype=bool)  # skips nearly all of training without a search
    maybe[hashes >> unused] = True
    known = np.zeros(len(hashes), dtype=bool)
    for chunk in _hashes_of(corpus.train.tokens, n):
        likely = chunk[maybe[chunk >> unused]]
        place = np.minimum(np.searchsorted(hashes, likely), len(hashes) - 1)
        known[place[hashes[place] == likely]] = True
    return known[where]


def _hashes_of(tokens: NDArray[np.integer], n: int) -> Iterator[Hashes]:
    """Yields the hashes of all runs of n tokens, some million at a time."""
    for begin in range(0, max(1, len(tokens)), CHUNK):
        yield gram_hashes(tokens[begin : begin + CHUNK + n - 1], n)


def _covered(corpus: TokenizedCorpus, known: Mask) -> Mask:
    """Returns which validation tokens lie in a known run that stays in its document, [n]."""
    n, offsets = run_length(corpus), corpus.validation.offsets
    begins = np.flatnonzero(known)
    ends_of = offsets[np.searchsorted(offsets, begins, side="right")]
    begins = begins[begins + n <= ends_of]
    change = np.zeros(len(corpus.validation.tokens) + 1, dtype=np.int32)
    change[begins] += 1
    change[begins + n] -= 1
    return np.cumsum(change)[:-1] > 0


def far_copies(
    corpus: TokenizedCorpus, document: int, end: int, *, targets: int, near: int, far: int
) -> NDArray[np.bool_]:
    """Returns which of the last K targets before an endpoint copy far text, bool [K].

    The bigram that ends at such a target occurs before it at a distance of more than `near` (T) and
    at most `far` tokens, and at no smaller distance. This generalises the tokens of Sun et al. 2021
    (Do Long-Range Language Models Actually Use Long-Range Context?, arXiv 2109.09115) whose last
    occurrence lies far back.
    """
    stop = end + corpus.first_target
    text = corpus.validation.document(document)[max(0, stop - targets - far - 1) : stop]
    wide = text.astype(np.int64)
    bigrams = wide[:-1] * corpus.vocab_size + wide[1:]  # bigram i ends at token i + 1
    is_far = np.zeros(targets, dtype=bool)
    last = len(bigrams) - targets
    for k in range(max(0, -last), targets):
        at = last + k
        before = np.flatnonzero(bigrams[max(0, at - far) : at] == bigrams[at])
        distance = min(at, far) - before[-1] if len(before) else 0
        is_far[k] = distance > near
    return is_far


def gram_hashes(tokens: NDArray[np.integer], n: int) -> Hashes:
    """Returns a hash of every run of n tokens: sum of x[j] base^j modulo 2^64, mixed.

    Differences of running sums, so that every run costs two additions. Each token is mixed first:
    a polynomial of small numbers modulo a power of two would collide.
    """
    if len(tokens) < n:
        return np.zeros(0, dtype=np.uint64)
    with np.errstate(over="ignore"):
        x = tokens.astype(np.uint64) + np.uint64(1)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(29)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(x * _powers(_BASE, len(x)))])
        inverse = pow(_BASE, -1, _MODULUS)
        out = (sums[n:] - sums[:-n]) * _powers(inverse, len(x) - n + 1)
        return out ^ (out >> np.uint64(31))


def _powers(base: int, n: int) -> Hashes:
    """Returns base^0 ... base^(n-1) modulo 2^64."""
    steps = np.full(n, base, dtype=np.uint64)
    steps[0] = 1
    with np.errstate(over="ignore"):
        return np.cumprod(steps)
