"""A configuration and rows to be shown in W&B."""

from collections.abc import Mapping
from typing import Any

from lengthgen.config.compose import compose
from lengthgen.config.schema import Config, from_plain


def configuration(runtime: Mapping[str, Any], *overrides: str) -> Config:
    """Returns the default configuration with these runtime values."""
    plain = compose(["scheme=rope", *overrides], config_dir=None)
    plain["runtime"] |= runtime
    return from_plain(plain)


def train_rows(*steps: int) -> list[dict[str, Any]]:
    shared = {"train/loss": 6.5, "train/tokens_per_s": 1000.0}
    return [{"train/step": step, "train/tokens": 8192 * step, **shared} for step in steps]
