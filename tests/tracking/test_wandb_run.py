"""The record on disk is complete whatever W&B does, and what W&B shows is the record."""

import base64
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import commands
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from repository import PYTHONPATH
from wandb_backend import ENTITY, KEY, StoredRun, WandbBackend
from wandb_runs import configuration, train_rows

from lengthgen.errors import UserError
from lengthgen.files import append_rows, keep_rows, read_rows
from lengthgen.tracking.wandb_state import Sent, is_shown, load_sent, save_sent, start_again

PATIENCE_SECONDS = 3.0

# Each W&B test runs in a process of its own: wandb keeps global state and starts a service.
TRACKED_RUN = """
import base64, json, os, sys, time

from wandb_runs import configuration
from lengthgen.tracking.wandb_run import CurvePoint, Results, Tracker

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
began = time.monotonic()
with Tracker(config, config.run_dir, say=said.append, patience_seconds=plan["patience"]) as tracker:
    for number, row in enumerate(plan["rows"]):
        if number == plan["service_dies_at"]:
            kill_service()
        tracker.train(row)
    tracker.results(lambda: Results(
        curve=[CurvePoint(*point) for point in plan["curve"]],
        summary=plan["summary"],
        pictures={key: base64.b64decode(png) for key, png in plan["pictures"].items()},
    ))
print(json.dumps({
    "seconds": time.monotonic() - began,
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


def point(length: int, *metrics: str, protocol: str = "eval") -> tuple[str, int, dict[str, float]]:
    """Returns a point whose values tell its length and their metric."""
    values = {name: length / (i + 2) for i, name in enumerate(metrics or ("loss", "ppl"))}
    return protocol, length, values


def track(
    root: Path,
    *,
    mode: str,
    url: str = "http://127.0.0.1:9",  # the discard port: nothing listens there
    key: str | None = KEY,
    rows: Sequence[Mapping[str, Any]] = (),
    curve: Sequence[tuple[str, int, Mapping[str, float]]] = (),
    summary: Mapping[str, float | str] = {},
    pictures: Mapping[str, bytes] = {},
    runtime: Mapping[str, str] = {},
    service_dies_at: int | None = None,
    environment: Mapping[str, str] = {},
) -> Outcome:
    """Runs a Tracker in a fresh process; fails the test unless it ends with exit code 0."""
    settings = {"root": str(root / "runs"), "wandb": mode, **runtime}
    plan = {
        "runtime": settings,
        "rows": rows,
        "curve": curve,
        "summary": summary,
        "pictures": {key: base64.b64encode(file).decode() for key, file in pictures.items()},
        "patience": PATIENCE_SECONDS,
        "service_dies_at": service_dies_at,
    }
    inherited = {name: value for name, value in os.environ.items() if "WANDB" not in name}
    env = {
        **inherited,
        "PYTHONPATH": PYTHONPATH,
        "HOME": str(root),
        "NETRC": str(root / "netrc"),
        "WANDB_BASE_URL": url,
        "WANDB_ERROR_REPORTING": "false",
        **({} if key is None else {"WANDB_API_KEY": key}),
        **environment,
    }
    done = commands.run("-c", TRACKED_RUN, json.dumps(plan), env=env, cwd=root)
    assert done.returncode == 0, done.stderr
    *printed, report = done.stdout.splitlines()
    return Outcome(
        **json.loads(report),
        printed="\n".join(printed) + done.stderr,
        run_dir=configuration(settings).run_dir,
    )


def curve_row(prefix: str, length: int, values: Mapping[str, float]) -> dict[str, Any]:
    return {f"{prefix}/{name}": value for name, value in {"T_valid": length, **values}.items()}


def png(text: str) -> bytes:
    """Returns a picture of one pixel that holds a text."""
    file = io.BytesIO()
    said = PngInfo()
    said.add_text("text", text)
    Image.new("L", (1, 1)).save(file, "png", pnginfo=said)
    return file.getvalue()


def only(backend: WandbBackend) -> StoredRun:
    (run,) = backend.runs.values()
    return run


@pytest.mark.slow
def test_wandb_shows_the_curve_over_lengths_and_what_is_beside_it(tmp_path: Path) -> None:
    curve = [
        point(512, "ppl", "ppl_low", "ppl_high"),
        point(2048, "ppl", "context_gain"),
        point(512, "ppl", protocol="eval/nonoverlap"),
        point(2048, "ppl", protocol="eval/tail/ntk"),
    ]
    beside = {"eval/verdict@2048": "uses", "eval/extrapolation_factor": 4.0}
    with WandbBackend() as backend:
        track(tmp_path, mode="online", url=backend.url, curve=curve, summary=beside)
        run = only(backend)

    assert run.rows == [curve_row(*one) for one in curve]
    assert run.summary.items() >= beside.items()
    for prefix, length, values in curve:
        named = {f"{prefix}/{name}@{length}": value for name, value in values.items()}
        assert run.summary.items() >= named.items()


@pytest.mark.slow
def test_wandb_shows_a_picture_once_until_it_changes(tmp_path: Path) -> None:
    with WandbBackend() as backend:
        for picture in (png("gain"), png("later gain")):
            pictures = {"figures/curve": png("curve"), "figures/gain": picture}
            track(tmp_path, mode="online", url=backend.url, pictures=pictures)
        run = only(backend)

    shown = [(key, run.files[value["path"]]) for row in run.rows for key, value in row.items()]
    assert shown == [
        ("figures/curve", png("curve")),
        ("figures/gain", png("gain")),
        ("figures/gain", png("later gain")),
    ]
    for key, picture in shown[::2]:
        assert run.files[run.summary[key]["path"]] == picture


@pytest.mark.slow
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
    pictures = {"figures/curve": png("curve")}
    with WandbBackend() as backend:
        track(
            tmp_path,
            mode="online",
            url=backend.url,
            rows=train_rows(10, 20, 30),
            curve=[point(512, "ppl")],
            pictures=pictures,
        )
        (*rows, _) = only(backend).rows
    with WandbBackend() as backend:  # which could not tell what the other one has
        track(
            tmp_path,
            mode="online",
            url=backend.url,
            rows=train_rows(20, 30, 40),  # the checkpoint was that of step 10
            curve=[point(512, "ppl", "loss"), point(1024)],
            pictures=pictures,
        )
        later = only(backend)

    assert rows == [*train_rows(10, 20, 30), curve_row(*point(512, "ppl"))]
    (_, _, unknown) = point(512, "ppl", "loss")
    known = unknown.pop("ppl")
    assert later.rows == [
        *train_rows(40),
        curve_row("eval", 512, unknown),
        curve_row(*point(1024)),
    ]
    assert later.summary["eval/ppl@512"] == known


@pytest.mark.slow
def test_what_wandb_has_is_not_sent_again_though_the_run_forgot(tmp_path: Path) -> None:
    sent: dict[str, Any] = {"curve": [point(512)], "pictures": {"figures/curve": png("one")}}
    with WandbBackend() as backend:
        run_dir = track(
            tmp_path, mode="online", url=backend.url, rows=train_rows(10, 20), **sent
        ).run_dir
        before = list(only(backend).rows)
        (run_dir / "wandb.json").unlink()
        track(tmp_path, mode="online", url=backend.url, **sent)

        assert only(backend).rows == before


@pytest.mark.slow
def test_each_wandb_project_is_sent_everything_once(tmp_path: Path) -> None:
    for project in ("one", "two"):
        runtime = {"wandb_project": project}
        with WandbBackend() as backend:  # a new one: what was sent before cannot be seen there
            outcome = track(
                tmp_path, mode="online", url=backend.url, rows=train_rows(1), runtime=runtime
            )
            assert only(backend).rows == train_rows(1)
        (outcome.run_dir / "train.jsonl").unlink()

    for project in ("one", "two"):
        run = configuration({"root": str(tmp_path / "runs"), "wandb_project": project})
        assert load_sent(run, run.run_dir).step == 1


@pytest.mark.slow
def test_rows_from_before_wandb_was_on_are_shown_too(tmp_path: Path) -> None:
    track(tmp_path, mode="off", rows=train_rows(10, 20))
    with WandbBackend() as backend:
        track(tmp_path, mode="online", url=backend.url, rows=train_rows(30))
        rows = only(backend).rows

    assert rows == train_rows(10, 20, 30)


@pytest.mark.slow
def test_without_a_key_the_run_is_kept_offline_and_one_line_says_so(tmp_path: Path) -> None:
    outcome = track(tmp_path, mode="auto", key=None, rows=train_rows(1))

    (line,) = outcome.said
    assert line.startswith("W&B: no API key (`wandb login` stores one); offline")
    folder = Path(line.split("wandb sync ")[1])
    assert folder.parent == outcome.run_dir / "wandb"
    assert list(folder.glob("*.wandb"))
    assert outcome.printed == ""
    assert not outcome.has_children


@pytest.mark.slow
def test_a_mode_that_the_environment_sets_is_honoured_by_auto(tmp_path: Path) -> None:
    outcome = track(tmp_path, mode="auto", environment={"WANDB_MODE": "offline"})

    (line,) = outcome.said
    assert line.startswith("W&B: offline, to upload: wandb sync")


@pytest.mark.slow
def test_a_run_of_which_wandb_was_handed_everything_need_not_be_opened_again(
    tmp_path: Path,
) -> None:
    run = configuration({"root": str(tmp_path / "runs")})
    run_dir = track(tmp_path, mode="off", rows=train_rows(1)).run_dir
    append_rows(run_dir / "eval.jsonl", [{"length": 512}])
    assert not is_shown(run, run_dir)
    track(tmp_path, mode="offline", rows=train_rows(2))
    assert is_shown(run, run_dir)
    elsewhere = configuration({"root": str(tmp_path / "runs"), "wandb_project": "elsewhere"})
    assert not is_shown(elsewhere, run_dir)
    append_rows(run_dir / "eval.jsonl", [{"length": 1024}])
    assert not is_shown(run, run_dir)
    keep_rows(run_dir / "eval.jsonl", lambda row: row["length"] == 512)
    assert is_shown(run, run_dir)
    append_rows(run_dir / "train.jsonl", train_rows(3))
    assert not is_shown(run, run_dir)


@pytest.mark.parametrize("damage", ["", "[]", '{"lengthgen": {"run_id": 5}}', '{"lengthgen": {'])
def test_a_damaged_memory_of_what_was_sent_is_said_in_one_line(tmp_path: Path, damage: str) -> None:
    run = configuration({"root": str(tmp_path)})
    run.run_dir.mkdir()
    (run.run_dir / "wandb.json").write_text(damage)
    with pytest.raises(UserError, match=r"wandb\.json is damaged, .* track push .* --again"):
        load_sent(run, run.run_dir)
    assert not is_shown(run, run.run_dir)


def test_what_was_sent_of_another_run_is_not_taken_for_what_was_sent_of_this_one(
    tmp_path: Path,
) -> None:
    run, other = (configuration({"root": str(tmp_path)}, f"seed={n}") for n in (1, 2))
    for one in (run, other):
        one.run_dir.mkdir()
    save_sent(Sent(run_id=other.run_id, step=8), other, other.run_dir)
    shutil.copy(other.run_dir / "wandb.json", run.run_dir)
    with pytest.raises(
        UserError,
        match=f"is of run {other.run_id}, but config.yaml here of {run.run_id}, .*--again",
    ):
        load_sent(run, run.run_dir)
    assert not is_shown(run, run.run_dir)
    start_again(run, run.run_dir)
    assert load_sent(run, run.run_dir).step is None


@pytest.mark.slow
def test_a_damaged_memory_of_what_was_sent_never_stops_the_training(tmp_path: Path) -> None:
    run_dir = track(tmp_path, mode="off", rows=train_rows(1)).run_dir
    (run_dir / "wandb.json").write_text("{")
    outcome = track(tmp_path, mode="offline", rows=train_rows(2))
    (line,) = outcome.said
    assert "wandb.json is damaged" in line
    assert "it shows no more of this run" in line
    assert outcome.rows == train_rows(1, 2)


@pytest.mark.slow
def test_off_never_imports_wandb(tmp_path: Path) -> None:
    outcome = track(tmp_path, mode="off", rows=train_rows(1, 2), curve=[point(512)])

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
            tmp_path, mode="online", url=backend.url, rows=train_rows(1, 2), curve=[point(512)]
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
        outcome = track(tmp_path, mode="online", url=backend.url, rows=rows, curve=[point(512)])

    where, why = outcome.said
    assert where.startswith(f"W&B: {backend.url}")
    assert said in why
    assert "to upload the rest: wandb sync" in why
    assert outcome.rows == rows
    assert outcome.seconds < 60
    assert not outcome.has_children


@pytest.mark.slow
def test_a_wandb_service_that_dies_stops_nothing(tmp_path: Path) -> None:
    with WandbBackend() as backend:
        outcome = track(
            tmp_path, mode="online", url=backend.url, rows=train_rows(1, 2, 3), service_dies_at=1
        )

    assert len(outcome.said) == 2
    assert "it shows no more of this run" in outcome.said[1]
    assert outcome.rows == train_rows(1, 2, 3)
