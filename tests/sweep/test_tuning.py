"""Tuning: the split that it is measured on, the rate that it chooses, and who takes that."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Shell
from frames import eval_row
from small import MEASURED_AT_T, refusal, small_config, smaller

from lengthgen.config import compose
from lengthgen.config.schema import from_stored, to_plain
from lengthgen.files import write_rows
from lengthgen.runs import status
from lengthgen.runs.status import Status
from lengthgen.sweep import tuning
from lengthgen.sweep.grid import Point

T = 16
RATES = "train.lr=1e-3,2e-3,4e-3"


def grid(out: Path, *words: str) -> list[Point]:
    return tuning.tuning_points(
        smaller(*words, usual=MEASURED_AT_T), out=out, config_dir=None, plugins=[]
    )


Losses = Mapping[tuple[str, float, float | None, int], float]  # by scheme, rate, ratio and seed


def chosen(out: Path, losses: Losses, *words: str, **of_rows: str) -> dict[str, Any]:
    """Returns the rates that are chosen where points have such losses; the others diverged."""
    points = grid(out, *words)
    for point in points:
        c = point.config
        keys = [(c.scheme.name, c.train.lr, r, c.seed) for r in (None, c.scheme_lr_ratio)]
        loss = next((losses[key] for key in keys if key in losses), None)
        point.run_dir.mkdir(parents=True, exist_ok=True)
        begun = {"run": point.run_id, "fingerprint": of_rows.get("fingerprint", "f" * 64)}
        write_rows(point.run_dir / "env.json", [begun])
        if loss is None:
            status.write_status(point.run_dir, Status("diverged"), run=point.run_id)
            continue
        about: dict[str, Any] = {"run": c.run_id, "seed": c.seed, "train_length": T, **of_rows}
        about |= c.eval.model_dump(include={"targets", "precision"})
        rows = [
            eval_row(c.scheme.name, nats, length=length, document=name, **about)
            for length, nats in ((T, loss), (2 * T, 9 - loss))
            for name in "ab"
        ]
        (point.run_dir / "eval.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    tuning.write_rates(points, out)
    return compose.read_yaml(out / "tuned.yaml")


@pytest.mark.slow
def test_the_rate_of_least_mean_loss_at_t_over_seeds_is_chosen(tmp_path: Path) -> None:
    by_point = {
        "rope": {1e-3: (3.0, 3.2), 2e-3: (2.9, 3.4), 4e-3: (3.3, 3.0)},
        "nope": {1e-3: (4.0, 4.0), 2e-3: (3.9, 3.7), 4e-3: (3.9, 3.8)},
    }
    losses: Losses = {
        (name, lr, None, seed): loss
        for name, rates in by_point.items()
        for lr, repeats in rates.items()
        for seed, loss in zip((1, 2), repeats, strict=True)
    }
    rates = chosen(tmp_path, losses, "scheme=rope,nope", RATES, "seed=1,2")
    found = {name: (tuned["lr"], tuned["scheme_lr_ratio"]) for name, tuned in rates.items()}
    assert found == {"rope": (1e-3, None), "nope": (2e-3, None)}
    losses_of = [tuple(trial["losses"]) for trial in rates["rope"]["grid"]]
    assert losses_of == [*by_point["rope"].values()]
    assert (rates["rope"]["seeds"], rates["rope"]["length"]) == ([1, 2], T)
    table = (tmp_path / "table.md").read_text()
    shown = [line.split()[-2] for line in table.splitlines() if line.startswith("| rope")]
    assert shown == ["**3.1000**", "3.1500", "3.1500"]
    assert "At the edge of the grid, so extend it: rope (train.lr=0.001)." in table


def test_a_rate_that_was_not_varied_is_at_no_edge(tmp_path: Path) -> None:
    losses: Losses = {("kerple", 1e-3, 1.0, 1): 3.0, ("kerple", 1e-3, 4.0, 1): 2.9}
    out = tmp_path / "not" / "there"
    root = f"runtime.root={tmp_path}"
    chosen(out, losses, "scheme=kerple", "train.lr=1e-3", "train.scheme_lr_ratio=1,4", root)
    table = (out / "table.md").read_text()
    assert "At the edge of the grid, so extend it: kerple (train.scheme_lr_ratio=4)." in table


def test_a_rate_that_diverged_with_one_seed_is_not_chosen(tmp_path: Path) -> None:
    keys = [("rope", 1e-3, None, 1), ("rope", 1e-3, None, 2), ("rope", 2e-3, None, 1)]
    losses: Losses = dict(zip(keys, (3.0, 3.0, 1.0), strict=True))
    words = ["scheme=rope", "train.lr=1e-3,2e-3", "seed=1,2"]
    said = refusal(chosen, tmp_path, {}, *words)
    assert said.startswith("scheme=rope: every rate of the grid diverged; give lower")
    assert not (tmp_path / "tuned.yaml").exists()
    assert chosen(tmp_path, losses, *words)["rope"]["lr"] == 1e-3
    table = (tmp_path / "table.md").read_text()
    assert re.findall(r"^\| rope .* (\S+) \|$", table, re.MULTILINE) == ["**3.0000**", "diverged"]


@pytest.mark.slow
def test_a_ratio_is_tried_and_chosen_where_a_scheme_has_parameters_alone(tmp_path: Path) -> None:
    words = ["scheme=rope,t5", "train.lr=1e-3,2e-3", "train.scheme_lr_ratio=1,16"]
    names = [point.config.scheme.name for point in grid(tmp_path, *words)]
    assert names == ["rope"] * 2 + ["t5"] * 4
    losses: dict[tuple[str, float, float | None, int], float] = {}
    for lr in (1e-3, 2e-3):
        losses["rope", lr, None, 1] = 3 + lr
        for ratio in (1.0, 16.0):
            losses["t5", lr, ratio, 1] = 3 + abs(lr - 2e-3) + abs(ratio - 16) / 16
    rates = chosen(tmp_path, losses, *words)
    assert (rates["rope"]["lr"], rates["rope"]["scheme_lr_ratio"]) == (1e-3, None)
    assert (rates["t5"]["lr"], rates["t5"]["scheme_lr_ratio"]) == (2e-3, 16.0)


def test_rates_of_other_schemes_stay_in_the_file(tmp_path: Path) -> None:
    rates: dict[str, Any] = {}
    for name, best in (("rope", 1e-3), ("nope", 4e-3)):
        losses: Losses = {(name, lr, None, 1): 3 + abs(lr - best) for lr in (1e-3, 2e-3, 4e-3)}
        rates = chosen(tmp_path, losses, f"scheme={name}", RATES)
    assert {name: tuned["lr"] for name, tuned in rates.items()} == {"rope": 1e-3, "nope": 4e-3}


def test_the_loss_at_t_is_of_the_targets_that_are_asked_for(tmp_path: Path) -> None:
    losses: Losses = {("rope", lr, None, 1): 3.0 for lr in (1e-2, 4e-3)}
    chosen(tmp_path, losses, "scheme=rope", "train.lr=1e-2,4e-3")
    [few, _] = grid(tmp_path, "scheme=rope", "train.lr=1e-2,4e-3", "eval.targets=3")
    assert tuning.loss_at_t(few) == math.inf  # nothing is measured
    [same, _] = grid(tmp_path, "scheme=rope", "train.lr=1e-2,4e-3")
    assert tuning.loss_at_t(same) == 3.0


def test_schemes_without_a_rate_leave_those_of_others(tmp_path: Path) -> None:
    losses: Losses = {("nope", lr, None, 1): 3.0 for lr in (1e-3, 2e-3)}
    words = ["scheme=rope,alibi,nope", "train.lr=1e-3,2e-3"]
    assert refusal(chosen, tmp_path, losses, *words).startswith("scheme=rope,alibi: every rate")
    assert [*compose.read_yaml(tmp_path / "tuned.yaml")] == ["nope"]
    assert "nope" in (tmp_path / "table.md").read_text()


def test_encoder_decoders_are_tuned_by_the_loss_of_masked_spans_at_t(tmp_path: Path) -> None:
    losses: Losses = {("t5", lr, None, 1): 3 + abs(lr - 2e-3) for lr in (1e-3, 2e-3, 4e-3)}
    words = ["scheme=t5", "model.arch=encoder_decoder", RATES]
    rates = chosen(tmp_path, losses, *words, protocol="spans")["t5"]
    assert (rates["lr"], rates["model"], rates["length"]) == (2e-3, "tiny_encoder_decoder", T)


def test_only_the_loss_at_t_is_measured_and_any_folder_is_taken(tmp_path: Path) -> None:
    point = grid(tmp_path / "it's a\\b", "scheme=rope", RATES, "train.length=8")[0]
    wanted = point.config.eval
    assert (wanted.lengths, wanted.max_context, wanted.protocols) == ([8], 8, ["tail"])
    assert (wanted.variants, wanted.reference_variants) == ([], [])
    assert point.config.corpus.held_out == "tuning"
    assert point.run_dir.parent == tmp_path / "it's a\\b/runs"


ENTRY: dict[str, Any] = {
    **{"lr": 0.002, "scheme_lr_ratio": None, "model": "tiny", "corpus": "stdlib"},
    **{"fingerprint": "0123456789ab", "length": 512, "tokens": 1000, "batch_tokens": 100},
    **{"seeds": [1], "grid": [{"lr": 0.002, "scheme_lr_ratio": None, "losses": [3.5]}]},
}


def tuned_yaml(folder: Path, **entries: object) -> str:
    path = folder / "tuned.yaml"
    path.write_text(yaml.safe_dump(entries or {"rope": ENTRY}))
    return f"train.tuned={path}"


def test_each_scheme_takes_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {**ENTRY, "lr": 0.008, "scheme_lr_ratio": 16.0}
    tuned_yaml(tmp_path, rope=ENTRY, t5=other)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = "train.tuned='~/tuned.yaml'"
    rope, t5 = (small_config(f"scheme={name}", path) for name in ("rope", "t5"))
    assert (rope.train.lr, rope.train.scheme_lr_ratio) == (0.002, None)
    assert (t5.train.lr, t5.train.scheme_lr_ratio) == (0.008, 16.0)
    assert rope.run_id == small_config("scheme=rope", "train.lr=2e-3").run_id
    assert rope.train.tuned == tmp_path / "tuned.yaml"
    assert from_stored(to_plain(rope)) == rope


@pytest.mark.parametrize(
    ("words", "content", "said"),
    [
        (["scheme=alibi"], None, "has no rate for scheme alibi, only for rope; run lengthgen tune"),
        (["train.lr=1e-3"], None, "train.lr: train.tuned="),
        (["train.scheme_lr_ratio=2"], None, "sets it for each scheme; drop one of them"),
        ([], "rope: {lr: fast}", "tuned.yaml: rope.lr: 'fast' should be a valid number"),
    ],
)
def test_rates_that_cannot_be_taken_are_one_line(
    shell: Shell, tmp_path: Path, words: list[str], content: str | None, said: str
) -> None:
    path = tuned_yaml(tmp_path)
    if content is not None:
        (tmp_path / "tuned.yaml").write_text(content)
    assert said in shell.refused("sweep", "scheme=rope", path, *words)
