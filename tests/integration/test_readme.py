"""What the README says can be typed works, and its example of a scheme is complete."""

import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import Ran, here
from repository import ROOT
from small import SMALL

README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = [f"word{i}" for i in range(400)]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """Returns every line of every bash block, without its comment."""
    lines = "".join(blocks("bash")).splitlines()
    return [line for line in (re.sub(r"\s+#.*", "", one) for one in lines) if line]


def examples() -> Iterator[tuple[str, str]]:
    """Yields (file name, content) of the blocks that are marked as files."""
    yield from re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)^```", README, re.DOTALL | re.M)


def lengthgen_commands() -> list[str]:
    found = [line for line in commands() if re.match(r"(lengthgen|torchrun) ", line)]
    elsewhere = ("--install-completion", "--slurm", "lengthgen export")  # in tests of their own
    return [line for line in found if not any(words in line for words in elsewhere)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the README's reader has it: the example's files and some text."""
    folder = tmp_path_factory.mktemp("reader")
    for name, content in examples():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for i in range(4):
        for name in (f"my_texts/{i}.txt", f"notes/{i}.md"):
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(" ".join(random.Random(str(path)).sample(WORDS, len(WORDS))))
    return folder


SMALLER = {  # than the README says: two processes, a run or two of a sweep, short texts
    "--gpus 8": "--gpus 2",
    "--nproc-per-node 8": "--nproc-per-node 2",
    "rope,alibi,kerple seed": "rope seed",
    "rope,alibi train.lr=2e-3,4e-3,8e-3": "rope train.lr=2e-3,4e-3",
    "rope,alibi seed=1,2 train.tuned": "rope seed=1,2 train.tuned",
    "task=copy,sort scheme=nope,rope": "task=copy scheme=nope,rope",
    "books/*.parquet, ": "",  # which are the reader's own
    "bench rope alibi cope": "bench cope --rounds 1 --lengths 16,64",  # a process each
    "512,2048,16000": "16,48",
    "512,2048": "16,32",
}


def made_small(line: str) -> list[str]:
    """Returns the command with a model that trains in a second, on two processes at most."""
    for said, smaller in SMALLER.items():
        line = line.replace(said, smaller)
    words = shlex.split(line)
    if not {"train", "bench", "sweep", "tune"} & set(words):
        return words
    asked = {word.split("=")[0] for word in words}
    small = [one for one in SMALL if one.split("=")[0] not in asked]
    if "task" in asked:
        of_text = ("corpus", "eval", "train.length", "train.batch_tokens")
        small = [one for one in small if not one.startswith(of_text)]
        small += ["task.examples=300", "task.examples_per_length=5"]
    if "tune" in words:  # it sets them itself
        set_by_tune = ("eval.lengths", "eval.reach", "eval.reference_variants")
        small = [one for one in small if not one.startswith(set_by_tune)]
    if "corpus" in asked:
        small = [one for one in small if not one.startswith("corpus")]
    return [*words, *small]


def run(words: list[str]) -> Ran:
    """Runs a command: in this process, which need not import torch again, if it has one alone."""
    if words[0] == "lengthgen" and "--gpus" not in words:
        return here(*words[1:])
    if words[0] == "torchrun":
        words = ["torch.distributed.run", "--standalone", *words[1:]]
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def needs_the_network(line: str) -> bool:
    return "corpus=pg19" in line or "wandb=online" in line


@pytest.mark.slow
def test_the_readmes_commands_run_one_after_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    lines = [line for line in lengthgen_commands() if not needs_the_network(line)]
    assert len(lines) >= 10
    for line in lines:
        ran = run(made_small(line))
        assert ran.code == 0, f"{line}\n{ran.err}"
    assert (folder / "report" / "curve.png").stat().st_size > 10_000


def test_commands_that_need_the_network_compose(folder: Path) -> None:
    from lengthgen.config.compose import compose
    from lengthgen.config.schema import from_plain
    from lengthgen.pipeline import validate

    lines = [line for line in lengthgen_commands() if needs_the_network(line)]
    assert lines
    for line in lines:
        validate(from_plain(compose(shlex.split(line)[2:], config_dir=None)))


def test_the_mistake_that_the_readme_shows_is_answered_as_it_says(folder: Path) -> None:
    shown = re.search(r"^\$ lengthgen (.*)\n(error: .*)$", README, re.MULTILINE)
    assert shown is not None
    done = subprocess.run(
        [sys.executable, "-m", "lengthgen", *shlex.split(shown[1])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == shown[2]


def test_every_scheme_and_every_variant_has_a_row_in_its_table() -> None:
    from lengthgen.config.compose import choices

    section = README.partition("## Schemes")[2].partition("## How it is measured")[0]
    schemes, variants = (
        re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
        for table in section.split("### Variants")
    )
    assert sorted(schemes) == choices("scheme", config_dir=None)
    assert sorted(variants) == choices("variant", config_dir=None)


def test_every_file_the_readme_names_is_there() -> None:
    named = re.findall(r"\]\(((?!http)[^)]+)\)", README)
    named += re.findall(r"`((?:scripts|lengthgen|tests|conf)/[\w./-]*)`", README)
    assert len(named) > 4
    for name in named:
        assert (ROOT / name).exists(), name


def test_the_example_of_a_scheme_is_about_thirty_lines() -> None:
    lines = sum(len(content.strip().splitlines()) for _, content in examples())
    assert 20 <= lines <= 40
