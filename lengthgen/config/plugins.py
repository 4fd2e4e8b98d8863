"""Python files of the user, with parts, tasks or sources: what --plugin gives runs in that command.

A configuration names plugins by the digest of their content: they are equal wherever they lie.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from lengthgen.errors import UserError
from lengthgen.files import hash_of

MODULE_PREFIX = "lengthgen_plugin_"  # of the modules of plugins; their digest follows


@dataclass(frozen=True)
class Plugin:
    """A file as it was when it was read."""

    content: bytes
    path: Path = field(compare=False)

    @cached_property
    def digest(self) -> str:
        """12 hexadecimal digits that name the content."""
        return hash_of(self.content, 12)

    def module(self) -> ModuleType:
        """Returns the file as a module, run at the first call. Raises UserError if it fails."""
        name = MODULE_PREFIX + self.digest
        if name not in sys.modules:
            created = sys.modules[name] = ModuleType(name)  # dataclasses look for it there
            created.__file__ = str(self.path)
            try:
                exec(compile(self.content, self.path, "exec"), vars(created))
            except Exception as error:
                del sys.modules[name]
                why = f"{type(error).__name__}: {error}"
                if isinstance(error, ModuleNotFoundError):
                    why += "; a plugin is one file, and imports installed packages alone"
                raise UserError(f"plugin {self.path} cannot be imported: {why}") from error
        return sys.modules[name]


def is_of_plugin(kind: type[Any]) -> bool:
    """True for a class that a plugin defines."""
    return kind.__module__.startswith(MODULE_PREFIX)


def read_plugins(paths: Sequence[Path]) -> tuple[Plugin, ...]:
    """Returns files that this command may run, each content once, by their digests."""
    by_digest: dict[str, Plugin] = {}
    for path in paths:
        try:
            plugin = Plugin(path.read_bytes(), path)
        except OSError as error:
            why = f"cannot be read ({error.strerror}); give the path of a python file"
            raise UserError(f"--plugin: {path} {why}") from None
        by_digest[plugin.digest] = plugin
    return tuple(by_digest[digest] for digest in sorted(by_digest))


def required(digests: Sequence[str], given: Sequence[Plugin], *, kept: Path) -> tuple[Plugin, ...]:
    """Returns those of the plugins given that a run or an export names.

    Raises UserError, naming the copy in the folder `kept`, if one is not given: a run comes with
    code of its own, and who evaluates it has read that, and says so.
    """
    by_digest = {plugin.digest: plugin for plugin in given}
    for digest in digests:
        if digest not in by_digest:
            why = "a plugin is needed; read it, then repeat this with --plugin"
            raise UserError(f"{why} {kept / digest}.py")
    return tuple(by_digest[digest] for digest in digests)
