"""W&B shows every row of the record once, and nothing that it does or fails to do ends a run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from repository import PYTHONPATH
from shell import Shell
from small import SMALL
from wandb_backend import ENTITY, KEY, StoredRun, WandbBackend

from lengthgen.files import read_rows

pytestmark = pytest.mark.slow

WORDS = [word for word in SMALL if not word.startswith("runtime.wandb")] + [
    *("scheme=rope", "runtime.log_every=1")
]


class Ran(NamedTuple):
    """How a command ended, and what it said of W&B."""

    code: int
    out: str
    said: list[str]


def environment(url: str, *, key: str | None = KEY, **more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    own |= {"PYTHONPATH": PYTHONPATH, "WANDB_BASE_URL": url, "HOME": "/nonexistent", **more}
    return own if key is None else {**own, "WANDB_API_KEY": key}


def lengthgen(folder: Path, *words: str, env: dict[str, str]) -> Ran:
    ran = subprocess.run(
        [sys.executable, "-m", "lengthgen", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ran.stderr
    said = [line for line in (ran.stderr + ran.stdout).splitlines() if line.startswith("W&B: ")]
    return Ran(ran.returncode, ran.stdout, said)


def only(folder: Path) -> Path:
    (run_dir,) = (folder / "runs").glob("rope-*")
    return run_dir


def train_rows(run: StoredRun) -> list[dict[str, Any]]:
    return [row for row in run.rows if "train/step" in row]


def recorded(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the rows of train.jsonl, as W&B is given them."""
    rows = read_rows(run_dir / "train.jsonl", run=run_dir.name)
    return [{k: v for k, v in row.items() if k.startswith("train/")} for row in rows]


def test_a_run_is_shown_with_its_rows_curve_verdicts_and_figures(tmp_path: Path) -> None:
    with WandbBackend() as backend:
        ran = lengthgen(tmp_path, "train", *WORDS, env=environment(backend.url))
        assert ran.code == 0
        (name, run), *others = backend.runs.items()
    assert (name, others) == (only(tmp_path).name, [])
    assert ran.said == [f"W&B: {backend.url}/{ENTITY}/lengthgen/runs/{name}"]
    assert train_rows(run) == recorded(only(tmp_path))
    curve = {row["eval/T_valid"]: row for row in run.rows if "eval/T_valid" in row}
    assert len(curve) > 1
    for length, row in curve.items():
        assert row["eval/ppl_low"] < row["eval/ppl"] < row["eval/ppl_high"]
        assert run.summary[f"eval/ppl@{length}"] == row["eval/ppl"]
    assert run.summary[f"eval/verdict@{max(curve)}"] in (
        "uses",
        "flat",
        "harmed",
        "unclear",
        "not trained",
    )
    assert any(path.startswith("media/images/figures/curve") for path in run.files)
    assert run.variables["groupName"] == "rope"
    assert "train" in json.loads(run.variables["config"])


def test_after_a_kill_and_a_restart_each_row_is_there_once(tmp_path: Path) -> None:
    words = ["train", *WORDS, "train.tokens=256000"]
    with WandbBackend() as backend:
        env = environment(backend.url)
        process = subprocess.Popen(
            [sys.executable, "-m", "lengthgen", *words],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 120
        while len([row for run in backend.runs.values() for row in train_rows(run)]) < 5:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = len(recorded(only(tmp_path)))
        assert 5 <= before < 2000
        assert lengthgen(tmp_path, *words, env=env).code == 0
        (run,) = backend.runs.values()
    steps = [row["train/step"] for row in train_rows(run)]
    assert steps == [row["train/step"] for row in recorded(only(tmp_path))]
    assert len(steps) == 2000


def test_a_push_sends_what_is_missing_and_again_all_of_it_to_a_fresh_run(tmp_path: Path) -> None:
    off = environment("http://127.0.0.1:1")
    assert lengthgen(tmp_path, "train", *WORDS, "runtime.wandb=off", env=off).said == []
    with WandbBackend() as backend:
        env = environment(backend.url)
        assert lengthgen(tmp_path, "track", "push", env=env).code == 0
        (first,) = backend.runs.values()
        rows = list(first.rows)
        assert train_rows(first) == recorded(only(tmp_path))
        assert lengthgen(tmp_path, "track", "push", env=env).code == 0
        assert first.rows == rows
        lengthgen(tmp_path, "track", "push", "--again", env=env)
        _, (name, fresh) = backend.runs.items()
    assert name.startswith(f"{only(tmp_path).name}-")
    assert train_rows(fresh) == train_rows(first)


@pytest.mark.parametrize(
    ("key", "more", "words", "said"),
    [
        (None, {}, [], "W&B: no API key (`wandb login` stores one); offline, to upload: wandb "),
        (KEY, {}, ["runtime.wandb=offline"], "W&B: offline, to upload: wandb sync "),
        (KEY, {"WANDB_MODE": "offline"}, [], "W&B: offline, to upload: wandb sync "),
        (KEY, {"WANDB_MODE": "disabled"}, [], "W&B: disabled, by WANDB_MODE or by `wandb "),
    ],
)
def test_a_run_that_is_not_online_says_so_in_one_line(
    tmp_path: Path, key: str | None, more: dict[str, str], words: list[str], said: str
) -> None:
    env = environment("http://127.0.0.1:1", key=key, **more)
    ran = lengthgen(tmp_path, "train", *WORDS, *words, env=env)
    assert (ran.code, len(ran.said)) == (0, 1)
    assert ran.said[0].startswith(said)
    assert bool(list(only(tmp_path).glob("wandb/offline-run-*/*.wandb"))) == ("offline" in said)


@pytest.mark.parametrize("faults", [{"status": 500}, {"stream_status": 500}])
def test_a_backend_that_fails_ends_no_run(tmp_path: Path, faults: dict[str, int]) -> None:
    with WandbBackend(**faults) as backend:
        ran = lengthgen(tmp_path, "train", *WORDS, env=environment(backend.url))
    assert ran.code == 0
    assert "wandb sync" in ran.said[-1]
    assert len(recorded(only(tmp_path))) == 8


def test_what_cannot_be_pushed_is_one_line(shell: Shell, tmp_path: Path) -> None:
    assert shell.refused("track", "push").startswith("runs holds no run yet")
    assert shell.run("train", *SMALL, "runtime.root=runs").code == 0
    assert shell.refused("track", "push", "runtime.wandb=off").startswith("runtime.wandb=off: so")
    assert shell.refused("track", "push", "lost").startswith("lost: no such run in runs")
