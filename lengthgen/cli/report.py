"""lengthgen report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthgen.cli import completion
from lengthgen.cli.arguments import find_runs, split, words_of
from lengthgen.cli.console import echo, warn
from lengthgen.config import compose
from lengthgen.errors import UserError
from lengthgen.report import collect, run_records, study, write
from lengthgen.runs.directory import run_dirs


def write_report(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN | FOLDER ...] [KEY=VALUE,... ...]",
            help="Runs, folders of reports, and which of their runs: scheme=rope,alibi seed=1.",
            autocompletion=completion.reported,
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
    """Write figures, tables and a page of runs, by default of all.

    The folder holds the rows too: it is made again from them alone, and joined with other folders
    and runs that are named with it. KEY=VALUE keeps the runs with that value, in the words that
    trained them; runtime.root=DIR says where runs are.
    """
    names, changes, conditions = _split(arguments or [])
    folders = [Path(name) for name in names if (Path(name) / study.ROWS).is_file()]
    left_out = words_of(without)
    if folders:
        selects = bool(conditions or left_out)
        if (len(names) > 1 or selects) and out is None:
            raise UserError("several folders, or runs with them or left out, need --out DIR")
        names = [name for name in names if Path(name) not in folders]
        studies = [*map(study.from_folder, folders)]
        if names:
            studies.append(study.from_runs(find_runs(names, changes)))
        joins = len(studies) > 1 or selects
        found, gathered = _gathered(
            study.join(studies, conditions=conditions, without=left_out) if joins else studies[0]
        )
        out = out or folders[0]
    elif left_out:
        raise UserError(
            "--without is of folders of reports, and none is named; name the runs to show"
        )
    else:
        chosen, out = _chosen(names, changes, conditions), out or Path("report")

        def of_runs(paths: Sequence[Path]) -> tuple[study.Study, collect.Gathered]:
            return _gathered(study.from_runs(paths))

        found, gathered = (
            of_runs(chosen) if names else run_records.use_readable(chosen, of_runs, say=warn)
        )
    written = write.write_gathered(found, gathered, out)
    echo(collect.summary(gathered))
    for path in written:
        echo(path)


def _split(
    arguments: Sequence[str],
) -> tuple[list[str], dict[str, Any], dict[str, list[Any]]]:
    """Returns the names of runs and folders, runtime.* by key, and the values to keep by key."""
    kept = [word for word in arguments if "=" in word and not word.startswith("runtime.")]
    kept = [word for word in kept if not Path(word).exists()]
    names, changes = split([word for word in arguments if word not in kept], sections=("runtime",))
    return names, changes, compose.alternatives(kept)


def _gathered(found: study.Study) -> tuple[study.Study, collect.Gathered]:
    return found, collect.gather_both(found.records)


def _chosen(
    names: Sequence[str], changes: Mapping[str, Any], conditions: Mapping[str, Sequence[Any]]
) -> list[Path]:
    root = compose.root_of(changes)
    if names:
        chosen = find_runs(names, changes)
    else:
        chosen = run_records.reportable(run_dirs(root), say=warn)
    if not chosen:
        raise UserError(
            f"{root}: no evaluated runs; lengthgen train scheme=rope makes one, "
            "runtime.root=DIR looks elsewhere"
        )
    return run_records.selected_dirs(chosen, conditions, say=warn) if conditions else chosen
