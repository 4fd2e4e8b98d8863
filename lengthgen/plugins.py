"""A python file with parts of the user's own: read once, run once for each content."""

import hashlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from lengthgen.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A file as it was when it was read. Files of one content are equal, wherever they lie."""

    path: Path = field(compare=False)
    content: bytes = field(repr=False)

    @staticmethod
    def read(path: Path) -> "Plugin":
        """Reads a file. Raises UserError if it cannot be read."""
        try:
            return Plugin(path=path, content=path.read_bytes())
        except OSError as error:
            raise UserError(
                f"plugins: {path} cannot be read ({error.strerror}); give the path of a python file"
            ) from None

    @property
    def digest(self) -> str:
        """8 hexadecimal digits that name the content."""
        return hashlib.sha256(self.content).hexdigest()[:8]

    @property
    def module_name(self) -> str:
        return f"lengthgen_plugin_{self.digest}"

    def module(self) -> ModuleType:
        """Returns the module of this content, run at the first call. Raises UserError if it fails.

        Modules of other content under the same file name stay apart.
        """
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
