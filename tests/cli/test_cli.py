"""The command line: what a user types, what comes back, and what is never imported."""

import inspect
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import get_type_hints

import forks
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
from shell import Ran, Shell
from small import small_config

from lengthgen import cli
from lengthgen.cli.commands import COMMANDS, TRACK
from lengthgen.runs import devices

EVERY = {**COMMANDS, **TRACK}
HEAVY = {"torch", "numpy", "hydra", "omegaconf", "wandb", "datasets", "matplotlib", "rich"}

SMALL = shlex.split(
    "corpus=synthetic corpus.documents=20 corpus.document_tokens=1024 corpus.alphabet=16 "
    "model.d_model=16 model.n_heads=2 model.n_layers=1 model.d_ff=32 "
    "train.length=32 train.tokens=512 train.batch_tokens=128 train.precision=fp32 "
    "eval.lengths=[32,64] eval.targets=16 eval.reach=64 eval.endpoints=4 "
    "runtime.wandb=off runtime.device=cpu runtime.threads=1"
)


@pytest.fixture(scope="module")
def runs_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose runs/ holds one small trained and evaluated run."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
        patch.setattr(sys, "argv", ["lengthgen", "train", "scheme=rope", *SMALL])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code in (0, None)
    return folder


@pytest.fixture
def trained(shell: Shell, runs_root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a trained run, with the working directory beside runs/."""
    monkeypatch.chdir(runs_root)
    (run_dir,) = (runs_root / "runs").glob("rope-*")
    return run_dir.name


def modules_after(*words: str, **environment: str) -> set[str]:
    """Returns the modules that a fresh process has imported when a command ends."""
    code = (
        "import sys, atexit; from lengthgen.cli import main;"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    imported = {*ran.stderr.splitlines()[-1].split()}
    assert "lengthgen.cli.commands" in imported, ran.stderr
    return imported


def completing(typed: str) -> dict[str, str]:
    """Returns the environment in which zsh completes a line."""
    return {"_LENGTHGEN_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": typed}


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ("--help", {}),
        ("track --help", {}),
        ("trian", {}),
        ("", completing("lengthgen t")),
        ("", completing("lengthgen track ")),
        ("", completing("lengthgen train scheme=r")),
        ("", completing("lengthgen eval ")),
        ("", completing("lengthgen track push ")),
    ],
)
def test_help_an_unknown_command_and_completion_import_no_command(
    words: str, environment: dict[str, str]
) -> None:
    imported = modules_after(*words.split(), **environment)
    assert imported & HEAVY <= {"rich"}  # by Typer, which completes with the help of commands
    assert imported & {f"lengthgen.cli.{command.module}" for command in EVERY.values()} == set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["schemes", "protocols", "runs"])
def test_a_list_does_not_import_torch(runs_root: Path, kind: str) -> None:
    listed = modules_after("list", kind, f"runtime.root={runs_root / 'runs'}")
    assert listed & {"torch", "scipy", "matplotlib", "datasets"} == set()


@pytest.mark.parametrize("name", EVERY)
def test_what_is_known_of_a_command_without_its_import_is_what_its_function_says(
    name: str,
) -> None:
    function = EVERY[name].load()
    assert EVERY[name].help == (inspect.getdoc(function) or "").splitlines()[0]
    argument = next(iter(get_type_hints(function, include_extras=True).values()))
    (completed,) = argument.__metadata__
    assert EVERY[name].complete == completed.autocompletion


def test_the_help_has_a_whole_line_of_each_command(shell: Shell) -> None:
    for words in (["--help"], ["track", "--help"]):
        assert "..." not in shell.run(*words).out.replace("COMMAND [ARGS]...", "")


def test_the_version_is_that_of_the_package(shell: Shell) -> None:
    assert shell.run("--version").out == f"lengthgen {version('lengthgen')}\n"


def test_the_help_is_that_of_commands_which_are_imported_at_once(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [shell.run(*words).out for words in (["--help"], ["track", "--help"])]
    at_once, tracking = (
        typer.Typer(help=group.info.help, rich_markup_mode=None)
        for group in (cli.app, cli.tracking)
    )
    for name, command in COMMANDS.items():
        at_once.command(name)(command.load())
    for name, command in TRACK.items():
        tracking.command(name)(command.load())
    at_once.callback()(cli.options)
    at_once.add_typer(tracking, name="track")
    monkeypatch.setattr(cli, "app", at_once)
    assert [shell.run(*words).out for words in (["--help"], ["track", "--help"])] == shown


def test_help_answers_within_three_tenths_of_a_second() -> None:
    def best(*arguments: str) -> float:
        """Returns seconds of processor time, which other processes do not add to."""
        seconds: list[float] = []
        for _ in range(3):
            began = os.times()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            ended = os.times()
            used = ended.children_user - began.children_user
            seconds.append(used + ended.children_system - began.children_system)
        return min(seconds)

    bare = best("-c", "pass")  # what a loaded machine takes to start Python at all
    assert best("-m", "lengthgen", "--help") < max(0.3, 12 * bare)


def test_no_arguments_at_all_give_the_help(shell: Shell) -> None:
    ran = shell.run()
    assert ran.code == 0
    assert "Commands:" in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "No such command 'trian'. Did you mean 'train', 'track'?"),
        ("train --gpu 2", "No such option: --gpu (Possible options: --gpus, --plugin)"),
        (
            "train --gpus two",
            "--gpus: 'two': input should be a valid integer; give --gpus N (start N processes with",
        ),
        ("train --gpus", "Option '--gpus' requires an argument."),
        ("list", "Missing argument 'schemes|variants|models|corpora|tasks|experiments|"),
        ("list shcemes", "list: no such kind 'shcemes'; did you mean schemes?"),
        ("list runs train.lr=1", "train.lr: only runtime.* can be given here; the run fixes the"),
        ("list runs somewhere", "somewhere: not readable as an override; give runtime.root=DIR"),
        ("list schemes --config-dir none", "--config-dir: none is not a folder; give a folder"),
        ("train scheme=rpoe", "scheme=rpoe: no such scheme; did you mean rope?"),
        ("train train.lrr=1", "train.lrr: unknown key; did you mean train.lr?"),
        ("train train.tokens=abc", "train.tokens: 'abc' is not an integer"),
        ("train corpus=files corpus.path=none", "corpus.path: none does not exist; the folder "),
        ("train model.d_model=130", "model.d_model=130 is not divisible by model.n_heads=4; try"),
        ("train eval.lengths=[0]", "eval.lengths.0: 0 should be greater than 0"),
        ("train scheme.parts.rope.bse=1", "scheme.parts.rope.bse: unknown key; did you mean"),
        ("train scheme=nope +scheme.parts.rop={}", "scheme.parts.rop: no such part; did you mean"),
        ("train --plugin none.py", "none.py cannot be read (No such file or directory); give the"),
        ("train --config-dir none", "--config-dir: none is not a folder; give a folder of groups"),
        ("train --gpus 0", "--gpus: '0': input should be greater than"),
        ("train --gpus 2 scheme=rpoe", "scheme=rpoe: no such scheme; did you mean rope?"),
        ("eval", "runs holds no run yet; lengthgen train scheme=rope makes one"),
        ("eval some-run", "some-run: no such run in runs; "),
        ("eval --lengths abc", "--lengths: 'abc' is not a positive integer; give lengths like"),
        ("eval --lengths 512,", "--lengths: '' is not a positive integer; give lengths like"),
        ("eval --lengths 512,-1", "--lengths: '-1' is not a positive integer; give lengths like"),
        ("eval --lengths 0", "--lengths: '0' is not a positive integer; give lengths like"),
        ("eval --lengths 5.5", "--lengths: '5.5' is not a positive integer; give lengths like"),
        ("eval train.lr=1", "train.lr: only eval.* and runtime.* can be given here; the run fixes"),
        ("eval eval.lenghts=[1]", "eval.lenghts: unknown key; did you mean eval.lengths?"),
        ("eval runtime.root=a,b", "runtime.root=a,b holds several values"),
        ("report", "no run in runs; lengthgen train scheme=rope makes one"),
        (f"report {'x' * 5000}", "x... is longer than a path can be; give a shorter one"),
        (f"train --config-dir {'x' * 5000}", "x... is longer than a path can be; give a shorter"),
        (f"list runs runtime.root={'x' * 5000}", "x... is longer than a path can be; give a"),
        ("report runtime.rot=a", "runtime.rot: unknown key; did you mean runtime.root?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(shell: Shell, words: str, said: str) -> None:
    assert said in shell.refused(*shlex.split(words))


def test_a_folder_without_documents_is_one_line(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    assert "books" in shell.refused("train", "corpus=files", "corpus.path=books")


@pytest.mark.parametrize(("content", "said"), [(b"", "empty"), (b"caf\xe9 au lait", "UTF-8")])
def test_a_file_that_holds_no_text_is_one_line(
    shell: Shell, tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "book.txt").write_bytes(content)
    line = shell.error_of("train", "corpus=files", "corpus.path=book.txt")
    assert "book.txt" in line
    assert said in line


def test_a_parquet_without_the_text_column_is_one_line(shell: Shell, tmp_path: Path) -> None:
    pq.write_table(pa.table({"content": ["some text"]}), tmp_path / "rows.parquet")
    line = shell.error_of("train", "corpus=files", "corpus.path=rows.parquet")
    assert "rows.parquet" in line
    assert "corpus.text_column" in line
    assert "content" in line


def test_a_length_that_no_document_reaches_names_the_longest(shell: Shell) -> None:
    line = shell.error_of("train", *SMALL, "eval.lengths=[32,99999]")
    assert "eval.lengths: no validation document" in line
    assert "try eval.lengths=[32]" in line


@pytest.mark.slow
def test_gpus_refuses_before_starting_processes_what_one_process_would(tmp_path: Path) -> None:
    # In a process of its own: without the refusal it would become torchrun.
    words = ["train", *SMALL, "eval.lengths=[99999]", "--gpus", "2"]
    ran = forks.run("-m", "lengthgen", *words, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[-1].startswith("error: eval.lengths: no validation document")
    assert ran.stderr.count("error") == 1


@pytest.mark.slow
def test_gpus_says_that_it_runs_on_the_cpu_where_there_is_no_gpu(tmp_path: Path) -> None:
    words = [word for word in SMALL if not word.startswith("runtime.device")]
    words = ["train", *words, "eval.lengths=[99999]", "--gpus", "2"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ran = forks.run("-m", "lengthgen", *words, cwd=tmp_path, env=env)
    said = "--gpus: there is no GPU in this machine; 2 processes on the CPU"
    assert ran.stderr.splitlines()[0] == said


def test_gpus_within_torchrun_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert shell.refused("train", "--gpus", "2").startswith("--gpus: torchrun has started this")


def test_only_the_main_process_of_several_speaks(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert shell.run("train", "scheme=rpoe") == Ran(2, "", "")


def test_ctrl_c_is_one_line_and_exit_code_130(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("raise KeyboardInterrupt\n")
    ran = shell.run("train", "--plugin", "part.py")
    assert ran == Ran(130, "", "interrupted; the same command continues with what is done\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_stops_early_causes_no_noise(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-m", "lengthgen", "list", "corpora"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (1, b"")


def test_threads_are_kept_from_spinning_unless_the_user_decides(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    shell.run("--help")
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    shell.run("--help")
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    shell.run("--help")
    assert os.environ.pop("GOMP_SPINCOUNT") == "1000"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("words", [[], ["--gpus", "2"]])
def test_the_budget_for_gpus_is_refused_in_one_line_without_one(
    shell: Shell, words: list[str]
) -> None:
    ran = shell.run("train", "train=gpu", "model=medium", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: runtime.device=cuda: there is no GPU in this machine; leave ")
    assert ran.err.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("set_to", "words", "processes", "threads"),
    [
        ("3", [], 1, 3),
        ("1", [], 1, 1),
        ("3,2", [], 1, 3),
        ("3", ["runtime.threads=2"], 1, 2),
        ("3", [], 2, 3),
        ("1", [], 2, 4),  # torchrun's
        ("", [], 2, 4),
        ("many", [], 1, 8),
        (None, [], 1, 8),
    ],
)
def test_threads_are_those_of_the_configuration_then_of_the_environment_then_the_cores(
    set_to: str | None,
    words: list[str],
    processes: int,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def eight_cores(_: int) -> set[int]:
        return set(range(8))

    monkeypatch.setattr(os, "sched_getaffinity", eight_cores, raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_to is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", set_to)
    before = torch.get_num_threads()
    try:
        config = small_config("runtime.threads=null", *words)
        devices.prepare(config.runtime, torch.device("cpu"))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_a_pipe_gets_tab_separated_names_and_descriptions(shell: Shell) -> None:
    rows = [line.split("\t") for line in shell.run("list", "schemes").out.splitlines()]
    said = {row[0]: row[1:] for row in rows}
    assert said["rope"][0].startswith("Rotary position embedding.")
    assert said["learned_absolute"][1] == "clamp, wrap, interpolate"


def test_nothing_to_list_is_no_mistake(shell: Shell) -> None:
    assert shell.run("list", "runs") == Ran(0, "", "no runs in runs yet\n")


def test_training_prints_the_curve_and_the_run_on_stdout_and_progress_on_stderr(
    shell: Shell, trained: str
) -> None:
    ran = shell.run("train", "scheme=rope", *SMALL)
    assert ran.code == 0
    assert "| rope" in ran.out
    assert ran.out.endswith(f"run: runs/{trained}\n")


def test_a_run_is_listed_with_state_tokens_and_perplexities(shell: Shell, trained: str) -> None:
    run_id, state, steps, tokens, at_t, longest = shell.run("list", "runs").out.strip().split("\t")
    assert (run_id, state, steps, tokens) == (trained, "done", "4/4", "512")
    assert at_t.endswith(" at 32")
    assert longest.endswith(" at 64")


def test_both_perplexities_of_a_listed_run_are_of_one_set_of_endpoints(
    shell: Shell, trained: str, runs_root: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs_root / "runs" / trained, tmp_path / "runs" / trained)
    root = f"runtime.root={tmp_path}/runs"
    before = shell.run("list", "runs", root).out
    shell.run("eval", trained, root, "--lengths", "128")
    assert shell.run("list", "runs", root).out == before


def test_evaluation_takes_lengths_protocols_and_a_beginning_of_the_id(
    shell: Shell, trained: str
) -> None:
    ran = shell.run("eval", "rope", "--lengths", "32,64", "--protocols", "tail,nonoverlap")
    assert ran.code == 0
    assert "Perplexity, matched tail" in ran.out
    assert "nonoverlap" in ran.out


def test_evaluation_of_a_path_works_from_anywhere(
    shell: Shell, trained: str, runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = shell.run("eval", str(runs_root / "runs" / trained))
    assert ran.code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--lengths 99999", "eval.lengths: no validation document"),
        ("--lengths 64,99999", "(lengthgen eval: --lengths 64)"),
        ("--protocols tial", "eval.protocols: no protocol 'tial'; did you mean tail?"),
        ("--protocols sliding", "eval.protocols: sliding needs its stride in tokens, such as"),
        ("--variants yarm", "eval.variants: scheme rope has no variant 'yarm'; "),
        (
            "--protocols last_k eval.targets=64",
            "eval.lengths: 32 is shorter than the eval.targets=64 scored tokens",
        ),
    ],
)
def test_what_a_run_cannot_be_evaluated_with_is_one_line(
    shell: Shell, trained: str, words: str, said: str
) -> None:
    assert said in shell.refused("eval", *shlex.split(words))


def test_a_report_ends_with_a_short_table_and_the_path_of_its_page(
    shell: Shell, trained: str, tmp_path: Path
) -> None:
    ran = shell.run("report", "--out", str(tmp_path / "out"))
    *above, page = ran.out.splitlines()
    assert Path(page) == tmp_path / "out" / "report.html"
    assert Path(page).is_file()
    assert max(map(len, above)) <= 80


@pytest.mark.slow
def test_the_folder_of_a_report_is_made_again_in_its_place_or_elsewhere(
    shell: Shell, trained: str, tmp_path: Path
) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    shell.run("report", "--out", str(out))
    shell.run("report", str(out), "--out", str(other))
    ran = shell.run("report", str(other))
    assert (ran.code, ran.err) == (0, "")
    for name in ("table.md", "curves.csv", "curve.svg", "rows.parquet"):
        assert (other / name).read_bytes() == (out / name).read_bytes(), name
    assert "need --out DIR" in shell.refused("report", str(out), "scheme=rope")
    assert "need --out DIR" in shell.refused("report", str(out), trained)
    shell.run("report", str(out), trained, "--out", str(other))
    assert (other / "table.md").read_bytes() == (out / "table.md").read_bytes()


@pytest.mark.slow
def test_gpus_starts_processes_that_agree_and_speak_once(tmp_path: Path) -> None:
    words = ["train", "scheme=alibi", *SMALL, "--gpus", "2"]
    ran = forks.run("-m", "lengthgen", *words, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Perplexity") == 1
    assert ran.stderr.count("train alibi: 0/512 tokens") == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes_of_gpus_with_one_line_and_no_trace(
    tmp_path: Path, kind: signal.Signals
) -> None:
    words = ["train", "scheme=alibi", *SMALL, "train.tokens=10000000", "runtime.log_every=1"]
    process = forks.Forked("-m", "lengthgen", *words, "--gpus", "2", cwd=tmp_path)
    while not list(tmp_path.glob("runs/*/train.jsonl")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(kind)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (128 + kind, "")
    assert err.splitlines()[-1].startswith(f"stopped by {kind.name} after step")
    assert "Traceback" not in err
    assert list(tmp_path.glob("runs/*/checkpoints/step-*"))


def complete(shell: Shell, name: str, **environment: str) -> list[str]:
    for key, value in {"_LENGTHGEN_COMPLETE": f"complete_{name}", **environment}.items():
        shell.monkeypatch.setenv(key, value)
    return shell.run().out.splitlines()


def complete_fish(shell: Shell, typed: str) -> list[str]:
    action = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return complete(shell, "fish", **action, _TYPER_COMPLETE_ARGS=typed)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["lengthgen", "tr"], ["train", "track"]),
        (["lengthgen", "train", "scheme", "=", "ro"], ["rope"]),
        (["lengthgen", "train", "model", "=", "tiny", "scheme", "=", "sinu"], ["sinusoidal"]),
        (["lengthgen", "train", "model", "="], ["alibi", "base", "medium", "small", "tiny"]),
        (["lengthgen", "train", "train.le"], ["train.length=", "train.length=512"]),
        (["lengthgen", "train", "--gp"], ["--gpus"]),
        (["lengthgen", "list", "mod"], ["models"]),
        (["lengthgen", "train", "nothing"], []),
    ],
)
def test_bash_which_breaks_words_at_the_equals_sign_completes(
    shell: Shell, typed: list[str], offered: list[str]
) -> None:
    words = {"COMP_WORDS": "\n".join(typed), "COMP_CWORD": str(len(typed) - 1)}
    got = complete(shell, "bash", **words)
    assert [word for word in got if word] == offered


def test_zsh_completes(shell: Shell) -> None:
    got = complete(shell, "zsh", _TYPER_COMPLETE_ARGS="lengthgen train scheme=ro")
    assert got == ["""_arguments '*: :(("scheme=rope"))'"""]


def test_fish_completes(shell: Shell) -> None:
    got = complete_fish(shell, "lengthgen train scheme=")
    assert "scheme=rope" in got
    assert "scheme=alibi" in got


@pytest.mark.parametrize("command", ["eval", "report"])
def test_run_ids_complete(shell: Shell, trained: str, command: str) -> None:
    assert complete_fish(shell, f"lengthgen {command} ro") == [trained]


def test_run_ids_of_another_root_complete(shell: Shell, runs_root: Path) -> None:
    got = complete_fish(shell, f"lengthgen eval runtime.root={runs_root}/runs ro")
    assert [run_id.partition("-")[0] for run_id in got] == ["rope"]


def test_a_broken_yaml_of_the_users_does_not_break_the_prompt(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "mine/scheme").mkdir(parents=True)
    (tmp_path / "mine/scheme/my.yaml").write_text("parts: [\n")
    got = complete_fish(shell, "lengthgen train --config-dir mine sche")
    assert [word for word in got if word] == []


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_completion_script_of_each_shell_is_shown(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    ran = shell.run("--show-completion", name)
    assert ran.code == 0
    assert f"_LENGTHGEN_COMPLETE=complete_{name}" in ran.out
