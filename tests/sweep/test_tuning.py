"""Tuning: the split that it is measured on, the rate that it chooses, and who takes that."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import commands
import pytest
import yaml
from eval_rows import row
from shell import Shell
from small import SMALL, small_config
from small_corpora import write
from trained import one_thread_each

from lengthgen.config import tuned_rates
from lengthgen.config.schema import from_plain, to_plain
from lengthgen.errors import UserError
from lengthgen.runs import directory, status
from lengthgen.runs.status import Status
from lengthgen.sweep import tuning
from lengthgen.sweep.grid import Point

SET_BY_TUNE = ("eval.lengths", "eval.reach", "eval.reference_variants")
WORDS = [word for word in SMALL if not word.startswith(SET_BY_TUNE)]
T = 16
GRID = ["train.lr=1e-3,2e-3,4e-3"]


# The tuning split


# The grid


def grid(out: Path, *words: str) -> list[Point]:
    return tuning.points([*WORDS, *words], out=out, config_dir=None, plugins=[])


Losses = Mapping[tuple[str, float, float | None, int], float]


def evaluated(found: list[Point], losses: Losses, **of_rows: str) -> None:
    """Writes an evaluation of every point with such a loss; the others have diverged."""
    for point in found:
        c = point.config
        ratios = (None, c.scheme_lr_ratio)
        known = [losses.get((c.scheme.name, c.train.lr, ratio, c.seed)) for ratio in ratios]
        loss = next((one for one in known if one is not None), None)
        point.run_dir.mkdir(parents=True, exist_ok=True)
        if loss is None:
            status.write(point.run_dir, Status("diverged"), run=point.run_id)
            continue
        about = {"run": c.run_id, "seed": c.seed, "scheme": c.scheme.name, "train_length": T}
        rows = [
            row(**about, length=length, document=name, nats=8 * nats, **of_rows)
            for length, nats in ((T, loss), (2 * T, 9 - loss))
            for name in "ab"
        ]
        (point.run_dir / "eval.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))


def chosen_into(out: Path, found: list[Point]) -> None:
    tuning.write(tuning.measured(found, say=print), out)


def test_the_rate_of_least_mean_loss_at_t_over_seeds_is_chosen(tmp_path: Path) -> None:
    found = grid(tmp_path, "scheme=rope,nope", "train.lr=1e-3,2e-3,4e-3", "seed=1,2")
    by_point = {
        "rope": {1e-3: (3.0, 3.2), 2e-3: (2.9, 3.4), 4e-3: (3.3, 3.0)},
        "nope": {1e-3: (4.0, 4.0), 2e-3: (3.9, 3.7), 4e-3: (3.9, 3.8)},
    }
    evaluated(
        found,
        {
            (name, lr, None, seed): loss
            for name, of in by_point.items()
            for lr, losses in of.items()
            for seed, loss in zip((1, 2), losses, strict=True)
        },
    )
    chosen_into(tmp_path, found)
    chosen = tuned_rates.read(tmp_path / "tuned.yaml")
    assert {name: (one.lr, one.scheme_lr_ratio) for name, one in chosen.items()} == {
        "rope": (1e-3, None),
        "nope": (2e-3, None),
    }
    assert [trial.losses for trial in chosen["rope"].grid] == [[3.0, 3.2], [2.9, 3.4], [3.3, 3.0]]
    assert (chosen["rope"].seeds, chosen["rope"].length) == ([1, 2], T)
    table = (tmp_path / "table.md").read_text()
    assert "| rope   | **3.1000** |     3.1500 | 3.1500 |" in table
    assert "| nope   |     4.0000 | **3.8000** | 3.8500 |" in table
    assert "at the edge of the grid, so extend it: rope (train.lr=0.001)." in table


def test_a_rate_that_was_not_varied_is_at_no_edge(tmp_path: Path) -> None:
    found = grid(tmp_path, "scheme=kerple", "train.lr=1e-3", "train.scheme_lr_ratio=1,4", "seed=1")
    evaluated(found, {("kerple", 1e-3, 1.0, 1): 3.0, ("kerple", 1e-3, 4.0, 1): 2.9})
    chosen_into(tmp_path, found)
    table = (tmp_path / "table.md").read_text()
    assert "at the edge of the grid, so extend it: kerple (train.scheme_lr_ratio=4)." in table


def test_a_rate_that_diverged_with_one_seed_is_not_chosen(tmp_path: Path) -> None:
    found = grid(tmp_path, "scheme=rope", "train.lr=1e-3,2e-3", "seed=1,2")
    known: Losses = {
        ("rope", 1e-3, None, 1): 3.0,
        ("rope", 1e-3, None, 2): 3.0,
        ("rope", 2e-3, None, 1): 1,
    }
    evaluated(found, known)
    chosen_into(tmp_path, found)
    assert tuned_rates.read(tmp_path / "tuned.yaml")["rope"].lr == 1e-3
    assert "| rope   | **3.0000** | diverged |" in (tmp_path / "table.md").read_text()


def test_a_scheme_whose_every_rate_diverged_is_named(tmp_path: Path) -> None:
    found = grid(tmp_path, "scheme=rope", *GRID)
    evaluated(found, {})
    with pytest.raises(UserError, match="scheme=rope: every rate of the grid diverged; give lower"):
        chosen_into(tmp_path, found)
    assert not (tmp_path / "tuned.yaml").exists()


def test_a_run_that_cannot_be_read_leaves_only_its_scheme_untuned(tmp_path: Path) -> None:
    found = grid(tmp_path, "scheme=rope,nope", *GRID)
    losses: Losses = {
        (name, lr, None, 1): 3 + lr for name in ("rope", "nope") for lr in (1e-3, 2e-3, 4e-3)
    }
    evaluated(found, losses)
    (found[0].run_dir / "eval.jsonl").write_text("")
    lines: list[str] = []
    measured = tuning.measured(found, say=lines.append)
    assert {point.config.scheme.name for point, _ in measured} == {"nope"}
    assert len(lines) == 1
    assert lines[0].startswith(f"scheme=rope is not tuned: no evaluation in {found[0].run_dir}")
    with pytest.raises(UserError, match="no evaluation in"):
        tuning.measured(found[:3], say=print)


def test_a_ratio_is_chosen_where_a_scheme_has_parameters_and_tried_nowhere_else(
    tmp_path: Path,
) -> None:
    words = ["scheme=rope,t5", "train.lr=1e-3,2e-3,4e-3", "train.scheme_lr_ratio=1,4,16"]
    found = grid(tmp_path, *words)
    assert [point.config.scheme.name for point in found] == ["rope"] * 3 + ["t5"] * 9
    losses: dict[tuple[str, float, float | None, int], float] = {}
    for lr in (1e-3, 2e-3, 4e-3):
        losses["rope", lr, None, 1] = 3 + lr
        for ratio in (1.0, 4.0, 16.0):
            losses["t5", lr, ratio, 1] = 3 + abs(lr - 2e-3) + abs(ratio - 16) / 16
    evaluated(found, losses)
    chosen_into(tmp_path, found)
    chosen = tuned_rates.read(tmp_path / "tuned.yaml")
    assert (chosen["rope"].lr, chosen["rope"].scheme_lr_ratio) == (1e-3, None)
    assert (chosen["t5"].lr, chosen["t5"].scheme_lr_ratio) == (2e-3, 16.0)
    table = (tmp_path / "table.md").read_text()
    assert "extend it: rope (train.lr=0.001), t5 (train.scheme_lr_ratio=16)." in table
    path = f"train.tuned={tmp_path}/tuned.yaml"
    typed = small_config("scheme=t5", "train.lr=2e-3", "train.scheme_lr_ratio=16")
    assert small_config("scheme=t5", path).run_id == typed.run_id


def test_rates_of_other_schemes_stay_in_the_file_unless_of_another_training(
    tmp_path: Path,
) -> None:
    for name, lr in (("rope", 1e-3), ("nope", 4e-3)):
        found = grid(tmp_path, f"scheme={name}", *GRID)
        evaluated(found, {(name, one, None, 1): 3 + abs(one - lr) for one in (1e-3, 2e-3, 4e-3)})
        chosen_into(tmp_path, found)
    chosen = tuned_rates.read(tmp_path / "tuned.yaml")
    assert {name: one.lr for name, one in chosen.items()} == {"rope": 1e-3, "nope": 4e-3}
    with pytest.raises(UserError, match=r"^--out: .* holds the rate of rope for another model"):
        grid(tmp_path, "scheme=nope,alibi", "train.tokens=2048", *GRID)
    grid(tmp_path, "scheme=nope,rope", "train.tokens=2048", *GRID)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "train.lr: one value leaves no choice; give train.lr=1e-3,2e-3,4e-3"),
        (["seed=1,2"], "train.lr: one value leaves no choice"),
        ([*GRID, "model.d_ff=32,64"], "model.d_ff: rates are chosen for one value of it; give"),
        ([*GRID, "eval.lengths=[16]"], "eval.lengths=[16]: lengthgen tune sets this key itself"),
        ([*GRID, "+corpus.held_out=validation"], "+corpus.held_out=validation: lengthgen tune se"),
        ([*GRID, "train.tuned=a.yaml"], "train.tuned=a.yaml: lengthgen tune sets this key itself"),
        ([*GRID, "scheme=rpoe"], "scheme=rpoe: no such scheme; did you mean rope?"),
        ([*GRID, "--jobs", "two"], "'--jobs': Input should be a valid"),
    ],
)
def test_a_grid_that_is_none_of_rates_is_one_line(
    shell: Shell, words: list[str], said: str
) -> None:
    assert said in shell.refused("tune", *WORDS, *words)


def test_encoder_decoders_are_tuned_by_the_loss_of_masked_spans_at_t(tmp_path: Path) -> None:
    found = grid(tmp_path, "scheme=t5", "model.arch=encoder_decoder", *GRID)
    assert {(*point.config.eval.protocols, *point.config.eval.lengths) for point in found} == {
        ("spans", T)
    }
    losses: Losses = {("t5", lr, None, 1): 3 + abs(lr - 2e-3) for lr in (1e-3, 2e-3, 4e-3)}
    evaluated(found, losses, protocol="spans")
    chosen_into(tmp_path, found)
    chosen = tuned_rates.read(tmp_path / "tuned.yaml")["t5"]
    assert (chosen.lr, chosen.model) == (2e-3, "tiny_encoder_decoder")


def test_only_the_loss_at_t_is_measured(tmp_path: Path) -> None:
    (point, *_) = grid(tmp_path, "scheme=rope", *GRID, "train.length=8")
    wanted = point.config.eval
    assert (wanted.lengths, wanted.reach, wanted.protocols) == ([8], 8, ["tail"])
    assert (wanted.variants, wanted.reference_variants) == ([], [])
    assert point.config.corpus.held_out == "tuning"
    assert point.run_dir.parent == tmp_path / "runs"


def test_a_folder_with_a_quote_in_its_name_is_taken(tmp_path: Path) -> None:
    (point, *_) = grid(tmp_path / "it's a\\b", "scheme=rope", *GRID)
    assert point.run_dir.parent == tmp_path / "it's a\\b/runs"


# Who takes the rates

ENTRY: dict[str, Any] = {
    **{"lr": 0.002, "scheme_lr_ratio": None, "model": "tiny", "corpus": "stdlib"},
    **{"fingerprint": "0123456789ab", "length": 512, "tokens": 1000, "batch_tokens": 100},
    **{"seeds": [1], "grid": [{"lr": 0.002, "scheme_lr_ratio": None, "losses": [3.5]}]},
}


def tuned_yaml(folder: Path, **entries: object) -> str:
    path = folder / "tuned.yaml"
    path.write_text(yaml.safe_dump(entries or {"rope": ENTRY}))
    return f"train.tuned={path}"


def test_each_scheme_takes_its_rate_and_keeps_the_grid(tmp_path: Path) -> None:
    other = {**ENTRY, "lr": 0.008, "scheme_lr_ratio": 16.0}
    path = tuned_yaml(tmp_path, rope=ENTRY, t5=other)
    rope, t5 = (small_config(f"scheme={name}", path) for name in ("rope", "t5"))
    assert (rope.train.lr, rope.train.scheme_lr_ratio) == (0.002, None)
    assert (t5.train.lr, t5.train.scheme_lr_ratio) == (0.008, 16.0)
    assert rope.run_id == small_config("scheme=rope", "train.lr=2e-3").run_id
    assert to_plain(rope)["train"]["tuned"] == ENTRY
    assert from_plain(to_plain(rope)) == rope


@pytest.mark.parametrize(
    ("words", "content", "said"),
    [
        (["scheme=alibi"], None, "has no rate for scheme alibi, only for rope; run lengthgen tune"),
        (["train.lr=1e-3"], None, "train.lr=1e-3: train.tuned="),
        (["train.scheme_lr_ratio=2"], None, "sets it for each scheme; drop one of them"),
        ([], "rope: {lr: fast}", "is not as lengthgen tune writes it: rope.lr: 'fast' should be a"),
        ([], "rope: [", "not valid YAML"),
        ([], "- rope", "holds no KEY: VALUE lines"),
        (["train.tuned=none.yaml"], None, "none.yaml: cannot be read (No such file or"),
        (["train.tuned=3"], None, "train.tuned: 3"),
    ],
)
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_rates_that_cannot_be_taken_are_one_line(
    shell: Shell, tmp_path: Path, command: str, words: list[str], content: str | None, said: str
) -> None:
    path = tuned_yaml(tmp_path)
    if content is not None:
        (tmp_path / "tuned.yaml").write_text(content)
    assert said in shell.refused(command, "scheme=rope", path, *words)


# All of it


class Tuning(NamedTuple):
    """A tuning of two schemes, its repeat, and a run that takes a rate."""

    folder: Path
    first: subprocess.CompletedProcess[str]
    before: dict[str, int]
    again: subprocess.CompletedProcess[str]
    taken: subprocess.CompletedProcess[str]


def lengthgen(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run("-m", "lengthgen", *words, cwd=folder, env=one_thread_each())


def written(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    folder = tmp_path_factory.mktemp("tuning")
    write(folder / "texts", {f"{i}.txt": f"text {i} " * (200 + i * 97 % 900) for i in range(40)})
    words = [word for word in WORDS if not word.startswith("corpus")]
    words += ["corpus=files", "corpus.path=texts", "corpus.vocab_size=300"]
    command = ["tune", "scheme=rope,alibi", "train.lr=1e-3,1e-2", *words]
    first = lengthgen(folder, *command)
    before = written(folder / "tune/runs")
    again = lengthgen(folder, *command)
    of_results = ["train.tuned=tune/tuned.yaml", "eval.lengths=[16,32]", "eval.reach=32"]
    taken = lengthgen(folder, "train", "scheme=alibi", *words, *of_results)
    return Tuning(folder, first, before, again, taken)


@pytest.mark.slow
def test_tuning_ends_with_its_tables_and_rates(done: Tuning) -> None:
    assert done.first.returncode == 0, done.first.stderr
    table = (done.folder / "tune/table.md").read_text()
    paths = "".join(f"tune/{name}\n" for name in ("table.md", "tuned.yaml"))
    assert done.first.stdout == table + paths
    assert table.count("**") == 4
    chosen = tuned_rates.read(done.folder / "tune/tuned.yaml")
    for name, one in chosen.items():
        losses = {trial.lr: trial.losses[0] for trial in one.grid}
        assert set(losses) == {1e-3, 1e-2}
        assert one.lr == min(losses, key=lambda lr: losses[lr] or 99), name


@pytest.mark.slow
def test_the_same_command_trains_nothing_again(done: Tuning) -> None:
    assert (done.again.returncode, done.again.stdout) == (0, done.first.stdout)
    assert done.again.stderr == "4 points: 4 done\n"
    assert written(done.folder / "tune/runs") == done.before


@pytest.mark.slow
def test_a_run_with_tuned_rates_records_the_grid(done: Tuning) -> None:
    assert done.taken.returncode == 0, done.taken.stderr
    (run_dir,) = (done.folder / "runs").glob("alibi-*")
    chosen = tuned_rates.read(done.folder / "tune/tuned.yaml")["alibi"]
    kept = directory.load_config(run_dir)
    assert kept.train.tuned == chosen
    assert kept.train.lr == chosen.lr
