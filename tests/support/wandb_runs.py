"""A configuration and rows to be shown in W&B."""

from collections.abc import Mapping
from typing import Any

from lengthgen.config.compose import compose
from lengthgen.config.schema import Config, from_plain


def configuration(runtime: Mapping[str, Any]) -> Config:
    """Returns the default configuration with these runtime values."""
    plain = compose(["scheme=rope"], config_dir=None)
    plain["runtime"] |= runtime
    return from_plain(plain)


def train_rows(*steps: int) -> list[dict[str, Any]]:
    return [{"train/step": step, "train/tokens": 8192 * step, "train/loss": 6.5} for step in steps]
