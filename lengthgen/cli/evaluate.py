"""lengthgen eval."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthgen.cli.printing import print_rows
from lengthgen.cli.words import ConfigDir, Plugin, Words, configs_of, lengths_of, root_of, split
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.cli.listing import Listing


def evaluate_runs(
    words: Words = None,
    lengths: Annotated[
        str | None, typer.Option("--lengths", metavar="L,L,...", help="Such as 512,2048,16000.")
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
        str | None,
        typer.Option("--variants", metavar="V,...", help="Training-free variants; a+b merges two."),
    ] = None,
    audit: Annotated[
        str | None,
        typer.Option(
            "--audit", metavar="fp32|fp64", help="Score a sample again in this precision."
        ),
    ] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Evaluate trained runs, the newest if none is named; only missing cells are computed.

    Takes eval.* and runtime.* overrides; everything else is fixed by the run.
    """
    from lengthgen.cli import listing
    from lengthgen.evaluation import evaluator
    from lengthgen.evaluation import precision as auditing
    from lengthgen.report import collect
    from lengthgen.runs import devices, directory
    from lengthgen.runs.distributed import Ranks
    from lengthgen.terminal import Progress

    if audit not in (None, "fp32", "fp64"):
        raise UserError(f"--audit: {audit!r} is no precision to score in; give fp32 or fp64")
    names, changes = split(words, sections=("eval", "runtime"))
    if lengths is not None:
        changes["eval.lengths"] = lengths_of(lengths)
    if protocols is not None:
        changes["eval.protocols"] = _protocols(protocols)
    if variants is not None:
        changes["eval.variants"] = [name.strip() for name in variants.split(",")]
    root = root_of(changes)
    run_dirs = [directory.find(name, root) for name in names] or [directory.newest(root)]

    configs = configs_of(run_dirs, changes, config_dir=config_dir, plugins=plugin or [])
    audits: list[Listing] = []
    rows: list[dict[str, Any]] = []  # of what was asked, not of all that was ever evaluated
    ranks = Ranks.from_env()
    device = devices.device_of(configs[0].runtime, ranks)
    with ranks.connected(device.type), Progress(is_main=ranks.is_main) as show:
        for built, run_dir in zip(configs, run_dirs, strict=True):
            rows += evaluator.evaluate(built, run_dir, ranks=ranks, show=show)
            if audit is not None:
                scored = auditing.audit(built, run_dir, precision=audit, ranks=ranks, show=show)
                audits.append(listing.audit(scored, run_dir.name))
    if ranks.is_main:
        print(collect.table(run_dirs, rows))
        for audited in audits:
            print_rows(audited, head_in_pipes=True)


def _protocols(text: str) -> list[str]:
    from lengthgen.evaluation.protocols import OF_TEXT

    names = [name.strip() for name in text.split(",")]
    return list(OF_TEXT) if "all" in names else names
