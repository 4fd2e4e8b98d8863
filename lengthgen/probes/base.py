"""What a probe is, and what it reads: a model, and text that ends at the evaluation's endpoints.

B windows, T tokens, D width.
"""

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lengthgen.config.registry import snake_case
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import Endpoint, window
from lengthgen.model.build import generator_of
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import LayerHooks, Part
from lengthgen.terminal import Progress

ProbeRow = dict[str, Any]  # of numbers, lists of numbers, and `skipped`: why there are none
Line = Sequence[float] | tuple[Sequence[float], Sequence[float]]  # y over its index, or x and y
Panel = Mapping[str, Line] | Sequence[Sequence[float]]  # lines by label, or heads of layers


class ProbeText(NamedTuple):
    """Input tokens and targets of one window, [1, T] int64 both, and the document they are from."""

    inputs_BT: Tensor
    targets_BT: Tensor
    document: int


@dataclass(frozen=True, kw_only=True)
class ProbeInputs:
    """A model in fp32 under its scheme or a variant, its text, and where progress goes."""

    model: Transformer
    corpus: TokenizedCorpus
    endpoints: Sequence[Endpoint]
    max_context: int  # targets before every endpoint
    seed: int
    show: Progress

    @property
    def train_length(self) -> int:
        return self.model.shape.train_length

    @property
    def reasons(self) -> dict[int, str | None]:
        """Why there are no numbers at T, 2T and 4T; None where there are."""
        of_scheme = self.model.scheme.unsupported_reason
        lengths = [n * self.train_length for n in (1, 2, 4)]
        too_long = f"endpoints lie {self.max_context:,} tokens deep in their documents"
        return {n: too_long if n > self.max_context else of_scheme(n) for n in lengths}

    def windows(self, probe: str, length: int, *, of_each: int = 1) -> Iterator[ProbeText]:
        """Yields the `of_each` windows before every endpoint, the nearest first; shows progress."""
        device, split = self.model.embedding.weight.device, self.corpus.validation
        self.show.start(f"{probe} {length:,}", len(self.endpoints) * of_each, "windows")
        for document, end in self.endpoints:
            for n in range(1, of_each + 1):
                cut = window(self.corpus, split, document, end - n * length, length, length)
                tokens, targets = (torch.from_numpy(x)[None].to(device) for x in cut)
                yield ProbeText(tokens, targets, document)
                self.show.advance(1)
        self.show.finish()

    def mean(self, probe: str, length: int, measure: Callable[[ProbeText], Tensor]) -> Tensor:
        """Returns the mean of float64 numbers over the windows that end at the endpoints."""
        total = sum((measure(text) for text in self.windows(probe, length)), start=torch.zeros(()))
        return total / len(self.endpoints)

    def states(self, tokens_BT: Tensor, *, n_last: int | None = None) -> Tensor:
        """Returns the model's final hidden states; a part that samples draws the same each time."""
        draws = generator_of("evaluation", self.seed)
        return self.model(tokens_BT, n_last=n_last, generator=draws)


class Probe:
    """An analysis of what a trained checkpoint does with positions."""

    key: ClassVar[str] = "length"  # what tells rows apart
    shown: ClassVar[Sequence[str]] = ()  # numbers, or lists of them, that the summary is of

    @property
    def name(self) -> str:
        return snake_case(type(self).__name__)

    def rows(self, inputs: ProbeInputs) -> list[ProbeRow]:
        """Returns a row for each value of the key, by default T, 2T and 4T tokens of text.

        `skipped` says why one has no numbers.
        """
        return [
            {"length": n, **({"skipped": why} if why else self.measure(inputs, n))}
            for n, why in inputs.reasons.items()
        ]

    def measure(self, inputs: ProbeInputs, length: int) -> ProbeRow:
        """Returns the numbers of windows of a length, or why it is skipped."""
        raise NotImplementedError

    @classmethod
    def summary(cls, rows: Sequence[ProbeRow]) -> str:
        """Returns means of what is shown, of the first and the last row that has numbers."""
        ends = [row for row in rows if "skipped" not in row]
        if not ends:
            return f"n/a: {'; '.join(dict.fromkeys(row['skipped'] for row in rows))}"
        return "; ".join(
            f"{cls.key} {row[cls.key]}: "
            + ", ".join(f"{n} {np.mean(row[n]):.3g}" for n in cls.shown if row[n] is not None)
            for row in [ends[0], *ends[1:][-1:]]
        )

    def panels(self, rows: Sequence[ProbeRow]) -> Mapping[str, Panel]:
        """Returns what is drawn of rows that have numbers, by "y over x" of its axes.

        By default that is each number over the key.
        """
        x = [row[self.key] for row in rows]
        return {f"{n} over {self.key}": {n: (x, [row[n] for row in rows])} for n in self.shown}


@contextmanager
def attached(model: Transformer, **hooks: Callable[..., Any]) -> Generator[None]:
    """Lets functions act as hooks of a part after those of the model, in all layers.

    `positions` and `weights` replace the scheme's own, which they have to call.
    """
    scheme = model.scheme
    methods = {name: staticmethod(hook) for name, hook in hooks.items()}
    reads: dict[str, Any] = {"needs_whole_text": True}  # numbers count from the text's first token
    part: Part = type("Attached", (Part,), methods | reads)(model.shape)

    def joined(layer: LayerHooks) -> LayerHooks:
        return layer._replace(
            parts=(*layer.parts, part),
            qk=(*layer.qk, part) if "qk" in hooks else layer.qk,
            bias=(*layer.bias, part) if "bias" in hooks else layer.bias,
            weights=part if "weights" in hooks else layer.weights,
            recurrence=None if "weights" in hooks else layer.recurrence,
            contiguous=layer.contiguous and "positions" not in hooks,
            toeplitz=layer.toeplitz and hooks.keys().isdisjoint({"positions", "bias", "weights"}),
        )

    hooked = copy.copy(scheme)
    hooked.all = (*scheme.all, part)
    hooked.layers = [joined(layer) for layer in scheme.layers]
    with model.under(hooked):
        yield


def numbers(x: Tensor) -> Any:
    """Returns a tensor as lists of numbers with six digits, as rows hold them."""
    return [numbers(row) for row in x] if x.dim() else float(f"{x.item():.6g}")


def spaced(longest: int) -> list[int]:
    """Returns 1, 2, 3 ..., then 16 to a doubling, up to the longest: where curves are kept."""
    points, n = list[int](), 1.0
    while round(n) < longest:
        points.append(round(n))
        n = max(n + 1, n * 2 ** (1 / 16))
    return [*points, longest]
