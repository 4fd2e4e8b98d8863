"""Shell completion of arguments, from YAML files and directory names alone."""

import re

import typer

from lengthgen.errors import UserError


def overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns groups, their choices and dotted keys."""
    return _overrides(ctx, incomplete, ("",))


def _overrides(ctx: typer.Context, incomplete: str, keys: tuple[str, ...]) -> list[str]:
    """Returns groups, their choices and dotted keys, if they begin with one of `keys`.

    A shell may break the line at "=", as bash does: scheme=ro arrives as "scheme", "=", "ro", and
    scheme= as "scheme", ""; only what stands behind the "=" is to be returned then.
    """
    from lengthgen.config import compose

    def candidates(word: str) -> list[str]:
        known = compose.completions(word, config_dir=ctx.params.get("config_dir"))
        return [offered for offered in known if offered.startswith(keys)]

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


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns run ids, and the keys that a finished run may still be given."""
    return run_ids(ctx, incomplete) + _overrides(ctx, incomplete, ("eval.", "runtime."))


def reported(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns run ids, groups, their choices and dotted keys."""
    return run_ids(ctx, incomplete) + overrides(ctx, incomplete)


def run_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the ids of the runs in runtime.root, as it stands on the line."""
    from lengthgen.config import compose

    given = re.search(r"runtime\.root ?= ?(\S+)", " ".join(_before(ctx)))
    root = compose.root_of({"runtime.root": given[1]} if given else {})
    ids = sorted(path.parent.name for path in root.glob("*/config.yaml"))
    plain = re.compile(r"[\w.=+,-]+")  # of another name a shell would run parts
    return [name for name in ids if name.startswith(incomplete) and plain.fullmatch(name)]


def _before(ctx: typer.Context) -> list[str]:
    """Returns the arguments before the incomplete one."""
    return ctx.params.get("overrides") or ctx.params.get("arguments") or []
