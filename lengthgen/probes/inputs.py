"""Inputs of probes: a trained model, and windows of text that end at the evaluation's endpoints.

B windows, T tokens, D width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lengthgen.config.schema import Config
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.spans import Endpoint
from lengthgen.data.windows import window
from lengthgen.model.build import generator_of
from lengthgen.model.transformer import Transformer
from lengthgen.terminal import Progress

Row = dict[str, Any]  # of numbers, lists of numbers, and `skipped`: why there are none


class Text(NamedTuple):
    """Input tokens and targets of one window, [1, T] int64 both, and the document they are from."""

    inputs_BT: Tensor
    targets_BT: Tensor
    document: int


class Other(NamedTuple):
    """Another run that a probe may compare with."""

    config: Config
    run_dir: Path


@dataclass(frozen=True, kw_only=True)
class ProbeInputs:
    """A model in fp32 under its trained scheme, the text it reads, and where progress goes."""

    model: Transformer
    corpus: TokenizedCorpus
    endpoints: Sequence[Endpoint]
    reach: int  # targets before every endpoint
    seed: int
    show: Progress
    others: Sequence[Other] = ()  # the other runs that were named

    @property
    def train_length(self) -> int:
        return self.model.shape.train_length

    @property
    def lengths(self) -> list[int]:
        """T, 2T and 4T."""
        return [n * self.train_length for n in (1, 2, 4)]

    def unsupported_reason(self, length: int) -> str | None:
        """Returns why there are no numbers at a length, or None."""
        if length > self.reach:
            return f"endpoints lie {self.reach:,} tokens deep in their documents"
        return self.model.scheme.unsupported_reason(length)

    def windows(self, probe: str, length: int, *, of_each: int = 1) -> Iterator[Text]:
        """Yields the `of_each` windows before every endpoint, and shows how far that is.

        The first ends at the endpoint, each other one where the one before begins.
        """
        device = self.model.embedding.weight.device
        self.show.start(f"{probe} {length:,}", len(self.endpoints) * of_each, "windows")
        for endpoint in self.endpoints:
            for n in range(of_each):
                start = endpoint.end - (n + 1) * length
                cut = window(
                    self.corpus, self.corpus.validation, endpoint.document, start, length, length
                )
                tokens, targets = (torch.from_numpy(x)[None].to(device) for x in cut)
                yield Text(tokens, targets, endpoint.document)
                self.show.advance(1)
        self.show.finish()

    def states(self, tokens_BT: Tensor, *, n_last: int | None = None) -> Tensor:
        """Returns the model's final hidden states; a part that samples draws the same each time."""
        return self.model(tokens_BT, n_last=n_last, generator=self.draws("evaluation"))

    def draws(self, name: str) -> torch.Generator:
        """Returns a stream of random numbers on the CPU, from its beginning."""
        return generator_of(name, self.seed)


def numbers(x: Tensor) -> Any:
    """Returns a tensor as lists of numbers with six digits, as rows hold them."""
    if x.dim():
        return [numbers(row) for row in x]
    value = x.item()
    return float(f"{value:.6g}") if isinstance(value, float) else value


def spaced(longest: int) -> list[int]:
    """Returns 1, 2, 3 ..., then 16 to a doubling, up to the longest: where curves are kept."""
    found, n = list[int](), 1.0
    while round(n) < longest:
        found.append(round(n))
        n = max(n + 1, n * 2 ** (1 / 16))
    return [*found, longest]
