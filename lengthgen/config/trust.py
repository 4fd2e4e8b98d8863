"""Protection from received files: code runs only if allowed, and no link leads out of a run."""

import os
from contextlib import suppress
from pathlib import Path

from lengthgen.errors import UserError

ALLOWED = "LENGTHGEN_ALLOWED"  # in the environment: processes that this one starts have it too


def allow(sha256: str) -> None:
    """Allows code of this content to run in this process and in those that it starts."""
    os.environ[ALLOWED] = " ".join(sorted({*_allowed_here(), sha256}))


def remember(sha256: str, path: Path) -> None:
    """Allows code of this content on this account from now on, where that can be written down."""
    with suppress(OSError, RuntimeError):
        _memory().mkdir(parents=True, exist_ok=True, mode=0o700)
        (_memory() / sha256).write_text(f"{path.absolute()}\n", encoding="utf-8")


def is_allowed(sha256: str) -> bool:
    """True if code of this content may run."""
    try:
        return sha256 in _allowed_here() or (_memory() / sha256).is_file()
    except (OSError, RuntimeError):
        return False


def _allowed_here() -> set[str]:
    return set(os.environ.get(ALLOWED, "").split())


def _memory() -> Path:
    """Returns the folder with a file for each content that this account allowed, named by it.

    Raises RuntimeError if the account has no home.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = given if given.is_absolute() else Path.home() / ".local" / "state"
    return base / "lengthgen" / "plugins"


def refuse_links(run_dir: Path) -> None:
    """Raises UserError if a link in a run directory leads out of it.

    A file that is appended to, or a folder that is cleaned, would be one of the user's own. The
    insides of wandb/ are W&B's, which keeps links to its logs there.
    """
    inside = run_dir.resolve()
    for folder, folders, files in os.walk(inside):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink() and not _leads_into(inside, path):
                raise UserError(
                    f"{path} is a link that leads out of the run's directory, to "
                    f"{os.readlink(path)}; replace it by what it links to, or remove it"
                )
        folders[:] = [name for name in folders if name != "wandb"]


def _leads_into(folder: Path, link: Path) -> bool:
    try:
        return link.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # a circle of links
        return False
