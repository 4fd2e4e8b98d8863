"""lengthgen generate."""

from typing import Annotated

import typer

from lengthgen.cli.arguments import (
    ConfigDir,
    Plugin,
    find_runs,
    known_variants,
    one_of,
    run_argument,
    split,
)
from lengthgen.cli.console import echo
from lengthgen.errors import UserError


def generate_text(
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="The text that the model continues.")],
    arguments: Annotated[
        list[str] | None,
        run_argument(
            "[RUN] [KEY=VALUE ...]",
            "Run id, its unique beginning, or path, the newest run if none; overrides.",
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="To write; default: 64; of a task, its longest answer."
        ),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(
            min=0, max=1e6, metavar="X", help="0: the likeliest tokens; else sampled, by eval.seed."
        ),
    ] = 0.0,
    variant: Annotated[
        str | None,
        typer.Option(
            metavar="V",
            help="Training-free variant; a+b merges two.",
            autocompletion=one_of(known_variants),
        ),
    ] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Continue a text.

    Takes eval.* and runtime.* overrides. The answer to a task ends at its newline.
    """
    names, changes = split(arguments, sections=("eval", "runtime"))
    if len(names) > 1:
        raise UserError(f"generate: one run at a time, not {len(names)}; drop {names[1]}")
    from lengthgen import generation, pipeline
    from lengthgen.model.kv_cache import why_uncached
    from lengthgen.terminal import Progress

    (run_dir,) = find_runs(names, changes)
    (config,) = pipeline.configs_of([run_dir], changes, config_dir=config_dir, plugins=plugin or [])
    of_answers = () if config.eval.protocols == ["spans"] else ("encoder_decoder",)
    config.refuse_arch("generate", taken=("decoder", *of_answers))
    with Progress(is_main=True) as show:
        trained = generation.open_trained(config, run_dir, variant=variant, show=show)
        reason = why_uncached(trained.model.scheme)
        if reason is not None:
            show.say(f"{config.scheme.name}: {reason}")
        text = generation.generate(
            trained, prompt, limit=tokens, temperature=temperature, show=show
        )
    echo(text)
