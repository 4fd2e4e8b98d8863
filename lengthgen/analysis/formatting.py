"""How figure and table write numbers, lengths, and what was scored on which text."""

from collections.abc import Sequence

from lengthgen.analysis.curves import Point
from lengthgen.evaluation.protocols import HEADLINE, named


def number(value: float) -> str:
    """Returns a perplexity or ratio with two digits after the point, fewer where it is large."""
    if value >= 1e7:
        return f"{value:.1e}"
    return f"{value:,.{2 if value < 100 else 1 if value < 1000 else 0}f}"


def short(length: int) -> str:
    """Returns a length as 512, 1k (1024), 1.5k (1536), 16k (16384); others whole."""
    return f"{length / 1024:g}k" if length >= 1024 and length % 512 == 0 else str(length)


def millions(tokens: float) -> str:
    """Returns a number of tokens as 12M, 1.5M; below a million whole, with commas."""
    return f"{tokens / 1e6:.3g}M" if tokens >= 1e6 else f"{tokens:,.0f}"


def headline(points: Sequence[Point]) -> str:
    """Returns what was scored: protocol, targets, endpoints, documents."""
    protocol, K = named(points[0].protocol), points[0].targets
    documents = _count(max(p.n_documents for p in points), "documents")
    n_tokens = max(p.n_tokens for p in points)
    if protocol.name == HEADLINE and K is not None:
        endpoints = _count(n_tokens // K, "endpoints")
        return f"matched tail: K={K} targets before each of {endpoints} in {documents}"
    return f"{protocol.name}: {protocol.summary}; up to {n_tokens:,} tokens of {documents}"


def _count(n: int, plural: str) -> str:
    return f"{n} {plural.removesuffix('s') if n == 1 else plural}"


def subject(points: Sequence[Point]) -> str:
    """Returns the corpus, the model, and the precisions of training and scoring."""
    packed = " (packed)" if points[0].packed else ""
    models = ", ".join(sorted({p.model for p in points}))
    corpora = ", ".join(sorted({p.corpus for p in points}))
    trained = " and ".join(sorted({p.trained_in for p in points if p.trained_in is not None}))
    trained = f"trained in {trained}, scored in " if trained else ""
    scored = " and ".join(sorted({p.precision for p in points}))
    return f"corpus {corpora}{packed}, model {models}, {trained}{scored}"


def condition_difference(points: Sequence[Point], others: Sequence[Point]) -> str:
    """Returns the conditions that points have and others do not."""
    formats = {
        "precision": "{}",
        "targets": "K={}",
        "reach": "endpoints {:,} deep",
        "tokens_seen": "{:,} tokens seen",
    }
    texts = [
        text.format(value)
        for field, text in formats.items()
        for value in sorted(
            {getattr(p, field) for p in points} - {getattr(p, field) for p in others}
        )
        if value is not None
    ]
    return ", ".join(texts) or "other endpoints"
