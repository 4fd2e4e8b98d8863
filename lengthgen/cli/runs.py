"""lengthgen show and rm."""

import shlex
import shutil
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer

from lengthgen.cli.arguments import Runs, chosen_runs
from lengthgen.cli.console import echo, print_table, warn
from lengthgen.cli.lists import record, runs_table
from lengthgen.errors import UserError


def show_runs(arguments: Runs = None) -> None:
    """Show runs, by default the newest: how to train it, curve, files.

    The configuration is the command that trains the run: what differs from the defaults.
    """
    run_dirs, _ = chosen_runs(arguments, "runtime")
    from lengthgen.config import drafts, schema
    from lengthgen.report import report
    from lengthgen.runs import directory

    say = warn if run_dirs[1:] else None
    for run_dir in run_dirs:
        with directory.or_said(run_dir, "shown", say):
            config = directory.load_config(run_dir)
            print_table(*runs_table([record(run_dir)]))
            words = [w for w in drafts.overrides_giving(config) if not w.startswith("runtime.")]
            plugins = [str(run_dir / f"plugins/{digest}.py") for digest in config.plugins]
            words += [word for path in plugins for word in ("--plugin", path)]
            command, init = "train", config.train.init_from
            if config.is_imported and isinstance(init, schema.InitFrom):
                words = [w for w in words if w.startswith(("corpus", "eval."))]
                words = [w for w in words if not w.startswith(("corpus.tokenizer=", "corpus.bos="))]
                words = [init.path, f"--name={init.run}", f"--length={config.train.length}", *words]
                command = "import"
            echo(f"\nlengthgen {command} {shlex.join(words)}")
            try:
                if not (run_dir / "eval.jsonl").exists():
                    raise UserError("this run has no evaluation yet")
                echo("\n" + report.terminal([run_dir]))
            except UserError as error:
                echo(f"\nno curve: {error}")
            print_table(
                ["file", "bytes"], [[path.name, f"{size:,}"] for path, size in files(run_dir)]
            )


def files(run_dir: Path) -> list[tuple[Path, int]]:
    """Returns the files of a run but locks, and their bytes; of a folder, the sum."""
    paths = sorted(path for path in run_dir.iterdir() if path.suffix != ".lock")
    every = {path: [path, *path.rglob("*")] for path in paths}
    return [
        (path, sum(file.stat().st_size for file in below if file.is_file()))
        for path, below in every.items()
    ]


def remove_runs(
    arguments: Runs = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    optimizer: Annotated[
        bool, typer.Option("--optimizer", help="Of finished runs all but the last weights.")
    ] = False,
) -> None:
    """Remove runs: says what goes, then asks. A run that is being worked on stays."""
    if all(word.startswith("runtime.") for word in arguments or []):
        raise UserError("rm: name the runs that are to go; lengthgen list runs shows them")
    run_dirs = [*{path.resolve(): path for path in chosen_runs(arguments, "runtime")[0]}.values()]
    head, rows = runs_table([record(run_dir) for run_dir in run_dirs])
    with ExitStack() as held:
        for run_dir in run_dirs:
            held.enter_context(idle(run_dir))
        sizes = [sum(size for _, size in files(run_dir)) for run_dir in run_dirs]
        cells = [[*row, f"{size:,}"] for row, size in zip(rows, sizes, strict=True)]
        print_table([*head, "bytes"], cells)
        if optimizer:
            return _drop_optimizers(run_dirs)
        if not yes:
            if not sys.stdin.isatty():
                raise UserError("rm: nothing is removed: no terminal to confirm on; give --yes")
            echo(f"Remove {len(run_dirs)} run{'s' * (len(run_dirs) > 1)}? [y/N]")
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                return
        for run_dir in run_dirs:
            gone = Path(mkdtemp(prefix=".removed-", dir=run_dir.parent)) / run_dir.name  # no run
            run_dir.rename(gone)
            shutil.rmtree(gone.parent)
            echo(f"removed {run_dir}")


def _drop_optimizers(run_dirs: list[Path]) -> None:
    """Removes what finished runs would resume from; nothing measures it."""
    from lengthgen.runs import checkpoints, directory, status

    for run_dir in run_dirs:
        with directory.or_said(run_dir, "made smaller", warn if run_dirs[1:] else None):
            if status.final_weights(run_dir, run=directory.load_config(run_dir).run_id) is None:
                raise UserError(f"{run_dir} is not finished: it resumes with its optimizer")
            echo(f"{run_dir}: {checkpoints.drop_optimizer(run_dir):,} bytes removed")


@contextmanager
def idle(run_dir: Path) -> Generator[None]:
    """Keeps others from a run while the block lasts. Raises UserError if one is at work on it."""
    from lengthgen.runs import status
    from lengthgen.sweep import slurm

    job = slurm.job_of(run_dir)
    if job and job.id in slurm.queue([job.id]):
        raise UserError(
            f"{run_dir}: job {job.id} of Slurm trains this run; scancel {job.id} ends it"
        )
    with ExitStack() as held:
        for work in ("train", "eval", "probe"):
            held.enter_context(status.run_lock(run_dir, work))
        yield
