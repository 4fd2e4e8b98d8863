"""The plugins that may run: those of this process, and those that this account has allowed."""

import os
from contextlib import suppress
from pathlib import Path

ALLOWED = "LENGTHGEN_ALLOWED"  # in the environment: processes that this one starts have it too


def allow(sha256: str) -> None:
    """Allows code of this content to run in this process and in those that it starts."""
    os.environ[ALLOWED] = " ".join(sorted({*_allowed_here(), sha256}))


def allow_permanently(sha256: str, path: Path) -> None:
    """Allows code of this content on this account from now on, if its home can be written."""
    with suppress(OSError, RuntimeError):
        _folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        (_folder() / sha256).write_text(f"{path.absolute()}\n", encoding="utf-8")


def is_allowed(sha256: str) -> bool:
    """True if code of this content may run."""
    try:
        return sha256 in _allowed_here() or (_folder() / sha256).is_file()
    except (OSError, RuntimeError):
        return False


def _allowed_here() -> set[str]:
    return set(os.environ.get(ALLOWED, "").split())


def _folder() -> Path:
    """Returns the folder with a file for each content that this account allowed, named by it.

    Raises RuntimeError if the account has no home.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = given if given.is_absolute() else Path.home() / ".local" / "state"
    return base / "lengthgen" / "plugins"
