"""lengthgen report."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lengthgen.cli.arguments import run_argument, split
from lengthgen.cli.console import echo, warn
from lengthgen.errors import UserError


def write_report(
    arguments: Annotated[
        list[str] | None,
        run_argument(
            "[RUN | FOLDER ...] [KEY=VALUE,... ...]",
            "Runs, folders of reports, and which of their runs: scheme=rope,alibi seed=1.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write; report, or the folder that is named."),
    ] = None,
    png: Annotated[bool, typer.Option("--png", help="Write each figure as PNG too.")] = False,
) -> None:
    """Write figures, tables and a page of runs, by default of all.

    The folder holds the rows too: it is made again from them alone, and shown together with other
    folders and runs that are named with it. KEY=VALUE keeps the runs with that value, in the words
    that trained them; runtime.root=DIR says where runs are.
    """
    from lengthgen.config import compose
    from lengthgen.report import load, report
    from lengthgen.runs import directory

    kept = [w for w in arguments or [] if "=" in w and not w.startswith("runtime.")]
    kept = [word for word in kept if not Path(word).exists()]
    others = [word for word in arguments or [] if word not in kept]
    names, changes = split(others, sections=("runtime",))
    folders = [Path(name) for name in names if (Path(name) / load.ROWS).is_file()]
    if folders and (len(names) > 1 or kept) and out is None:
        raise UserError("several folders, or a part of one, need --out DIR")
    root = compose.root_of(changes)
    paths = [Path(name) if Path(name).is_dir() else directory.find(name, root) for name in names]
    paths = paths or directory.run_dirs(root)
    if not paths:
        raise UserError(
            f"no run in {root}; lengthgen train scheme=rope makes one, runtime.root=DIR looks "
            "elsewhere"
        )
    rows = load.load(paths, say=warn)
    if kept:
        conditions: dict[str, list[Any]] = {}
        for point in compose.expand(kept, config_dir=None):
            for key, value in compose.values(point).items():
                conditions.setdefault(key, []).append(value)
        rows = report.matching(rows, conditions)
    sections = report.sections(rows)
    out = out or next(iter(folders), Path("report"))
    page, *_ = report.write(rows, sections, out, png=png, again=out in folders)
    echo(report.summary(sections))
    echo(page)
