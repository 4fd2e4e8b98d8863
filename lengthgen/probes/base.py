"""What a probe is, and what it reads: a model, and text that ends at the evaluation's endpoints.

B windows, T tokens, D width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lengthgen.config.registry import snake_case
from lengthgen.config.schema import Config
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import Endpoint, window
from lengthgen.model.build import generator_of
from lengthgen.model.transformer import Transformer
from lengthgen.probes.figures import Panel
from lengthgen.terminal import Progress

Row = dict[str, Any]  # of numbers, lists of numbers, and `skipped`: why there are none


class Text(NamedTuple):
    """Input tokens and targets of one window, [1, T] int64 both, and the document they are from."""

    inputs_BT: Tensor
    targets_BT: Tensor
    document: int


@dataclass(frozen=True, kw_only=True)
class ProbeInputs:
    """A model in fp32 under its trained scheme, the text it reads, and where progress goes."""

    model: Transformer
    corpus: TokenizedCorpus
    endpoints: Sequence[Endpoint]
    max_context: int  # targets before every endpoint
    seed: int
    show: Progress
    others: Sequence[tuple[Config, Path]] = ()  # runs to compare with, and their folders

    @property
    def train_length(self) -> int:
        return self.model.shape.train_length

    @property
    def lengths(self) -> list[int]:
        """T, 2T and 4T."""
        return [n * self.train_length for n in (1, 2, 4)]

    def unsupported_reason(self, length: int) -> str | None:
        """Returns why there are no numbers at a length, or None."""
        if length > self.max_context:
            return f"endpoints lie {self.max_context:,} tokens deep in their documents"
        return self.model.scheme.unsupported_reason(length)

    def windows(self, probe: str, length: int, *, of_each: int = 1) -> Iterator[Text]:
        """Yields the `of_each` windows before every endpoint, and shows how far that is.

        The first ends at the endpoint, each other one where the one before begins.
        """
        device, split = self.model.embedding.weight.device, self.corpus.validation
        self.show.start(f"{probe} {length:,}", len(self.endpoints) * of_each, "windows")
        for document, end in self.endpoints:
            for n in range(1, of_each + 1):
                cut = window(self.corpus, split, document, end - n * length, length, length)
                tokens, targets = (torch.from_numpy(x)[None].to(device) for x in cut)
                yield Text(tokens, targets, document)
                self.show.advance(1)
        self.show.finish()

    def mean(self, probe: str, length: int, measure: Callable[[Text], Tensor]) -> Tensor:
        """Returns the mean of float64 numbers over the windows that end at the endpoints."""
        total = sum((measure(text) for text in self.windows(probe, length)), start=torch.zeros(()))
        return total / len(self.endpoints)

    def states(self, tokens_BT: Tensor, *, n_last: int | None = None) -> Tensor:
        """Returns the model's final hidden states; a part that samples draws the same each time."""
        return self.model(tokens_BT, n_last=n_last, generator=self.draws("evaluation"))

    def draws(self, name: str) -> torch.Generator:
        """Returns a stream of random numbers on the CPU, from its beginning."""
        return generator_of(name, self.seed)


class Probe:
    """An analysis of what a trained checkpoint does with positions.

    Keyword-only arguments of the constructor are options; conf/probe/NAME.yaml holds their values.
    """

    shown: ClassVar[Sequence[str]] = ()  # numbers, or lists of them, that the summary is of
    columns: ClassVar[int] = 3  # of the picture

    @property
    def name(self) -> str:
        return snake_case(type(self).__name__)

    def settings(self, inputs: ProbeInputs) -> Row:
        """Returns what decides the numbers, apart from text and code: by default the options."""
        return dict(vars(self))

    def rows(self, inputs: ProbeInputs) -> list[Row]:
        """Returns a row per length, shift or term; `skipped` says why one has no numbers.

        By default those of windows of T, 2T and 4T tokens. The first key of rows tells them apart.
        """
        reasons = {length: inputs.unsupported_reason(length) for length in inputs.lengths}
        return [
            {"length": n, **({"skipped": why} if why else self.measure(inputs, n))}
            for n, why in reasons.items()
        ]

    def measure(self, inputs: ProbeInputs, length: int) -> Row:
        """Returns the numbers of windows of a length, or why it is skipped."""
        raise NotImplementedError

    def summary(self, rows: Sequence[Row]) -> str:
        """Returns a line on rows that have numbers: means of what is shown; of lengths two."""
        key = first_key(rows[0])
        ends = rows if isinstance(rows[0][key], str) else [rows[0], *rows[1:][-1:]]
        texts = (
            f"{key} {row[key]}: "
            + ", ".join(f"{n} {np.mean(row[n]):.3g}" for n in self.shown if row[n] is not None)
            for row in ends
        )
        return "; ".join(texts)

    def panels(self, rows: Sequence[Row]) -> Mapping[str, Panel]:
        """Returns what is drawn of rows that have numbers: by default each over the first key."""
        key = first_key(rows[0])
        x = [row[key] for row in rows]
        return {f"{n} over {key}": {n: (x, [row[n] for row in rows])} for n in self.shown}


def first_key(row: Row) -> str:
    """Returns the first key of what was measured, behind those of the run."""
    return list(row)[list(row).index("settings") + 1]


def numbers(x: Tensor) -> Any:
    """Returns a tensor as lists of numbers with six digits, as rows hold them."""
    if x.dim():
        return [numbers(row) for row in x]
    value = x.item()
    return float(f"{value:.6g}") if isinstance(value, float) else value


def spaced(longest: int) -> list[int]:
    """Returns 1, 2, 3 ..., then 16 to a doubling, up to the longest: where curves are kept."""
    points, n = list[int](), 1.0
    while round(n) < longest:
        points.append(round(n))
        n = max(n + 1, n * 2 ** (1 / 16))
    return [*points, longest]
