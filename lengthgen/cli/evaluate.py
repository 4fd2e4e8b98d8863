"""lengthgen eval."""

from typing import Annotated

import typer

from lengthgen.cli.arguments import ConfigDir, Plugin, Runs, find_runs, split, words_of
from lengthgen.cli.console import echo


def evaluate_runs(
    arguments: Runs = None,
    lengths: Annotated[
        str | None, typer.Option(metavar="L,L,...", help="Such as 512,2048,16000.")
    ] = None,
    protocols: Annotated[
        str | None,
        typer.Option(
            "--protocols",
            "--protocol",
            metavar="P,...",
            help="Such as tail,swap,sliding-256; all: every one of lengthgen list protocols.",
        ),
    ] = None,
    variants: Annotated[
        str | None, typer.Option(metavar="V,...", help="Training-free variants; a+b merges two.")
    ] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Evaluate trained runs, by default the newest one.

    Only missing rows are computed. Takes eval.* and runtime.* overrides; everything else is fixed
    by the run.
    """
    names, changes = split(arguments, sections=("eval", "runtime"))
    given = {"lengths": lengths, "protocols": protocols, "variants": variants}
    changes |= {f"eval.{key}": words_of(text) for key, text in given.items() if text is not None}
    run_dirs = find_runs(names, changes)
    from lengthgen import pipeline
    from lengthgen.evaluation import evaluator
    from lengthgen.evaluation.protocols import PROTOCOLS
    from lengthgen.report import report
    from lengthgen.runs import devices
    from lengthgen.runs.distributed import Ranks
    from lengthgen.terminal import Progress

    if "all" in changes.get("eval.protocols", []):
        changes["eval.protocols"] = list(PROTOCOLS)
    configs = pipeline.configs_of(run_dirs, changes, config_dir=config_dir, plugins=plugin or [])
    ranks = Ranks.from_env()
    device = devices.device_of(configs[0].runtime, ranks)
    with ranks.connected(device.type), Progress(is_main=ranks.is_main) as show:
        for config, run_dir in zip(configs, run_dirs, strict=True):
            evaluator.evaluate(config, run_dir, ranks=ranks, show=show)
    if ranks.is_main:
        echo(report.terminal(run_dirs))
