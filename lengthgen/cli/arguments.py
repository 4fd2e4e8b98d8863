"""The arguments and options that commands share, how they complete, and the runs they name."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthgen.errors import UserError


def complete_overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns groups, their choices and dotted keys, from the YAML files alone.

    A shell may break the line at "=", as bash does: scheme=ro arrives as "scheme", "=", "ro", and
    scheme= as "scheme", ""; only what stands behind the "=" is to be returned then.
    """
    from lengthgen.config import compose

    before, key = _before(ctx), ""
    if len(before) > 1 and before[-1] == "=":
        key = f"{before[-2]}="
    elif before and not incomplete:
        key = f"{before[-1]}="
    config_dir = ctx.params.get("config_dir")
    with suppress(UserError):  # a broken YAML of the user's: a shell has no place for a message
        words = compose.completions(key + incomplete, config_dir=config_dir)
        if words or incomplete:
            return [word.removeprefix(key) for word in words]
        return compose.completions("", config_dir=config_dir)
    return []


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the ids of the runs in runtime.root, as it stands on the line, and keys."""
    from lengthgen.config import compose

    given = re.search(r"runtime\.root ?= ?(\S+)", " ".join(_before(ctx)))
    root = compose.root_of({"runtime.root": given[1]} if given else {})
    ids = sorted(path.parent.name for path in root.glob("*/config.yaml"))
    # Of another name a shell would run parts.
    fitting = [n for n in ids if n.startswith(incomplete) and re.fullmatch(r"[\w.=+,-]+", n)]
    keys = complete_overrides(ctx, incomplete)
    return fitting + [key for key in keys if key.startswith(("eval.", "runtime."))]


def _before(ctx: typer.Context) -> list[str]:
    """Returns the arguments before the incomplete one."""
    return ctx.params.get("overrides") or ctx.params.get("arguments") or []


def run_argument(metavar: str, help: str) -> Any:
    """Returns the positional argument of a command on runs."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete_runs)


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE ...]",
        help="Overrides, such as scheme=alibi train.length=1024; Tab completes them.",
        autocompletion=complete_overrides,
    ),
]
Runs = Annotated[
    list[str] | None,
    run_argument(
        "[RUN ...] [KEY=VALUE ...]",
        "Run ids, unique beginnings of ids, or paths; and runtime.* overrides.",
    ),
]
ConfigDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder with groups of your own.")
]
Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Python file with parts of your own, or of a run; it runs in this command.",
    ),
]


def split(
    arguments: Sequence[str] | None, *, sections: tuple[str, ...]
) -> tuple[list[str], dict[str, Any]]:
    """Returns the RUNs, and the values of the KEY=VALUEs by key.

    Raises UserError for a key outside the sections, or unknown within them.
    """
    overrides = [word for word in arguments or [] if "=" in word and not Path(word).exists()]
    names = [word for word in arguments or [] if word not in overrides]
    if not overrides:
        return names, {}
    from lengthgen.config import compose

    changes = compose.values(overrides)
    compose.check_changes(changes, sections)
    return names, changes


def find_runs(names: Sequence[str], changes: Mapping[str, Any]) -> list[Path]:
    """Returns the directories of the RUNs, that of the newest run if none is named."""
    from lengthgen.config import compose
    from lengthgen.runs import directory

    root = compose.root_of(changes)
    return [directory.find(name, root) for name in names] or [directory.newest(root)]


def words_of(text: str | None) -> list[str]:
    """Returns the words of A,B,...; none of an option that is not given."""
    return [word.strip() for word in text.split(",")] if text is not None else []
