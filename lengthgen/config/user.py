"""One's own defaults: runtime.* of ~/.config/lengthgen.yaml, and where one's files lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lengthgen.config import conf
from lengthgen.config.sections import flatten
from lengthgen.errors import UserError, first_line, suggestion


def user_file() -> Path:
    """Returns the file of a user's own defaults: lengthgen.yaml in ~/.config, as XDG has it."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder) / "lengthgen.yaml"


def user_cache() -> Path:
    """Returns the folder that runs of an account share: lengthgen in ~/.cache, as XDG has it."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "lengthgen"


def shipped_defaults() -> dict[str, Any]:
    """Returns the values of runtime in conf/config.yaml, by dotted key."""
    return flatten({"runtime": conf.defaults()["runtime"]})


def user_defaults(known: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the user's file sets of runtime, by dotted key; none without the file.

    Raises UserError for a key that is not known: what decides numbers belongs in a study.
    """
    path = user_file()
    is_there = os.path.isfile(path)  # False where it cannot look
    given = flatten(conf.read_yaml(path)) if is_there else {}
    if other := next((key for key in given if key not in known), None):
        raise UserError(f"{path}: {other}: no key of runtime; {suggestion(other, known)}")
    return {key: without_references(key, value) for key, value in given.items()}


def own_defaults() -> dict[str, Any]:
    """Returns the values of runtime by dotted key that a command has without overrides."""
    shipped = shipped_defaults()
    return shipped | user_defaults(shipped)


def sent_defaults() -> dict[str, Any]:
    """Returns what the user's own defaults say of what is sent, and where to, by dotted key."""
    return {k: x for k, x in own_defaults().items() if k.startswith("runtime.wandb")}


def without_references(key: str, value: Any) -> Any:
    """Returns a value by itself, of which a part may be another's, such as ${oc.env:HOME}."""
    if not isinstance(value, str) or "${" not in value:
        return value
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.create({"value": value})["value"]
    except OmegaConfBaseException as error:
        raise UserError(f"{key}={value}: {first_line(error)}; give a value") from None


def root_of(changes: Mapping[str, Any]) -> Path:
    """Returns the folder of runs: runtime.root of changes by dotted key, or the default one."""
    root = without_references("runtime.root", (own_defaults() | dict(changes))["runtime.root"])
    if not root:
        raise UserError("runtime.root: an empty value is no folder; give runtime.root=runs")
    if not isinstance(root, str | Path):
        raise UserError(f"runtime.root: {root!r} is no folder; quote it: runtime.root=\"'{root}'\"")
    return Path(os.path.expanduser(root))
