"""The command line: what a user types, what comes back, and how soon."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import commands
import pytest
import torch
import yaml
from commands import Ran, Shell, here, one_run, train_words
from frames import write_run
from small import SMALL
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from lengthgen.config.drafts import from_stored


@pytest.fixture
def run_id(shell: Shell, trained: Path) -> str:
    """The id of the trained run in runs/ of the working directory."""
    return one_run(trained).name


def completing(typed: str) -> dict[str, str]:
    """Returns the environment in which zsh completes a line."""
    return {"_LENGTHGEN_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": typed}


def imported_by(words: str, **environment: str) -> set[str]:
    """Returns the modules that a command has imported at its end."""
    code = (
        "import sys, atexit; from lengthgen.__main__ import main;"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    )
    command, env = [sys.executable, "-c", code, *words.split()], {**os.environ, **environment}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "Traceback" not in ran.stderr
    imported = {*ran.stderr.splitlines()[-1].split()}
    assert "lengthgen.cli.app" in imported
    return imported


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "environment"),
    [
        *(("--help", {}), ("trian", {}), ("train scheme=typo", {})),
        *(("", completing(f"lengthgen train {word}")) for word in ("scheme=r", "--from ro")),
    ],
)
def test_help_tab_and_mistakes_come_without_torch(words: str, environment: dict[str, str]) -> None:
    imported = imported_by(words, **environment)
    assert imported & {"torch", "numpy", "pandas", "wandb", "matplotlib"} == set()
    assert len(imported) < 600  # 312 to 451, in half a second: imports are what it costs


@pytest.mark.slow
def test_runs_of_text_are_listed_shown_and_reported_without_torch(tmp_path: Path) -> None:
    write_run(tmp_path, losses={512: 3.0, 1024: 2.5})
    where = f"runtime.root={tmp_path}"
    assert imported_by(f"list runs {where}") & {"torch", "numpy", "pandas"} == set()
    shown = imported_by(f"show {where}")
    assert shown & {"torch", "matplotlib"} == set()
    assert "lengthgen.report.tables" in shown
    assert "torch" not in imported_by(f"report {where} --out {tmp_path}/report")


def test_the_help_has_a_whole_line_of_each_command(shell: Shell) -> None:
    for words in ([], ["track", "--help"]):
        ran = shell.run(*words)
        assert ran.code == 0
        assert "Commands:" in ran.out
        assert "..." not in ran.out.replace("COMMAND [ARGS]...", "")
    assert shell.run("--version").out == f"lengthgen {version('lengthgen')}\n"


def test_the_configuration_is_printed_as_yaml_of_that_run(shell: Shell, run_id: str) -> None:
    ran = shell.run("train", "scheme=rope", *SMALL, "--cfg", "job")
    assert from_stored(yaml.safe_load(ran.out)).run_id == run_id
    assert ran.err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "No such command 'trian'. Did you mean 'train', 'track'?"),
        ("train --gpu 2", "No such option: --gpu (Possible options: --cfg, --gpus, --plugin)"),
        ("train --train.lr=1e-3", "--train.lr: keys have no dashes; give train.lr=1e-3"),
        ("train --cfg hydra", "'hydra' is not one of 'job'"),
        ("train hydra.run.dir=x", "only the syntax is Hydra's; runs are in runtime.root=DIR"),
        ("sweep seed=1,2 seed=3", "seed=1,2 and seed=3 set one key; drop one of them"),
        ("train --gpus 0", "'--gpus': Input should be greater than"),
        ("train --gpus", "Option '--gpus' requires an argument."),
        ("list", "list: what? schemes, variants, models, "),
        ("list shcemes", "list: no such kind 'shcemes'; did you mean schemes?"),
        ("list runs runtime.root=true", "runtime.root: True is no folder; quote it: runt"),
        ("rm", "rm: name the runs that are to go; lengthgen list runs shows them"),
        ("rm some-run", "some-run: no such run in runs; "),
        ("eval", "/runs holds no run yet; lengthgen train scheme=rope makes one"),
        (f"eval eval.lengths=[{'1,' * 200}2]", "runs holds no run yet"),
        ("list runs runtime.root=", "runtime.root: an empty value is no folder; give runtime.root"),
        ("eval runtime.root=a,b", "runtime.root=a,b holds several values"),
        ("train -m scheme=rope,alibi", "-m: for several values of a key, give lengthgen sweep in"),
        (f"train --config-dir {'x' * 5000}", "xxx: file name too long"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(shell: Shell, words: str, said: str) -> None:
    assert said in shell.refused(*shlex.split(words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--lengths abc", "eval.lengths.0: 'abc' should be a valid integer"),
        ("--checkpoints 1e400", "--checkpoints 1e400: give all, or tokens such as 4M,8M"),
        ("--lengths 99999", "tokens, not 99999; try "),
        ("--protocols sliding", "eval.protocols: no protocol 'sliding'; did you mean sliding-256?"),
        ("--variants yarm", "eval.variants: scheme rope has no variant 'yarm'; "),
    ],
)
def test_what_cannot_be_evaluated_is_said(shell: Shell, run_id: str, words: str, said: str) -> None:
    assert said in shell.refused("eval", *shlex.split(words))


@pytest.mark.slow
@pytest.mark.parametrize("words", [["train", "scheme=no_such"], ["train", "--no-such"]])
def test_a_mistake_under_torchrun_is_one_line_of_what_it_shows(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "error.json"
    file.write_text("of before")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    with file.open() as opened:
        assert commands.run("-m", "lengthgen", *words)[:] == (2, "", "")
        assert opened.read() == "of before"  # put in place whole: a killed process leaves no half
    failure = ProcessFailure(0, 1, 2, str(file))
    shown = str(ChildFailedError("lengthgen", {0: failure}))
    assert "no" in shown
    assert "Traceback" not in shown


def test_ctrl_c_is_one_line_and_exit_code_130(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("raise KeyboardInterrupt\n")
    ran = shell.run("train", "--plugin", "part.py")
    assert ran == Ran(130, "", "interrupted; rerun to resume\n")


SWALLOWS = """
import signal, sys
from lengthgen.__main__ import main

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Finder)
main()
"""


@pytest.mark.slow
def test_ctrl_c_in_an_import_that_swallows_it_ends_at_once(tmp_path: Path) -> None:
    ran = commands.run("-c", SWALLOWS, "train", *SMALL, cwd=tmp_path)
    assert ran == Ran(130, "", "interrupted; rerun to resume\n")
    assert list(tmp_path.iterdir()) == []


FULL = "error: standard output: no space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("-m lengthgen list corpora", 1, ""),
        ("-m lengthgen list corpora >/dev/full", 2, FULL),
        ("-m lengthgen list corpora >&-", 0, ""),
        ("-u -m lengthgen --help >/dev/full", 2, FULL),
        ("-m lengthgen list corpora >/dev/null 2>&-", 0, ""),
    ],
)
def test_an_output_that_takes_nothing_is_no_traceback(line: str, code: int, said: str) -> None:
    read, unread = os.pipe()
    os.close(read)  # as of `| true`, which has ended before anything is written
    with os.fdopen(unread) as out:
        command = ["sh", "-c", f"{sys.executable} {line}"]
        ran = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (code, said)


def test_what_a_stream_cannot_encode_is_shown_escaped(run_id: str) -> None:
    words = ["generate", run_id, "--tokens", "1", "--prompt", "abcd\u00e9"]
    ran = here(*words, encoding="ascii")
    assert (ran.code, "abcd\\xe9" in ran.out) == (0, True), ran


def test_a_text_is_continued_under_a_variant_of_ones_own(shell: Shell, run_id: str) -> None:
    Path("mine/variant").mkdir(parents=True)
    Path("mine/variant/near.yaml").write_text("window: {width: 1.0, sinks: 0}\n")
    words = ["generate", run_id, "--prompt", "abcd", "--tokens", "1", "--variant"]
    assert "no variant 'near'" in shell.refused(*words, "near")
    assert shell.run(*words, "near", "--config-dir", "mine").code == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("words", [[], ["--gpus", "2"]])
def test_the_budget_for_gpus_is_refused_without_one(shell: Shell, words: list[str]) -> None:
    line = shell.refused("train", "train=gpu", "model=medium", *words)
    assert line.startswith("runtime.device=cuda: there is no GPU in this machine; leave ")
    assert not Path("runs").exists()


def test_a_training_without_a_length_beyond_T_says_so_before_it_begins(tmp_path: Path) -> None:
    words = [w for w in train_words(tmp_path, "scheme=nope") if not w.startswith("eval.lengths")]
    said = [here(*words, f"seed={n}", f"eval.lengths=[8,{n}]").err for n in (16, 32)]
    assert ["none beyond T = 16" in line for line in said] == [True, False]
    assert said[0].index("none beyond") < said[0].index("training in")


def test_a_done_run_is_printed_and_listed_without_its_log_too(shell: Shell, run_id: str) -> None:
    ran = shell.run("train", "scheme=rope", *SMALL)
    assert ran.code == 0
    assert "| rope" in ran.out
    assert ran.out.endswith(f"run: runs/{run_id}\n")
    line = shell.run("list", "runs").out.splitlines()[1]
    name, *about, tokens, state, at_t, longest, _ = line.split("\t")
    assert about == ["rope", "1", "0.01", "16"]
    assert (name, state, tokens) == (run_id, "done", "1,024 of 1,024")
    assert at_t.endswith(" at 16")
    assert longest.endswith(" at 64")
    Path(f"runs/{run_id}/train.jsonl").unlink()
    assert shell.run("list", "runs").out.splitlines()[1].split("\t")[5] == tokens


def test_an_evaluation_shows_what_it_was_asked_for_in_any_folder(shell: Shell, run_id: str) -> None:
    shutil.copytree(f"runs/{run_id}", "moved")
    for run in ("rope", f"runs/{run_id}", "moved"):
        words = ["--lengths", "T/2,3,20,21,22", "--protocols", "tail,sliding-8"]
        ran = shell.run("eval", run, *words)
        assert "Perplexity by context length, sliding-8" in ran.out, ran.err
        assert re.search(r"^\| scheme \| +3 \| +8 \| +20 \| +21 \| +22 \|", ran.out, re.MULTILINE)


def complete(shell: Shell, name: str, **environment: str) -> list[str]:
    with mock.patch.dict(os.environ, {"_LENGTHGEN_COMPLETE": f"complete_{name}", **environment}):
        return shell.run().out.splitlines()


def complete_fish(shell: Shell, typed: str) -> list[str]:
    action = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return complete(shell, "fish", **action, _TYPER_COMPLETE_ARGS=typed)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["lengthgen", "tr"], ["train", "track"]),
        (["lengthgen", "train", "scheme", "=", "xp"], ["xpos"]),
        (["lengthgen", "train", "--gp"], ["--gpus"]),
        (["lengthgen", "list", "mod"], ["models"]),
        (["lengthgen", "list", "runs", "scheme", "=", "xp"], ["xpos"]),
        (["lengthgen", "train", "nothing"], []),
    ],
)
def test_bash_which_breaks_words_at_the_equals_sign_completes(
    shell: Shell, typed: list[str], offered: list[str]
) -> None:
    words = {"COMP_WORDS": "\n".join(typed), "COMP_CWORD": str(len(typed) - 1)}
    got = complete(shell, "bash", **words)
    assert [word for word in got if word] == offered


def test_every_run_completes_also_beside_a_broken_yaml(
    shell: Shell, run_id: str, tmp_path: Path
) -> None:
    (tmp_path / "mine/scheme").mkdir(parents=True)
    (tmp_path / "mine/scheme/my.yaml").write_text("parts: [\n")
    broken = complete_fish(shell, "lengthgen train --config-dir mine sche")
    assert [word for word in broken if word] == []
    root = f"runtime.root={Path.cwd()}/runs"
    for words in ("eval ro", "report ro", f"eval {root} ro", "train --from ro", "rm ro"):
        assert complete_fish(shell, f"lengthgen {words}") == [run_id]
    got = complete(shell, "zsh", _TYPER_COMPLETE_ARGS="lengthgen train scheme=xp")
    assert got == ["""_arguments '*: :(("scheme=xpos"))'"""]
