"""lengthgen report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lengthgen.cli.arguments import ConfigDir, Json, PluginFiles, complete_runs, meeting, selection
from lengthgen.cli.console import echo, warn
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame


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
        typer.Option(metavar="DIR", help="Folder to write; default: report, or the only FOLDER."),
    ] = None,
    as_json: Json = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Write nothing: say which rules of a leaderboard the rows of RUNs break.",
        ),
    ] = False,
    latex: Annotated[
        bool, typer.Option("--latex", help="For a paper, too: tables.tex and figures as PDF.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="USER/NAME", help="Dataset of the Hugging Face Hub to upload the rows to."
        ),
    ] = None,
    config_dir: ConfigDir = None,
    plugin: PluginFiles = None,
) -> None:
    """Write figures, tables and a page of runs, by default of all.

    The folder holds the rows too: it is made again from them alone, and shown together with other
    folders and runs that are named with it. KEY=VALUE keeps the runs with that value, as `lengthgen
    train --cfg job` prints it; runtime.root=DIR says where runs are. study=NAME takes the runs and
    the measurements of a study, and writes results/NAME.
    """
    from lengthgen.report import load, report
    from lengthgen.runs import directory

    names, root, conditions = selection(arguments)
    if any(word.startswith("study=") for word in conditions):
        rows, named = _of_study(arguments, config_dir, plugin)
        return _write(rows, out or Path("results") / named, as_json, push, latex=latex)
    if check and push:
        raise UserError(f"--push {push}: --check writes nothing; drop one of them")
    folders = [Path(name).resolve() for name in names if (Path(name) / load.ROWS).is_file()]
    if folders and conditions and out is None and not check:
        raise UserError("a part of a folder needs --out DIR")
    if conditions and out and out.resolve() in folders:
        raise UserError(f"--out {out}: a part of its rows would replace all; give another folder")
    found = [[Path(n)] if Path(n).is_dir() else directory.find_all(n, root) for n in names]
    paths = [path for each in found for path in each]
    paths = paths or directory.every(root)
    if conditions and not folders:  # of other runs nothing is said
        paths = meeting(paths, conditions)
    rows = load.load_rows(paths, checkpoints=True, say=warn)
    if conditions and folders:
        rows = report.matching(rows, conditions)
    if check:
        return _check(rows)
    out = out or Path(names[0] if folders and len(names) == 1 else "report")
    is_again = len(names) == 1 and folders == [out.resolve()]
    _write(rows, out, as_json, push, again=is_again, latex=latex)


def _check(rows: "DataFrame") -> None:
    """Says which rules of a leaderboard are broken; if none is, which rows are better.

    Of the runs that lie in no folder of a report, or else of all. Raises UserError if one is.
    """
    from lengthgen.report import leaderboard, tables

    candidates = {*rows.attrs.get("folders", {})} or {*rows["run"]}
    if lines := leaderboard.broken_rules(rows, candidates):
        for line in lines:
            warn(line)
        raise UserError("a row of the table has to keep its rules; see the lines above")
    echo(tables.shown(leaderboard.better(rows, candidates)))


def _of_study(
    arguments: list[str] | None, config_dir: Path | None, plugins: list[Path] | None
) -> tuple["DataFrame", str]:
    """Returns what is measured of a study as its file asks, and the study's name."""
    from lengthgen.report import load
    from lengthgen.sweep import grid

    for word in arguments or []:
        if "=" not in word:
            raise UserError(f"{word}: study=NAME names the runs itself; drop one of them")
    every = grid.points(arguments or [], config_dir=config_dir, plugins=plugins or [])
    found = [point for point in every if (point.run_dir / "eval.jsonl").is_file()]
    name = next(word for word in every[0].arguments if word.startswith("study=")).partition("=")[2]
    if missing := len(every) - len(found):
        warn(f"study={name}: {missing} of {len(every)} points are not evaluated yet")
    if not found:
        raise UserError(f"study={name}: nothing is evaluated; run {every[0].command}")
    rows = load.load_rows([point.run_dir for point in found], checkpoints=True, say=warn)
    return load.asked_for(rows, {point.run_id: point.config.eval for point in found}), name


def _write(rows: "DataFrame", out: Path, as_json: bool, push: str | None, **options: bool) -> None:
    """Writes the report, and prints its summary or the curves; uploads the rows, if asked to."""
    from lengthgen.report import dataset, report, statistics

    sections = report.sections(rows)
    page, *_ = report.write_pages(rows, sections, out, **options)
    say = warn if as_json else echo
    if as_json:
        curves = statistics.curves(statistics.findings(rows))
        echo(curves.to_json(orient="records", indent=1))
    else:
        echo(report.short_tables(sections))
    say(str(page))
    if push is not None:
        folder = dataset.write_dataset(rows, sections, page, push)
        say(dataset.upload_folder(folder, push, kind="dataset", say=warn))
