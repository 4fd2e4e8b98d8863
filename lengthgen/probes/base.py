"""The base of probes: rows of numbers of a trained checkpoint, a line and a picture of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from lengthgen.config.registry import snake_case
from lengthgen.probes import figures
from lengthgen.probes.inputs import ProbeInputs, Row


class Probe(ABC):
    """An analysis of what a trained checkpoint does with positions.

    Keyword-only arguments of the constructor are options; conf/probe/NAME.yaml holds their values.
    """

    order: ClassVar[int] = 100  # of the output; probes of one order are sorted by name

    @property
    def name(self) -> str:
        return snake_case(type(self).__name__)

    def settings(self, inputs: ProbeInputs) -> Row:
        """Returns what decides the numbers, apart from the text: by default the options."""
        del inputs
        return dict(vars(self))

    @abstractmethod
    def rows(self, inputs: ProbeInputs) -> list[Row]:
        """Returns a row per length, shift or term; `skipped` says why one has no numbers."""

    @abstractmethod
    def summary(self, rows: Sequence[Row]) -> str:
        """Returns a line on the rows, which all have numbers."""

    @staticmethod
    def figure(rows: Sequence[Row]) -> figures.Figure:
        """Returns a picture of the rows, some of which have numbers."""
        return figures.columns(rows)


class LengthProbe(Probe):
    """A probe that measures windows of T, 2T and 4T tokens, a row for each."""

    def settings(self, inputs: ProbeInputs) -> Row:
        return {"lengths": inputs.lengths, **super().settings(inputs)}

    def rows(self, inputs: ProbeInputs) -> list[Row]:
        return [{"length": length, **self._row(inputs, length)} for length in inputs.lengths]

    def _row(self, inputs: ProbeInputs, length: int) -> Row:
        reason = self.unsupported_reason(inputs, length)
        return {"skipped": reason} if reason else self.measure(inputs, length)

    def unsupported_reason(self, inputs: ProbeInputs, length: int) -> str | None:
        """Returns why there are no numbers at a length, or None."""
        return inputs.unsupported_reason(length)

    @abstractmethod
    def measure(self, inputs: ProbeInputs, length: int) -> Row:
        """Returns the numbers of windows of a length."""
