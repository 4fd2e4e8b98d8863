"""lengthgen probe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthgen.cli.arguments import (
    ConfigDir,
    PluginFiles,
    Runs,
    VariantNames,
    chosen_runs,
    comma_words,
)
from lengthgen.cli.console import echo, print_table, warn

if TYPE_CHECKING:
    from lengthgen.probes.base import Probe


def probe_runs(
    arguments: Runs = None,
    probes: Annotated[str | None, typer.Option(metavar="P,...", help="All by default.")] = None,
    variants: VariantNames = None,
    config_dir: ConfigDir = None,
    plugin: PluginFiles = None,
) -> None:
    """Analyse the checkpoints of runs, by default of the newest one.

    Takes eval.* and runtime.* overrides. Writes numbers to probes.jsonl and a picture of each probe
    to probes/ of the run; only missing probes are computed. A plugin may define custom probes.
    """
    run_dirs, changes = chosen_runs(arguments, "eval", "runtime")
    if variants is not None:
        changes["eval.variants"] = comma_words(variants)
    from lengthgen.config import plugins
    from lengthgen.experiment import of_runs
    from lengthgen.probes import run as probing
    from lengthgen.terminal import Progress

    given, names = plugins.read_plugins(plugin or []), comma_words(probes)
    about: dict[str, Any] = {"config_dir": config_dir, "plugins": plugin or []}
    experiments = of_runs(run_dirs, changes, say=warn, **about)
    of_others = {each.digest for held in experiments.values() for each in held.plugins}
    chosen: dict[Path, list[Probe]] = {}
    for run_dir, experiment in experiments.items():  # a plugin of another run may repeat a name
        taken = [p for p in given if p in experiment.plugins or p.digest not in of_others]
        chosen[run_dir] = probing.requested_probes(names, plugins=taken)
    for run_dir, experiment in experiments.items():
        with Progress(is_main=True) as show:
            summaries = probing.probe(experiment, run_dir, chosen[run_dir], show)
        echo(f"run: {run_dir}")
        print_table(["probe", "what it shows"], [[*line] for line in summaries.items()])
        echo(f"figures: {run_dir / 'probes'}")


def listed(files: list[Path]) -> tuple[list[str], list[list[str]]]:
    """Returns what each probe shows; probes of plugins are included."""
    from lengthgen.config import plugins
    from lengthgen.probes.run import probe_classes

    known = probe_classes(plugins.read_plugins(files)).items()
    rows = [[name, (probe.__doc__ or "").partition("\n")[0]] for name, probe in known]
    return ["probe", "what it shows"], rows


COMMANDS = {"probe": probe_runs}
LISTS = {"probes": listed}
