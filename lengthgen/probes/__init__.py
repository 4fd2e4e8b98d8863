"""Probes: what a trained checkpoint does with positions, in rows of numbers and a picture each."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lengthgen.probes.base import LengthProbe, Probe
    from lengthgen.probes.inputs import Other, ProbeInputs, Row

__all__ = ["LengthProbe", "Other", "Probe", "ProbeInputs", "Row"]


def __getattr__(name: str) -> Any:
    """Imports torch only when a probe is defined: the command line imports this package."""
    if name not in __all__:
        raise AttributeError(f"module 'lengthgen.probes' has no attribute {name!r}")
    module = "base" if name.endswith("Probe") else "inputs"
    return getattr(import_module(f"lengthgen.probes.{module}"), name)
