"""A task is one file and one YAML: in a folder of the user, or in the package."""

import re
from pathlib import Path

import pytest
import yaml
from repository import example
from small import SMALL, refusal
from trained import ALONE, QUIET

from lengthgen import generation
from lengthgen.config import plugins
from lengthgen.config.schema import Config, from_overrides
from lengthgen.errors import UserError
from lengthgen.files import read_rows
from lengthgen.hub import load
from lengthgen.hub.folder import export
from lengthgen.pipeline import train_and_evaluate, validate
from lengthgen.report import report
from lengthgen.runs import directory
from lengthgen.tasks import rules

FILE, YAML = example("interleave.py"), example("my_conf/task/interleave.yaml")
FEW = [
    *("task.length=4", "task.longest=8", "task.examples=200", "task.examples_per_length=5"),
    *("train.length=16", "train.tokens=1024", "train.batch_tokens=128", "eval.lengths=[2,4,8]"),
]
MODEL = [word for word in SMALL if word.startswith(("model.", "runtime."))]


def write(root: Path, text: str = FILE, *, kind: str = "interleave") -> Path:
    """Writes the file and the YAML of a task; returns the file."""
    plugin, task = root / f"{kind}.py", root / "conf" / "task" / "interleave.yaml"
    task.parent.mkdir(parents=True, exist_ok=True)
    plugin.write_text(text)
    task.write_text(YAML.replace("kind: interleave", f"kind: {kind}"))
    return plugin


def configured(root: Path, *words: str, plugins: list[Path]) -> Config:
    words = "scheme=alibi", "task=interleave", *MODEL, *FEW, f"runtime.root={root}/runs", *words
    return validate(from_overrides(words, config_dir=root / "conf", plugins=plugins))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Config:
    root = tmp_path_factory.mktemp("own")
    config = configured(root, plugins=[write(root)])
    train_and_evaluate(config, ranks=ALONE, show=QUIET)
    (root / "interleave.py").unlink()
    return directory.load_config(config.run_dir)


def test_a_plugin_and_a_yaml_are_a_task_that_trains_and_answers_and_is_exported_if_it_is_given(
    run: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = read_rows(run.run_dir / "eval.jsonl")
    assert {(row["protocol"], row["length"], row["n_windows"] > 0) for row in rows} == {
        ("answers", length, True) for length in (2, 4, 8)
    }
    trained = generation.open_trained(run, run.run_dir, variant=None, show=QUIET)
    text = generation.generate(trained, "ab=", limit=4, temperature=0, show=QUIET)
    assert text.startswith("ab=")
    (digest,) = run.plugins
    monkeypatch.setattr(plugins, "_GIVEN", {})
    assert "interleave" in report.terminal([run.run_dir])  # runs no code of the task
    with pytest.raises(UserError, match="a plugin is needed"):
        export(run, run.run_dir, tmp_path / "model", license=None, say=QUIET.say)
    plugins.give([run.run_dir / f"plugins/{digest}.py"])
    export(run, run.run_dir, tmp_path / "model", license=None, say=QUIET.say)
    assert len(load(tmp_path / "model").tokenizer.encode("ab=").ids) == 1 + 3


def test_a_file_in_the_package_and_a_yaml_are_a_task_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, FILE.replace("Interleave", "Packaged"), kind="packaged")
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(path.parent)])
    config = configured(tmp_path, plugins=[])
    run_dir = train_and_evaluate(config, ranks=ALONE, show=QUIET)
    assert len(read_rows(run_dir / "eval.jsonl")) == 3
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["plugins"] == []


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (FILE, ["task.arguments.letters=0"], "task.arguments.letters: 0 should be greater than"),
        (FILE, ["+task.arguments.leters=3"], "task.arguments.leters: unknown key; did you mean"),
        (FILE, ["task.kind=interleve"], "task.kind: no task 'interleve'; did you mean interleave"),
        (FILE.replace("Interleave", "Copy"), [], "task copy is defined twice, in .*copy.py and "),
        ("x = 1", [], "task.kind: no task 'interleave'"),
    ],
)
def test_a_mistake_in_a_task_of_the_user_is_one_line(
    tmp_path: Path, text: str, words: list[str], message: str
) -> None:
    said = refusal(configured, tmp_path, *words, plugins=[write(tmp_path, text)])
    assert re.search(message, said)
