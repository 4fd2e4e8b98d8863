"""The record on disk is complete whatever W&B does, and what W&B shows is the record."""

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from wandb_backend import ENTITY, KEY, StoredRun, WandbBackend

from lengthgen import config
from lengthgen.errors import UserError
from lengthgen.tracking import CURVE_METRICS, append_rows, is_shown, keep_rows, read_rows

REPOSITORY = Path(__file__).parents[1]
PATIENCE_SECONDS = 3.0

# Each W&B test runs in a process of its own: wandb keeps global state and starts a service.
TRACKED_RUN = """
import json, os, sys

from test_tracking import configuration
from lengthgen.tracking import Tracker

def has_children():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True

def kill_service():
    from wandb.sdk import wandb_setup
    wandb_setup.singleton()._connection._proc._process.kill()

plan = json.loads(sys.argv[1])
config = configuration(plan["runtime"])
config.run_dir.mkdir(parents=True, exist_ok=True)
hooks = sys.exit, sys.excepthook
said = []
with Tracker(config, config.run_dir, say=said.append, patience_seconds=plan["patience"]) as tracker:
    for number, row in enumerate(plan["rows"]):
        if number == plan["service_dies_at"]:
            kill_service()
        tracker.train(row)
    tracker.curve(plan["points"])
print(json.dumps({
    "said": said,
    "imported": "wandb" in sys.modules,
    "hooks_restored": hooks == (sys.exit, sys.excepthook),
    "has_children": has_children(),
}))
"""


class Outcome(NamedTuple):
    """What a tracked run left behind."""

    said: list[str]
    printed: str
    imported: bool
    hooks_restored: bool
    has_children: bool
    seconds: float
    run_dir: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_rows(self.run_dir / "train.jsonl")


def configuration(runtime: Mapping[str, Any]) -> config.Config:
    """Returns the default configuration of conf/ with these runtime values."""
    plain: dict[str, Any] = yaml.safe_load((REPOSITORY / "conf/config.yaml").read_text())
    for default in plain.pop("defaults"):
        if isinstance(default, dict) and "experiment" not in default:
            ((group, choice),) = default.items()
            plain[group] = yaml.safe_load((REPOSITORY / f"conf/{group}/{choice}.yaml").read_text())
    plain["runtime"] |= runtime
    return config.from_plain(plain)


def train_rows(*steps: int) -> list[dict[str, Any]]:
    return [{"train/step": step, "train/tokens": 8192 * step, "train/loss": 6.5} for step in steps]


def point(length: int, *, protocol: str = "tail", variant: str | None = None) -> dict[str, Any]:
    """Returns a point whose values tell its length."""
    return {
        "T_valid": length,
        "protocol": protocol,
        "variant": variant,
        "loss": length / 1024,
        "ppl": length / 64,
        "bits_per_byte": length / 2048,
    }


def track(
    root: Path,
    *,
    mode: str,
    url: str = "http://127.0.0.1:9",  # the discard port: nothing listens there
    key: str | None = KEY,
    rows: Sequence[Mapping[str, Any]] = (),
    points: Sequence[Mapping[str, Any]] = (),
    service_dies_at: int | None = None,
    environment: Mapping[str, str] = {},
) -> Outcome:
    """Runs a Tracker in a fresh process; fails the test unless it ends with exit code 0."""
    runtime = {"root": str(root / "runs"), "wandb": mode}
    plan = {
        "runtime": runtime,
        "rows": rows,
        "points": points,
        "patience": PATIENCE_SECONDS,
        "service_dies_at": service_dies_at,
    }
    inherited = {name: value for name, value in os.environ.items() if "WANDB" not in name}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", TRACKED_RUN, json.dumps(plan)],
        env={
            **inherited,
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}",
            "HOME": str(root),
            "NETRC": str(root / "netrc"),
            "WANDB_BASE_URL": url,
            "WANDB_ERROR_REPORTING": "false",
            **({} if key is None else {"WANDB_API_KEY": key}),
            **environment,
        },
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *printed, report = done.stdout.splitlines()
    return Outcome(
        **json.loads(report),
        printed="\n".join(printed) + done.stderr,
        seconds=time.monotonic() - started,
        run_dir=configuration(runtime).run_dir,
    )


def curve_row(prefix: str, length: int) -> dict[str, Any]:
    values = {name: value for name, value in point(length).items() if name in CURVE_METRICS}
    return {f"{prefix}/{name}": value for name, value in {"T_valid": length, **values}.items()}


@contextlib.contextmanager
def files_limited_to(n_bytes: int) -> Generator[None]:
    """Lets no file of this process grow further: like a full disk, it takes a part of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def only(backend: WandbBackend) -> StoredRun:
    (run,) = backend.runs.values()
    return run


def test_appended_rows_are_read_back_unchanged(tmp_path: Path) -> None:
    rows = [{"train/step": 1, "train/loss": 0.1 + 0.2}, {"document": "a\nb \u2028 \u00e9"}]

    append_rows(tmp_path / "train.jsonl", rows[:1])
    append_rows(tmp_path / "train.jsonl", rows[1:])

    assert read_rows(tmp_path / "train.jsonl") == rows


def test_a_file_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "train.jsonl") == []


@pytest.mark.parametrize("cut", range(1, 18))
def test_a_torn_last_line_is_dropped_and_cut_by_the_next_append(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "train.jsonl"
    append_rows(path, train_rows(1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:cut])

    assert read_rows(path) == train_rows(1)
    append_rows(path, train_rows(2))
    assert read_rows(path) == train_rows(1, 2)


def test_a_torn_line_longer_than_one_block_is_cut_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    append_rows(path, train_rows(1))
    with path.open("a") as file:
        file.write("x" * 200_000)

    append_rows(path, train_rows(2))

    assert read_rows(path) == train_rows(1, 2)


@pytest.mark.parametrize("damage", [b'{"train/st', b"[1]", b"", b"\xff\xfe{}", b"\0" * 8])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "train.jsonl"
    append_rows(path, train_rows(1, 2))
    path.write_bytes(damage.join([path.read_bytes(), b"\n"]) + b'{"train/step": 3}\n')

    with pytest.raises(UserError, match=r"train\.jsonl:3: .* delete this line"):
        read_rows(path)


def test_rows_that_are_not_kept_are_gone_and_the_others_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    undisturbed = tmp_path / "undisturbed.jsonl"
    append_rows(path, train_rows(1, 2, 3, 4))
    append_rows(undisturbed, train_rows(1, 2, 3))

    keep_rows(path, lambda row: row["train/step"] <= 2)
    append_rows(path, train_rows(3))

    assert path.read_bytes() == undisturbed.read_bytes()
    assert sorted(tmp_path.iterdir()) == [path, undisturbed]


def test_a_reader_never_sees_a_half_rewritten_file(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    append_rows(path, train_rows(1, 2))
    with path.open("rb") as before:  # holds the old file open across the rewrite
        keep_rows(path, lambda row: row["train/step"] == 2)
        assert len(before.readlines()) == 2
    assert read_rows(path) == train_rows(2)


def test_a_rewrite_without_room_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    append_rows(path, train_rows(*range(100)))

    with files_limited_to(100), pytest.raises(UserError, match=r"train\.jsonl: cannot be written"):
        keep_rows(path, lambda row: row["train/step"] > 0)

    assert read_rows(path) == train_rows(*range(100))
    assert list(tmp_path.iterdir()) == [path]


def test_an_append_without_room_leaves_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    append_rows(path, train_rows(1))
    size = path.stat().st_size

    room = size + size // 2
    with files_limited_to(room), pytest.raises(UserError, match=r"train\.jsonl: cannot be written"):
        append_rows(path, train_rows(2))

    assert path.stat().st_size == size


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").mkdir()

    with pytest.raises(UserError, match=r"train\.jsonl: cannot be written \(Is a directory\)"):
        append_rows(tmp_path / "train.jsonl", train_rows(1))
    with pytest.raises(UserError, match=r"train\.jsonl: cannot be read \(Is a directory\)"):
        read_rows(tmp_path / "train.jsonl")


def test_wandb_shows_the_curve_over_lengths_once_each(tmp_path: Path) -> None:
    points = [
        point(512),
        point(2048),
        point(2048),  # as from another precision
        point(512, protocol="nonoverlap"),
        point(2048, variant="ntk"),
    ]
    with WandbBackend() as backend:
        track(tmp_path, mode="online", url=backend.url, points=points)
        run = only(backend)

    assert run.rows == [
        curve_row("eval", 512),
        curve_row("eval", 2048),
        curve_row("eval/nonoverlap", 512),
        curve_row("eval/tail/ntk", 2048),
    ]
    assert run.summary["eval/ppl@2048"] == 2048 / 64
    assert run.summary["eval/nonoverlap/ppl@512"] == 512 / 64
    assert run.summary["eval/tail/ntk/ppl@2048"] == 2048 / 64


def test_a_run_opens_in_wandb_under_its_own_name_in_the_group_of_its_scheme(
    tmp_path: Path,
) -> None:
    with WandbBackend() as backend:
        outcome = track(tmp_path, mode="auto", url=backend.url, rows=train_rows(1, 2))
        ((run_id, run),) = backend.runs.items()

    assert run_id == run.variables["displayName"] == outcome.run_dir.name
    assert run.variables["groupName"] == "rope"
    assert (run.variables["project"], run.variables["jobType"]) == ("lengthgen", "train")
    assert json.loads(run.variables["config"])["train"]["value"]["length"] == 512
    assert run.exit_code == 0
    assert outcome.said == [f"W&B: {backend.url}/{ENTITY}/lengthgen/runs/{run_id}"]
    assert outcome.printed == ""
    assert outcome.hooks_restored
    assert not outcome.has_children


@pytest.mark.slow
def test_a_resumed_run_hands_over_no_row_twice(tmp_path: Path) -> None:
    with WandbBackend() as backend:
        track(
            tmp_path,
            mode="online",
            url=backend.url,
            rows=train_rows(10, 20, 30),
            points=[point(512)],
        )
        track(
            tmp_path,
            mode="online",
            url=backend.url,
            rows=train_rows(20, 30, 40),  # the checkpoint was that of step 10
            points=[point(512), point(1024)],
        )
        run = only(backend)

    assert [row["train/step"] for row in run.rows if "train/step" in row] == [10, 20, 30, 40]
    assert [row["eval/T_valid"] for row in run.rows if "eval/T_valid" in row] == [512, 1024]


@pytest.mark.slow
def test_rows_from_before_wandb_was_on_are_shown_too(tmp_path: Path) -> None:
    track(tmp_path, mode="off", rows=train_rows(10, 20))
    with WandbBackend() as backend:
        track(tmp_path, mode="online", url=backend.url, rows=train_rows(30))
        rows = only(backend).rows

    assert rows == train_rows(10, 20, 30)


def test_without_a_key_the_run_is_kept_offline_and_one_line_says_so(tmp_path: Path) -> None:
    outcome = track(tmp_path, mode="auto", key=None, rows=train_rows(1))

    (line,) = outcome.said
    assert line.startswith("W&B: no API key (`wandb login` stores one); offline")
    folder = Path(line.split("wandb sync ")[1])
    assert folder.parent == outcome.run_dir / "wandb"
    assert list(folder.glob("*.wandb"))
    assert outcome.printed == ""
    assert not outcome.has_children


def test_a_mode_that_the_environment_sets_is_honoured_by_auto(tmp_path: Path) -> None:
    outcome = track(tmp_path, mode="auto", environment={"WANDB_MODE": "offline"})

    (line,) = outcome.said
    assert line.startswith("W&B: offline, to upload: wandb sync")


def test_a_run_of_which_wandb_was_handed_everything_need_not_be_opened_again(
    tmp_path: Path,
) -> None:
    points = [point(512), point(1024)]
    run_dir = track(tmp_path, mode="off", rows=train_rows(1)).run_dir
    assert not is_shown(run_dir, [])
    track(tmp_path, mode="offline", rows=train_rows(2), points=points[:1])
    assert is_shown(run_dir, points[:1])
    assert not is_shown(run_dir, points)
    append_rows(run_dir / "train.jsonl", train_rows(3))
    assert not is_shown(run_dir, points[:1])
    (run_dir / "wandb.json").write_text("[]")
    assert not is_shown(run_dir, [])


def test_off_never_imports_wandb(tmp_path: Path) -> None:
    outcome = track(tmp_path, mode="off", rows=train_rows(1, 2), points=[point(512)])

    assert not outcome.imported
    assert outcome.said == []
    assert outcome.rows == train_rows(1, 2)
    assert [path.name for path in outcome.run_dir.iterdir()] == ["train.jsonl"]


@pytest.mark.slow
def test_an_unreachable_backend_means_offline_within_the_patience(tmp_path: Path) -> None:
    outcome = track(tmp_path, mode="auto", rows=train_rows(1, 2))

    (line,) = outcome.said
    assert "connection refused; offline, to upload: wandb sync" in line
    assert outcome.rows == train_rows(1, 2)
    assert outcome.seconds < 60  # the patience of 3 s, and a loaded machine that imports wandb
    assert not outcome.has_children


@pytest.mark.slow
def test_a_backend_that_answers_500_stops_nothing(tmp_path: Path) -> None:
    with WandbBackend(status=500) as backend:
        outcome = track(
            tmp_path, mode="online", url=backend.url, rows=train_rows(1, 2), points=[point(512)]
        )

    (line,) = outcome.said
    assert "HTTP 500" in line
    assert "offline, to upload: wandb sync" in line
    assert outcome.rows == train_rows(1, 2)
    assert outcome.seconds < 60
    assert not outcome.has_children


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "said"), [(500, "Timed out finishing run"), (404, "Fatal error while uploading")]
)
def test_a_backend_that_refuses_the_rows_of_an_open_run_stops_nothing(
    tmp_path: Path, status: int, said: str
) -> None:
    rows = train_rows(*range(50))
    with WandbBackend(stream_status=status) as backend:
        outcome = track(tmp_path, mode="online", url=backend.url, rows=rows, points=[point(512)])

    where, why = outcome.said
    assert where.startswith(f"W&B: {backend.url}")
    assert said in why
    assert "to upload the rest: wandb sync" in why
    assert outcome.rows == rows
    assert outcome.seconds < 60
    assert not outcome.has_children


def test_a_wandb_service_that_dies_stops_nothing(tmp_path: Path) -> None:
    with WandbBackend() as backend:
        outcome = track(
            tmp_path, mode="online", url=backend.url, rows=train_rows(1, 2, 3), service_dies_at=1
        )

    assert len(outcome.said) == 2
    assert "it shows no more of this run" in outcome.said[1]
    assert outcome.rows == train_rows(1, 2, 3)
