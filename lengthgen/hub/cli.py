"""lengthgen export and import."""

from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.arguments import PluginFiles, chosen_runs, complete_runs, names_and_overrides
from lengthgen.cli.console import echo, warn
from lengthgen.errors import UserError


def export_run(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN DIR [KEY=VALUE ...]",
            help="Run id, its unique beginning, or path; the folder to write; runtime.* overrides.",
            autocompletion=complete_runs,
        ),
    ] = None,
    license: Annotated[
        str | None, typer.Option(metavar="ID", help="For the model card, such as apache-2.0.")
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="USER/NAME", help="Repository of the Hugging Face Hub to upload to."),
    ] = None,
    plugin: PluginFiles = None,
) -> None:
    """Write a model to share: weights, tokenizer and model card."""
    names, overrides = names_and_overrides(arguments)
    from lengthgen.experiment import of_run
    from lengthgen.hub import folder as folders
    from lengthgen.report.dataset import upload_folder

    conditions = [word for word in overrides if not word.startswith("runtime.")]
    if len(names) != 2 and not (conditions and len(names) == 1):
        raise UserError(
            "export: give a run and the folder to write, as in: lengthgen export RUN DIR"
        )
    (run_dir, *others), changes = chosen_runs([*names[:-1], *overrides], "runtime")
    if others:
        raise UserError(f"export: one run at a time, not {1 + len(others)}; name one")
    experiment = of_run(run_dir, changes, plugins=plugin or [])
    written = folders.export(
        experiment, run_dir, Path(names[-1]), license=license, repository=push, say=warn
    )
    echo(written if push is None else upload_folder(written, push, kind="model", say=warn))


def import_model(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER|NAME [KEY=VALUE ...]",
            help="In Hugging Face layout, or a name of the Hub; corpus, eval.* and runtime.* of "
            "the run.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the model, in runs.")] = None,
    length: Annotated[
        int | None, typer.Option(min=1, metavar="T", help="Trained length; default: config.json's.")
    ] = None,
) -> None:
    """Make a pretrained model a run, to evaluate and report as others.

    Reads config.json, tokenizer.json and safetensors alone: no code of the model is run.
    """
    sources, overrides = names_and_overrides(arguments)
    if len(sources) != 1:
        raise UserError("import: give one folder or name, as in: lengthgen import FOLDER")
    for word in overrides:
        if not word.startswith(("corpus", "eval.", "runtime.")):
            raise UserError(f"{word}: import takes corpus, eval.* and runtime.* alone; drop it")
        if word.startswith(("corpus.tokenizer=", "corpus.bos=", "corpus.vocab_size=")):
            raise UserError(f"{word}: import takes that of the model; drop it")
    from lengthgen.hub import imported

    echo(imported.import_model(sources[0], name=name, length=length, overrides=overrides, say=warn))


COMMANDS = {"export": export_run, "import": import_model}
