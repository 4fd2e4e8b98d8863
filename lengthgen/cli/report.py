"""lengthgen report."""

from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.arguments import Json, complete_runs, selection
from lengthgen.cli.console import echo, warn
from lengthgen.errors import UserError


def write_report(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN | FOLDER ...] [KEY=VALUE,... ...]",
            help="Runs, folders of reports, and which of their runs: scheme=rope,alibi seed=1.",
            autocompletion=complete_runs,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write; report, or the folder that is named."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write figures, tables and a page of runs, by default of all.

    The folder holds the rows too: it is made again from them alone, and shown together with other
    folders and runs that are named with it. KEY=VALUE keeps the runs with that value, as `lengthgen
    train --cfg job` prints it; runtime.root=DIR says where runs are.
    """
    from lengthgen.report import load, report, statistics
    from lengthgen.runs import directory

    names, root, conditions = selection(arguments)
    folders = [Path(name).resolve() for name in names if (Path(name) / load.ROWS).is_file()]
    if folders and (len(names) > 1 or conditions) and out is None:
        raise UserError("several folders, or a part of one, need --out DIR")
    if conditions and out and out.resolve() in folders:
        raise UserError(f"--out {out}: a part of its rows would replace all; give another folder")
    paths = [Path(name) if Path(name).is_dir() else directory.find(name, root) for name in names]
    rows = load.load(paths or directory.every(root), say=warn)
    if conditions:
        rows = report.matching(rows, conditions)
    sections = report.sections(rows)
    out = out or Path(names[0] if folders else "report")
    is_again = len(names) == 1 and folders == [out.resolve()]
    page, *_ = report.write(rows, sections, out, again=is_again)
    if as_json:
        curves = statistics.curves(statistics.findings(rows))
        echo(curves.to_json(orient="records", indent=1))
        warn(str(page))
    else:
        echo(report.summary(sections))
        echo(page)
