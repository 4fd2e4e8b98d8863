"""Models as folders to share: written by lengthgen export, loaded by `load`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lengthgen.hub.exported import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """Imports torch only when a model is loaded: the command line imports this package."""
    if name not in __all__:
        raise AttributeError(f"module 'lengthgen.hub' has no attribute {name!r}")
    return getattr(import_module("lengthgen.hub.exported"), name)
