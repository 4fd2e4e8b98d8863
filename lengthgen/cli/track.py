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
    from lengthgen import config, runs, sharing

    names, changes = split(words, sections=("runtime",))
    root = root_of(changes)
    run_dirs = [runs.find(name, root) for name in names] or [runs.newest(root)]
    configs: list[config.Config] = []  # all of them are checked before the first is sent
    for run_dir in run_dirs:
        plain = config.to_plain(runs.load_config(run_dir))
        asked = {"runtime.wandb": "auto", **changes, "runtime.root": str(run_dir.parent)}
        plain["runtime"] |= {key.removeprefix("runtime."): asked[key] for key in asked}
        configs.append(config.from_plain(plain))
    for built, run_dir in zip(configs, run_dirs, strict=True):
        sharing.push(built, run_dir, again=again, say=print)
