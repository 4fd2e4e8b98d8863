"""Length extrapolation of small causal language models, by positional scheme."""

__version__ = "0.1.0"
