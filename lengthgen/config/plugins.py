"""A Python file of the user, with parts, tasks or sources: run only if allowed, once each."""

import hashlib
import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from lengthgen.config import allowlist
from lengthgen.errors import UserError
from lengthgen.files import read_bytes

MODULE_PREFIX = "lengthgen_plugin_"  # of the modules of plugins; their sha256 follows


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A file as it was when it was read. Files of one content are equal, wherever they lie."""

    path: Path = field(compare=False)
    content: bytes = field(repr=False)

    @staticmethod
    def read(path: Path) -> "Plugin":
        """Reads a file, and does not run it. Raises UserError if it cannot be read."""
        try:
            return Plugin(path=path, content=read_bytes(path))
        except OSError as error:
            raise UserError(
                f"plugins: {path} cannot be read ({error.strerror}); give the path of a python file"
            ) from None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def digest(self) -> str:
        """8 hexadecimal digits that name the content."""
        return self.sha256[:8]

    @property
    def module_name(self) -> str:
        return MODULE_PREFIX + self.sha256

    @property
    def is_allowed(self) -> bool:
        """True if this content may run: it was given to --plugin, now or before."""
        return allowlist.is_allowed(self.sha256)

    def allow(self) -> None:
        """Lets this content run in this process and in those that it starts."""
        allowlist.allow(self.sha256)

    def refuse_unless_allowed(self) -> None:
        """Raises UserError for code that came with a run, or is named by a YAML alone."""
        if not self.is_allowed:
            raise UserError(
                f"plugins: {self.path} is code that was not given on the command line; read it, "
                f"then allow it with --plugin {shlex.quote(os.fspath(self.path))}"
            )

    def module(self) -> ModuleType:
        """Returns the module of this content, run at the first call.

        Modules of other content under the same file name stay apart. Raises UserError if it fails
        or is not allowed to run.
        """
        self.refuse_unless_allowed()
        if self.module_name not in sys.modules:
            try:
                self._run()
            except Exception as error:
                raise UserError(
                    f"plugins: {self.path} does not import: {type(error).__name__}: {error}"
                ) from error
        return sys.modules[self.module_name]

    def _run(self) -> None:
        module = ModuleType(self.module_name)
        module.__file__ = str(self.path)
        sys.modules[self.module_name] = module  # dataclasses look for it there
        try:
            exec(compile(self.content, self.path, "exec"), vars(module))
        except BaseException:
            del sys.modules[self.module_name]
            raise
