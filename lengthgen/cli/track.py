"""lengthgen track push."""

from typing import Annotated

import typer

from lengthgen.cli.words import Words, root_of, split

track = typer.Typer(help="Show runs in Weights & Biases.", rich_markup_mode=None)


@track.command("push")
def push(
    words: Words = None,
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

    names, changes = split(words, sections=("runtime",))
    root = root_of(changes)
    run_dirs = [directory.find(name, root) for name in names] or [directory.newest(root)]
    configs: list[schema.Config] = []  # all of them are checked before the first is sent
    for run_dir in run_dirs:
        plain = schema.to_plain(directory.load_config(run_dir))
        asked = {"runtime.wandb": "auto", **changes, "runtime.root": str(run_dir.parent)}
        plain["runtime"] |= {key.removeprefix("runtime."): asked[key] for key in asked}
        configs.append(schema.from_plain(plain))
    for built, run_dir in zip(configs, run_dirs, strict=True):
        results.push(built, run_dir, again=again, say=print)
