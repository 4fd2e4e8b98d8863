"""Times list, show, report and a mistake in CPU seconds, by the number of runs there are.

    python scripts/bench_commands.py [--runs 1,22,100,300] [--rounds 3] [--against CHECKOUT]
    python scripts/bench_commands.py --text FOLDER             # text to tokens, seconds too

Trains three small runs, and makes copies of them under other seeds. With --against each command
takes turns with that of another checkout, and the ratio is that of the medians: above 1 this one
needs less. Prints minimum and median over rounds.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from lengthgen.files import read_rows, write_rows
from lengthgen.runs import directory

HERE = Path(__file__).resolve().parents[1]
SCHEMES = ("rope", "alibi", "nope")
SMALL = (
    *("model.d_model=32", "model.n_layers=2", "model.n_heads=4", "model.d_ff=64"),
    *("corpus=synthetic", "corpus.documents=200", "corpus.document_words=400", "corpus.copies=4"),
    *("corpus.copy_words=8", "train.length=16", "train.batch_tokens=128", "train.tokens=4096"),
    *("train.precision=fp32", "eval.lengths=[16,32,64,128]", "eval.targets=8"),
    *("eval.max_context=128", "eval.endpoints=20", "eval.reference_variants=[]"),
    *("runtime.wandb=off", "runtime.threads=1", "runtime.log_every=1"),
)


def lengthgen(checkout: Path, folder: Path, words: Sequence[str]) -> tuple[float, float]:
    """Returns the CPU seconds of a command, and its seconds."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    shutil.rmtree(folder / "runs/.cache", ignore_errors=True)
    before, begun = spent(), time.perf_counter()
    command = [sys.executable, "-m", "lengthgen", *words]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    if done.returncode not in (0, 2):
        raise SystemExit(done.stderr.decode())
    return spent() - before, time.perf_counter() - begun


def copied(run_dir: Path, root: Path, seed: int) -> None:
    """Makes a copy of a run under another seed, whose losses are slightly higher."""
    config = directory.load_config(run_dir).model_copy(update={"seed": seed})
    for path in run_dir.iterdir():
        if path.suffix != ".lock" and path.name != "config.yaml" and path.is_file():
            rows = read_rows(path)
            for row in rows:
                row["run"] = config.run_id
                if row.get("nats") is not None:
                    row |= {"seed": seed, "nats": row["nats"] * (1 + seed % 7 / 1000)}
            (root / config.run_id).mkdir(exist_ok=True)
            write_rows(root / config.run_id / path.name, rows)
    directory.write_config(config, root / config.run_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", default="1,22,100,300,1000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--text", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    checkouts = [HERE, *([asked.against.resolve()] if asked.against else [])]
    head = ["command", "runs", "min, CPU s", "median", *["min, other", "median", "ratio"]]
    head = head[: 4 if len(checkouts) == 1 else 7]
    print(f"| {' | '.join(head)} |", f"| --- |{' --: |' * (len(head) - 1)}", sep="\n", flush=True)

    def row(name: str, n: int, folder: Path, *words: str) -> None:
        rounds = [[lengthgen(of, folder, words) for of in checkouts] for _ in range(asked.rounds)]
        for clock, unit in enumerate(("", ", seconds") if name == "data" else ("",)):
            own, *others = ([taken[clock] for taken in of] for of in zip(*rounds, strict=True))
            cells = [f"{x:.2f}" for of in (own, *others) for x in (min(of), median(of))]
            cells += [f"{median(other) / median(own):.2f}" for other in others]
            print(f"| {name}{unit} | {n:,} | {' | '.join(cells)} |", flush=True)

    with TemporaryDirectory() as made:
        folder = Path(made)
        if asked.text:
            row("data", 0, folder, "data", "files", f"corpus.path={asked.text.resolve()}")
            return
        for scheme in SCHEMES:
            lengthgen(HERE, folder, ["train", f"scheme={scheme}", *SMALL])
        trained = directory.run_dirs(folder / "runs")
        row("train with a mistake", 0, folder, "train", "scheme=rpe")
        for n in map(int, asked.runs.split(",")):
            root = folder / f"{n}"
            root.mkdir()
            for i in range(n):
                copied(trained[i % len(trained)], root, 1 + i // len(trained))
            where = f"runtime.root={root}"
            row("list runs", n, folder, "list", "runs", where)
            row("show", n, folder, "show", where)
            row("report", n, folder, "report", where, "--out", f"report-{n}")


if __name__ == "__main__":
    main()
