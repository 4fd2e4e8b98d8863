"""lengthgen export."""

import re
from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.printing import say_once
from lengthgen.cli.words import complete_runs, read_configs, root_of, split
from lengthgen.errors import UserError


def export_run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN DIR [KEY=VALUE ...]",
            help="Run id, its unique beginning, or path; the folder to write; runtime.* overrides.",
            autocompletion=complete_runs,
        ),
    ] = None,
    license: Annotated[
        str | None,
        typer.Option("--license", metavar="ID", help="For the model card, such as apache-2.0."),
    ] = None,
) -> None:
    """Write a run's model as a folder to share: weights, configuration, tokenizer, model card.

    DIR is new, empty, or an earlier export, which is replaced. No code of the run is executed.
    """
    names, changes = split(words, sections=("runtime",))
    if len(names) != 2:
        raise UserError(
            "export: give a run and the folder to write, as in: lengthgen export RUN DIR"
        )
    if license is not None and not re.fullmatch(r"[A-Za-z0-9.+-]+", license):
        raise UserError(f"--license: {license!r} is no license id; give one like apache-2.0")
    from lengthgen.export.folder import export, refuse_occupied
    from lengthgen.runs import directory
    from lengthgen.terminal import Progress

    run_dir, folder = directory.find(names[0], root_of(changes)), Path(names[1])
    refuse_occupied(folder)
    (config,) = read_configs([run_dir], changes)
    with Progress(is_main=True) as show:
        written = export(config, run_dir, folder, license=license, say=show.say)
    if written.step < written.steps:
        say_once(f"{run_dir.name} is unfinished: this is step {written.step} of {written.steps}")
    print(written.folder)
