"""lengthgen eval."""

from typing import Annotated

import typer

from lengthgen.cli.arguments import ConfigDir, Plugin, Runs, find_runs, split, words_of
from lengthgen.cli.console import echo


def evaluate_runs(
    arguments: Runs = None,
    lengths: Annotated[
        str | None, typer.Option(metavar="L,L,...", help="Such as 512,2k,16T: T is train.length.")
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
    from lengthgen.evaluation.protocols import PROTOCOLS
    from lengthgen.report import report
    from lengthgen.runs.distributed import Ranks

    if "all" in changes.get("eval.protocols", []):
        changes["eval.protocols"] = list(PROTOCOLS)
    pipeline.evaluate_runs(run_dirs, changes, config_dir=config_dir, plugins=plugin or [])
    if Ranks.from_env().is_main:
        echo(report.terminal(run_dirs))
