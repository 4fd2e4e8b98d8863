"""A search by Optuna: its space, what is measured, and how it continues."""

import math
from pathlib import Path
from typing import Any

import pytest
from commands import Shell
from slurm_cluster import begun
from small import MEASURED_AT_T, refusal, smaller

from lengthgen.config import conf
from lengthgen.config.overrides import search_axes
from lengthgen.runs.status import Status
from lengthgen.sweep import grid, tuning
from lengthgen.sweep.grid import Point
from lengthgen.sweep.search import search
from lengthgen.sweep.states import PointState

SPACE = ["train.lr=tag(log,interval(1e-4,1e-1))", "model.n_heads=2,4", "seed=int(interval(1,3))"]


def test_choices_ranges_and_intervals_are_axes() -> None:
    words = [*SPACE, "train.batch_tokens=range(64,257,64)", "scheme=glob(rope*)", "model.d_ff=64"]
    fixed, axes = search_axes(words, config_dir=None)
    assert fixed == ["model.d_ff=64"]
    assert axes[0] == ("train.lr", [], 1e-4, 1e-1, True)
    assert axes[2] == ("seed", [], 1, 3, False)
    values = {axis.key: axis.values for axis in axes}
    assert values["model.n_heads"] == ["2", "4"]
    assert values["train.batch_tokens"] == ["64", "128", "192", "256"]
    assert (
        {"rope", "rope_conv"} <= {*values["scheme"]} <= {*conf.choices("scheme", config_dir=None)}
    )


class Runs:
    """Runs whose loss is least at train.lr=1e-2, and that are counted; those of 2 heads diverge."""

    def __init__(self) -> None:
        self.given: list[Point] = []

    def __call__(self, points: list[Point]) -> dict[str, PointState]:
        self.given += points
        return {p.run_id: PointState("done" if _heads(p) == 4 else "diverged") for p in points}


def _heads(point: Point) -> int:
    return point.config.model.n_heads


def _loss(point: Point) -> float:
    return abs(math.log10(point.config.train.lr) + 2)


@pytest.mark.slow
def test_a_search_nears_the_least_loss_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "loss_at_t", _loss)
    given: dict[str, Any] = {"jobs": 2, "config_dir": None, "plugins": [], "say": print}
    first, longer = Runs(), Runs()
    words = smaller(*SPACE, f"runtime.root={tmp_path}", usual=MEASURED_AT_T)
    trials = search(words, 6, run=first, **given)
    assert len(trials) == 6
    assert {_heads(t.point) for t in trials if t.loss == math.inf} == {2}
    assert {p.config.corpus.held_out for p in first.given} == {"tuning"}
    assert {tuple(p.config.eval.lengths) for p in first.given} == {(16,)}
    more = search(words, 20, run=longer, **given)
    assert [p.run_id for p in longer.given[:6]] == [p.run_id for p in first.given]
    assert more[0].loss == min(trial.loss for trial in more) < 0.2
    chosen = [_heads(point) for point in longer.given[10:]]  # behind the random ones
    assert chosen.count(4) > chosen.count(2)


@pytest.mark.parametrize(
    ("axes", "n_points"),
    [
        (["train.lr=1e-3,2e-3,4e-3,8e-3"], 4),
        (["train.lr=1e-2,0.01,1e-3,2e-3,1e-3"], 3),  # a value twice
        (["train.lr=1e-3,2e-3", "seed=int(interval(1,3))"], 6),
        (["train.batch_tokens=range(64,193,64)", "scheme=rope,nope"], 6),
        (["train.lr=interval(1e-3,1e-3)"], 1),
        (
            ["train.lr=interval(1e-3,0.0010000000000000002)"],
            1,
        ),  # of two floats the end is not drawn
        (["scheme=rope,t5", "train.scheme_lr_ratio=null,1,16"], 3),  # RoPE has no parameters
        (["model.d_head=null,8", "eval.targets=4,8"], 1),  # of one training
    ],
)
def test_a_search_tries_each_point_once_and_all_before_it_ends(
    axes: list[str], n_points: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "loss_at_t", _loss)
    words = smaller(*axes, f"runtime.root={tmp_path}", "model.n_heads=4", usual=MEASURED_AT_T)
    for n in (n_points - 1, n_points + 9):
        given: dict[str, Any] = {"jobs": 1, "config_dir": None, "plugins": [], "say": print}
        trials = search(words, n, run=Runs(), **given)
        assert len({t.point.run_id for t in trials}) == len(trials) == min(n, n_points)


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        ("train.lr=interval(-1,1)", "train.lr: -1"),
        ("train.lr=interval(1e-3,inf)", "train.lr: inf"),
        ("train.lr=interval(nan,1)", "train.lr: nan"),
        ("model.d_model=32,64,96,33", "model.d_model=33 is not a multiple"),
    ],
)
def test_a_search_is_refused_before_its_first_run(axis: str, said: str, tmp_path: Path) -> None:
    words = smaller(axis, "seed=1,2", f"runtime.root={tmp_path}", usual=MEASURED_AT_T)
    runs, about = Runs(), {"jobs": 1, "config_dir": None, "plugins": [], "say": print}
    assert said in refusal(search, words, 2, run=runs, **about)
    assert not runs.given


def test_a_search_whose_points_all_diverged_has_no_best_one(shell: Shell) -> None:
    words = smaller(f"runtime.root={Path.cwd()}/runs", usual=MEASURED_AT_T)
    rates = ["train.lr=1,2", *tuning.on_tuning_split(words, say=print)]
    for point in grid.points(rates, config_dir=None, plugins=[]):
        begun(point, Status("diverged", reason="the loss is nan"))
    ran = shell.run("sweep", *words, "train.lr=1,2", "--search", "2")
    assert ran.error.startswith("--search: no point has a finite loss at T; lower train.lr")
