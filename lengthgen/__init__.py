"""Length extrapolation of small causal language models, by positional scheme.

`train`, `evaluate`, `measure`, `results` and `load` are all there is; help(lengthgen.train) has an
example.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lengthgen.api import evaluate, load, measure, results, train

__version__ = "0.1.0"
__all__ = ["evaluate", "load", "measure", "results", "train"]


def __getattr__(name: str) -> Any:
    """Imports the API, and torch with it, when a function of it is used."""
    if name not in __all__:
        raise AttributeError(f"module 'lengthgen' has no attribute {name!r}")
    from lengthgen import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return ["__version__", *__all__]
