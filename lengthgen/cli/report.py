"""lengthgen report."""

from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.words import Words, root_of, split
from lengthgen.errors import UserError


def write_report(
    words: Words = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="SCHEME,...", help="All evaluated runs of these schemes."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")] = Path(
        "report"
    ),
) -> None:
    """Write figures, tables, CSV and a page of runs, of all if none is named."""
    from lengthgen.cli import listing
    from lengthgen.report import collect
    from lengthgen.runs import directory

    names, changes = split(words, sections=("runtime",))
    root = root_of(changes)
    evaluated = [path for path in listing.run_dirs(root) if (path / "eval.jsonl").is_file()]
    named = [directory.find(name, root) for name in names]
    if group is not None:
        named += collect.of_groups(evaluated, [name.strip() for name in group.split(",")])
    run_dirs = named or evaluated
    if not run_dirs:
        raise UserError(
            f"{root}: no evaluated runs; lengthgen train scheme=rope makes one, "
            "runtime.root=DIR looks elsewhere"
        )
    written = collect.write_report(run_dirs, out)
    print(collect.table(run_dirs))
    for path in written:
        print(path)
