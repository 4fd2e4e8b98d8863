"""lengthgen probe: rows are computed once, pictures can be read, mistakes are one line."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import Shell
from repository import example
from small import experiment_of, small_config
from trained import QUIET

from lengthgen.files import read_rows, write_rows
from lengthgen.probes import position
from lengthgen.probes import run as probes

pytestmark = pytest.mark.slow

WORDS = ["scheme=sinusoidal", "train.tokens=256", "runtime.threads=1"]
FILE = example("uncertainty.py")
RETURN = 'return {"entropy": total / len(inputs.endpoints)}'


@pytest.fixture
def run_dir(own: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small trained run with absolute positions; the position probe learns for a few steps."""
    monkeypatch.setattr(position, "STEPS", 5)
    return own(*WORDS)


def probed(run_dir: Path, *names: str, change: str = "") -> dict[str, str]:
    """Runs the probes named, all if none is, with a change of the configuration."""
    words = [*WORDS, f"runtime.root={run_dir.parent}", *[change] * bool(change)]
    return probes.probe(
        experiment_of(small_config(*words)), run_dir, probes.requested_probes(names), QUIET
    )


def test_every_probe_leaves_rows_and_those_with_numbers_a_picture(run_dir: Path) -> None:
    summaries = probed(run_dir)
    assert list(summaries) == list(probes.probe_classes())
    rows = read_rows(run_dir / "probes.jsonl")
    assert {row["probe"] for row in rows} == set(probes.probe_classes())
    assert {(row["run"], row["tokens_seen"]) for row in rows} == {(run_dir.name, 256)}
    for name, summary in summaries.items():
        picture = run_dir / "probes" / f"{name}.png"
        assert summary.startswith("n/a: ") == (name == "bias")
        assert picture.exists() == (name != "bias")
        assert name == "bias" or picture.read_bytes().startswith(b"\x89PNG")


def test_a_second_time_only_what_is_missing_is_computed_and_drawn(run_dir: Path) -> None:
    first = probed(run_dir, "receptive_field")
    log, picture = run_dir / "probes.jsonl", run_dir / "probes" / "receptive_field.png"
    before, drawn = log.read_text(), picture.read_bytes()
    picture.unlink()
    assert probed(run_dir, "receptive_field", "shift_invariance").items() >= first.items()
    assert picture.read_bytes() == drawn
    assert log.read_text().startswith(before)
    added = read_rows(log)[before.count("\n") :]
    assert {row["probe"] for row in added} == {"shift_invariance"}


def test_rows_of_another_checkpoint_or_text_are_computed_beside_the_first(run_dir: Path) -> None:
    log = run_dir / "probes.jsonl"
    first = probed(run_dir, "receptive_field")
    rows = read_rows(log)
    write_rows(log, [{**row, "weights": "0" * 64} for row in rows])
    assert probed(run_dir, "receptive_field") == first
    assert read_rows(log)[len(rows) :] == rows
    for change in ("eval.endpoints=3", "eval.seed=1"):
        probed(run_dir, "receptive_field", change=change)
    keys = [(row["windows"], row["eval_seed"], row["length"]) for row in read_rows(log)[3:]]
    assert keys == [(w, s, n) for w, s in ((4, 0), (3, 0), (4, 1)) for n in (16, 32, 64)]


def test_under_a_variant_it_is_the_changed_model_that_is_probed(run_dir: Path) -> None:
    masked = probed(run_dir, "attention", change="eval.variants=[window]")
    assert list(masked) == ["attention", "attention + window"]
    assert masked["attention"] == probed(run_dir, "attention")["attention"]
    rows = {(row["variant"], row["length"]): row for row in read_rows(run_dir / "probes.jsonl")}
    for length in (32, 64):  # T = 16 keys are in sight, the first tokens not
        plain, window = (np.array(rows[v, length]["distance"]) for v in (None, "window"))
        assert window.max() * length <= 16 < plain.max() * length
        assert np.max(rows["window", length]["sink"]) == 0
    assert (run_dir / "probes" / "attention+window.png").is_file()


def test_a_variant_that_was_redefined_is_probed_again(run_dir: Path, shell: Shell) -> None:
    root = f"runtime.root={run_dir.parent}"
    config, found = small_config(*WORDS, root, "eval.variants=[window]"), list[str]()
    for width in (0.5, 1.0):
        window = {"window": {"width": width, "sinks": 0}}
        redefined = config.model_copy(update={"variants": {"window": window}})
        summaries = probes.probe(
            experiment_of(redefined), run_dir, probes.requested_probes(["attention"]), QUIET
        )
        found.append(summaries["attention + window"])
    assert found[0] != found[1]
    assert shell.run("report", root, "--out", "report").code == 0
    shown = [line for line in Path("report/table.md").read_text().splitlines() if "window" in line]
    assert [found[1] in line for line in shown] == [True]


def test_the_newest_run_is_probed_and_reported_with_its_probes(run_dir: Path, shell: Shell) -> None:
    root = f"runtime.root={run_dir.parent}"
    ran = shell.run("probe", "--probes", "shift_invariance,bias", root)
    assert ran.code == 0
    run, _, *lines, figures = ran.out.splitlines()  # below a header
    assert (run, figures) == (f"run: {run_dir}", f"figures: {run_dir / 'probes'}")
    assert re.match(r"shift_invariance\tk 1: dnll \S+, kl .*; k 64: dnll ", lines[0])
    assert lines[1:] == ["bias\tn/a: no part adds to the logits by distance"]
    assert "shift_invariance 8: 4/4 windows" in ran.err
    log = run_dir / "probes.jsonl"  # of an older checkpoint, and of a probe that is not given here
    rows = read_rows(log)
    older = [{**row, "weights": "0", "dnll": 1e9} for row in rows]
    write_rows(log, [*older, *rows, {**rows[-1], "probe": "own"}])
    assert shell.run("report", root, "--out", "report").code == 0
    table = Path("report/table.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
    shown = [tuple(line[1:4]) for line in cells if run_dir.name in line]
    said = [line.split("\t") for line in lines[::-1]]
    assert shown == [(name, run_dir.name, what) for name, what, *_ in said]
    assert "<h2>Probes</h2>" in Path("report/report.html").read_text()


def test_a_file_is_a_probe_computed_again_once_edited(run_dir: Path, shell: Shell) -> None:
    words = ["--plugin", "uncertainty.py", "--probes", "uncertainty"]
    error = shell.refused("probe", *words[2:], f"runtime.root={run_dir.parent}")
    assert error.startswith("--probes: no probe 'uncertainty'; known: ")
    for measure in ("entropy", "bits"):
        Path("uncertainty.py").write_text(FILE.replace('"entropy"', f'"{measure}"'))
        ran = shell.run("probe", *words, f"runtime.root={run_dir.parent}")
        assert f": {measure} " in ran.out


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (RETURN, "return {}", r"Uncertainty raised KeyError: 'entropy' \("),
        (RETURN, "return {}['bits']", r"Uncertainty raised KeyError: .*uncertainty.py, line \d+\)"),
        (RETURN, "return {'entropy': [logits]}", "Object of type Tensor is not JSON"),
    ],
)
def test_an_error_of_a_custom_probe_is_one_line_and_nothing_is_kept_of_it(
    before: str, after: str, message: str, run_dir: Path, shell: Shell
) -> None:
    assert before in FILE
    Path("uncertainty.py").write_text(FILE.replace(before, after, 1))
    words = ["--plugin", "uncertainty.py", "--probes", "uncertainty"]
    error = shell.error_of("probe", *words, f"runtime.root={run_dir.parent}")
    assert re.match(f"probe uncertainty: .*{message}", error)
    assert not (run_dir / "probes.jsonl").exists()
