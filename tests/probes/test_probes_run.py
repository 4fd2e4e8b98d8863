"""lengthgen probe: rows are computed once, pictures can be read, mistakes are one line."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repository import ROOT
from shell import Shell
from small import small_config

from lengthgen.config.plugins import give
from lengthgen.config.schema import Config
from lengthgen.errors import UserError
from lengthgen.files import read_rows, write_rows
from lengthgen.pipeline import train_and_evaluate
from lengthgen.probes import position
from lengthgen.probes import run as probes
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress

pytestmark = pytest.mark.slow

QUIET = Progress(is_main=False)
WORDS = ["scheme=sinusoidal", "train.tokens=256", "runtime.threads=1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small trained run with absolute positions."""
    root = tmp_path_factory.mktemp("runs")
    config = small_config(*WORDS, f"runtime.root={root}")
    return train_and_evaluate(config, ranks=ALONE, show=QUIET)


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it; the position probe learns for a few steps only."""
    monkeypatch.setattr(position, "STEPS", 5)
    copied = Path(shutil.copytree(trained, tmp_path / "runs" / trained.name))
    (copied.parent / ".cache").symlink_to(trained.parent / ".cache")
    return copied


def config_of(run_dir: Path, *overrides: str) -> Config:
    return small_config(*WORDS, f"runtime.root={run_dir.parent}", *overrides)


def outcomes(run_dir: Path, *names: str, others: Any = (), change: str = "") -> list[Any]:
    """Runs the probes named, all if none is, with a change of the configuration."""
    config = config_of(run_dir, *[change] * bool(change))
    chosen = probes.build(names or None)
    return probes.probe(config, run_dir, chosen, others=others, show=QUIET)


def test_every_probe_leaves_rows_and_those_with_numbers_a_picture(run_dir: Path) -> None:
    ends = outcomes(run_dir)
    assert [end.probe for end in ends] == list(probes.registry())
    rows = read_rows(run_dir / "probes.jsonl")
    assert {row["probe"] for row in rows} == set(probes.registry())
    assert {(row["run"], row["tokens_seen"]) for row in rows} == {(run_dir.name, 256)}
    for end in ends:
        if end.probe in ("bias", "head_distance"):
            assert (end.picture, end.summary[:4]) == (None, "n/a:")
        else:
            assert end.picture == run_dir / "probes" / f"{end.probe}.png"
            assert end.picture.read_bytes().startswith(b"\x89PNG")


def test_a_second_time_only_what_is_missing_is_computed_and_drawn(run_dir: Path) -> None:
    [first] = outcomes(run_dir, "receptive_field")
    log, drawn = run_dir / "probes.jsonl", first.picture.read_bytes()
    before = log.read_text()
    first.picture.unlink()
    assert first in outcomes(run_dir, "receptive_field", "shift_invariance")
    assert first.picture.read_bytes() == drawn
    assert log.read_text().startswith(before)
    added = read_rows(log)[before.count("\n") :]
    assert {row["probe"] for row in added} == {"shift_invariance"}


def test_rows_of_another_checkpoint_or_text_are_computed_beside_the_first(run_dir: Path) -> None:
    log = run_dir / "probes.jsonl"
    first = outcomes(run_dir, "receptive_field")
    rows = read_rows(log)
    for key, value in (("run", "rope-tiny-toy-s1-0a0a0a0a"), ("weights", "0" * 64)):
        write_rows(log, [{**row, key: value} for row in rows])
        assert outcomes(run_dir, "receptive_field") == first
        assert read_rows(log)[len(rows) :] == rows
    for change in ("eval.endpoints=3", "eval.seed=1"):
        outcomes(run_dir, "receptive_field", change=change)
    keys = [(row["windows"], row["eval_seed"], row["length"]) for row in read_rows(log)[3:]]
    assert keys == [(w, s, n) for w, s in ((4, 0), (3, 0), (4, 1)) for n in (16, 32, 64)]


def test_a_run_without_a_checkpoint_cannot_be_probed(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "checkpoints")
    with pytest.raises(UserError, match="has no checkpoint yet; lengthgen train continues it"):
        outcomes(run_dir, "attention")


def test_two_runs_are_as_far_apart_as_their_heads_and_a_run_is_as_far_as_its_own_copy(
    run_dir: Path,
) -> None:
    config, other_config = config_of(run_dir), config_of(run_dir, "seed=2")
    other = train_and_evaluate(other_config, ranks=ALONE, show=QUIET)
    named = [(other_config, other), (config, run_dir)]
    outcomes(run_dir, "head_distance", others=named)
    [back] = probes.build(["head_distance"])
    probes.probe(other_config, other, [back], others=named[1:], show=QUIET)
    far, same = read_rows(run_dir / "probes.jsonl")
    [again] = read_rows(other / "probes.jsonl")
    heads = np.array(far["heads"])
    assert far["distance"] == heads.min((1, 2)).tolist()
    assert min(far["distance"]) > 1e-4
    assert heads.max() < np.log(2)
    np.testing.assert_allclose(np.array(again["heads"]).swapaxes(1, 2), heads, rtol=1e-5)
    assert same["distance"] == pytest.approx([0, 0], abs=1e-9)
    steps = other / "checkpoints"  # the other run trains on: its distance is computed again
    newest = sorted(steps.iterdir())[-1]
    shutil.copytree(newest, steps / "step-00000009")
    outcomes(run_dir, "head_distance", others=named)
    assert len(read_rows(run_dir / "probes.jsonl")) == 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("corpus.alphabet=8", "was trained on another text"),
        ("model.n_layers=1", "model.n_layers=1, here 2"),
    ],
)
def test_runs_of_other_texts_or_depths_are_not_compared(
    change: str, reason: str, run_dir: Path
) -> None:
    changed = config_of(run_dir, change)
    other = train_and_evaluate(changed, ranks=ALONE, show=QUIET)
    [end] = outcomes(run_dir, "head_distance", others=[(changed, other)])
    assert end.picture is None
    assert reason in end.summary


# The command, and a probe of a user's own


FILE = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "probes.md").read_text(), re.DOTALL)[0]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path]:
    """The file and the folder of YAMLs of a probe of a user's own."""
    file, options = tmp_path / "uncertainty.py", tmp_path / "conf" / "probe" / "uncertainty.yaml"
    options.parent.mkdir(parents=True)
    file.write_text(FILE)
    options.write_text("# Options of a probe.\ntemperature: 2\n")
    return file, tmp_path / "conf"


def test_the_newest_run_is_probed_and_its_numbers_and_pictures_are_printed(
    run_dir: Path, shell: Shell
) -> None:
    ran = shell.run("probe", "--probes", "shift_invariance,bias", f"runtime.root={run_dir.parent}")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[:2] == [f"run: {run_dir}", "bias\tn/a: no part adds to the logits by distance"]
    assert re.match(r"shift_invariance\tk 1: dnll \S+, kl .*; k 64: dnll ", lines[2])
    assert lines[3:] == [str(run_dir / "probes" / "shift_invariance.png")]
    assert "shift_invariance 8: 4/4 windows" in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--probes", "atention"], "--probes: no such probe 'atention'; did you mean attention?"),
        (["train.lr=1"], "train.lr: only eval.* and runtime.* can be given here"),
        (["none"], "none: no such run in"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, run_dir: Path, shell: Shell) -> None:
    error = shell.refused("probe", *words, f"runtime.root={run_dir.parent}")
    assert error.startswith(message)


def test_a_file_is_a_probe_and_a_yaml_holds_its_options(
    run_dir: Path, own: tuple[Path, Path], shell: Shell
) -> None:
    file, folder = own
    words = ["--plugin", str(file), "--config-dir", str(folder), "--probes", "uncertainty"]
    words = ["probe", *words, f"runtime.root={run_dir.parent}"]
    ran = shell.run(*words)
    assert (ran.code, ran.err.count("error")) == (0, 0)
    _, line, picture = ran.out.splitlines()
    assert re.fullmatch(r"uncertainty\tlength 16: entropy \S+; length 64: entropy \S+", line)
    assert picture == str(run_dir / "probes" / "uncertainty.png")
    (folder / "probe" / "uncertainty.yaml").write_text("temperature: 1.0\n")
    shell.run(*words)
    rows = read_rows(run_dir / "probes.jsonl")
    assert [row["settings"]["temperature"] for row in rows] == [2, 2, 2, 1, 1, 1]
    listed = shell.run("list", "probes", "--plugin", str(file)).out
    assert "\nuncertainty\tThe mean entropy of the prediction" in listed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("temperature: -1\n", r"probe.uncertainty.temperature: -1 should be greater than 0"),
        ("temprature: 1\n", r"probe.uncertainty.temprature: unknown key; did you mean probe.unc"),
        ("temperature: two\n", r"probe.uncertainty.temperature: 'two' should be a valid number"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    options: str, message: str, own: tuple[Path, Path]
) -> None:
    file, folder = own
    (folder / "probe" / "uncertainty.yaml").write_text(options)
    with pytest.raises(UserError, match=message):
        probes.build(None, config_dir=folder, plugins=give([file]))


def test_two_probes_of_one_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bias.py"
    file.write_text(FILE.replace("Uncertainty", "Bias"))
    with pytest.raises(UserError, match=r"probe bias is defined twice, in .*; rename one of"):
        probes.registry(give([file]))
