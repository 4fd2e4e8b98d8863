"""lengthgen report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthgen.cli import completion
from lengthgen.cli.arguments import Runs, find_runs, root_of, split, words_of
from lengthgen.cli.console import echo, warn
from lengthgen.errors import UserError
from lengthgen.report import collect, run_records, study, write


def write_report(
    arguments: Runs = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEME,...",
            help="All evaluated runs of these schemes; with folders, only these.",
        ),
    ] = None,
    without: Annotated[
        str | None,
        typer.Option(metavar="RUN,...", help="Runs of folders to leave out, by their full names."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write; report, or the folder that is named."),
    ] = None,
) -> None:
    """Write figures, tables, CSV and a page of runs, of all if none is named.

    The folder holds the rows too: it is made again from them alone, and joined with other folders
    and runs that are named with it.
    """
    names, changes = split(arguments, sections=("runtime",))
    folders = [Path(name) for name in names if (Path(name) / study.ROWS).is_file()]
    groups, left_out = words_of(group), words_of(without)
    if folders:
        selects = bool(groups or left_out)
        if (len(names) > 1 or selects) and out is None:
            raise UserError("several folders, or runs with them or left out, need --out DIR")
        names = [name for name in names if Path(name) not in folders]
        studies = [*map(study.of_folder, folders)]
        if names:
            studies.append(study.of_runs(find_runs(names, changes)))
        joins = len(studies) > 1 or selects
        found, gathered = _gathered(
            study.united(studies, groups=groups, without=left_out) if joins else studies[0]
        )
        out = out or folders[0]
    elif left_out:
        raise UserError(
            "--without is of folders of reports, and none is named; name the runs to show"
        )
    else:
        run_dirs, out = _run_dirs(names, changes, groups), out or Path("report")

        def of_runs(paths: Sequence[Path]) -> tuple[study.Study, collect.Gathered]:
            return _gathered(study.of_runs(paths))

        found, gathered = (
            of_runs(run_dirs) if names else run_records.of_usable(run_dirs, of_runs, say=warn)
        )
    written = write.write_gathered(found, gathered, out)
    echo(collect.table_of(gathered))
    for path in written:
        echo(path)


def _gathered(found: study.Study) -> tuple[study.Study, collect.Gathered]:
    return found, collect.gather_both(found.records)


def _run_dirs(
    names: Sequence[str], changes: Mapping[str, Any], groups: Sequence[str]
) -> list[Path]:
    root = root_of(changes)
    evaluated = [p for p in completion.run_dirs(root) if (p / "eval.jsonl").is_file()]
    named = find_runs(names, changes) if names else []
    if groups:
        named += run_records.of_groups(evaluated, groups, say=warn)
    run_dirs = named or evaluated
    if not run_dirs:
        raise UserError(
            f"{root}: no evaluated runs; lengthgen train scheme=rope makes one, "
            "runtime.root=DIR looks elsewhere"
        )
    return run_dirs
