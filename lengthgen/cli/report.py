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
    from lengthgen import listing, report, runs

    names, changes = split(words, sections=("runtime",))
    root = root_of(changes)
    evaluated = [path for path in listing.run_dirs(root) if (path / "eval.jsonl").is_file()]
    named = [runs.find(name, root) for name in names]
    if group is not None:
        named += report.of_groups(evaluated, [name.strip() for name in group.split(",")])
    run_dirs = named or evaluated
    if not run_dirs:
        raise UserError(
            f"{root}: no evaluated runs; lengthgen train scheme=rope makes one, "
            "runtime.root=DIR looks elsewhere"
        )
    written = report.write_report(run_dirs, out)
    print(report.table(run_dirs))
    for path in written:
        print(path)
