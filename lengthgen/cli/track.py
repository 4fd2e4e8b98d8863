"""lengthgen track push and report."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.arguments import Runs, chosen_runs
from lengthgen.cli.console import echo, warn


def push(
    arguments: Runs = None,
    again: Annotated[
        bool, typer.Option("--again", help="Send everything, to a fresh W&B run: RUN-xxxx.")
    ] = False,
) -> None:
    """Send runs to Weights & Biases, by default the newest one.

    Only what was not sent yet. Takes runtime.* overrides, such as runtime.wandb_project=NAME. A run
    that cannot be sent stops no other; the exit code is 1 then.
    """
    run_dirs, changes = chosen_runs(arguments, "runtime")
    from lengthgen import tracking
    from lengthgen.experiment import config_of
    from lengthgen.runs import directory

    sent, say = list[Path](), warn if run_dirs[1:] else None
    for run_dir in run_dirs:
        with directory.or_said(run_dir, "sent", say):
            config = config_of(run_dir, {"runtime.wandb": "auto", **changes})
            tracking.push(config, run_dir, again=again, say=echo)
            sent.append(run_dir)
    if sent != run_dirs:
        sys.exit(1)


def report(arguments: Runs = None) -> None:
    """Make a report of runs there, by default of the newest one."""
    run_dirs, changes = chosen_runs(arguments, "runtime")
    from lengthgen import tracking
    from lengthgen.experiment import config_of

    echo(tracking.write_report(run_dirs, config_of(run_dirs[0], changes)))
