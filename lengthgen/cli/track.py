"""lengthgen track push."""

from typing import Annotated

import typer

from lengthgen.cli.arguments import Runs, find_runs, split
from lengthgen.cli.console import echo

track = typer.Typer(help="Show runs in Weights & Biases.", rich_markup_mode=None)


@track.command("push")
def push(
    arguments: Runs = None,
    again: Annotated[
        bool, typer.Option("--again", help="Send everything, to a fresh W&B run: RUN-xxxx.")
    ] = False,
) -> None:
    """Send W&B what it was not sent of runs yet; of the newest if none is named.

    Takes runtime.* overrides, such as runtime.wandb_project=NAME.
    """
    from lengthgen.config import schema
    from lengthgen.runs import directory
    from lengthgen.tracking import results

    names, changes = split(arguments, sections=("runtime",))
    run_dirs = find_runs(names, changes)
    configs: list[schema.Config] = []  # all of them are checked before the first is sent
    for run_dir in run_dirs:
        plain = schema.to_plain(directory.load_config(run_dir))
        runtime = {"runtime.wandb": "auto", **changes, "runtime.root": str(run_dir.parent)}
        plain["runtime"] |= {key.removeprefix("runtime."): runtime[key] for key in runtime}
        configs.append(schema.from_plain(plain))
    for config, run_dir in zip(configs, run_dirs, strict=True):
        results.push(config, run_dir, again=again, say=echo)
