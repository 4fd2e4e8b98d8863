"""What W&B is given of a run is what its rows say, and `track push` sends it once."""

import math
import os
from pathlib import Path
from statistics import stdev
from typing import Any

import commands
import pytest
from eval_rows import Row, cell, row
from filelock import FileLock
from shell import Shell
from small import small_config
from wandb_backend import KEY, StoredRun, WandbBackend

from lengthgen.config.schema import Config
from lengthgen.data.windows import position_bins
from lengthgen.errors import UserError
from lengthgen.files import append_rows
from lengthgen.runs import directory
from lengthgen.tracking.results import push, results
from lengthgen.tracking.wandb_state import Sent, digest, save_sent

AT_T = (20.0, 22.0, 24.0)  # nats of three documents of 8 targets
ALIKE: Row = {"length": 512, "train_length": 512}


def made(root: Path, rows: list[Row], *overrides: str, train_steps: int = 3) -> Config:
    """Returns the configuration of a run that holds these rows of its evaluation."""
    config = small_config("runtime.wandb=online", f"runtime.root={root}", *overrides)
    config.run_dir.mkdir(parents=True)
    directory.write_config(config, config.run_dir)
    append_rows(config.run_dir / "train.jsonl", train_rows(*range(1, train_steps + 1)))
    if rows:
        append_rows(config.run_dir / "eval.jsonl", [{**row, "run": config.run_id} for row in rows])
    return config


def train_rows(*steps: int) -> list[Row]:
    shared = {"train/tokens": 8192, "train/tokens_per_s": 1000.0}
    return [{"train/step": step, **shared, "train/loss": 6.5 / step} for step in steps]


def curve(**changes: Any) -> list[Row]:
    """Rows at T, 2T and 4T: 1 nat less in each document at 2T than at T, 2 nats more at 4T."""
    return [
        *cell(*AT_T, length=512, **changes),
        *cell(*(nats - 8 for nats in AT_T), length=1024, **changes),
        *cell(*(nats + 16 for nats in AT_T), length=2048, **changes),
    ]


def mean(*nats: float) -> float:
    return sum(nats) / (8 * len(nats))


def test_the_curve_carries_bounds_and_context_gain_under_the_headline_alone(tmp_path: Path) -> None:
    config = made(tmp_path, [*curve(), *curve(protocol="nonoverlap", targets=None)])
    got = {(point.prefix, point.length): point.values for point in results(config.run_dir).curve}

    assert set(got) == {
        (prefix, length) for prefix in ("eval", "eval/nonoverlap") for length in (512, 1024, 2048)
    }
    loss = mean(*AT_T)
    for (prefix, length), values in got.items():
        gain = {512: None, 1024: 1.0, 2048: -2.0}[length]
        at = loss - (gain or 0.0)
        assert values["loss"] == pytest.approx(at)
        assert values["ppl"] == pytest.approx(math.exp(at))
        assert values["bits_per_byte"] == pytest.approx(at / 2 / math.log(2))  # bytes of a token
        if prefix == "eval":
            # Three documents: Student's t with two degrees of freedom.
            half = 4.302653 * stdev(nats / 8 for nats in AT_T) / math.sqrt(3)
            assert values["ppl_low"] == pytest.approx(math.exp(at - half))
            assert values["ppl_high"] == pytest.approx(math.exp(at + half))
            assert values.get("context_gain") == (gain and pytest.approx(gain))
        else:
            assert set(values) == {"loss", "ppl", "bits_per_byte"}


def test_the_summary_says_the_verdicts_and_how_far_the_model_reaches(tmp_path: Path) -> None:
    config = made(tmp_path, [*curve(), *curve(variant="ntk")])
    said = results(config.run_dir).summary

    for prefix in ("eval", "eval/tail/ntk"):
        own = {key: value for key, value in said.items() if key.rpartition("/")[0] == prefix}
        assert own == {
            f"{prefix}/verdict@1024": "uses",
            f"{prefix}/verdict@2048": "harmed",
            f"{prefix}/peak_length": 1024,
            f"{prefix}/extrapolation_factor": 2.0,
            f"{prefix}/extrapolation_factor_text": "2",
            f"{prefix}/extrapolation_factor_loose": 2.0,
            f"{prefix}/extrapolation_factor_loose_text": "2",
        }


def test_a_curve_that_holds_to_the_end_says_that_its_reach_is_censored(tmp_path: Path) -> None:
    said = results(made(tmp_path, curve()[:6]).run_dir).summary
    assert said["eval/extrapolation_factor_text"] == ">= 2"


def test_one_document_has_no_bounds(tmp_path: Path) -> None:
    (point,) = results(made(tmp_path, cell(20.0, length=512)).run_dir).curve
    assert set(point.values) == {"loss", "ppl", "bits_per_byte"}


def test_skipped_unfinished_and_older_cells_are_not_shown(tmp_path: Path) -> None:
    skipped = row(
        length=1024, document=None, n_documents=0, n_tokens=0, nats=0.0, skipped="no such row"
    )
    older = cell(30.0, 30.0, length=512, tokens_seen=2048)
    unfinished = cell(20.0, 20.0, length=4096)[:1]
    other_format = [{**one, "format": 1} for one in cell(1.0, 1.0, length=8192)]
    config = made(
        tmp_path, [*older, *cell(20.0, 20.0, length=512), skipped, *unfinished, *other_format]
    )
    (point,) = results(config.run_dir).curve
    assert point.values["loss"] == pytest.approx(20 / 8)


def test_a_diverged_model_is_shown_as_infinite(tmp_path: Path) -> None:
    lost = cell(20.0, 20.0, length=1024)
    lost[0] |= {"nats": None, "window_nats": None}
    config = made(tmp_path, [*cell(20.0, 20.0, length=512), *lost])
    _, point = results(config.run_dir).curve
    assert point.values["ppl"] == math.inf
    assert point.values["ppl_high"] == math.inf


def test_a_run_without_evaluation_has_nothing_to_show(tmp_path: Path) -> None:
    found = results(made(tmp_path, []).run_dir)
    assert (found.curve, found.summary, found.pictures) == ([], {}, {})


def test_the_figures_of_what_was_evaluated_are_pictures(tmp_path: Path) -> None:
    of_T_alone = results(made(tmp_path / "T", curve()[:3]).run_dir).pictures
    assert set(of_T_alone) == {"figures/curve"}
    n_bins = len(position_bins(512, 1024))
    by_position = {"position_nats": [2.5] * n_bins, "position_tokens": [1] * n_bins}
    evaluated = [
        *curve(),
        *cell(20.0, length=1024, protocol="per_position", targets=None, **by_position),
    ]
    pictures = results(made(tmp_path / "all", evaluated).run_dir).pictures
    assert set(pictures) == {"figures/curve", "figures/context_gain", "figures/per_position"}
    assert {picture[:8] for picture in pictures.values()} == {b"\x89PNG\r\n\x1a\n"}
    assert len(set(pictures.values())) == 3


def refused(config: Config, *, again: bool = False) -> str:
    with pytest.raises(UserError) as caught:
        push(config, config.run_dir, again=again, say=lambda _: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_pushed_is_refused_before_wandb_is_asked(tmp_path: Path) -> None:
    off = made(tmp_path / "off", curve(), "runtime.wandb=off")
    assert "runtime.wandb=off" in refused(off)

    damaged = made(tmp_path / "damaged", curve())
    (damaged.run_dir / "wandb.json").write_text("{")
    assert "--again" in refused(damaged)

    broken = made(tmp_path / "broken", [{**row(), "nats": "x"}])
    assert "field nats is 'x'" in refused(broken)
    assert "field nats is 'x'" in refused(broken, again=True)

    busy = made(tmp_path / "busy", curve())
    with FileLock(busy.run_dir / ".train.lock"):
        assert "another process is at work on this run (train)" in refused(busy)
    for config in (off, broken, busy):
        assert not (config.run_dir / "wandb.json").exists()


def pushed(root: Path, url: str, *words: str, key: str | None = KEY) -> list[str]:
    """Runs `lengthgen track push` as a user would; returns the lines it says."""
    inherited = {name: value for name, value in os.environ.items() if "WANDB" not in name}
    env = {
        **inherited,
        "HOME": str(root),
        "NETRC": str(root / "netrc"),
        "WANDB_BASE_URL": url,
        "WANDB_ERROR_REPORTING": "false",
        **({} if key is None else {"WANDB_API_KEY": key}),
    }
    command = ["-m", "lengthgen", "track", "push", *words, f"runtime.root={root}"]
    done = commands.run(*command, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def expected(config: Config, *, steps: int) -> list[dict[str, Any]]:
    """Returns the rows that W&B should hold of a run, but for its pictures."""
    return [
        *train_rows(*range(1, steps + 1)),
        *(
            {
                f"{prefix}/T_valid": length,
                **{f"{prefix}/{name}": value for name, value in values.items()},
            }
            for prefix, length, values in results(config.run_dir).curve
        ),
    ]


def without_pictures(run: StoredRun) -> list[dict[str, Any]]:
    return [row for row in run.rows if not any(key.startswith("figures/") for key in row)]


@pytest.mark.slow
def test_a_push_sends_the_record_once_and_later_ones_what_is_new(tmp_path: Path) -> None:
    config = made(tmp_path, curve()[:6])
    run_id, run_dir = config.run_id, config.run_dir
    with WandbBackend() as backend:
        assert pushed(tmp_path, backend.url, run_id) == [
            f"W&B: {backend.url}/loopback/lengthgen/runs/{run_id}"
        ]
        first = backend.runs[run_id]
        assert without_pictures(first) == expected(config, steps=3)
        found = results(run_dir)
        assert first.summary.items() >= found.summary.items()
        for prefix, length, values in found.curve:
            for name, value in values.items():
                assert first.summary[f"{prefix}/{name}@{length}"] == value
        for key, png in found.pictures.items():
            assert first.files[first.summary[key]["path"]] == png
        assert first.variables["groupName"] == "rope"

        before = list(first.rows)
        said: list[str] = []
        push(config, run_dir, again=False, say=said.append)
        assert said == [f"W&B: has all of {run_id} already; --again sends it to a fresh W&B run"]

        append_rows(run_dir / "eval.jsonl", curve(run=run_dir.name)[6:])  # as `lengthgen eval` does
        append_rows(run_dir / "train.jsonl", train_rows(4))
        pushed(tmp_path, backend.url, run_id)
        new = first.rows[len(before) :]
        assert new[0] == train_rows(4)[0]
        assert new[1:2] == expected(config, steps=0)[2:]
        assert [list(row) for row in new[2:]] == [[key] for key in found.pictures]
        assert first.summary["eval/verdict@2048"] == "harmed"
        assert first.summary["eval/extrapolation_factor_text"] == "2"


@pytest.mark.slow
def test_again_sends_everything_to_a_fresh_wandb_run_that_later_rows_go_to(
    tmp_path: Path,
) -> None:
    config = made(tmp_path, curve())
    (config.run_dir / "wandb.json").write_text("{")  # so what W&B has is not known
    with WandbBackend() as backend:
        pushed(tmp_path, backend.url, config.run_id, "--again")
        ((run_id, run),) = backend.runs.items()
        assert without_pictures(run) == expected(config, steps=3)
        append_rows(config.run_dir / "train.jsonl", train_rows(4))
        pushed(tmp_path, backend.url, config.run_id)
        assert list(backend.runs) == [run_id]
        assert run.rows[-1] == train_rows(4)[0]
        assert run_id != config.run_id
        assert run_id.startswith(f"{config.run_id}-")


@pytest.mark.slow
def test_several_runs_are_pushed_each_to_its_own(tmp_path: Path) -> None:
    configs = [made(tmp_path, curve(), f"seed={seed}") for seed in (1, 2)]
    with WandbBackend() as backend:
        lines = pushed(tmp_path, backend.url, *(config.run_id for config in configs))
        assert len(lines) == 2
        for config in configs:
            assert without_pictures(backend.runs[config.run_id]) == expected(config, steps=3)


def test_a_run_that_cannot_be_sent_is_named_and_stops_no_other(
    tmp_path: Path, shell: Shell
) -> None:
    bad, good = (made(tmp_path, curve(), f"seed={seed}") for seed in (1, 2))
    sent = Sent(run_id=good.run_id, step=3, evaluation=digest(good.run_dir))
    save_sent(sent, good, good.run_dir)
    (bad.run_dir / "eval.jsonl").write_text("{\n")
    words = ["track", "push", f"runtime.root={tmp_path}"]
    ran = shell.run(*words, bad.run_id, good.run_id)
    assert ran.code == 1
    assert (
        ran.out == f"W&B: has all of {good.run_id} already; --again sends it to a fresh W&B run\n"
    )
    assert ran.err.startswith(f"{bad.run_id} is not sent: {bad.run_dir / 'eval.jsonl'}:1: damaged")
    assert ran.err.count("\n") == 1
    assert "eval.jsonl:1: damaged row" in shell.refused(*words, bad.run_id)


@pytest.mark.slow
def test_a_push_ends_offline_without_a_key_and_the_next_names_what_is_not_uploaded(
    tmp_path: Path,
) -> None:
    config = made(tmp_path, curve())
    (line,) = pushed(tmp_path, "http://127.0.0.1:9", config.run_id, key=None)
    (folder,) = (config.run_dir / "wandb").glob("offline-run-*")
    assert line.endswith(f"; offline, to upload: wandb sync {folder}")
    said: list[str] = []
    push(config, config.run_dir, again=False, say=said.append)
    assert f"offline, to upload: wandb sync {folder}; --again" in said[0]

    append_rows(config.run_dir / "train.jsonl", train_rows(4))
    with WandbBackend() as backend:
        (line,) = pushed(tmp_path, backend.url, config.run_id)
        assert backend.runs[config.run_id].rows == train_rows(4)
    assert line.endswith(f"earlier parts are offline, to upload: wandb sync {folder}")

    (folder / "run.wandb.synced").touch()  # as `wandb sync` does
    push(config, config.run_dir, again=False, say=said.append)
    assert "offline" not in said[1]
