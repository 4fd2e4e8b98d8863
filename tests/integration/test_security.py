"""What a stranger's run, model or YAML cannot do: each test tries, and looks for the mark it left.

A mark is a file beside the code that would have run; `account` is a user who allowed nothing yet.
"""

import csv
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from eval_rows import Runs
from markup import commands_of_latex, is_no_formula, kinds_of_markdown
from shell import Shell
from small import SMALL, small_config
from strangers import write_config

from lengthgen.config import allowlist
from lengthgen.config.schema import from_overrides
from lengthgen.errors import UserError
from lengthgen.files import append_rows, read_rows
from lengthgen.pipeline import train_and_evaluate
from lengthgen.report import collect, page_method, study, write
from lengthgen.runs import directory, status
from lengthgen.runs.distributed import Ranks
from lengthgen.schemes import registry
from lengthgen.terminal import Progress

pytestmark = pytest.mark.slow

ALONE = Ranks(rank=0, world_size=1, local_rank=0)
QUIET = Progress(is_main=False)
MARKING = """
from pathlib import Path
from lengthgen.schemes import AttentionContext, Part

Path(__file__).with_name("mark").write_text("this ran")

class Marking(Part):
    def bias(self, c: AttentionContext):
        return -0.5 * c.distance()
"""
PARTS = ["scheme=nope", "+scheme.parts.marking={}"]
SHORT = ["train.tokens=256", "eval.lengths=[16]"]


class Account(Shell):
    """A user who gives commands in this process, from a folder of their own."""

    def forget_this_process(self) -> None:
        """Makes the next command like one of a new process: what ran is gone, and its consent."""
        self.monkeypatch.delenv(allowlist.ALLOWED, raising=False)
        for name in [one for one in sys.modules if one.startswith("lengthgen_plugin_")]:
            self.monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Account:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = Account(monkeypatch, capsys)
    found.forget_this_process()
    return found


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run directories as a stranger made them, one with code of its own."""
    root = tmp_path_factory.mktemp("strangers")
    path = root / "marking.py"
    path.write_text(MARKING)
    made: dict[str, Path] = {}
    for name, words in (("code", [*PARTS, f"plugins=[{path}]"]), ("plain", ["scheme=rope"])):
        config = small_config(*words, *SHORT, f"runtime.root={root}/runs")
        made[name] = train_and_evaluate(config, ranks=ALONE, show=QUIET)
    return made


def received(made: Path, tmp_path: Path) -> Path:
    """Returns the copy of a stranger's run and token cache that a user unpacked."""
    root = tmp_path / "runs"
    shutil.copytree(made.parent / ".cache", root / ".cache")
    shutil.copytree(made, root / made.name)
    (root / made.name / "plugins" / "mark").unlink(missing_ok=True)
    return root / made.name


@pytest.fixture
def code(strangers: dict[str, Path], tmp_path: Path, account: Account) -> Path:
    """A received run with code of its own."""
    return received(strangers["code"], tmp_path)


@pytest.fixture
def plain(strangers: dict[str, Path], tmp_path: Path, account: Account) -> Path:
    """A received run without."""
    return received(strangers["plain"], tmp_path)


def changed(run_dir: Path, **sections: Any) -> None:
    """Changes config.yaml as a stranger may; a section that is a mapping is changed within."""
    path = run_dir / "config.yaml"
    said = yaml.safe_load(path.read_text())
    for key, value in sections.items():
        said[key] = {**said[key], **value} if isinstance(value, dict) else value
    write_config(run_dir, yaml.safe_dump(said))


def marks(folder: Path) -> list[Path]:
    return list(folder.rglob("mark"))


# Code of a run


COMMANDS = {
    "eval": ["eval", "{run}", "--lengths", "32"],
    "probe": ["probe", "{run}", "--probes", "bias"],
    "report": ["report", "{run}"],
    "generate": ["generate", "{run}", "--prompt", "a"],
    "list": ["list", "runs"],
    "export": ["export", "{run}", "exported"],
    "push": ["track", "push", "{run}", "runtime.wandb=offline"],
    "train": ["train", "scheme=rope", *SMALL, *SHORT],
}


def words_of(name: str, run_dir: Path) -> list[str]:
    return [word.format(run=run_dir.name) for word in COMMANDS[name]]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_runs_the_code_of_a_run(name: str, code: Path, account: Account) -> None:
    account.run(*words_of(name, code))
    assert marks(code) == []


@pytest.mark.parametrize("name", ["eval", "probe", "generate"])
def test_what_needs_the_code_says_how_it_is_allowed(
    name: str, code: Path, account: Account
) -> None:
    (file,) = (code / "plugins").iterdir()
    shutil.rmtree(code.parent / ".cache")
    said = account.error_of(*words_of(name, code))
    assert not (code.parent / ".cache").exists()  # that is, before any work is done
    assert said == (
        f"plugins: runs/{code.name}/plugins/{file.name} is code that was not given on the command "
        f"line; read it, then allow it with --plugin runs/{code.name}/plugins/{file.name}"
    )


def test_what_needs_no_code_shows_the_run(code: Path, account: Account) -> None:
    (listed,) = account.run("list", "runs").out.splitlines()
    assert listed.split("\t")[:3] == [code.name, "done", "2/2"]
    assert account.run("report", code.name).code == 0
    assert account.run("export", code.name, "exported").code == 0


@pytest.mark.parametrize("name", ["eval", "probe", "generate"])
def test_code_that_was_read_and_is_given_runs(name: str, code: Path, account: Account) -> None:
    (file,) = (code / "plugins").iterdir()
    assert account.run(*words_of(name, code), "--plugin", str(file)).code == 0
    assert marks(code) != []


def test_what_was_given_once_is_allowed_by_its_content_from_then_on(
    code: Path, account: Account
) -> None:
    (file,) = (code / "plugins").iterdir()
    assert account.run("eval", code.name, "--plugin", str(file)).code == 0
    account.forget_this_process()
    assert account.run("eval", code.name).code == 0
    account.forget_this_process()
    changed_code = MARKING + "# and more\n"
    other = file.with_name(f"{hashlib.sha256(changed_code.encode()).hexdigest()[:8]}.py")
    other.write_text(changed_code)
    changed(code, plugins=[f"plugins/{other.name}"])
    assert f"--plugin runs/{code.name}/plugins/{other.name}" in account.error_of("eval", code.name)


def test_who_trained_with_a_plugin_is_not_asked_again(account: Account, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MARKING)
    assert account.run("train", *SMALL, *SHORT, *PARTS, "--plugin", "mine.py").code == 0
    account.forget_this_process()
    assert account.run("eval", "--lengths", "32").code == 0


def test_an_account_that_remembers_nothing_can_still_allow(
    code: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = (code / "plugins").iterdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(code / "config.yaml"))  # no folder can be made there
    assert account.run("eval", code.name, "--plugin", str(file)).code == 0
    account.forget_this_process()
    assert "allow it with --plugin" in account.error_of("eval", code.name)


def test_an_account_without_a_home_can_still_allow(
    code: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (file,) = (code / "plugins").iterdir()
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setattr(Path, "home", homeless)
    assert "allow it with --plugin" in account.error_of("eval", code.name)
    assert account.run("eval", code.name, "--plugin", str(file)).code == 0
    assert not Path("not").exists()


def test_processes_that_are_started_from_here_may_run_what_is_allowed_here(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    asks = "from lengthgen.config.allowlist import is_allowed; print(is_allowed('a' * 64))"
    said: list[str] = []
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", asks], capture_output=True, text=True, check=True
        )
        said.append(ran.stdout.strip())
        allowlist.allow("a" * 64)
        allowlist.allow("b" * 64)
    assert said == ["False", "True"]


def test_a_file_that_is_no_plugin_of_the_run_allows_nothing_of_it(
    code: Path, account: Account, tmp_path: Path
) -> None:
    (tmp_path / "other.py").write_text(MARKING + "# of mine\n")
    said = account.error_of("eval", code.name, "--plugin", "other.py")
    assert "is code that was not given on the command line" in said
    (file,) = (code / "plugins").iterdir()
    said = account.error_of("eval", code.name, "--plugin", str(file), "--plugin", "other.py")
    assert said == f"--plugin: other.py is no plugin of {code.name}; drop it"
    assert not (tmp_path / "mark").exists()


def test_a_tab_runs_no_code_and_allows_none(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MARKING)
    monkeypatch.setenv("_LENGTHGEN_COMPLETE", "complete_bash")
    typed = ["lengthgen", "train", "--plugin", "mine.py", "scheme"]
    monkeypatch.setenv("COMP_WORDS", "\n".join(typed))
    monkeypatch.setenv("COMP_CWORD", str(len(typed) - 1))
    assert "scheme=" in account.run().out
    assert marks(tmp_path) == []
    assert not (tmp_path / "state").exists()
    assert allowlist.ALLOWED not in os.environ


@pytest.mark.parametrize("where", ["../../evil.py", "{folder}/evil.py", "plugins/../../../evil.py"])
def test_a_plugin_that_config_yaml_finds_elsewhere_does_not_run(
    where: str, code: Path, account: Account, tmp_path: Path
) -> None:
    (tmp_path / "evil.py").write_text(MARKING)
    changed(code, plugins=[where.format(folder=tmp_path)])
    for name in ("eval", "probe", "list", "report", "push"):
        account.run(*words_of(name, code))
    assert "is code that was not given" in account.error_of("eval", code.name)
    assert marks(tmp_path) == []


@pytest.mark.parametrize("where", ["../../secret", "plugins/linked.py"])
def test_no_file_of_the_users_is_published_as_a_plugin(
    where: str, code: Path, account: Account, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("of mine")
    (code / "plugins" / "linked.py").symlink_to(tmp_path / "secret")
    if where != "plugins/linked.py":
        (code / "plugins" / "linked.py").unlink()
    changed(code, plugins=[where])
    account.error_of("export", code.name, "exported")
    assert not (tmp_path / "exported").exists()


def test_a_plugin_that_is_no_file_is_not_waited_for(plain: Path, account: Account) -> None:
    changed(plain, plugins=["/dev/null"])
    assert "/dev/null cannot be read (not a regular file)" in account.error_of("eval", plain.name)


def test_a_model_that_is_asked_of_a_configuration_with_code_is_refused(code: Path) -> None:
    config = directory.load_config(code)
    with pytest.raises(UserError, match="is code that was not given on the command line"):
        registry(config.plugins)
    assert marks(code) == []


# YAML


@pytest.fixture
def folder_of_groups(tmp_path: Path) -> Path:
    """A --config-dir with code beside it."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "evil.py").write_text(MARKING)
    return tmp_path / "conf"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plugins: [evil.py]", "evil.py is code that was not given on the command line"),
        ("scheme: {parts: {rope: {_target_: os.mkdir, path: mark}}}", "_target_"),
        ("scheme: !!python/object/apply:os.mkdir [mark]", "python/object"),
        ("hydra: {searchpath: ['pkg://evil']}", "searchpath"),
        ("runtime: {wandb_project: '${os.mkdir:mark}'}", "os.mkdir"),
        ("defaults: [{override /hydra/launcher: evil}]", "hydra/launcher"),
    ],
)
def test_a_strangers_yaml_runs_no_code(
    text: str,
    message: str,
    folder_of_groups: Path,
    account: Account,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (folder_of_groups / "experiment" / "e.yaml").write_text(f"# @package _global_\n{text}\n")
    words = ["train", "experiment=e", *SMALL, *SHORT, "--config-dir", str(folder_of_groups)]
    assert message in account.error_of(*words)
    assert "Traceback" not in account.run("list", "experiments", "--config-dir", "conf").err
    assert not (tmp_path / "runs").exists()
    assert marks(tmp_path) == []


def test_a_plugin_that_a_yaml_names_runs_if_it_is_given_too(
    folder_of_groups: Path, account: Account
) -> None:
    file = folder_of_groups / "experiment" / "e.yaml"
    file.write_text("# @package _global_\nplugins: [evil.py]\n")
    words = ["experiment=e", *SMALL, *PARTS]
    config = from_overrides(words, config_dir=folder_of_groups, plugins=[Path("evil.py")])
    assert [plugin.path.name for plugin in config.plugins] == ["evil.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!python/object/apply:os.mkdir [mark]", "is damaged"),
        ("{{scheme: {{_target_: os.mkdir, path: mark}}, {rest}}}", "scheme._target_: unknown key"),
        ("{{_target_: os.mkdir, path: mark, {rest}}}", "_target_: unknown key"),
    ],
)
def test_a_strangers_configuration_runs_no_code(
    text: str, message: str, plain: Path, account: Account, tmp_path: Path
) -> None:
    path = plain / "config.yaml"
    said = yaml.safe_load(path.read_text())
    rest = ", ".join(
        f"{key}: {json.dumps(value)}" for key, value in said.items() if key != "scheme"
    )
    write_config(plain, text.format(rest=rest) if "{rest}" in text else text)
    assert message in account.error_of("eval", plain.name)
    for name in ("list", "report"):
        assert "Traceback" not in account.run(*words_of(name, plain)).err
    assert marks(tmp_path) == []


def test_a_strangers_configuration_reads_nothing_of_the_environment(
    plain: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of mine")
    changed(plain, runtime={"wandb_project": "${oc.env:SECRET}"})
    assert directory.load_config(plain).runtime.wandb_project == "${oc.env:SECRET}"


# Hostile files


BOMB = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 10)}]" for i in range(10))


def pipe(run_dir: Path, name: str) -> None:
    """Puts a pipe, which nobody writes into, in the place of a file."""
    path = run_dir / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def replaced(run_dir: Path, name: str, **values: Any) -> None:
    """Changes the last row of a log and seals it."""
    *rows, last = read_rows(run_dir / name)
    (run_dir / name).unlink()
    append_rows(run_dir / name, [*rows, {**last, **values}])


BRACKETS = b"[" * 60_000 + b"\n"
HOSTILE: dict[str, Callable[[Path], object]] = {
    **{
        f"a pipe as {name}": partial(pipe, name=name)
        for name in (
            *("config.yaml", "env.json", "status.json", "eval.jsonl", "train.jsonl", "DONE"),
            *(".train.lock", "wandb.json", "probes/a.svg", "checkpoints/step-00000009"),
        )
    },
    **{
        f"brackets in {name}": lambda run, name=name: (run / name).write_bytes(BRACKETS)
        for name in ("config.yaml", "env.json", "status.json", "eval.jsonl", "train.jsonl")
    },
    "an alias bomb": lambda run: (run / "config.yaml").write_text(BOMB),
    "sections that are none": lambda run: changed(run, train=5, scheme=[1], eval="x"),
    "steps of nothing": lambda run: changed(run, train={"batch_tokens": 0, "lr": "x"}),
    "keys that are dates": lambda run: changed(run, corpus={date(2001, 1, 1): 2}),
    "text for a count": lambda run: replaced(run, "train.jsonl", **{"train/tokens": "many"}),
    "no time": lambda run: replaced(run, "train.jsonl", **{"train/tokens_per_s": 0.0}),
    "a list for a length": lambda run: replaced(run, "eval.jsonl", length=[1]),
    "a length of 2^60": lambda run: replaced(run, "eval.jsonl", length=1 << 60),
    "a count of 4,000 digits": lambda run: replaced(run, "eval.jsonl", n_tokens=10**4000),
    "half a character in the configuration": lambda run: (run / "config.yaml").write_text(
        (run / "config.yaml").read_text() + 'odd: "\\uD800"\n'
    ),
    "half a character": lambda run: replaced(run, "eval.jsonl", scheme="\ud800"),
    "a protocol that is none": lambda run: replaced(run, "eval.jsonl", protocol={}),
    "a reason that is a list": lambda run: (run / "status.json").write_text(
        '{"state": "failed", "reason": [1], "pid": {}}'
    ),
    "libraries that are a list": lambda run: (run / "env.json").write_text(
        '{"libraries": [1], "devices": 2, "argv": 3}'
    ),
}


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest, plain: Path) -> Path:
    """A received run next to the plain one, of which something is made to do harm."""
    run_dir = plain.with_name("hostile")
    shutil.copytree(plain, run_dir)
    HOSTILE[request.param](run_dir)
    return run_dir


def test_a_hostile_run_hides_no_other_one(hostile: Path, plain: Path, account: Account) -> None:
    ran = account.run("list", "runs")
    lines = {line.split("\t")[0]: line for line in ran.out.splitlines()}
    assert (ran.code, ran.err, set(lines)) == (0, "", {hostile.name, plain.name})
    assert "\tdone\t2/2\t" in lines[plain.name]


def test_a_hostile_run_is_reported_or_refused_in_one_line(hostile: Path) -> None:
    with suppress(UserError):
        report, _ = collect.gather_both(study.from_runs([hostile]).records)
        assert report is not None
        for shown in (collect.contents, page_method.facts, page_method.settings, page_method.costs):
            assert shown(report)


def test_a_report_of_all_runs_names_the_one_it_cannot_show(plain: Path, account: Account) -> None:
    shutil.copytree(plain, plain.with_name("hostile"))
    (plain.with_name("hostile") / "eval.jsonl").write_bytes(BRACKETS)
    ran = account.run("report")
    assert ran.code == 0
    (line,) = ran.err.splitlines()
    assert line.startswith("hostile is not shown: ")
    assert "eval.jsonl:1: damaged row" in line
    assert "rope" in Path("report/table.md").read_text()
    assert "eval.jsonl:1: damaged row" in account.error_of("report", "hostile")


@pytest.mark.parametrize(
    "name",
    [
        *("config.yaml", "env.json", "eval.jsonl", "log.txt", "../.cache/*/meta.json"),
        *("../.cache/*/tokenizer.json", "../.cache/*/train.bin", "checkpoints/*/sha256.json"),
        *("checkpoints/*/trainer.pt", "checkpoints/*/model.safetensors", "status.json"),
    ],
)
def test_no_pipe_is_waited_for(name: str, plain: Path, account: Account) -> None:
    for path in [*plain.glob(name)] or [plain / name]:
        pipe(path.parent, path.name)
    assert "Traceback" not in account.run("eval", plain.name, "--lengths", "32").err


# Data


class Payload:
    """What pickle would run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_the_payload_of_these_tests_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "mark")))
    assert marks(tmp_path) != []


def seal(checkpoint: Path) -> None:
    """Writes the sums that belong to the files, as a stranger can."""
    names = ("model.safetensors", "trainer.pt")
    sums = {name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() for name in names}
    (checkpoint / "sha256.json").write_text(json.dumps(sums))


@pytest.mark.parametrize("name", ["trainer.pt", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_a_checkpoint_is_read_as_data_alone(
    name: str, kind: str, plain: Path, account: Account, tmp_path: Path
) -> None:
    payload = Payload(tmp_path / "mark")
    for checkpoint in status.checkpoint_folders(plain):
        if kind == "pickle":
            (checkpoint / name).write_bytes(pickle.dumps(payload, protocol=2))
        else:
            torch.save({"step": payload}, checkpoint / name)
        seal(checkpoint)
    assert "has no checkpoint yet" in account.error_of("eval", plain.name, "--lengths", "32")
    account.run("report", plain.name)
    assert marks(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["eval.jsonl", "train.jsonl", "probes.jsonl", "wandb.json", "env.json", "status.json"]
)
def test_rows_are_read_as_data_alone(
    name: str, plain: Path, account: Account, tmp_path: Path
) -> None:
    (plain / name).write_bytes(pickle.dumps(Payload(tmp_path / "mark"), protocol=0) + b"\n")
    for command in COMMANDS:
        assert "Traceback" not in account.run(*words_of(command, plain)).err
    assert marks(tmp_path) == []


def test_a_token_cache_is_read_as_data_alone(plain: Path, account: Account, tmp_path: Path) -> None:
    (cache,) = (one.parent for one in plain.parent.glob(".cache/*/meta.json"))
    payload = pickle.dumps(Payload(tmp_path / "mark"), protocol=0)
    for name in ("train.bin", "train.offsets.bin", "train.names.json", "tokenizer.json"):
        (cache / name).write_bytes(payload)
    for left in plain.parent.glob(".cache/.overlap-*.bin"):
        left.unlink()
    account.run("eval", plain.name, "--lengths", "32")
    assert marks(tmp_path) == []


def test_a_loading_script_of_a_dataset_does_not_run(account: Account, tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "evil.py").write_text("import os\nos.mkdir('mark')\n")
    words = ["corpus=wikitext103", f"corpus.repo={folder}", "model=tiny", "runtime.wandb=off"]
    account.error_of("train", "scheme=rope", *words)
    assert marks(tmp_path) == []


# Where files are written


@pytest.mark.parametrize("section", ["scheme", "model", "corpus"])
@pytest.mark.parametrize("name", ["..", "../evil", "a/b", ".hidden", "", "/evil", "a\nb", "x" * 65])
def test_a_name_of_which_a_folder_is_named_leads_nowhere_else(section: str, name: str) -> None:
    with pytest.raises(UserError, match=rf"^{section}\.name: .*(may hold|at most 64)"):
        from_overrides([*SMALL, f"{section}.name={json.dumps(name)}"], config_dir=None, plugins=[])


@pytest.mark.parametrize("name", ["..", "../../evil", ".hidden"])
def test_a_received_run_cannot_have_such_a_name(name: str, plain: Path, account: Account) -> None:
    changed(plain, corpus={"name": name})
    assert account.error_of("eval", plain.name).startswith(
        f"corpus.name: '{name}' may hold letters"
    )


def test_a_received_run_is_evaluated_within_its_root(
    plain: Path, account: Account, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    changed(plain, runtime={"cache": str(outside / "cache"), "root": str(outside / "runs")})
    ran = account.run("eval", plain.name, "--lengths", "32")
    assert ran.code == 0
    assert not outside.exists()
    assert (
        f"its runtime.cache={outside}/cache is no token cache here; runs/.cache is used" in ran.err
    )


def test_a_token_cache_that_is_there_is_used(plain: Path, account: Account, tmp_path: Path) -> None:
    cache = tmp_path / "scratch"
    shutil.move(plain.parent / ".cache", cache)
    changed(plain, runtime={"cache": str(cache)})
    assert "is no token cache" not in account.run("eval", plain.name, "--lengths", "32").err
    assert not (plain.parent / ".cache").exists()


def linked(plain: Path, name: str, target: Path) -> None:
    place = plain / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", [one for one in COMMANDS if one != "list"])
@pytest.mark.parametrize(
    "name", ["eval.jsonl", "audit.jsonl", "probes.jsonl", "probes", "checkpoints", "wandb", "x/y"]
)
def test_a_link_that_leads_out_of_a_run_is_refused(
    command: str, name: str, plain: Path, account: Account, tmp_path: Path
) -> None:
    of_mine = tmp_path / "of_mine"
    shutil.copytree(plain / "checkpoints", of_mine)
    (of_mine / "rows").write_text("precious\n")
    before = snapshot(of_mine)
    target = of_mine / "rows" if name.endswith(("jsonl", "y")) else of_mine
    linked(plain, name, target)
    said = account.error_of(*words_of(command, plain))
    assert f"{plain}/{name} is a link that leads out of the run's directory, to {target}; " in said
    assert snapshot(of_mine) == before


def test_links_within_a_run_and_those_of_wandb_are_none_of_these(
    plain: Path, account: Account, tmp_path: Path
) -> None:
    (plain / "checkpoints").rename(plain / "stored")
    (plain / "checkpoints").symlink_to("stored")
    (plain / "wandb").mkdir()
    (plain / "wandb" / "debug.log").symlink_to(tmp_path / "elsewhere.log")
    assert account.run("eval", plain.name, "--lengths", "32").code == 0


def test_a_circle_of_links_is_refused(plain: Path, account: Account) -> None:
    (plain / "a").symlink_to(plain / "b")
    (plain / "b").symlink_to(plain / "a")
    assert "is a link that leads out of the run's directory" in account.error_of("eval", plain.name)


@pytest.mark.parametrize("protocol", ["../../evil", "sliding-5/../../../evil", "/evil"])
@pytest.mark.parametrize("skipped", [None, "there is none"])
def test_a_protocol_of_a_row_names_no_file_elsewhere(
    protocol: str, skipped: str | None, tmp_path: Path
) -> None:
    rows = Runs(tmp_path / "runs")
    losses = (3.0, 2.5) if skipped is None else ()
    run_dir = rows.write("rope")
    rows.write("rope", losses, lengths=(512, 1024), protocol=protocol)
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match="no protocol"):
        write.write_report(study.from_runs([run_dir]), tmp_path / "deep" / "in" / "out")
    assert snapshot(tmp_path) == before


# The page


class Markup(HTMLParser):
    """The tags of a page, and the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: Counter[tuple[str, str]] = Counter()
        self.links: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes.update((tag, name) for name, _ in attrs)
        self.links |= {str(value) for name, value in attrs if name in ("href", "src")}


BAD = (  # first a formula, then what each format obeys, and text from right to left
    '=1+"\x1b]52;c;eA==\x07\x9b2J\r\n\u202e|[x](javascript:1)![](//evil)`$\\frac$\\input{x}^^M%&'
    '"><script src=//evil.example/x.js></script><img src=x onerror="alert(1)">\'&lt;</style>'
)
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>{}</script><path d="M0 0h8v5"/></svg>'


def report_of(root: Path, text: str) -> Path:
    """Returns the report of two runs in which this text stands wherever text of a run may stand."""
    rows, folder = Runs(root), text.replace("/", "_")
    paths = [rows.write(folder, seed=1), rows.write(folder, (3.0,), seed=2)]
    for path in paths:
        log = path / "eval.jsonl"
        texts = dict.fromkeys(("scheme", "model", "corpus", "precision", "endpoints"), text)
        lines: list[str] = []
        for read in read_rows(log):
            row = {**read, **texts}
            row |= {"skipped": text} if "skipped" in row else {"document": text + row["document"]}
            lines.append(json.dumps(row) + "\n")
        log.write_text("".join(lines))
        said = {
            **{"seed": 1, "scheme": {"name": text, "parts": {text: {text: text}}}},
            **{"train": {"length": 512, "precision": text, text: text}},
        }
        (path / "config.yaml").write_text(yaml.safe_dump(said))
        libraries = {text: text}
        env = {"commit": text, "python": text, "platform": text, "libraries": libraries}
        (path / "env.json").write_text(json.dumps({**env, "lengthgen": text, "devices": [text]}))
        (path / "probes").mkdir()
        (path / "probes" / f"{folder}.svg").write_text(SVG.format(text))
    write.write_report(study.from_runs(paths), root / "out")
    return root / "out"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The report of a hostile run, and that of one that differs from it in its words alone."""
    hostile, harmless = (tmp_path_factory.mktemp(name) for name in ("hostile", "harmless"))
    return report_of(hostile, BAD), report_of(harmless, "word")


@pytest.fixture(scope="module")
def pages(reports: tuple[Path, Path]) -> tuple[str, str]:
    """The pages of both."""
    hostile, harmless = ((one / "report.html").read_text() for one in reports)
    return hostile, harmless


def test_no_file_of_a_report_holds_what_a_terminal_obeys(reports: tuple[Path, Path]) -> None:
    for path in reports[0].iterdir():
        if path.suffix not in (".png", ".gz"):
            text = path.read_text().replace("\n", "")
            assert [one for one in text if not one.isprintable()] == [], path.name


def test_a_spreadsheet_finds_no_formula_in_a_report(reports: tuple[Path, Path]) -> None:
    paths = list(reports[0].glob("*.csv"))
    assert len(paths) == 3
    for path in paths:
        for row in csv.reader(path.read_text().splitlines()):
            for cell in row:
                assert is_no_formula(cell), path.name


def test_markdown_of_a_report_holds_no_html_and_no_link(reports: tuple[Path, Path]) -> None:
    hostile, harmless = (kinds_of_markdown((one / "table.md").read_text()) for one in reports)
    assert hostile & {"html_inline", "html_block", "link_open", "image"} == set()
    assert harmless <= hostile


def test_latex_of_a_report_holds_no_command_of_a_stranger(reports: tuple[Path, Path]) -> None:
    hostile, harmless = (commands_of_latex((one / "table.tex").read_text()) for one in reports)
    assert hostile == harmless


def test_a_hostile_run_adds_no_element_and_no_attribute_to_the_page(
    pages: tuple[str, str],
) -> None:
    hostile, harmless = map(Markup, pages)
    assert hostile.tags == harmless.tags
    assert hostile.attributes == harmless.attributes
    assert hostile.tags["script"] == 1
    assert hostile.tags["img"] == 2  # the pictures


def test_a_hostile_run_adds_no_address_to_the_page(pages: tuple[str, str]) -> None:
    links = Markup(pages[0]).links
    assert len(links) > 3
    assert all(link.startswith(("#", "data:image/", "data:,")) for link in links)


def test_the_words_of_a_hostile_run_are_on_the_page_as_text(pages: tuple[str, str]) -> None:
    assert pages[0].count("&lt;script src=//evil.example/x.js&gt;") > 10
