"""Shell completion: words for an incomplete one, from YAML and directory names alone."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from lengthgen.cli import listing
from lengthgen.config import compose
from lengthgen.errors import UserError


def overrides(before: Sequence[str], incomplete: str, *, config_dir: Path | None) -> list[str]:
    """Returns groups, their choices and dotted keys."""
    return _offer(before, incomplete, lambda word: compose.completions(word, config_dir=config_dir))


def schemes(before: Sequence[str], incomplete: str) -> list[str]:
    """Returns the names of schemes, then groups, their choices and dotted keys."""

    def offered(word: str) -> list[str]:
        names = [
            name for name in compose.choices("scheme", config_dir=None) if name.startswith(word)
        ]
        return names + compose.completions(word, config_dir=None)

    return _offer(before, incomplete, offered)


def runs(before: Sequence[str], incomplete: str) -> list[str]:
    """Returns run ids, and the keys that a finished run may still be given."""
    given = re.search(r"runtime\.root ?= ?(\S+)", " ".join(before))

    def offered(word: str) -> list[str]:
        root = Path(given[1]) if given else listing.default_root()
        ids = [path.name for path in listing.run_dirs(root) if path.name.startswith(word)]
        keys = compose.completions(word, config_dir=None)
        return ids + [key for key in keys if key.startswith(("eval.", "runtime."))]

    return _offer(before, incomplete, offered)


def _offer(
    before: Sequence[str], incomplete: str, offered: Callable[[str], list[str]]
) -> list[str]:
    """Returns the words offered for an incomplete one, whichever way the shell broke the line.

    bash breaks at "=": scheme=ro arrives as "scheme", "=", "ro", and scheme= as "scheme", "";
    only what stands behind the "=" is to be returned then.
    """
    try:
        if len(before) > 1 and before[-1] == "=":
            key = f"{before[-2]}="
            return [word.removeprefix(key) for word in offered(key + incomplete)]
        if before and not incomplete and (words := offered(f"{before[-1]}=")):
            return [word.removeprefix(f"{before[-1]}=") for word in words]
        return offered(incomplete)
    except UserError:  # a broken YAML of the user's: a shell has no place to say so
        return []
