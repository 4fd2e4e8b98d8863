"""lengthgen probe."""

from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.arguments import ConfigDir, Plugin, Runs, find_runs, split, words_of
from lengthgen.cli.console import echo, print_table


def probe_runs(
    arguments: Runs = None,
    probes: Annotated[
        str | None,
        typer.Option(metavar="P,...", help="All by default; lengthgen list probes names them."),
    ] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Analyse the checkpoints of runs, by default of the newest one.

    Takes eval.* and runtime.* overrides. Writes numbers to probes.jsonl and a picture of each probe
    to probes/ of the run; only missing probes are computed. head_distance compares runs that are
    named together. A plugin may define probes of your own.
    """
    names, changes = split(arguments, sections=("eval", "runtime"))
    from lengthgen import pipeline
    from lengthgen.config import plugins
    from lengthgen.probes import run as probing
    from lengthgen.terminal import Progress

    chosen = probing.build(
        words_of(probes) or None, config_dir=config_dir, plugins=plugins.give(plugin or [])
    )
    run_dirs = find_runs(names, changes)
    runs = list(
        zip(pipeline.configs_of(run_dirs, changes, plugins=plugin or []), run_dirs, strict=True)
    )
    for config, run_dir in runs:
        others = [run for run in runs if run[0].run_id != config.run_id]
        with Progress(is_main=True) as show:
            outcomes = probing.probe(config, run_dir, chosen, others=others, show=show)
        echo(f"run: {run_dir}")
        print_table(["probe", "what it shows"], [[o.probe, o.summary] for o in outcomes])
        for outcome in outcomes:
            if outcome.picture is not None:
                echo(outcome.picture)


def listed(files: list[Path]) -> tuple[list[str], list[list[str]]]:
    """Returns what each probe shows; probes of plugins are included."""
    from lengthgen.config import plugins
    from lengthgen.probes.run import registry

    known = registry(plugins.give(files))
    return ["probe", "what it shows"], [
        [name, (probe.__doc__ or "").partition("\n")[0]] for name, probe in known.items()
    ]


COMMANDS = {"probe": probe_runs}
LISTS = {"probes": listed}
