"""A scheme is one file and one YAML: of a user's own, written for former names, in the package."""

import math
from pathlib import Path

import torch
from repository import example
from small import SMALL

from lengthgen import pipeline
from lengthgen.experiment import resolve
from lengthgen.files import read_rows
from lengthgen.runs import checkpoints


def test_a_file_and_a_yaml_are_a_scheme_that_trains_and_is_evaluated(tmp_path: Path) -> None:
    plugin, scheme = tmp_path / "my_bias.py", tmp_path / "conf" / "scheme" / "my_bias.yaml"
    scheme.parent.mkdir(parents=True)
    plugin.write_text(f"{example('my_bias.py')}\n{example('limit')}")
    scheme.write_text(example("my_conf/scheme/my_bias.yaml"))
    words = [*SMALL, "scheme=my_bias", "train.tokens=512", "scheme.parts.my_bias.start=0.001"]
    words += [f"runtime.root={tmp_path}/runs"]
    experiment = resolve(words, config_dir=tmp_path / "conf", plugins=[plugin])
    pipeline.train(experiment)
    run_dir = experiment.run_dir
    rows = read_rows(run_dir / "eval.jsonl")
    skipped = {row["length"]: row.get("skipped") for row in rows}
    assert skipped == {16: None, **dict.fromkeys((32, 64), "my_table has 16 rows")}
    assert all(math.isfinite(row["nats"]) and row["nats"] > 0 for row in rows if row["n_tokens"])
    saved = checkpoints.newest(run_dir, run=experiment.run_id)
    assert saved is not None
    r = saved.weights["scheme.parts.my_bias.r1"]
    assert (r.shape, bool((r >= torch.tensor(0.01)).all())) == ((4, 1, 1), True)
