"""Writes the training loss of runs over tokens: python docs/training_loss.py FILE.csv RUN_DIR ...

Each row is the mean over 60 steps of one run, in nats per token. In less than one epoch no token
was trained on before: the mean estimates the loss within T on new text of the same projects.
"""

import sys
from pathlib import Path

import pandas as pd

from lengthgen.files import read_rows

STEPS = 60


def training_loss(run_dir: Path) -> pd.DataFrame:
    """Returns scheme, seed, tokens (the end of the interval) and loss of a run."""
    scheme, *_, seed, _ = run_dir.name.split("-")
    log = pd.DataFrame(read_rows(run_dir / "train.jsonl"))
    log = log[log["train/step"] <= log["train/step"].max() // STEPS * STEPS]
    interval = (log["train/step"] - 1) // STEPS
    means = log.groupby(interval)[["train/tokens", "train/loss"]].agg(
        {"train/tokens": "max", "train/loss": "mean"}
    )
    return means.set_axis(["tokens", "loss"], axis=1).assign(scheme=scheme, seed=seed[1:])


if __name__ == "__main__":
    runs = pd.concat(training_loss(Path(name)) for name in sys.argv[2:])
    table = runs[["scheme", "seed", "tokens", "loss"]].sort_values(["scheme", "seed", "tokens"])
    table.to_csv(sys.argv[1], index=False, float_format="%.4f")
