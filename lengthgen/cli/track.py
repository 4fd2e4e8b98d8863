"""lengthgen track push and report."""

import sys
from typing import Annotated

import typer

from lengthgen.cli.arguments import Runs, chosen_runs
from lengthgen.cli.console import echo, warn
from lengthgen.errors import UserError


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

    failed = False
    for run_dir in run_dirs:
        try:
            config = config_of(run_dir, {"runtime.wandb": "auto", **changes})
            tracking.push(config, run_dir, again=again, say=echo)
        except UserError as error:
            if len(run_dirs) == 1:
                raise
            warn(f"{run_dir.name} is not sent: {error}")
            failed = True
    if failed:
        sys.exit(1)


def report(arguments: Runs = None) -> None:
    """Make a report of runs there, by default of the newest one."""
    run_dirs, changes = chosen_runs(arguments, "runtime")
    from lengthgen import tracking
    from lengthgen.experiment import config_of

    echo(tracking.write_report(run_dirs, config_of(run_dirs[0], changes)))
