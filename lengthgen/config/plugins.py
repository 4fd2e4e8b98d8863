"""Python files of the user, with parts, tasks or sources: what --plugin gives runs in that command.

A configuration names plugins by the digest of their content: they are equal wherever they lie.
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from lengthgen.errors import UserError

MODULE_PREFIX = "lengthgen_plugin_"  # of the modules of plugins; their digest follows
_GIVEN: "dict[str, Plugin]" = {}  # by digest: what this process may run


class Plugin(NamedTuple):
    """A file as it was when it was given."""

    path: Path
    content: bytes


def give(paths: Sequence[Path]) -> list[str]:
    """Reads files, which this process may run from now on; returns their digests, sorted."""
    digests = set[str]()
    for path in paths:
        try:
            plugin = Plugin(path, path.read_bytes())
        except OSError as error:
            why = f"cannot be read ({error.strerror}); give the path of a python file"
            raise UserError(f"--plugin: {path} {why}") from None
        digest = hashlib.sha256(plugin.content).hexdigest()[:12]
        _GIVEN[digest] = plugin
        digests.add(digest)
    return sorted(digests)


def given(digest: str, *, kept: Path | None = None) -> Plugin:
    """Returns a plugin that was given. Raises UserError, naming the copy of a run, if it was not.

    A run comes with code of its own: who evaluates it has read that, and says so.
    """
    if digest not in _GIVEN:
        path = kept or f"FILE, whose content has the digest {digest}"
        raise UserError(f"a plugin is needed; read it, then repeat this with --plugin {path}")
    return _GIVEN[digest]


def of_run(digests: Sequence[str], run_dir: Path) -> list[Plugin]:
    """Returns the plugins of a run. Raises UserError as `given` does."""
    return [given(digest, kept=run_dir / f"plugins/{digest}.py") for digest in digests]


def module(digest: str) -> ModuleType:
    """Returns the module of a plugin that was given, run at the first call."""
    name, plugin = MODULE_PREFIX + digest, given(digest)
    if name not in sys.modules:
        created = sys.modules[name] = ModuleType(name)  # dataclasses look for it there
        created.__file__ = str(plugin.path)
        try:
            exec(compile(plugin.content, plugin.path, "exec"), vars(created))
        except Exception as error:
            del sys.modules[name]
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, ModuleNotFoundError):
                why += "; a plugin is one file, and imports installed packages alone"
            raise UserError(f"plugins: {plugin.path} does not import: {why}") from error
    return sys.modules[name]
