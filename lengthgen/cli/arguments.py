"""The arguments and options that commands share, and the runs and configurations they name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthgen.cli import completion
from lengthgen.errors import UserError


def run_argument(metavar: str, help: str) -> Any:
    """Returns the positional argument of a command on runs."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=completion.runs)


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE ...]",
        help="Overrides, such as scheme=alibi train.length=1024; Tab completes them.",
        autocompletion=completion.overrides,
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


def lengths_of(text: str) -> list[int]:
    """Returns the lengths of L,L,... Raises UserError for one that is no positive integer."""
    lengths = words_of(text)
    for length in lengths:
        if not length.isdecimal() or int(length) == 0:
            message = f"{length!r} is not a positive integer; give lengths like 512,2048"
            raise UserError(f"--lengths: {message}")
    return [int(length) for length in lengths]
