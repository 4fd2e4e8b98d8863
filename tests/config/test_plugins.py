"""A plugin runs only where it is given, and its content belongs to the run."""

from pathlib import Path

import pytest
from parts import SLOPE
from small import small_config
from trained import ALONE, QUIET, rows_of, train

from lengthgen import experiment, pipeline
from lengthgen.config.schema import Config
from lengthgen.errors import UserError


def write(path: Path, slope: float) -> Path:
    path.write_text(SLOPE.format(slope=slope))
    return path


def config_of(*files: Path) -> Config:
    words = ["scheme=nope", "+scheme.parts.slope={}", "train.tokens=256"]
    return small_config(*words, f"runtime.root={files[0].parent}/runs", plugins=files)


def changed(run_dir: Path, *given: Path) -> Config:
    return experiment.changed(str(run_dir), ["seed=2"], config_dir=None, plugins=given)[1].config


def test_neither_place_nor_order_nor_number_of_files_changes_the_name(tmp_path: Path) -> None:
    slope, other = write(tmp_path / "a.py", 0.5), tmp_path / "b.py"
    other.write_text("from lengthgen.schemes import Part\nclass Other(Part): ...\n")
    copy = write(tmp_path / "copy.py", 0.5)
    names = {config_of(*files).run_id for files in ([slope, other], [other, slope, copy])}
    assert len(names) == 1
    assert names != {config_of(slope).run_id}


def test_a_run_keeps_its_plugin_and_an_edited_one_is_another_run(tmp_path: Path) -> None:
    run_dir = train(config_of(write(tmp_path / "mine.py", 0.5)))
    (tmp_path / "mine.py").unlink()
    (kept,) = (run_dir / "plugins").iterdir()
    assert kept.read_text() == SLOPE.format(slope=0.5)
    before = rows_of(run_dir / "eval.jsonl")
    edited = train(config_of(write(tmp_path / "mine.py", 4.0)))
    assert edited != run_dir
    for key in ("nats", "parts"):
        assert rows_of(edited / "eval.jsonl")[0][key] != before[0][key]
    assert experiment.config_of(run_dir, {}).plugins == [kept.stem]  # read, and not run
    other = write(tmp_path / "other.py", 4.0)
    for given in ([], [other]):
        with pytest.raises(UserError, match=f"repeat this with --plugin {kept}$"):
            experiment.of_run(run_dir, plugins=given)
    with pytest.raises(UserError, match=f"repeat this with --plugin {kept}$"):
        changed(run_dir)
    of_run = experiment.of_run(run_dir, plugins=[kept])
    pipeline.evaluate(of_run, run_dir, ranks=ALONE, show=QUIET)
    assert rows_of(run_dir / "eval.jsonl") == before
    assert changed(run_dir, kept).plugins == [kept.stem]
