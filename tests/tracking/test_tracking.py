"""W&B shows every row of the record once, and nothing that it does or fails to do ends a run."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import wandb
import yaml
from commands import Shell, here, one_run, run
from repository import PYTHONPATH, ROOT, TELLING
from small import SMALL
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_backend import ENTITY, KEY, StoredRun, WandbBackend

import lengthgen
from lengthgen import tracking
from lengthgen.errors import Stopped, UserError
from lengthgen.experiment import config_of
from lengthgen.files import read_rows
from lengthgen.runs import directory
from lengthgen.tracking import Tracker

pytestmark = pytest.mark.slow

WORDS = [word for word in SMALL if not word.startswith("runtime.wandb")] + ["scheme=rope"]


@pytest.fixture
def trained(own: Callable[..., Path]) -> Path:
    """The root of a run that W&B does not know."""
    return own("scheme=rope", "train.val_every=4").parent


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    own = {"WANDB_API_KEY": KEY, "HOME": "/nonexistent", "PYTHONPATH": PYTHONPATH}
    for name, value in {**own, "WANDB_BASE_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Generator[WandbBackend]:
    with WandbBackend() as started:
        monkeypatch.setenv("WANDB_BASE_URL", started.url)
        yield started


def push(root: Path, *words: str, code: int = 0) -> list[str]:
    """Sends the only run of a root, and returns what is said of W&B."""
    return said("track", "push", f"runtime.root={root}", *words, code=code)


def said(*words: str, code: int = 0) -> list[str]:
    """Returns what a command says of W&B."""
    ran = here(*words)
    assert ran.code == code, ran
    return [line for line in (ran.err + ran.out).splitlines() if line.startswith("W&B: ")]


def train_rows(run: StoredRun) -> list[dict[str, Any]]:
    return [row for row in run.rows if "train/step" in row]


def recorded(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the rows of train.jsonl, as W&B is given them."""
    rows = read_rows(run_dir / "train.jsonl", run=run_dir.name)
    return [{k: v for k, v in row.items() if k.startswith(("train/", "val/"))} for row in rows]


def test_rows_curve_table_report_and_facts_are_shown_once_and_again_in_a_fresh_run(
    trained: Path, backend: WandbBackend
) -> None:
    lines = push(trained)
    (name, run), *others = backend.runs.items()
    assert (run.variables["displayName"], others) == (one_run(trained).name, [])
    assert lines == [f"W&B: {backend.url}/{ENTITY}/lengthgen/runs/{name}"]
    rows = list(run.rows)
    push(trained)
    assert run.rows == rows
    push(trained, "--again", "runtime.wandb_checkpoint=true")
    _, (again, fresh) = backend.runs.items()
    assert train_rows(run) == recorded(one_run(trained)) == train_rows(fresh)
    assert [row["train/step"] for row in train_rows(run) if "val/loss@64" in row] == [4, 8]
    assert again.startswith(f"{name}-")
    curve = {row["eval/T_valid"]: row for row in rows if "eval/T_valid" in row}
    for length, row in curve.items():
        assert row["eval/ppl_low"] < row["eval/ppl"] < row["eval/ppl_high"]
        assert row["eval/ppl"] == pytest.approx(math.exp(row["eval/loss"]))
        assert run.summary[f"eval/ppl@{length}"] == row["eval/ppl"]
    words = ("uses", "flat", "harmed", "unclear", "not trained")
    assert run.summary[f"eval/verdict@{max(curve)}"] in words
    asked = directory.load_config(one_run(trained))
    assert run.variables["groupName"] == asked.recipe
    assert {*run.variables["tags"]} == {"rope", asked.model.label, "1,024 tokens"}
    config = {key: entry["value"] for key, entry in json.loads(run.variables["config"]).items()}
    known = directory.read_provenance(one_run(trained), run=one_run(trained).name)
    assert {key: config[key] for key in tracking.ORIGIN} == {k: known[k] for k in tracking.ORIGIN}
    assert config["train"]["length"] == 16
    assert b"<html" in run.files["report.html"]
    (table,) = (content for file, content in run.files.items() if file.startswith("media/table/"))
    assert json.loads(table)["columns"] == tracking.TABLE
    assert {row[3] for row in json.loads(table)["data"]} == curve.keys() == {16, 32, 64}
    weights = max(one_run(trained).glob("checkpoints/*/model.safetensors")).read_bytes()
    assert fresh.files["model.safetensors"] == weights
    assert "model.safetensors" not in run.files


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of wandb-workspaces
def test_what_w_and_b_lacks_of_a_run_is_sent_by_a_push_and_what_eval_adds_by_eval(
    trained: Path, backend: WandbBackend
) -> None:
    log, curve = (one_run(trained) / name for name in ("train.jsonl", "eval.jsonl"))
    every, root = log.read_bytes(), f"runtime.root={trained}"
    log.write_bytes(b"".join(every.splitlines(keepends=True)[:3]))  # as of a killed run
    curve.rename(trained / curve.name)
    assert len(push(trained)) == 1
    log.write_bytes(every)
    (trained / curve.name).rename(curve)
    push(trained)
    (run,) = backend.runs.values()
    assert train_rows(run) == recorded(one_run(trained))
    before = len(run.rows)
    assert said("eval", root, "--lengths", "16,32,48,64", "runtime.wandb=auto")
    assert [r["eval/T_valid"] for r in run.rows[before:] if "eval/T_valid" in r] == [48]
    assert said("eval", root, "--lengths", "16,32", "runtime.wandb=auto") == []
    ran = here("track", "report", root)
    assert f"{backend.url}/{ENTITY}/lengthgen/reports/" in ran.out
    (spec,) = backend.reports
    assert one_run(trained).name in spec
    assert "wandb/lineseries/v0" in spec


def test_what_is_trained_again_is_another_w_and_b_run(trained: Path, backend: WandbBackend) -> None:
    push(trained)
    (name, first), *_ = backend.runs.items()
    before = list(first.rows)
    words = [*WORDS, "train.val_every=4", "runtime.wandb=off", f"runtime.root={trained}"]
    assert here("rm", str(one_run(trained)), "--yes").code == 0
    assert here("train", *words).code == 0
    push(trained)
    push(trained)
    assert here("track", "report", f"runtime.root={trained}").code == 0
    _, (again, fresh) = backend.runs.items()
    assert (first.rows, train_rows(fresh)) == (before, recorded(one_run(trained)))
    assert (again in backend.reports[0], name in backend.reports[0]) == (True, False)


def test_a_run_of_a_w_and_b_sweep_is_the_one_that_its_agent_names(
    trained: Path, backend: WandbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "oursweep")
    words = ["train", *WORDS, "train.val_every=4", f"runtime.root={trained}"]
    monkeypatch.setenv("WANDB_RUN_ID", "point")
    said(*words)  # all is done, and is shown in this sweep too
    monkeypatch.delenv("WANDB_SWEEP_ID")
    said(*words)
    (name,) = backend.runs
    monkeypatch.delenv("WANDB_RUN_ID")
    said(*words, "runtime.wandb=online")  # or if that is asked for
    _, shown = backend.runs
    assert shown.startswith(one_run(trained).name)
    run = backend.runs[name]
    assert (name, run.variables["sweep"]) == ("point", "oursweep")
    assert train_rows(run) == recorded(one_run(trained))


def test_the_variables_of_wandb_are_honoured_unless_a_key_says_otherwise(
    trained: Path, tmp_path: Path, backend: WandbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    outer = {"ENTITY": "us", "PROJECT": "theirs", "NAME": "mine", "RUN_GROUP": "many"}
    outer |= {"JOB_TYPE": "pilot", "NOTES": "a note", "TAGS": "a,b", "DIR": f"{tmp_path}/there"}
    for name, value in outer.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    push(trained, "runtime.wandb_tags=[c,d]")
    keys = [f"runtime.wandb_{key}=own" for key in ("entity", "project", "name", "group")]
    push(trained, "--again", *keys)
    run, own = (run.variables for run in backend.runs.values())
    assert [own[key] for key in ("entity", "project", "displayName", "groupName")] == ["own"] * 4
    assert (run["project"], run["displayName"], run["tags"]) == ("theirs", "mine", ["c", "d"])
    assert (run["groupName"], run["jobType"], run["notes"]) == ("many", "pilot", "a note")
    assert run["entity"] == "us"
    assert list((tmp_path / "there/wandb").glob("run-*"))


FOREIGN = {
    **{"wandb": "online", "wandb_entity": "theirs", "wandb_project": "theirs"},
    **{"wandb_name": "theirs", "wandb_group": "theirs", "wandb_checkpoint": True},
}


def test_the_file_of_a_run_sends_nothing_and_nowhere(trained: Path, backend: WandbBackend) -> None:
    run_dir, root = one_run(trained), f"runtime.root={trained}"
    for length, mode in {"40": "off", "44": "offline", "48": "online"}.items():
        config = yaml.safe_load((run_dir / "config.yaml").read_text())
        config["runtime"] |= FOREIGN | {"wandb": mode}
        (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
        said("eval", root, "--lengths", length)
        assert len(backend.runs) == (mode == "online")
    said("eval", root, "--lengths", "24", "runtime.wandb_project=ours", "runtime.wandb=auto")
    push(trained, "--again")
    said("train", "--from", str(run_dir), "seed=2", root, "runtime.wandb=online")
    study = "# @package _global_\nruntime: {wandb: online, wandb_entity: theirs}\n"
    (run_dir / "conf/study").mkdir(parents=True)
    (run_dir / "conf/study/more.yaml").write_text(study)
    said("train", *WORDS, "study=more", f"--config-dir={run_dir}/conf", "seed=3", root)
    sent = [run.variables for run in backend.runs.values()]
    assert len(sent) == 4
    assert "ours" in [run["project"] for run in sent]
    assert not [run for run in sent if "theirs" in run.values()]
    assert not any("model.safetensors" in run.files for run in backend.runs.values())


def stored_offline(run_dir: Path) -> list[int]:
    """Returns the training steps in the last .wandb file of a run."""
    file = max(run_dir.glob("wandb/offline-run-*/*.wandb"))
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    records = [record for line in lines if "history" in (record := json.loads(line))]
    rows = [record["history"]["item"] for record in records]
    return [row["train/step"] for row in rows if "train/step" in row]


def test_a_killed_offline_run_has_all_rows(
    tmp_path: Path, backend: WandbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TELL", "kill -KILL $PPID")
    words = ["train", *WORDS, "--plugin", str(TELLING)]
    assert run("-m", "lengthgen", *words).code == -signal.SIGKILL
    monkeypatch.delenv("TELL")
    said(*words)
    run_dir = one_run(tmp_path / "runs")
    assert stored_offline(run_dir) == [row["train/step"] for row in recorded(run_dir)]
    assert len(stored_offline(run_dir)) == 8
    sync = [sys.executable, "-m", "wandb", "sync", f"{run_dir}/wandb/latest-run"]  # docs/wandb.md
    subprocess.run(sync, check=True, capture_output=True)
    monkeypatch.setenv("WANDB_MODE", "online")
    push(tmp_path / "runs")
    (stored,) = backend.runs.values()
    assert [row["train/step"] for row in train_rows(stored)] == stored_offline(run_dir)


@pytest.mark.parametrize("words", [["runtime.wandb=offline"], []])
def test_a_run_that_is_not_online_says_so_in_one_line(
    trained: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    for name, value in {"MODE": "offline", "TAGS": "", "SILENT": ""}.items() if not words else ():
        monkeypatch.setenv(f"WANDB_{name}", value)
    (line,) = push(trained, *words)
    assert line.startswith("W&B: offline, to upload: wandb sync ")
    assert list(one_run(trained).glob("wandb/offline-run-*/*.wandb"))


def test_without_login_a_training_is_kept_for_a_push_and_a_push_keeps_nothing(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "")
    (line,) = push(trained, code=2)
    assert line == "W&B: no API key (`wandb login` stores one)"
    kept = one_run(trained) / "wandb"
    assert not list(kept.glob("offline-run-*/*.wandb"))
    said = list[str]()
    config = config_of(one_run(trained), {"runtime.wandb": "auto"})
    with Tracker(config, one_run(trained), say=said.append):
        pass
    assert "; offline, to upload: lengthgen track push " in said[0]
    assert list(kept.glob("offline-run-*/*.wandb"))


@pytest.mark.parametrize(
    ("faults", "remedy", "code"),
    [
        ({"status": 403}, "W&B: ", 2),
        ({"stream_status": 403}, "lengthgen track push runs/rope-", 0),
    ],
)
def test_a_backend_that_fails_ends_no_run(
    trained: Path, monkeypatch: pytest.MonkeyPatch, faults: dict[str, int], remedy: str, code: int
) -> None:
    with WandbBackend(**faults) as backend:
        monkeypatch.setenv("WANDB_BASE_URL", backend.url)
        assert remedy in push(trained, code=code)[-1]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"WANDB_DISABLED": "true"}, "W&B: disabled, by WANDB_MODE, WANDB_DISABLED or "),
        ({"WANDB_PROJECT": "a/b"}, "W&B: Invalid project name 'a/b': "),
    ],
)
def test_a_push_that_w_and_b_takes_nothing_of_fails(
    trained: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], reason: str
) -> None:
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    ran = here("track", "push", f"runtime.root={trained}")
    assert (ran.code, ran.out.startswith(reason)) == (2, True), ran
    assert "track push: rope-" in ran.err
    assert not list(one_run(trained).glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.parametrize(("error", "heard"), [(UserError, False), (Stopped, True)])
def test_the_end_of_other_processes_does_not_cut_short_what_a_failed_run_sends(
    trained: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], heard: bool
) -> None:
    seen: list[bool] = []
    run_dir = one_run(trained)
    config = directory.load_config(run_dir)
    offline = config.runtime.model_copy(update={"wandb": "offline"})
    config = config.model_copy(update={"runtime": offline})
    finish = wandb.Run.finish

    def finished(run: wandb.Run, **how: Any) -> None:
        seen.append(signal.getsignal(signal.SIGTERM) != signal.SIG_IGN)
        finish(run, **how)

    monkeypatch.setattr(wandb.Run, "finish", finished)
    ended = error("why") if error is UserError else Stopped("why", exit_code=1)
    with pytest.raises(error), Tracker(config, run_dir, say=print):
        raise ended
    assert seen == [heard]


def test_what_cannot_be_pushed_is_one_line(
    shell: Shell, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"runtime.root={trained}"
    for name in ("wandb", "tensorboard"):
        (one_run(trained) / name).symlink_to(trained, target_is_directory=True)
    shows = ("runtime.wandb=offline", "runtime.tensorboard=true", "--lengths", "16,48")
    assert "/wandb would decide where this goes; remove it" in here("eval", root, *shows).err
    assert [path.name for path in trained.iterdir()] == [one_run(trained).name]
    assert [*one_run(trained).glob("tensorboard/rope-*")]
    (one_run(trained) / "wandb").unlink()
    (one_run(trained) / "wandb").mkdir()
    (one_run(trained) / "wandb/settings").write_text("[default]\nbase_url = http://theirs\n")
    with monkeypatch.context() as inside:
        inside.chdir(one_run(trained))  # where W&B would send one's key to that
        (line,) = said("track", "push", root, code=2)
        assert "wandb/settings would decide where this goes; remove it, or go elsewhere" in line
    assert shell.refused("track", "push", root, "runtime.wandb=off").startswith("runtime.wandb=o")
    assert shell.refused("track", "push", root, "lost").startswith("lost: no such run in")


def test_tensorboard_has_each_row_by_its_step_and_the_curve_by_its_length(trained: Path) -> None:
    words = [f"runtime.root={trained}", "runtime.tensorboard=true", "--lengths"]
    for lengths in ("16,48", "16,48,64,32,24"):
        assert here("eval", *words, lengths).code == 0
    shown = EventAccumulator(str(*one_run(trained).glob("tensorboard/rope-*/s1"))).Reload()
    rows = recorded(one_run(trained))
    losses = [(row["train/step"], pytest.approx(row["train/loss"])) for row in rows]
    assert [(event.step, event.value) for event in shown.Scalars("train/loss")] == losses
    assert [event.step for event in shown.Scalars("eval/loss")] == [16, 24, 32, 48, 64]


def test_kept_checkpoints_are_shown_once(own: Callable[..., Path], backend: WandbBackend) -> None:
    run_dir = own("scheme=rope", "train.keep_checkpoints=4")
    root = f"runtime.root={run_dir.parent}"
    words = ["eval", root, "--checkpoints", "all", "runtime.wandb=auto", "runtime.tensorboard=true"]
    for lengths in ("16,32,64", "16,32,64", "16,32"):
        assert here(*words, "--lengths", lengths).code == 0
    (run,) = backend.runs.values()
    rows = {row["kept/tokens"]: row for row in run.rows if "kept/tokens" in row}
    assert [*rows] == [128, 256, 512, 1024]
    assert len(rows) == sum("kept/tokens" in row for row in run.rows)
    curves: Any = lengthgen.results(run_dir, checkpoints=True)
    known = curves[curves["length"] == 16].set_index("tokens")["loss"]
    assert {n: row["kept/loss@16"] for n, row in rows.items()} == pytest.approx(known.to_dict())
    losses = curves[curves["length"] == 32].set_index("tokens")["loss"]
    gains = {n: row["kept/context_gain@32"] for n, row in rows.items()}
    assert gains == pytest.approx((known - losses).to_dict())
    shown = (
        EventAccumulator(str(*run_dir.glob("tensorboard/rope-*/s1")))
        .Reload()
        .Scalars("kept/loss@16")
    )
    assert {event.step: event.value for event in shown} == pytest.approx(known.to_dict())


def test_an_evaluation_that_cannot_be_shown_stops_no_other(trained: Path) -> None:
    (one_run(trained) / "train.jsonl").write_text("damaged\n" * 2)
    config, lines = directory.load_config(one_run(trained)), list[str]()
    runtime = config.runtime.model_copy(update={"tensorboard": True})
    config = config.model_copy(update={"runtime": runtime})
    tracking.show_results(config, one_run(trained), say=lines.append)
    assert re.search(r" is evaluated, but not shown: .*train.jsonl:1: damaged", "".join(lines))


def test_the_panel_of_the_documentation_is_of_columns_of_the_table() -> None:
    text = (ROOT / "docs/wandb-curves.json").read_text()
    named = re.findall(r'"field": "\$\{field:(.*?)\}"', text)
    assert len(named) == text.count('"field"') > 0
    assert {*named} <= {*tracking.TABLE}
