"""lengthgen generate."""

import math
from typing import Annotated

import typer

from lengthgen.cli.printing import print_rows
from lengthgen.cli.words import (
    ConfigDir,
    Plugin,
    complete_runs,
    configs_of,
    positive,
    root_of,
    split,
)
from lengthgen.errors import UserError


def generate_text(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [KEY=VALUE ...]",
            help="Run id, its unique beginning, or path, the newest run if none; overrides.",
            autocompletion=complete_runs,
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="What the model goes on from.")
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens", metavar="N", help="To write; default: 64; of a task, its longest answer."
        ),
    ] = None,
    temperature: Annotated[
        str,
        typer.Option(
            "--temperature", metavar="X", help="0: the likeliest tokens; else drawn, by eval.seed."
        ),
    ] = "0",
    variant: Annotated[
        str | None,
        typer.Option("--variant", metavar="V", help="Training-free variant; a+b merges two."),
    ] = None,
    failures: Annotated[
        str | None,
        typer.Option(
            "--failures", metavar="N", help="Of a task: print up to N tests answered wrongly."
        ),
    ] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Continue a text with a trained run, or show which tests of its task it gets wrong.

    Takes eval.* and runtime.* overrides. The answer to a task ends at its newline.
    """
    names, changes = split(words, sections=("eval", "runtime"))
    if len(names) > 1:
        raise UserError(f"generate: one run at a time, not {len(names)}; drop {names[1]}")
    if (prompt is None) == (failures is None):
        raise UserError("generate: give --prompt TEXT, or --failures N for a run of a task")
    limit = None if tokens is None else positive(tokens, "--tokens", "a number, like --tokens 64")
    count = 0
    if failures is not None:
        count = positive(failures, "--failures", "a number, like --failures 10")
    heat = _temperature(temperature)
    from lengthgen import generation
    from lengthgen.cli.listing import Listing
    from lengthgen.runs import directory
    from lengthgen.terminal import Progress

    root = root_of(changes)
    run_dir = directory.find(names[0], root) if names else directory.newest(root)
    (config,) = configs_of([run_dir], changes, config_dir=config_dir, plugins=plugin or [])
    with Progress(is_main=True) as show:
        trained = generation.open_trained(config, run_dir, variant=variant, show=show)
        if prompt is None:
            found = generation.failures(trained, count, show=show)
            rows = [[str(one.length), *one[1:]] for one in found]
            print_rows(Listing(["length", "prompt", "expected", "got"], rows))
        else:
            reason = generation.why_uncached(trained.model.scheme)
            if reason is not None:
                show.say(f"{config.scheme.name}: {reason}")
            print(generation.generate(trained, prompt, limit=limit, temperature=heat, show=show))


def _temperature(word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = -math.inf
    if not 0 <= found < math.inf:
        raise UserError(f"--temperature: {word!r} is no number of at least 0; give one like 0.8")
    return found
