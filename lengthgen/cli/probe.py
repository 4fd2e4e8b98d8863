"""lengthgen probe."""

from typing import Annotated

import typer

from lengthgen.cli.printing import print_rows
from lengthgen.cli.words import Plugin, Words, configs_of, root_of, split


def probe_runs(
    words: Words = None,
    probes: Annotated[
        str | None,
        typer.Option(
            "--probes",
            metavar="P,...",
            help="shift_invariance, receptive_field, attention, bias, word_position, position.",
        ),
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Look into trained runs, the newest if none is named: numbers and a picture per probe.

    Takes eval.* and runtime.* overrides. Writes probes.jsonl and probes/ of the run; only missing
    probes are computed.
    """
    from lengthgen import probes as probing
    from lengthgen.cli.listing import Listing
    from lengthgen.runs import directory
    from lengthgen.terminal import Progress

    names, changes = split(words, sections=("eval", "runtime"))
    asked = probing.named(probes.split(",") if probes is not None else None)
    root = root_of(changes)
    run_dirs = [directory.find(name, root) for name in names] or [directory.newest(root)]
    configs = configs_of(run_dirs, changes, plugins=plugin or [])
    for built, run_dir in zip(configs, run_dirs, strict=True):
        with Progress(is_main=True) as show:
            found = probing.probe(built, run_dir, asked, show=show)
        print(f"run: {run_dir}")
        print_rows(Listing(["probe", "what it shows"], [[one.probe, one.summary] for one in found]))
        for one in found:
            if one.picture is not None:
                print(one.picture)
