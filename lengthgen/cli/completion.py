"""Shell completion of arguments, from YAML files and directory names alone."""

import re
from collections.abc import Callable
from pathlib import Path

import typer

from lengthgen.config import compose
from lengthgen.errors import UserError

GROUPS = {
    "schemes": "scheme",
    "variants": "variant",
    "models": "model",
    "corpora": "corpus",
    "tasks": "task",
    "experiments": "experiment",
}
KINDS = (*GROUPS, "protocols", "probes", "runs")  # of lengthgen list


def kinds(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns what can be listed."""
    return [] if _before(ctx) else [kind for kind in KINDS if kind.startswith(incomplete)]


def overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns groups, their choices and dotted keys."""
    config_dir: Path | None = ctx.params.get("config_dir")
    return _complete(ctx, incomplete, lambda word: compose.completions(word, config_dir=config_dir))


def schemes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of schemes, then groups, their choices and dotted keys."""
    names = compose.choices("scheme", config_dir=None)

    def candidates(word: str) -> list[str]:
        known = [name for name in names if name.startswith(word)]
        return known + compose.completions(word, config_dir=None)

    return _complete(ctx, incomplete, candidates)


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns run ids, and the keys that a finished run may still be given."""
    return _runs(ctx, incomplete, keys=("eval.", "runtime."))


def reported(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns run ids, groups, their choices and dotted keys."""
    return _runs(ctx, incomplete, keys=("",))


def _runs(ctx: typer.Context, incomplete: str, *, keys: tuple[str, ...]) -> list[str]:
    """Returns run ids, and the overrides that begin with one of `keys`."""
    given = re.search(r"runtime\.root ?= ?(\S+)", " ".join(_before(ctx)))

    def candidates(word: str) -> list[str]:
        root = compose.root_of({"runtime.root": given[1]} if given else {})
        ids = sorted(path.parent.name for path in root.glob("*/config.yaml"))
        words = compose.completions(word, config_dir=None)
        words = [word for word in words if word.startswith(keys)]
        plain = re.compile(r"[\w.=+,-]+")  # of another name a shell would run parts
        return [name for name in ids if name.startswith(word) and plain.fullmatch(name)] + words

    return _complete(ctx, incomplete, candidates)


def _before(ctx: typer.Context) -> list[str]:
    """Returns the arguments before the incomplete one."""
    return ctx.params.get("overrides") or ctx.params.get("arguments") or []


def _complete(
    ctx: typer.Context, incomplete: str, candidates: Callable[[str], list[str]]
) -> list[str]:
    """Returns the candidates for an incomplete word, whichever way the shell broke the line.

    bash breaks at "=": scheme=ro arrives as "scheme", "=", "ro", and scheme= as "scheme", "";
    only what stands behind the "=" is to be returned then.
    """
    before = _before(ctx)
    try:
        if len(before) > 1 and before[-1] == "=":
            key = f"{before[-2]}="
            return [word.removeprefix(key) for word in candidates(key + incomplete)]
        if before and not incomplete and (words := candidates(f"{before[-1]}=")):
            return [word.removeprefix(f"{before[-1]}=") for word in words]
        return candidates(incomplete)
    except UserError:  # a broken YAML of the user's: a shell has no place for a message
        return []
