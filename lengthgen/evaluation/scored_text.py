"""What an evaluation scores: endpoints in documents, a stretch of the stream, examples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import Endpoint, Span

UNIGRAM_TOKENS = 1 << 27  # of the training split, at most, that its frequencies are counted on
Nats = NDArray[np.float64]
# The nats of each scored token; where predictions are wanted, [n, 2]: and the most likely token.
Scored = NDArray[np.float64]
ScoredSpans = Mapping[Span, Scored]
Advance = Callable[[int], None]  # receives the cost of each forward pass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What there is to score, fixed before a model is built, and how protocols place windows."""

    corpus: TokenizedCorpus
    targets: int  # K
    train_length: int  # T, which decides how many targets of an endpoint share a window
    sliding_documents: int  # that sliding windows read: each costs max_context / stride windows
    exact_targets: int  # of each endpoint that get a window of their own
    longest: int  # of the lengths evaluated
    evaluator: str | None = None  # the run that chooses key tokens, if not the model itself
    endpoints: tuple[Endpoint, ...] = ()
    max_context: int = 0  # targets before every endpoint, and in a block of the stream
    blocks: int = 0  # of the stream
    repeated: float = 0.0  # share of tokens that could be scored, but stand in training too
    # The answers of documents that have prompts, by length in the unit of the task.
    examples: Mapping[int, Sequence[Span]] = field(default_factory=dict[int, list[Span]])

    @property
    def segments(self) -> list[Endpoint]:
        """One endpoint of each cluster, so that no token is scored twice."""
        first: dict[Endpoint | int, Endpoint] = {}
        for endpoint in self.endpoints:
            first.setdefault(self.cluster(endpoint.document, endpoint.end), endpoint)
        return list(first.values())

    def cluster(self, document: int, end: int) -> Endpoint | int:
        """Returns what the targets before `end` vary with: their document, or, in packed text, the
        endpoint whose max_context targets hold them: there endpoints lie so far apart.
        """
        if document < 0 or not self.corpus.packed:
            return document
        return min(endpoint for endpoint in self.endpoints if endpoint.end >= end)

    def by_cluster(self, spans: Sequence[Span]) -> dict[Endpoint | int, list[Span]]:
        """Returns windows by the cluster of their targets, in their order."""
        clusters: dict[Endpoint | int, list[Span]] = {}
        for span in spans:
            clusters.setdefault(self.cluster(span.document, span.end), []).append(span)
        return clusters

    @cached_property
    def log_frequency(self) -> Nats:
        """The log probability of each token by its frequency in training, plus one, [V].

        Without training text, by that in validation.
        """
        corpus, V = self.corpus, self.corpus.vocab_size
        split = corpus.train if len(corpus.train.tokens) else corpus.validation
        tokens = split.tokens[:UNIGRAM_TOKENS]
        counts = np.bincount(tokens, minlength=V) + 1.0
        return np.log(counts / counts.sum())

    @property
    def stream(self) -> list[Endpoint]:
        """The ends of the stream's blocks."""
        return [Endpoint(-1 - b, (b + 1) * self.max_context) for b in range(self.blocks)]
