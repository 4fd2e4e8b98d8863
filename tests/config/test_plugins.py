"""A plugin's content belongs to the run: to its name, its directory and its rows."""

import shutil
from pathlib import Path

import pytest
import yaml
from eval_rows import gathered
from small import small_config
from trained import QUIET, rows_of

from lengthgen import pipeline
from lengthgen.cli import lists
from lengthgen.config.schema import Config
from lengthgen.errors import UserError
from lengthgen.evaluation import evaluator
from lengthgen.runs import directory
from lengthgen.runs.distributed import ALONE

TEXT = """
from torch import Tensor
from lengthgen.schemes import AttentionContext, Part

class Slope(Part):
    def bias(self, c: AttentionContext) -> Tensor:
        return -{slope} * c.distance()
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def plugin(path: Path, slope: float) -> Path:
    path.write_text(TEXT.format(slope=slope))
    return path


def configuration(path: Path, cache: Path, *overrides: str) -> Config:
    return small_config(
        f"plugins=[{path}]",
        "scheme=nope",
        "+scheme.parts.slope={}",
        f"runtime.root={path.parent}/runs",
        f"runtime.cache={cache}",
        "train.tokens=256",
        *overrides,
    )


def trained(path: Path, cache: Path, *overrides: str) -> Path:
    return pipeline.train(configuration(path, cache, *overrides))


def test_an_edited_plugin_is_another_run_with_other_numbers(tmp_path: Path, cache: Path) -> None:
    path = plugin(tmp_path / "mine.py", 0.5)
    one = trained(path, cache)
    assert trained(path, cache) == one
    two = trained(plugin(path, 4.0), cache)
    assert one != two
    assert rows_of(one / "eval.jsonl")[0]["nats"] != rows_of(two / "eval.jsonl")[0]["nats"]
    assert rows_of(one / "eval.jsonl")[0]["parts"] != rows_of(two / "eval.jsonl")[0]["parts"]


def test_neither_place_nor_order_nor_number_of_plugin_files_changes_the_name(
    tmp_path: Path, cache: Path
) -> None:
    one, two = plugin(tmp_path / "a.py", 0.5), tmp_path / "b.py"
    two.write_text("from lengthgen.schemes import Part\nclass Other(Part): ...\n")
    (tmp_path / "copy.py").write_bytes(one.read_bytes())
    names = {
        configuration(one, cache, f"plugins=[{asked}]").run_id
        for asked in (f"{one},{two}", f"{two},{one}", f"{two},{one},{tmp_path}/copy.py")
    }
    assert len(names) == 1
    assert names != {configuration(one, cache).run_id}


def test_a_run_keeps_its_plugin_wherever_it_goes(tmp_path: Path, cache: Path) -> None:
    path = plugin(tmp_path / "mine.py", 0.5)
    run_dir = trained(path, cache)
    moved = tmp_path / "elsewhere" / run_dir.name
    shutil.copytree(run_dir, moved)
    shutil.rmtree(run_dir)
    path.unlink()
    (kept,) = yaml.safe_load((moved / "config.yaml").read_text())["plugins"]
    assert not Path(kept).is_absolute()
    assert (moved / kept).read_text() == TEXT.format(slope=0.5)
    before = rows_of(moved / "eval.jsonl")
    evaluator.evaluate(directory.load_config(moved), moved, ranks=ALONE, show=QUIET)
    assert rows_of(moved / "eval.jsonl") == before


def test_runs_whose_plugins_differ_under_one_name_stand_side_by_side(
    tmp_path: Path, cache: Path
) -> None:
    path = plugin(tmp_path / "mine.py", 0.5)
    one = trained(path, cache)
    two = trained(plugin(path, 4.0), cache, "seed=2")
    assert {row[1] for row in lists.runs(tmp_path / "runs")[1]} == {"done"}
    for run_dir in (one, two):
        before = rows_of(run_dir / "eval.jsonl")
        (run_dir / "eval.jsonl").unlink()
        evaluator.evaluate(directory.load_config(run_dir), run_dir, ranks=ALONE, show=QUIET)
        assert rows_of(run_dir / "eval.jsonl") == before
    labels = {line.label for line in gathered(one, two).lines}
    assert len(labels) == 2
    assert all(label.startswith("nope (plugins=") for label in labels)


def test_seeds_of_one_plugin_are_one_series(tmp_path: Path, cache: Path) -> None:
    path = plugin(tmp_path / "mine.py", 0.5)
    copy = plugin(tmp_path / "copy.py", 0.5)
    found = gathered(trained(path, cache), trained(copy, cache, "seed=2"))
    assert [line.label for line in found.lines] == ["nope"]


def test_a_plugin_that_was_edited_within_its_run_is_refused(tmp_path: Path, cache: Path) -> None:
    config = configuration(plugin(tmp_path / "mine.py", 0.5), cache)
    config.run_dir.mkdir(parents=True)
    directory.write_config(config, config.run_dir)
    (kept,) = (config.run_dir / "plugins").iterdir()
    plugin(kept, 4.0)
    with pytest.raises(UserError, match=rf"{kept} was changed since this run began; restore it"):
        directory.load_config(config.run_dir)
