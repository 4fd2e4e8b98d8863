"""lengthgen generate."""

import shlex
from typing import Annotated

import typer

from lengthgen.cli.arguments import ConfigDir, PluginFiles, Runs, VariantNames, chosen_runs
from lengthgen.cli.console import echo
from lengthgen.errors import UserError


def generate_text(
    arguments: Runs = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Required: what the model continues.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Default: 64; of a task, its longest answer."),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(
            min=0, max=1e6, metavar="X", help="0: the likeliest tokens; else sampled, by eval.seed."
        ),
    ] = 0.0,
    variant: VariantNames = None,
    config_dir: ConfigDir = None,
    plugin: PluginFiles = None,
) -> None:
    """Continue a text with one run, by default the newest.

    Takes eval.* and runtime.* overrides. The answer to a task ends at its newline.
    """
    if prompt is None:
        words = arguments or []
        text = [w for w in words if " " in w or ("=" not in w and w != words[0])][-1:]
        typed = shlex.join([*(w for w in words if w not in text), "--prompt", *(text or ["TEXT"])])
        raise UserError(f"--prompt is missing; give lengthgen generate {typed}")
    run_dirs, changes = chosen_runs(arguments, "eval", "runtime")
    if len(run_dirs) > 1:
        raise UserError(
            f"generate: one run at a time, not {len(run_dirs)}; drop {run_dirs[1].name}"
        )
    if variant is not None:
        changes["eval.variants"] = [variant]  # which reads one of --config-dir
    from lengthgen import generation
    from lengthgen.experiment import of_run
    from lengthgen.model.kv_cache import why_uncached
    from lengthgen.terminal import Progress

    experiment = of_run(run_dirs[0], changes, config_dir=config_dir, plugins=plugin or [])
    config = experiment.config
    of_answers = () if config.eval.protocols == ["spans"] else ("encoder_decoder",)
    config.refuse_arch("generate", taken=("decoder", *of_answers))
    with Progress(is_main=True) as show:
        written = generation.open_trained(
            experiment, run_dirs[0], is_varied=variant is not None, show=show
        )
        reason = why_uncached(written[0].model.scheme)
        if reason is not None:
            show.say(f"{config.scheme.name}: {reason}")
        text = generation.generate(*written, prompt, limit=tokens, temperature=temperature)
    echo(text)
