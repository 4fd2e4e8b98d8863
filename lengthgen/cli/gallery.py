"""lengthgen gallery."""

from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.arguments import find_runs, split, words_of
from lengthgen.cli.console import echo
from lengthgen.errors import UserError
from lengthgen.report import gallery, write


def write_gallery(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FOLDER] [KEY=VALUE ...]", help="gallery; runtime.root=DIR."),
    ] = None,
    runs: Annotated[
        str | None,
        typer.Option(metavar="RUN,...", help="Draw the losses of these runs in training, too."),
    ] = None,
) -> None:
    """Write figures of what schemes compute, such as their biases.

    The decay of RoPE, the buckets of T5, the windows of ALiBi and others; nothing is trained.
    """
    names, changes = split(arguments, sections=("runtime",))
    if len(names) > 1:
        raise UserError(f"{names[1]}: one folder is written; name runs with --runs {names[1]}")
    run_dirs = find_runs(words_of(runs), changes) if runs is not None else []
    for path in write.write_files(gallery.gallery(run_dirs), Path(*names or ["gallery"])):
        echo(path)
