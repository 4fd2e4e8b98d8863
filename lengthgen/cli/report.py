"""lengthgen report."""

from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli import completion
from lengthgen.cli.arguments import Runs, find_runs, root_of, split
from lengthgen.errors import UserError


def write_report(
    arguments: Runs = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="SCHEME,...", help="All evaluated runs of these schemes."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")] = Path("report"),
) -> None:
    """Write figures, tables, CSV and a page of runs, of all if none is named."""
    from lengthgen.report import collect

    names, changes = split(arguments, sections=("runtime",))
    root = root_of(changes)
    evaluated = [p for p in completion.run_dirs(root) if (p / "eval.jsonl").is_file()]
    named = find_runs(names, changes) if names else []
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
