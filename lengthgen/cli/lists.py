"""lengthgen list."""

from typing import Annotated

import typer

from lengthgen.cli.printing import print_rows, say_once
from lengthgen.cli.words import ConfigDir, root_of, split
from lengthgen.errors import UserError, suggestion

_KINDS = {
    "schemes": "scheme",
    "variants": "variant",
    "models": "model",
    "corpora": "corpus",
    "tasks": "task",
    "experiments": "experiment",
    "protocols": None,
    "runs": None,
}


def _complete_kinds(incomplete: str) -> list[str]:
    return [kind for kind in _KINDS if kind.startswith(incomplete)]


def list_kind(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="|".join(_KINDS), help="What to list.", autocompletion=_complete_kinds
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE ...]", help="runtime.root=DIR: where the runs are."),
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """List what can be chosen, or the runs there are."""
    names, changes = split(words, sections=("runtime",))
    if names:
        raise UserError(f"{names[0]}: not readable as an override; give runtime.root=DIR")
    if kind not in _KINDS:
        raise UserError(f"list: no such kind {kind!r}; {suggestion(kind, _KINDS)}")
    from lengthgen.cli import listing

    group = _KINDS[kind]
    if kind == "protocols":
        listed, nothing = listing.protocols(), ""
    elif group is None:
        root = root_of(changes)
        listed, nothing = listing.runs(root), f"no runs in {root} yet"
    else:
        listed, nothing = listing.choices(group, config_dir=config_dir), ""
    if listed.rows:
        print_rows(listed)
    else:
        say_once(nothing)
