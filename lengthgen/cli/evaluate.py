"""lengthgen eval."""

import sys
from typing import Annotated, Any, Literal

import typer

from lengthgen.cli.arguments import (
    ConfigDir,
    Limit,
    PluginFiles,
    Runs,
    VariantNames,
    chosen_runs,
    comma_words,
    limited,
    refuse_limit,
)
from lengthgen.cli.console import echo, warn_once
from lengthgen.errors import UserError


def evaluate_runs(
    arguments: Runs = None,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="L,L,...", help="Such as 512,2k,16T: T is train.length."),
    ] = None,
    protocols: Annotated[
        str | None,
        typer.Option(
            metavar="P,...",
            help="Such as tail,swap,sliding-256; all: every one of lengthgen list protocols.",
        ),
    ] = None,
    variants: VariantNames = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Kept checkpoints too: all, or those of so many tokens, such as 4M,8M.",
        ),
    ] = None,
    limit: Limit = None,
    config_dir: ConfigDir = None,
    plugin: PluginFiles = None,
) -> None:
    """Evaluate trained runs, by default the newest one.

    Only missing rows are computed. Takes eval.* and runtime.* overrides; everything else is fixed
    by the run. A run without a usable checkpoint or corpus stops no other; the exit code is 1 then.
    """
    run_dirs, changes = chosen_runs([*(arguments or []), *limited(limit)], "eval", "runtime")
    given = {"lengths": lengths, "protocols": protocols, "variants": variants}
    changes |= {f"eval.{key}": comma_words(text) for key, text in given.items() if text is not None}
    from lengthgen import pipeline
    from lengthgen.evaluation.protocols import PROTOCOLS as of_text
    from lengthgen.experiment import of_runs
    from lengthgen.report import report
    from lengthgen.runs.distributed import Ranks
    from lengthgen.terminal import from_here

    if "all" in comma_words(protocols):
        changes["eval.protocols"] = list(of_text)
    about: dict[str, Any] = {"config_dir": config_dir, "plugins": plugin or []}
    experiments = of_runs(run_dirs, changes, say=warn_once, **about)
    refuse_limit(limit, (each.config for each in experiments.values()))
    kept = _tokens(checkpoints)
    evaluated = pipeline.evaluate_runs([*experiments], [*experiments.values()], kept=kept)
    if Ranks.from_env().is_main:
        is_asked = "eval.lengths" in changes
        shown = [n for _, of_run, _ in evaluated for n in of_run.config.eval.lengths if is_asked]
        measured = [row for *_, rows in evaluated for row in rows]
        if evaluated:
            paths = [path for path, *_ in evaluated]
            echo(report.terminal(paths, measured, lengths=shown, checkpoints=bool(kept)))
            if len(run_dirs) == 1:
                echo(f"run: {from_here(paths[0])}")
        if len(evaluated) < len(run_dirs):
            sys.exit(1)


def _tokens(text: str | None) -> Literal["all"] | list[int]:
    """Returns the numbers of A,B,... such as 4M,8M."""
    from lengthgen.config.sections import number

    try:
        return "all" if text == "all" else [int(float(str(number(w)))) for w in comma_words(text)]
    except (ValueError, OverflowError):
        raise UserError(f"--checkpoints {text}: give all, or tokens such as 4M,8M") from None
