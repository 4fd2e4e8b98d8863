"""Runs are shown, chosen, changed and removed; what a user keeps as defaults."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Shell, here
from frames import write_run
from small import SMALL, valid
from trained import newest_checkpoint

from lengthgen.cli import lists
from lengthgen.cli.arguments import chosen_runs
from lengthgen.cli.console import print_table
from lengthgen.config.drafts import overrides_giving
from lengthgen.report.load import load_rows
from lengthgen.runs import directory, status
from lengthgen.runs.status import State, Status

QUICK = [*SMALL, "train.tokens=256", "eval.lengths=[16,32]"]


@pytest.fixture
def run(shell: Shell, own: Callable[..., Path]) -> Path:
    """A trained run in runs/ of the working directory."""
    return own("scheme=alibi", *QUICK, "train.lr=2e-3")


def rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def job(*words: str) -> dict[str, Any]:
    """Returns the configuration of the run that a command would train."""
    ran = here("train", *words, "--cfg", "job")
    assert ran.code == 0, ran.err
    return yaml.safe_load(ran.out)


def test_a_run_changed_is_the_run_of_all_the_words(shell: Shell, run: Path) -> None:
    original = ["scheme=alibi", *QUICK, "train.lr=2e-3"]
    for changes in ("seed=2", "scheme=rope train.length=8", "~scheme.parts.alibi"):
        typed = [*changes.split(), "--cfg", "job"]
        got = shell.run("train", "--from", run.name, *typed)
        assert got.out == shell.run("train", *original, *typed).out != ""
    assert shell.run("train", "--from", str(run), "seed=2").code == 0
    assert len(list(Path("runs").glob("alibi-tiny-synthetic-s2-*"))) == 1


def test_a_budget_of_steps_that_a_run_is_changed_to_is_of_its_new_batches(run: Path) -> None:
    for steps, words in ((2, ["train=gpu"]), (3, [])):
        train = job("--from", run.name, *words, f"train.steps={steps}")["train"]
        assert train["tokens"] == steps * train["batch_tokens"]


def test_a_choice_that_a_run_is_changed_to_brings_all_its_values(run: Path) -> None:
    changed = partial(job, "--from", run.name)
    gpu = changed("train=gpu", "corpus=stdlib")
    assert (gpu["runtime"]["device"], gpu["corpus"]["name"]) == ("cuda", "stdlib")
    assert gpu["runtime"]["root"] == str(run.parent)
    of_files = changed("corpus=files", "corpus.path=texts")  # which the choice leaves open
    assert of_files["corpus"]["path"] == str(Path("texts").absolute())
    got, alone = (of("task=copy", "model=small") for of in (changed, partial(job, "scheme=alibi")))
    assert got["corpus"] == alone["corpus"]
    for key in ("length", "tokens"):
        assert got["train"][key] == alone["train"][key]


def test_runs_are_chosen_by_their_values_and_shown_as_json(shell: Shell, run: Path) -> None:
    shell.run("train", "--from", run.name, "seed=2")
    assert [row[0] for row in rows(shell.run("list", "runs", "seed=1").out)] == ["run", run.name]
    record, other = json.loads(shell.run("list", "runs", "scheme=alibi", "--json").out)
    assert (record["run"], record["state"], record["steps"]) == (run.name, "done", 2)
    assert set(record["ppl"]) == set(other["ppl"]) == {"16", "32"}
    assert "did you mean alibi?" in shell.refused("list", "runs", "scheme=alib")
    globbed = json.loads(shell.run("list", "runs", "scheme=glob(al*)", "--json").out)
    assert {row["run"] for row in globbed} == {record["run"], other["run"]}
    assert "runtime.threads=7: no run here" in shell.refused("list", "runs", "runtime.threads=7")
    schemes = json.loads(shell.run("list", "schemes", "--json").out)
    assert "alibi" in [scheme["scheme"] for scheme in schemes]
    ran = shell.run("report", "seed=1", "--json")
    curve = {(row["variant"], row["length"]): row["ppl"] for row in json.loads(ran.out)}
    assert curve[None, 32] == pytest.approx(record["ppl"]["32"])
    assert ran.err.endswith("report/report.html\n")


def test_numbers_of_other_settings_are_never_in_one_row(shell: Shell, run: Path) -> None:
    def listed() -> dict[str, float]:
        (record,) = json.loads(shell.run("list", "runs", "--json").out)
        return record["ppl"]

    before = listed()
    few = shell.run("eval", run.name, "--lengths", "64", "eval.endpoints=2").out
    assert re.search(r"^\| scheme +\| +64 \|", few, re.MULTILINE)
    assert listed() == before
    asked = ("eval", run.name, "--lengths", "T,2T", "eval.endpoints=2")
    assert shell.run(*asked).out != shell.run("eval", run.name).out
    assert set(listed()) == {"16", "32", "64"}
    assert listed()["16"] != before["16"]


CONFIGURATIONS = [
    "scheme=rope scheme.layers=[[rope],[]] model=llama_small seed=3",
    "+scheme.parts.pi={factor:2.0}",
    "scheme=nope corpus=synthetic corpus.documents=9",
    "task=copy task.name=my_copy scheme=nope",
    "task=copy task.examples=300 train.length=80 train.batch_tokens=160",
    "model.arch=encoder_decoder scheme=t5 eval.lengths=[2T,4T]",
    "study=plain train.steps=7",
    r"corpus=files corpus.path=/x corpus.text_column='\${oc.env:HOME}'",  # of a run, and no word
]


@pytest.mark.parametrize("words", CONFIGURATIONS)
def test_what_differs_from_the_defaults_gives_the_configuration(words: str) -> None:
    given = valid(words.split())
    again = valid(overrides_giving(given))
    assert (again.run_id, again.evaluation_id) == (given.run_id, given.evaluation_id)
    most = 30 if "task.name=" in words else 15  # a name of one's own has no file
    assert len(overrides_giving(given)) < most


def test_a_run_is_shown_with_its_command_its_files_and_its_curve(shell: Shell, run: Path) -> None:
    shown = shell.run("show", run.name).out
    (command,) = [line for line in shown.splitlines() if line.startswith("lengthgen train")]
    words = shlex.split(command)[2:]
    assert valid(words).run_id == run.name
    assert {"scheme=alibi", "train.lr=0.002"} <= {*words}
    assert not any(word.startswith(("train.beta1", "runtime.")) for word in words)
    assert "| alibi" in shown
    size = (run / "eval.jsonl").stat().st_size
    assert ["eval.jsonl", f"{size:,}"] in rows(shown)
    assert [*run.glob(".*.lock")]
    assert ".lock" not in shown
    (run / "eval.jsonl").unlink()
    assert "\nno curve: this run has no evaluation yet" in shell.run("show", run.name).out


def test_a_folder_that_is_no_run_is_left_out_of_several(shell: Shell, run: Path) -> None:
    (run.parent / "notes").mkdir()
    ran = shell.run("show", *map(str, run.parent.glob("*")))  # as runs/*
    assert (ran.code, ran.out) == (0, shell.run("show", run.name).out)
    assert ran.err.endswith("notes: no run, left out\n")


@pytest.mark.parametrize("answer", ["--yes", "y\n", "n\n", ""])
def test_a_run_is_removed_only_if_that_is_wanted(
    shell: Shell, run: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = os.openpty()
    os.write(ours, answer.encode() or b"\x04")
    with os.fdopen(ours), os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        ran = shell.run("rm", run.name, *([answer] if answer == "--yes" else []))
        monkeypatch.undo()
    assert ran.code == 0
    assert ran.out.splitlines()[1].startswith(f"{run.name}\talibi\t1\t0.002\t16\t256 of 256\tdone")
    assert run.exists() == (answer in ("n\n", ""))


def test_a_run_that_is_worked_on_or_has_nobody_to_ask_about_stays(shell: Shell, run: Path) -> None:
    (run / ".probe.lock").touch()
    before = {path: path.stat().st_size for path in run.rglob("*")}
    assert "another process is at work" not in shell.error_of("rm", "none")
    for work in ("train", "eval", "probe"):
        with status.run_lock(run, work):
            ran = shell.run("rm", run.name, "--yes")
            assert (ran.code, "another process is at work" in ran.err) == (2, True)
    (run / "slurm.json").write_text("{")
    assert "not the record of a Slurm job" in shell.error_of("rm", run.name, "--yes")
    (run / "slurm.json").unlink()
    ran = shell.run("rm", run.name)
    assert (ran.code, "no terminal to confirm on; give --yes" in ran.err) == (2, True)
    assert {path: path.stat().st_size for path in run.rglob("*")} == before


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints"])
def test_damaged_runs_hide_no_other_and_can_be_removed(shell: Shell, run: Path, name: str) -> None:
    shell.run("train", "--from", run.name, "seed=2")
    (run / name).rename(run / "before")
    if name == "config.yaml":
        (run / name).write_text("{")
    else:
        (run / name).symlink_to(run / name)  # can be read by nobody
    head, *listed = rows(shell.run("list", "runs").out)
    states = {row[0]: row[head.index("state")] for row in listed}
    assert states.pop(run.name) == "unreadable"
    assert [*states.values()] == ["done"]
    assert shell.run("rm", run.name, str(run), "--yes").code == 0  # one run, named twice
    assert [path.name for path in directory.run_dirs(run.parent)] == [*states]


def test_the_run_that_was_worked_on_last_is_the_newest_everywhere(shell: Shell, run: Path) -> None:
    shell.run("train", "--from", run.name, "seed=2")
    shell.run("eval", run.name, "--lengths", "64")
    assert rows(shell.run("list", "runs").out)[-1][0] == run.name
    assert run.name in shell.run("show").out


def test_an_evaluation_of_several_runs_shows_the_lengths_of_each(shell: Shell, run: Path) -> None:
    longer = shell.run("train", "--from", run.name, "train.length=32", "train.tokens=512")
    assert longer.code == 0, longer.err
    ran = shell.run("eval", *sorted(p.name for p in Path("runs").glob("alibi-*")), "--lengths", "T")
    assert re.search(r"^\| scheme .* 16 \| +32 \|", ran.out, re.MULTILINE), ran.out


def test_runs_that_cannot_be_evaluated_hide_no_other(shell: Shell, run: Path) -> None:
    states: dict[str, State] = {"begun": "stopped", "lost": "diverged"}
    for name, state in states.items():
        copied = shutil.copytree(run, run.parent / name)
        shutil.rmtree(copied / "checkpoints")
        status.write_status(copied, Status(state, "why; lower train.lr"), run=run.name)
    ran = shell.run("eval", "runs/begun", "runs/lost", f"runs/{run.name}", "--lengths", "8")
    assert (ran.code, "| alibi " in ran.out, "Traceback" in ran.err) == (1, True, False)
    begun, lost = run.parent / "begun", run.parent / "lost"
    remedy = f"lengthgen show {begun} has its command"
    assert [line for line in ran.err.splitlines() if "lost" in line or "begun" in line] == [
        f"{begun} is not evaluated: {begun} has no checkpoint yet; {remedy}",
        f"{lost} is not evaluated: {lost} diverged: why; lower train.lr",
    ]
    assert shell.error_of("eval", "runs/lost") == f"{lost} diverged: why; lower train.lr"


def test_a_run_that_finishes_keeps_its_last_weights_alone(own: Callable[..., Path]) -> None:
    run_dir = own("scheme=rope", "train.keep_optimizer=false")
    assert [path.parent.name for path in run_dir.glob("checkpoints/*/*.safetensors")] == [
        "step-00000008"
    ]
    assert not [*run_dir.glob("checkpoints/*/trainer.pt")]


def test_the_optimizer_of_a_finished_run_alone_can_be_removed(
    own: Callable[..., Path],
) -> None:
    run_dir = own("scheme=rope")
    root, last = f"runtime.root={run_dir.parent}", newest_checkpoint(run_dir)
    ran = here("rm", "rope", "--optimizer", root)
    assert (ran.code, (last / "trainer.pt").exists()) == (0, False)
    assert " bytes removed" in ran.out
    assert here("eval", "rope", root, "--lengths", "16").code == 0
    (run_dir / "DONE").unlink()
    assert "is not finished" in here("rm", "rope", "--optimizer", root).error


def test_of_a_run_that_is_not_trained_to_its_end_the_evaluation_says_so(
    own: Callable[..., Path],
) -> None:
    run_dir = own("scheme=rope")
    shutil.rmtree(newest_checkpoint(run_dir))
    for name in ("DONE", "eval.jsonl"):
        (run_dir / name).unlink()
    shown = here("show", root := f"runtime.root={run_dir.parent}")
    assert "no curve: this run has no evaluation yet" in shown.out
    assert shown.err == ""
    ran = here("eval", "--lengths", "8", root)
    assert "not trained to its end, 768 of 1,024 tokens are seen" in ran.err
    assert f"run: {run_dir}" in ran.out


def test_a_report_of_some_runs_says_nothing_of_others(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", losses={512: 3.0})
    (write_run(tmp_path, "alibi", losses={512: 3.0}) / "eval.jsonl").unlink()
    words = "report", f"runtime.root={tmp_path}", "--out", str(tmp_path / "out")
    assert "alibi" in here(*words).err
    assert here(*words, "scheme=rope").err == ""


CHOICES = {  # words, and the runs of rope and alibi, seeds 1 and 2, that they choose
    "scheme=alibi,rope seed=2": "alibi2 rope2",
    "rope-*": "rope1 rope2",
    "*-s2-* scheme=al*": "alibi2",
    "state=failed,stopped scheme=rope": "rope1 rope2",
    "train.length=512 seed=1": "rope1 alibi1",
}


@pytest.mark.parametrize("words", CHOICES)
def test_every_command_chooses_runs_by_the_same_words(words: str, tmp_path: Path) -> None:
    both = [(scheme, seed) for scheme in ("rope", "alibi") for seed in (1, 2)]
    made = {f"{s}{n}": write_run(tmp_path, s, seed=n, losses={512: 3.0}) for s, n in both}
    names = {path.name: name for name, path in made.items()}
    failed = Status("failed", reason="why")
    status.write_status(made["rope1"], failed, run=made["rope1"].name)
    given, root = words.split(), f"runtime.root={tmp_path}"
    expected = {*CHOICES[words].split()}
    found, _ = chosen_runs([*given, root], "eval", "runtime")
    assert {names[path.name] for path in found} == expected
    listed = json.loads(here("list", "runs", *given, root, "--json").out)
    assert {names[of["run"]] for of in listed} == expected
    shown = here("show", *given, root).out
    assert {name for run, name in names.items() if f"{run}\t" in shown} == expected
    out = tmp_path / "report"
    assert here("report", *given, root, "--out", str(out)).code == 0
    assert {names[run] for run in load_rows([out])["run"]} == expected
    assert here("rm", *given, root, "--yes").code == 0
    assert {name for name, path in made.items() if not path.exists()} == expected


def test_what_chooses_no_run_is_one_line_that_says_what_there_is(tmp_path: Path) -> None:
    root = f"runtime.root={write_run(tmp_path, losses={512: 3.0}).parent}"
    assert "state=done: no run here has this value" in here("rm", "state=done", root).error
    assert "no run in" in here("eval", "alibi-*", root).error
    assert "rm: name the runs" in here("rm", root).error


def test_an_id_is_not_broken_however_narrow_the_terminal_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, losses={512: 3.0})
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    (of_run,) = lists.runs(tmp_path)
    print_table(*lists.runs_table([of_run]))
    assert of_run["run"] in capsys.readouterr().out


@pytest.fixture
def defaults(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the user's own defaults, without a line yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "lengthgen.yaml"


def test_defaults_of_the_users_own_are_below_what_a_command_and_a_study_say(
    defaults: Path, tmp_path: Path
) -> None:
    plain, own = job("seed=2"), job("seed=2", "runtime.root=r", "runtime.wandb=off")
    defaults.write_text("runtime: {root: r, wandb: off}\n")
    assert job("seed=2") == own != plain
    assert job("seed=2", "runtime.root=runs", "runtime.wandb=auto") == plain
    (tmp_path / "conf/study").mkdir(parents=True)
    (tmp_path / "conf/study/mine.yaml").write_text(
        "# @package _global_\nruntime: {wandb: offline}\n"
    )
    of_study = job("study=mine", f"--config-dir={tmp_path / 'conf'}")["runtime"]
    assert (of_study["wandb"], of_study["root"]) == ("offline", str(Path.cwd() / "r"))


def test_defaults_say_where_runs_are_and_mistakes_are_named(
    shell: Shell, defaults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults.write_text("runtime: {root: elsewhere}\n")
    assert "no runs in elsewhere yet" in shell.run("list", "runs").err
    monkeypatch.setenv("PLACE", "scratch")
    defaults.write_text("runtime: {root: '${oc.env:PLACE}/mine'}\n")
    assert "no runs in scratch/mine yet" in shell.run("list", "runs").err
    monkeypatch.delenv("PLACE")
    assert "Environment variable 'PLACE' not found\"; give" in shell.refused("list", "runs")
    for key in ("runtime.rooot", "train.lr"):
        section, _, name = key.partition(".")
        defaults.write_text(f"{section}: {{{name}: 1}}\n")
        assert f"{defaults}: {key}: no key of runtime; " in shell.refused("train")
