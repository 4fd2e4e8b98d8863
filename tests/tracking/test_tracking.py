"""W&B shows every row of the record once, and nothing that it does or fails to do ends a run."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Shell, begin, ended, here
from repository import PYTHONPATH
from small import SMALL
from wandb_backend import ENTITY, KEY, StoredRun, WandbBackend

from lengthgen.files import read_rows
from lengthgen.runs import directory

pytestmark = pytest.mark.slow

WORDS = [word for word in SMALL if not word.startswith("runtime.wandb")] + ["scheme=rope"]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a run that W&B does not know."""
    root = tmp_path_factory.mktemp("tracked")
    words = [*WORDS, "runtime.wandb=off", "train.val_every=4", f"runtime.root={root}"]
    assert here("train", *words).code == 0
    return root


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    own = {"WANDB_API_KEY": KEY, "HOME": "/nonexistent", "PYTHONPATH": PYTHONPATH}
    for name, value in {**own, "WANDB_BASE_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def push(root: Path, *words: str) -> list[str]:
    """Sends the only run of a root, and returns what is said of W&B."""
    return said("track", "push", f"runtime.root={root}", *words)


def said(*words: str) -> list[str]:
    """Returns what a command says of W&B, which is not to be set up twice in a process."""
    ran = ended(begin("-m", "lengthgen", *words))
    assert (ran.code, "Traceback" in ran.err) == (0, False), ran
    lines = (ran.err + ran.out).splitlines()
    return [line for line in lines if line.startswith("W&B: ")]


def only(root: Path) -> Path:
    (run_dir,) = root.glob("rope-*")
    return run_dir


def train_rows(run: StoredRun) -> list[dict[str, Any]]:
    return [row for row in run.rows if "train/step" in row]


def recorded(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the rows of train.jsonl, as W&B is given them."""
    rows = read_rows(run_dir / "train.jsonl", run=run_dir.name)
    return [{k: v for k, v in row.items() if k.startswith(("train/", "val/"))} for row in rows]


def test_a_push_shows_rows_curve_and_verdicts_once_and_again_in_a_fresh_run(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WandbBackend() as backend:
        monkeypatch.setenv("WANDB_BASE_URL", backend.url)
        lines = push(trained)
        (name, run), *others = backend.runs.items()
        assert (name, others) == (only(trained).name, [])
        assert lines == [f"W&B: {backend.url}/{ENTITY}/lengthgen/runs/{name}"]
        rows = list(run.rows)
        push(trained)
        assert run.rows == rows
        push(trained, "--again")
        _, (again, fresh) = backend.runs.items()
    assert train_rows(run) == recorded(only(trained)) == train_rows(fresh)
    assert [row["train/step"] for row in train_rows(run) if "val/loss@64" in row] == [4, 8]
    assert again.startswith(f"{name}-")
    curve = {row["eval/T_valid"]: row for row in rows if "eval/T_valid" in row}
    assert len(curve) > 1
    for length, row in curve.items():
        assert row["eval/ppl_low"] < row["eval/ppl"] < row["eval/ppl_high"]
        assert run.summary[f"eval/ppl@{length}"] == row["eval/ppl"]
    words = ("uses", "flat", "harmed", "unclear", "not trained")
    assert run.summary[f"eval/verdict@{max(curve)}"] in words
    assert run.variables["groupName"] == "rope"
    config = {key: entry["value"] for key, entry in json.loads(run.variables["config"]).items()}
    known = directory.read_provenance(only(trained), run=name)
    for key in ("n_parameters", "commit", "fingerprint"):
        assert config[key] == known[key]
    assert config["train"]["length"] == 16
    assert b"<html" in run.files["report.html"]
    columns = ["scheme", "variant", "protocol", "length", "loss", "low", "high"]
    (table,) = (content for file, content in run.files.items() if file.startswith("media/table/"))
    assert json.loads(table)["columns"] == columns
    assert {row[3] for row in json.loads(table)["data"]} == curve.keys()


def test_the_variables_of_wandb_are_honoured_unless_a_key_says_otherwise(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    outer = {"ENTITY": "us", "PROJECT": "theirs", "NAME": "mine", "RUN_GROUP": "many"}
    outer |= {"JOB_TYPE": "pilot", "NOTES": "a note", "TAGS": "a,b", "DIR": f"{tmp_path}/there"}
    with WandbBackend() as backend:
        for name, value in outer.items():
            monkeypatch.setenv(f"WANDB_{name}", value)
        monkeypatch.setenv("WANDB_BASE_URL", backend.url)
        lines = push(trained, "runtime.wandb_project=ours", "runtime.wandb_tags=[c,d]", "--again")
        push(trained, "--again")
        first, second = (run.variables for run in backend.runs.values())
    assert lines[0] == "W&B: runtime.wandb_project=ours, not WANDB_PROJECT=theirs"
    assert lines[1] == "W&B: runtime.wandb_tags=c,d, not WANDB_TAGS=a,b"
    assert (first["project"], first["displayName"], first["tags"]) == ("ours", "mine", ["c", "d"])
    assert (first["groupName"], first["jobType"], first["notes"]) == ("many", "pilot", "a note")
    assert (second["project"], second["entity"]) == ("theirs", "us")
    assert second["tags"] == ["a", "b"]
    assert list((tmp_path / "there/wandb").glob("run-*"))


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_after_a_kill_and_a_restart_each_row_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", *WORDS, "train.tokens=96000", "train.checkpoint_every=50"]
    with WandbBackend() as backend:
        monkeypatch.setenv("WANDB_BASE_URL", backend.url)
        process = begin("-m", "lengthgen", *words, stderr=subprocess.DEVNULL)
        logs = (tmp_path / "runs").glob
        wait_until(lambda: any(log.read_text().count("\n") > 60 for log in logs("*/train.jsonl")))
        process.send_signal(signal.SIGSTOP)  # W&B's own process sends what it has
        wait_until(lambda: len([r for run in backend.runs.values() for r in train_rows(run)]) >= 5)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert 5 <= len(recorded(only(tmp_path / "runs"))) < 750
        said(*words)
        (run,) = backend.runs.values()
    steps = [row["train/step"] for row in train_rows(run)]
    assert steps == [row["train/step"] for row in recorded(only(tmp_path / "runs"))]
    assert len(steps) == 750


@pytest.mark.parametrize(
    ("changed", "words", "fragment"),
    [
        ({"WANDB_API_KEY": ""}, [], "W&B: no API key (`wandb login` stores one); offline, to uplo"),
        ({"WANDB_MODE": "offline"}, [], "W&B: offline, to upload: wandb sync "),
        ({}, ["runtime.wandb=offline"], "W&B: offline, to upload: wandb sync "),
        ({"WANDB_DISABLED": "true"}, [], "W&B: disabled, by WANDB_MODE, WANDB_DISABLED or "),
    ],
)
def test_a_run_that_is_not_online_says_so_in_one_line(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
    words: list[str],
    fragment: str,
) -> None:
    for name, value in changed.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    root = shutil.copytree(trained, tmp_path / "runs", ignore=shutil.ignore_patterns("wandb"))
    (line,) = push(root, *words)
    assert line.startswith(fragment)
    kept = list(only(root).glob("wandb/offline-run-*/*.wandb"))
    assert bool(kept) == ("offline" in fragment)


@pytest.mark.parametrize("faults", [{"status": 500}, {"stream_status": 500}])
def test_a_backend_that_fails_ends_no_run(
    trained: Path, monkeypatch: pytest.MonkeyPatch, faults: dict[str, int]
) -> None:
    with WandbBackend(**faults) as backend:
        monkeypatch.setenv("WANDB_BASE_URL", backend.url)
        assert "wandb sync" in push(trained)[-1]


def test_what_cannot_be_pushed_is_one_line(shell: Shell, trained: Path) -> None:
    root = f"runtime.root={trained}"
    assert shell.refused("track", "push").endswith("lengthgen train scheme=rope makes one")
    assert shell.refused("track", "push", root, "runtime.wandb=off").startswith("runtime.wandb=o")
    assert shell.refused("track", "push", root, "lost").startswith("lost: no such run in")
