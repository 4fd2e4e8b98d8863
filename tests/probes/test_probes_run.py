"""lengthgen probe: rows are computed once, pictures can be read, mistakes are one line."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from repository import ROOT
from small import SMALL, small_config

from lengthgen import cli
from lengthgen.config.compose import compose
from lengthgen.config.plugins import give
from lengthgen.config.schema import Config, from_plain
from lengthgen.errors import UserError
from lengthgen.files import read_rows, write_rows
from lengthgen.pipeline import train_and_evaluate
from lengthgen.probes import figures, position
from lengthgen.probes import run as probes
from lengthgen.probes.base import Probe
from lengthgen.report.style import saved
from lengthgen.runs.distributed import Ranks
from lengthgen.terminal import Progress

pytestmark = pytest.mark.slow

QUIET = Progress(is_main=False)
WORDS = ["scheme=sinusoidal", "train.tokens=256", "runtime.threads=1"]
PROBES = list(probes.registry())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small trained run with absolute positions."""
    root = tmp_path_factory.mktemp("runs")
    config = small_config(*WORDS, f"runtime.root={root}")
    return train_and_evaluate(config, ranks=Ranks(rank=0, world_size=1, local_rank=0), show=QUIET)


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it; the position probe learns for a few steps only."""
    monkeypatch.setattr(position, "STEPS", 5)
    copied = Path(shutil.copytree(trained, tmp_path / "runs" / trained.name))
    (copied.parent / ".cache").symlink_to(trained.parent / ".cache")
    return copied


def config_of(run_dir: Path, *overrides: str) -> Config:
    words = [*WORDS, f"runtime.root={run_dir.parent}", *overrides]
    return from_plain(compose([*SMALL, *words], config_dir=None))


def of_name(probe: str) -> Probe:
    [found] = probes.build([probe])
    return found


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "probes.jsonl").read_text().splitlines()]


def test_every_probe_leaves_rows_and_those_with_numbers_a_picture(run_dir: Path) -> None:
    found = probes.probe(config_of(run_dir), run_dir, probes.build(None), show=QUIET)
    assert [one.probe for one in found] == PROBES
    rows = rows_of(run_dir)
    assert {row["probe"] for row in rows} == set(PROBES)
    for row in rows:
        assert (row["run"], row["tokens_seen"]) == (run_dir.name, 256)
    for one in found:
        if one.probe in ("bias", "head_distance"):
            assert (one.picture, one.summary[:4]) == (None, "n/a:")
        else:
            assert one.picture is not None
            assert one.picture == run_dir / "probes" / f"{one.probe}.png"
            assert one.picture.read_bytes().startswith(b"\x89PNG")
            assert b"<svg" in one.picture.with_suffix(".svg").read_bytes()


def test_a_second_time_only_what_is_missing_is_computed_and_drawn(run_dir: Path) -> None:
    config = config_of(run_dir)
    first = probes.probe(config, run_dir, probes.build(["receptive_field"]), show=QUIET)
    before, picture = (run_dir / "probes.jsonl").read_text(), first[0].picture
    assert picture is not None
    drawn = picture.read_bytes()
    picture.unlink()
    both = probes.build(["receptive_field", "shift_invariance"])
    assert first[0] in probes.probe(config, run_dir, both, show=QUIET)
    assert picture.read_bytes() == drawn
    after = (run_dir / "probes.jsonl").read_text()
    assert after.startswith(before)
    added = [json.loads(line)["probe"] for line in after[len(before) :].splitlines()]
    assert set(added) == {"shift_invariance"}


@pytest.mark.parametrize("other", [{"run": "rope-tiny-toy-s1-0a0a0a0a"}, {"weights": "0" * 64}])
def test_rows_of_another_run_or_of_other_weights_are_computed_again(
    run_dir: Path, other: dict[str, str]
) -> None:
    config, chosen = config_of(run_dir), probes.build(["receptive_field"])
    first = probes.probe(config, run_dir, chosen, show=QUIET)
    rows = read_rows(run_dir / "probes.jsonl")
    write_rows(run_dir / "probes.jsonl", [{**row, **other} for row in rows])
    assert probes.probe(config, run_dir, chosen, show=QUIET) == first
    assert read_rows(run_dir / "probes.jsonl")[len(rows) :] == rows


@pytest.mark.parametrize("change", ["eval.endpoints=3", "eval.seed=1"])
def test_another_text_is_computed_next_to_the_first(run_dir: Path, change: str) -> None:
    for overrides in ((), (change,), ()):
        probes.probe(
            config_of(run_dir, *overrides), run_dir, probes.build(["receptive_field"]), show=QUIET
        )
    rows = rows_of(run_dir)
    assert len({(row["endpoints"], row["length"]) for row in rows}) == len(rows) == 6
    key, value = change.removeprefix("eval.").split("=")
    written = {"endpoints": "windows", "seed": "eval_seed"}[key]
    assert [row[written] == int(value) for row in rows] == [False] * 3 + [True] * 3


def test_other_settings_of_a_probe_are_computed_again(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(run_dir)
    for steps in (5, 6, 5):
        monkeypatch.setattr(position, "STEPS", steps)
        probes.probe(config, run_dir, probes.build(["position"]), show=QUIET)
    assert [row["settings"]["steps"] for row in rows_of(run_dir)] == [5, 6]


def test_a_run_without_a_checkpoint_cannot_be_probed(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "checkpoints")
    with pytest.raises(UserError, match="has no checkpoint yet; lengthgen train continues it"):
        probes.probe(config_of(run_dir), run_dir, probes.build(["attention"]), show=QUIET)


def test_two_runs_are_as_far_apart_as_their_heads_and_a_run_is_as_far_as_its_own_copy(
    run_dir: Path, tmp_path: Path
) -> None:
    [one] = probes.build(["head_distance"])
    config = config_of(run_dir)
    weights = config_of(run_dir, "seed=2")
    other = train_and_evaluate(weights, ranks=Ranks(rank=0, world_size=1, local_rank=0), show=QUIET)
    named = [probes.Other(weights, other), probes.Other(config, run_dir)]
    [found] = probes.probe(config, run_dir, [one], others=named, show=QUIET)
    [back] = probes.probe(weights, other, [one], others=[probes.Other(config, run_dir)], show=QUIET)
    assert None not in (found.picture, back.picture)
    far, same = rows_of(run_dir)
    [again] = rows_of(other)
    heads = np.array(far["heads"])
    assert far["distance"] == heads.min((1, 2)).tolist()
    assert min(far["distance"]) > 1e-4
    assert heads.max() < np.log(2)
    np.testing.assert_allclose(np.array(again["heads"]).swapaxes(1, 2), heads, rtol=1e-5)
    assert same["distance"] == pytest.approx([0, 0], abs=1e-9)
    assert f"to {other.name}" in found.summary


def test_runs_of_other_texts_or_depths_are_not_compared(run_dir: Path) -> None:
    [one] = probes.build(["head_distance"])
    changes = {
        "was trained on another text": "corpus.alphabet=8",
        "model.n_layers=1, here 2": "model.n_layers=1",
    }
    for reason, change in changes.items():
        changed = config_of(run_dir, change)
        other = train_and_evaluate(
            changed, ranks=Ranks(rank=0, world_size=1, local_rank=0), show=QUIET
        )
        [found] = probes.probe(
            config_of(run_dir), run_dir, [one], others=[probes.Other(changed, other)], show=QUIET
        )
        assert found.picture is None
        assert reason in found.summary


# The command


def ran(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setattr(sys, "argv", ["lengthgen", "probe", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_newest_run_is_probed_and_its_numbers_and_pictures_are_printed(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--probes", "shift_invariance,bias", f"runtime.root={run_dir.parent}"]
    code, out, err = ran(words, monkeypatch, capsys)
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == f"run: {run_dir}"
    assert lines[1].startswith("shift_invariance\tat k=64: loss ")
    assert lines[2] == "bias\tn/a: no part adds to the logits by distance"
    assert lines[3:] == [str(run_dir / "probes" / "shift_invariance.png")]
    assert "shift_invariance 8: 4/4 windows" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--probes", "atention"], "--probes: no such probe 'atention'; did you mean attention?"),
        (["train.lr=1"], "train.lr: only eval.* and runtime.* can be given here"),
        (["none"], "none: no such run in"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str],
    message: str,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = ran([*words, f"runtime.root={run_dir.parent}"], monkeypatch, capsys)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


# A probe of a user's own


FILE = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "probes.md").read_text(), re.DOTALL)[0]


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path]:
    """The file and the folder of YAMLs of a probe of a user's own."""
    file, options = tmp_path / "uncertainty.py", tmp_path / "conf" / "probe" / "uncertainty.yaml"
    options.parent.mkdir(parents=True)
    file.write_text(FILE)
    options.write_text("# Options of a probe.\ntemperature: 2\n")
    return file, tmp_path / "conf"


def test_a_file_is_a_probe_and_a_yaml_holds_its_options(
    run_dir: Path,
    own: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, folder = own
    limit = "return 'too long' if length > 32 else None"
    method = (
        f"    def unsupported_reason(self, inputs, length):\n        {limit}\n\n    def measure("
    )
    file.write_text(FILE.replace("    def measure(", method))
    words = ["--plugin", str(file), "--config-dir", str(folder), "--probes", "uncertainty"]
    code, out, err = ran([*words, f"runtime.root={run_dir.parent}"], monkeypatch, capsys)
    assert (code, err.count("error")) == (0, 0)
    _, line, picture = out.splitlines()
    assert re.fullmatch(r"uncertainty\t\S+ nats at 16, \S+ nats at 32", line)
    assert picture == str(run_dir / "probes" / "uncertainty.png")
    rows = rows_of(run_dir)
    assert [row["settings"] for row in rows] == [{"lengths": [16, 32, 64], "temperature": 2}] * 3
    assert [row["entropy"] > 0 for row in rows if "skipped" not in row] == [True] * 2
    (folder / "probe" / "uncertainty.yaml").write_text("temperature: 1.0\n")
    ran([*words, f"runtime.root={run_dir.parent}"], monkeypatch, capsys)
    assert [row["settings"]["temperature"] for row in rows_of(run_dir)] == [2, 2, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("temperature: -1\n", "probe.uncertainty.temperature: -1 should be greater than 0"),
        (
            "temprature: 1\n",
            "probe.uncertainty.temprature: unknown key; did you mean probe.uncertainty",
        ),
        ("temperature: two\n", "probe.uncertainty.temperature: 'two' should be a valid number"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    options: str,
    message: str,
    own: tuple[Path, Path],
) -> None:
    file, folder = own
    (folder / "probe" / "uncertainty.yaml").write_text(options)
    with pytest.raises(UserError) as refused:
        probes.build(None, config_dir=folder, plugins=give([file]))
    assert str(refused.value).startswith(message)


def test_two_probes_of_one_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bias.py"
    file.write_text(FILE.replace("Uncertainty", "Bias"))
    with pytest.raises(UserError, match=r"probe bias is defined twice, in .*; rename one of"):
        probes.registry(give([file]))


def test_the_list_of_probes_has_those_of_plugins_too(
    own: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lengthgen", "list", "probes", "--plugin", str(own[0])])
    with pytest.raises(SystemExit):
        cli.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [*PROBES, "uncertainty"]
    assert lines[-1].startswith("uncertainty\tThe mean entropy of the prediction")


# Lines and pictures


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ([{"dnll": -3e-7, "kl": 2e-9}], "invariant up to fp32 rounding"),
        ([{"dnll": -3e-7, "kl": 2e-9}, {"dnll": 1e-8, "kl": 2e-5}], "not invariant"),
        ([{"dnll": -3e-5, "kl": 2e-9}, {"dnll": 1e-8, "kl": 2e-9}], "not invariant"),
    ],
)
def test_a_scheme_is_called_invariant_if_no_shift_changes_more_than_rounding(
    changes: list[dict[str, Any]], word: str
) -> None:
    rows = [{"k": k, **change} for k, change in zip((1, 16), changes, strict=False)]
    assert of_name("shift_invariance").summary(rows).endswith(f" nats ({word})")


ABOUT = {"run": "rope-tiny-toy-s1-0a0a0a0a", "tokens_seen": 4_194_304, "train_length": 512}


def title_of(figure: Figure) -> str:
    return " ".join(figure.get_suptitle().split())


def test_a_picture_names_its_run_and_what_is_not_there() -> None:
    row = {**ABOUT, "length": 512, "erf_99": 40, "n": [1, 16, 512], "c": [0.1, 0.9, 1.0]}
    other = {**ABOUT, "length": 1024, "skipped": "the table has 512 rows"}
    figure = figures.receptive_field([row, other])
    assert title_of(figure).endswith(
        "rope-tiny-toy-s1-0a0a0a0a, 4,194,304 tokens seen; n/a at length 1024: the table has 512 "
        "rows"
    )
    assert saved(figure, "svg") == saved(figures.receptive_field([row, other]), "svg")


def test_layers_that_add_the_same_share_a_panel() -> None:
    heads = [[[0.0, -1.0, -2.0 - n], [0.0, -2.0, -4.0]] for n in range(3)]
    for layers, titles in (
        ([0, 0, 0], ["bias, layer 0, 1, 2"]),
        ([0, 1, 0, None], ["bias, layer 0, 2", "bias, layer 1"]),
    ):
        chosen = [None if n is None else heads[n] for n in layers]
        row = {**ABOUT, "kind": "bias", "distances": [0, 1, 1023], "bias": chosen}
        panels = [axes for axes in figures.bias([row]).axes if axes.get_visible()]
        assert [axes.get_title(loc="left") for axes in panels] == titles
