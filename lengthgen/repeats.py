"""What stands twice: targets that the training split holds too, and copies of far text.

Runs of 50 tokens are what Lee et al. 2022 (Deduplicating Training Data Makes Language Models
Better, arXiv 2107.06499) compare.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lengthgen.corpora import TokenizedCorpus
from lengthgen.protocols import Endpoint
from lengthgen.tracking import replace_file

GRAM = 50  # tokens
CHUNK = 1 << 22  # training tokens hashed at a time
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_MODULUS = 1 << 64

Hashes = NDArray[np.uint64]


def unseen(
    corpus: TokenizedCorpus, drawn: Sequence[Endpoint], *, targets: int, cache_dir: Path
) -> list[Endpoint]:
    """Returns the endpoints whose targets hold no token of a run that the training split has.

    The answer is kept beside the token cache, since a long corpus takes minutes to read.
    """
    said = json.dumps([corpus.fingerprint, corpus.bos_id is None, targets, GRAM, *drawn])
    name = hashlib.sha256(said.encode()).hexdigest()[:16]
    kept = cache_dir / f".overlap-{name}.json"
    seen = _answer(kept, len(drawn))
    if seen is None:
        seen = [bool(one) for one in _seen(corpus, drawn, targets)]
        if cache_dir.is_dir():
            replace_file(kept, json.dumps(seen).encode())
    return [endpoint for endpoint, known in zip(drawn, seen, strict=True) if not known]


def _answer(path: Path, n: int) -> list[bool] | None:
    """Returns the answer for n endpoints that was kept, None if there is none or it is damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, list) and len(found) == n else None


def _seen(corpus: TokenizedCorpus, drawn: Sequence[Endpoint], targets: int) -> NDArray[np.bool_]:
    """Returns of each endpoint whether a run that covers one of its targets is in training."""
    first = 0 if corpus.bos_id is not None else 1  # target t of a document is token t + first
    owners: list[NDArray[np.int64]] = []
    found: list[Hashes] = []
    for i, (document, end) in enumerate(drawn):
        text = corpus.validation.document(document)
        covering = text[max(0, end + first - targets - GRAM + 1) : end + first + GRAM - 1]
        hashes = gram_hashes(covering)
        found.append(hashes)
        owners.append(np.full(len(hashes), i))
    known = np.zeros(len(drawn), dtype=bool)
    if not found or not sum(map(len, found)):
        return known
    hashes, where = np.unique(np.concatenate(found), return_inverse=True)
    hit = np.zeros(len(hashes), dtype=bool)
    tokens = corpus.train.tokens
    for begin in range(0, len(tokens), CHUNK):
        chunk = gram_hashes(tokens[begin : begin + CHUNK + GRAM - 1])
        place = np.minimum(np.searchsorted(hashes, chunk), len(hashes) - 1)
        hit[place[hashes[place] == chunk]] = True
    known[np.unique(np.concatenate(owners)[hit[where]])] = True
    return known


def far_copies(
    corpus: TokenizedCorpus, document: int, end: int, *, targets: int, near: int, far: int
) -> NDArray[np.bool_]:
    """Returns which of the last K targets before an endpoint copy far text, bool [K].

    The bigram that ends at such a target stands before it at a distance of more than `near` (T) and
    at most `far` tokens, and at no smaller distance. It generalises the tokens of Sun et al. 2021
    (Do Long-Range Language Models Actually Use Long-Range Context?, arXiv 2109.09115) whose last
    occurrence lies far back.
    """
    first = 0 if corpus.bos_id is not None else 1
    stop = end + first
    text = corpus.validation.document(document)[max(0, stop - targets - far - 1) : stop]
    wide = text.astype(np.int64)
    bigrams = wide[:-1] * corpus.vocab_size + wide[1:]  # bigram i ends at token i + 1
    found = np.zeros(targets, dtype=bool)
    last = len(bigrams) - targets
    for k in range(max(0, -last), targets):
        at = last + k
        before = np.flatnonzero(bigrams[max(0, at - far) : at] == bigrams[at])
        distance = min(at, far) - before[-1] if len(before) else 0
        found[k] = distance > near
    return found


def gram_hashes(tokens: NDArray[np.integer]) -> Hashes:
    """Returns a hash of every run of 50 tokens, [n - 49]: sum of x[j] base^j modulo 2^64, mixed.

    Differences of running sums, so that every run costs two additions. Each token is mixed first:
    a polynomial of small numbers modulo a power of two would collide.
    """
    if len(tokens) < GRAM:
        return np.zeros(0, dtype=np.uint64)
    with np.errstate(over="ignore"):
        x = tokens.astype(np.uint64) + np.uint64(1)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(29)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(x * _powers(_BASE, len(x)))])
        inverse = pow(_BASE, -1, _MODULUS)
        out = (sums[GRAM:] - sums[:-GRAM]) * _powers(inverse, len(x) - GRAM + 1)
        return out ^ (out >> np.uint64(31))


def _powers(base: int, n: int) -> Hashes:
    """Returns base^0 ... base^(n-1) modulo 2^64."""
    steps = np.full(n, base, dtype=np.uint64)
    steps[0] = 1
    with np.errstate(over="ignore"):
        return np.cumprod(steps)
