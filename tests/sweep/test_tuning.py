"""Tuning: the split that it is measured on, the rate that it chooses, and who takes that."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Shell
from frames import eval_row
from small import MEASURED_AT_T, refusal, small_config, smaller

from lengthgen.config import conf
from lengthgen.config.drafts import from_stored
from lengthgen.config.schema import to_plain
from lengthgen.files import write_rows
from lengthgen.runs import status
from lengthgen.runs.status import Status
from lengthgen.sweep import tuning
from lengthgen.sweep.grid import Point

T = 16
RATES = "train.lr=1e-3,2e-3,4e-3"


def grid(out: Path, *words: str) -> list[Point]:
    return tuning.tuning_points(
        smaller(*words, usual=MEASURED_AT_T), out=out, config_dir=None, plugins=[], say=print
    )


# By scheme and rate, or rate and ratio: the loss of each seed at T; one that is missing diverged.
Losses = Mapping[str, Mapping[float | tuple[float, float], Sequence[float]]]


def chosen(out: Path, losses: Losses, *words: str) -> dict[str, Any]:
    """Returns the rates that are chosen where points have such losses."""
    points = grid(out, *words)
    for point in points:
        c = point.config
        own = losses.get(c.scheme.name, {})
        repeats = own.get(c.train.lr) or own.get((c.train.lr, c.scheme_lr_ratio), [])
        point.run_dir.mkdir(parents=True, exist_ok=True)
        write_rows(point.run_dir / "env.json", [{"run": point.run_id, "fingerprint": "f" * 64}])
        if c.seed > len(repeats):
            status.write_status(point.run_dir, Status("diverged"), run=point.run_id)
            continue
        about: dict[str, Any] = {"run": c.run_id, "seed": c.seed, "train_length": T}
        about |= c.eval.model_dump(include={"targets", "precision"})
        rows = [
            eval_row(c.scheme.name, nats, length=length, document=name, **about)
            | {"protocol": c.eval.protocols[0]}
            for length, nats in ((T, repeats[c.seed - 1]), (2 * T, 9 - repeats[c.seed - 1]))
            for name in "ab"
        ]
        (point.run_dir / "eval.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    tuning.write_rates(points, out)
    return conf.read_yaml(out / "tuned.yaml")


CHOICES: dict[str, tuple[Losses, dict[str, tuple[float, float | None]], list[str]]] = {
    # a grid: its losses, the rate and ratio that each scheme gets, and what the table has of it
    f"scheme=rope,nope {RATES} seed=1,2": (
        {
            "rope": {1e-3: (3.0, 3.2), 2e-3: (2.9, 3.4), 4e-3: (3.3, 3.0)},
            "nope": {1e-3: (4.0, 4.0), 2e-3: (3.9, 3.7), 4e-3: (3.9, 3.8)},
        },
        {"rope": (1e-3, None), "nope": (2e-3, None)},
        ["**3.1000**", "3.1500", "**3.8000**", "so extend it: rope (train.lr=0.001)."],
    ),
    "scheme=kerple train.lr=1e-3 train.scheme_lr_ratio=1,4": (
        {"kerple": {(1e-3, 1): [3.0], (1e-3, 4): [2.9]}},
        {"kerple": (1e-3, 4.0)},
        ["so extend it: kerple (train.scheme_lr_ratio=4)."],  # the rate was not varied
    ),
    "scheme=rope train.lr=1e-3,2e-3 seed=1,2": (  # one that diverged with a seed is not chosen
        {"rope": {1e-3: (3.0, 3.0), 2e-3: [1.0]}},
        {"rope": (1e-3, None)},
        ["**3.0000**", "diverged"],
    ),
    "scheme=rope,t5 train.lr=1e-3,2e-3 train.scheme_lr_ratio=1,16": (
        {
            "rope": {1e-3: [3.0], 2e-3: [3.1]},  # whose ratio is the rate of nothing
            "t5": {(1e-3, 1): [4.0], (1e-3, 16): [3.2], (2e-3, 1): [3.9], (2e-3, 16): [3.1]},
        },
        {"rope": (1e-3, None), "t5": (2e-3, 16.0)},
        [],
    ),
    f"scheme=t5 model.arch=encoder_decoder {RATES}": (
        {"t5": {1e-3: [3.1], 2e-3: [3.0], 4e-3: [3.2]}}, {"t5": (2e-3, 16.0)}, []
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", CHOICES)
def test_the_rate_of_least_mean_loss_at_t_over_seeds_is_chosen(words: str, tmp_path: Path) -> None:
    losses, want, shown = CHOICES[words]
    rates = chosen(tmp_path / "not" / "there", losses, *words.split())
    assert {name: (got["lr"], got["scheme_lr_ratio"]) for name, got in rates.items()} == want
    for name, got in rates.items():
        held = [[x for x in trial["losses"] if x is not None] for trial in got["grid"]]
        assert held == [[*of_seeds] for of_seeds in losses[name].values()]
        assert got["length"] == T
    table = (tmp_path / "not/there/table.md").read_text()
    assert all(text in table for text in shown), table


def test_rates_of_other_schemes_stay_also_beside_schemes_that_diverged(tmp_path: Path) -> None:
    losses: Losses = {"nope": {1e-3: [3.0], 2e-3: [3.1]}, "rope": {1e-3: [3.2], 2e-3: [3.0]}}
    words = ["scheme=alibi,nope", "train.lr=1e-3,2e-3"]
    said = refusal(chosen, tmp_path, {}, *words)
    assert said.startswith("scheme=alibi,nope: every rate of the grid diverged; give lower")
    assert not (tmp_path / "tuned.yaml").exists()
    assert refusal(chosen, tmp_path, losses, *words).startswith("scheme=alibi: every rate")
    rates = chosen(tmp_path, losses, "scheme=rope", words[1])
    assert {name: got["lr"] for name, got in rates.items()} == {"nope": 1e-3, "rope": 2e-3}
    assert "nope" in (tmp_path / "table.md").read_text()


def test_rates_that_a_user_wrote_stay_and_wrong_ones_are_refused_before_a_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "tuned.yaml").write_text("alibi: {lr: 0.01}")
    losses: Losses = {"rope": {1e-3: [3.2], 2e-3: [3.0]}}
    rates = chosen(tmp_path, losses, "scheme=rope", "train.lr=1e-3,2e-3")
    assert (rates["alibi"], rates["rope"]["lr"]) == ({"lr": 0.01}, 2e-3)
    taken = small_config("scheme=alibi", f"train.tuned={tmp_path}/tuned.yaml")
    assert taken.train.lr == 0.01
    (tmp_path / "tuned.yaml").write_text("alibi: fast")
    said = refusal(grid, tmp_path, "scheme=rope", "train.lr=1e-3,2e-3")
    assert said.startswith(f"{tmp_path}/tuned.yaml: alibi: ")


def test_the_loss_at_t_is_of_the_targets_that_are_asked_for(tmp_path: Path) -> None:
    words = ["scheme=rope", "train.lr=1e-2,4e-3"]
    chosen(tmp_path, {"rope": {1e-2: [3.0], 4e-3: [3.0]}}, *words)
    losses = [tuning.loss_at_t(grid(tmp_path, *words, n)[0]) for n in ("eval.targets=3", "seed=1")]
    assert losses == [math.inf, 3.0]  # of the former nothing is measured


def test_only_the_loss_at_t_is_measured_and_any_folder_is_taken(tmp_path: Path) -> None:
    point = grid(tmp_path / "it's a\\b", "scheme=rope", RATES, "train.length=8")[0]
    wanted = point.config.eval
    assert (wanted.lengths, wanted.max_context, wanted.protocols) == ([8], 8, ["tail"])
    assert (wanted.variants, wanted.reference_variants) == ([], [])
    assert point.config.corpus.held_out == "tuning"
    assert point.run_dir.parent == tmp_path / "it's a\\b/runs"


def test_what_training_shares_and_a_choice_sets_itself_is_left_out_and_named() -> None:
    said, shared = list[str](), ["eval.lengths=[16]", "train.tuned=a.yaml", "eval.max_context=8"]
    words = tuning.on_tuning_split(["seed=1", *shared, "eval.targets=4"], say=said.append)
    assert len(said) == 1
    assert all(word in said[0] and word not in words for word in shared)
    assert {"seed=1", "eval.targets=4"} <= {*words}
    assert "eval=quick" in tuning.on_tuning_split(["eval=quick"], say=said.append)
    assert len(said) == 2


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
