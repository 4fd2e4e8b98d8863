"""lengthgen tune: one learning rate for each scheme, by the loss at T on a tuning split."""

from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.sweep import (
    DryRun,
    Gpus,
    Jobs,
    PerGpu,
    ShowStatus,
    Slurm,
    engine_of,
    finish,
    run,
)
from lengthgen.cli.words import ConfigDir, Overrides, Plugin


def tune(
    overrides: Overrides = None,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Folder to write: tables, tuned.yaml, runs."),
    ] = Path("tune"),
    jobs: Jobs = None,
    gpus: Gpus = None,
    per_gpu: PerGpu = "1",
    slurm: Slurm = None,
    dry_run: DryRun = False,
    status: ShowStatus = False,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Choose a rate per scheme: scheme=a,b train.lr=1e-3,2e-3,4e-3. Run again: it continues.

    Every combination is trained without 1 in 20 training documents and scored on those, at T alone.
    train and sweep take the rates of least loss: train.tuned=DIR/tuned.yaml.
    """
    engine = engine_of(jobs, gpus, per_gpu, slurm, dry_run=dry_run, status=status)
    from lengthgen.sweep import tuning

    words = [*engine.overrides, *(overrides or [])]
    points = tuning.points(words, out=out, config_dir=config_dir, plugins=plugin or [])
    states = run(points, engine, name="tune")
    if states is None:
        return
    if any(one.state not in ("done", "diverged") for one in states.values()):
        finish(points, states, gpus=engine.gpus)
    written = tuning.write(points, out)
    print(written[0].read_text(encoding="utf-8"), end="")
    for path in written:
        print(path)
