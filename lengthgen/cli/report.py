"""lengthgen report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthgen.cli import completion
from lengthgen.cli.arguments import Runs, find_runs, root_of, split
from lengthgen.cli.console import echo, warn
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.report.study import Study


def write_report(
    arguments: Runs = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="SCHEME,...", help="All evaluated runs of these schemes."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write; report, or the folder that is named."),
    ] = None,
) -> None:
    """Write figures, tables, CSV and a page of runs, of all if none is named.

    The folder holds the rows too: named instead of runs, it is made again from them alone.
    """
    from lengthgen.report import study

    names, changes = split(arguments, sections=("runtime",))
    folders = [Path(name) for name in names if (Path(name) / study.ROWS).is_file()]
    if folders:
        if len(names) > 1 or group is not None:
            raise UserError(f"{folders[0]} is the folder of a report; name it alone")
        _write(study.of_folder(folders[0]), out or folders[0])
        return
    run_dirs, out = _run_dirs(names, changes, group), out or Path("report")
    try:
        _write(study.of_runs(run_dirs), out)
    except UserError:
        readable = [] if names else [path for path in run_dirs if _is_readable(path)]
        if len(readable) in (0, len(run_dirs)):
            raise
        _write(study.of_runs(readable), out)


def _write(found: "Study", out: Path) -> None:
    from lengthgen.report import collect, write

    gathered = collect.gather_both(found.records)
    written = write.write_gathered(found, gathered, out)
    echo(collect.table_of(gathered))
    for path in written:
        echo(path)


def _is_readable(run_dir: Path) -> bool:
    """True if a run can be reported; warns of one that cannot."""
    from lengthgen.report import collect, study

    try:
        collect.gather_both(study.of_runs([run_dir]).records)
    except UserError as error:
        warn(f"{run_dir.name} is not shown: {error}")
        return False
    return True


def _run_dirs(names: Sequence[str], changes: Mapping[str, Any], group: str | None) -> list[Path]:
    from lengthgen.report import study

    root = root_of(changes)
    evaluated = [p for p in completion.run_dirs(root) if (p / "eval.jsonl").is_file()]
    named = find_runs(names, changes) if names else []
    if group is not None:
        groups = [name.strip() for name in group.split(",")]
        named += study.of_groups(evaluated, groups, say=warn)
    run_dirs = named or evaluated
    if not run_dirs:
        raise UserError(
            f"{root}: no evaluated runs; lengthgen train scheme=rope makes one, "
            "runtime.root=DIR looks elsewhere"
        )
    return run_dirs
