"""Every command and example of README.md and docs/ works, and their tables are those of today."""

import itertools
import random
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
from commands import here
from repository import ROOT
from small import MEASURED_AT_T, SMALL

from lengthgen import __version__
from lengthgen.config import study
from lengthgen.config.compose import compose
from lengthgen.config.conf import choices
from lengthgen.config.drafts import from_plain
from lengthgen.experiment import resolve, resolved

DOCS = {
    str(path.relative_to(ROOT / "docs")): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md"))
}
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {**DOCS, "README.md": README}
WORDS = [f"word{i}" for i in range(400)]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """Returns every line of every bash block, without its comment."""
    lines = "".join(blocks(page, "bash")).splitlines()
    return [line for line in (re.sub(r"\s+#.*", "", line) for line in lines) if line]


def lengthgen_commands(page: str) -> list[str]:
    return [line for line in commands(page) if re.match(r"(lengthgen|torchrun) ", line)]


def needs_the_network(line: str) -> bool:
    return re.search("corpus=pg19|TinyStories|wandb=online|lengthgen import", line) is not None


def runnable() -> dict[str, list[str]]:
    """Returns the commands of each page; what several pages have is left to the first of them."""
    seen: set[str] = set()
    by_page: dict[str, list[str]] = {}
    for name, page in PAGES.items():
        lines = [line for line in lengthgen_commands(page) if not needs_the_network(line)]
        by_page[name] = [line for line in dict.fromkeys(lines) if line not in seen]
        seen.update(by_page[name])
    return {name: ls for name, ls in by_page.items() if ls or blocks(PAGES[name], "python")}


RUNNABLE = runnable()

SMALLER = {  # than the pages say: this process, points that are done or one scheme, short texts
    "torchrun --nproc-per-node 8 -m ": "",
    " --gpus 8": "",
    "scheme=rope,alibi,kerple seed=1,2,3": "scheme=rope seed=2",
    "scheme=rope,alibi,kerple seed=1,2": "scheme=rope,alibi seed=1",  # done: tune runs points
    "glob(*rope*)' 'seed=range(1,3)": "glob(rop*)' 'seed=range(1,2)",
    "rope,alibi train.lr=5e-3,1e-2,2e-2": "rope train.lr=5e-3,1e-2",
    "rope,alibi seed=1,2 train.tuned": "rope seed=1 --dry-run train.tuned",
    "scheme=my_bias seed=1,2,3": "scheme=my_bias seed=1",
    "seed=1,2 train.lr=5e-3,1e-2,2e-2 train.tokens=4000000": "seed=1 train.lr=5e-3,1e-2",
    "task=copy,sort scheme=nope,rope": "task=addition scheme=nope",
    "books/*.parquet, ": "",  # which are the reader's own
    "alibi-tiny-python-s1": "alibi-tiny-synthetic-s1",
    "rope-tiny-python-s1": "rope-tiny-synthetic-s1",
    "train.length=2048 train.tokens=2457600 train.batch_tokens=8192": "train.length=32",
    "rm state=failed": "rm seed=1",  # no run of the reader has failed
    "512,2048,16000": "16,48",
    "512,2048": "16,32",
    "study=alibi_figure1_laptop --dry-run": "study=alibi_figure1_laptop scheme=rope --dry-run",
    "sweep seed=1,2 --slurm": "sweep seed=1 --slurm",
    "--slurm": "--dry-run --slurm",  # without a Slurm
    " train.tokens=1000000 --dry-run": " --dry-run",
    "--search 20": "--search 1",
}


def made_small(line: str) -> list[str]:
    """Returns the command with a model that trains in a second, in this process."""
    for written, smaller in SMALLER.items():
        line = line.replace(written, smaller)
    words = shlex.split(line)
    of_study = any(word.startswith("study=") for word in words)  # also of a report
    if not of_study and not {"train", "sweep", "tune"} & set(words):
        return words
    given = {word.split("=")[0] for word in words}
    small = [word for word in SMALL if word.split("=")[0] not in given]
    if "task" in given:
        of_text = ("corpus", "eval", "train.length", "train.batch_tokens")
        small = [word for word in small if not word.startswith(of_text)]
        small += ["task.examples=300", "task.examples_per_length=5"]
    if {"tune", "--search"} & {*words}:  # which set them
        small = [word for word in small if word in MEASURED_AT_T]
    if "corpus" in given:
        small = [word for word in small if not word.startswith("corpus")]
    return [*words, *small]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader has it: the examples' files, some text, runs of ALiBi and RoPE."""
    reader = tmp_path_factory.mktemp("reader")
    marked = re.compile(r"<!-- example: (\S+) -->\n```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)
    files = {name: text for page in PAGES.values() for name, text in marked.findall(page)}
    for i in range(4):
        for name in (f"my_texts/{i}.txt", f"notes/{i}.md"):
            files[name] = " ".join(random.Random(name).sample(WORDS, len(WORDS)))
    lines = list[str]()
    for n, i in itertools.product(range(1, 49), range(8)):
        asked = random.Random(f"{n} {i}").sample(WORDS[:20], 8)
        lines.append(f"IN: {' '.join(asked)} OUT: {' '.join(['A'] * n)}")
    files["pairs.txt"] = "\n".join(lines)
    for name, content in files.items():
        path = reader / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for scheme in ("alibi", "rope"):  # the last is the newest
        ran = here("train", f"scheme={scheme}", *SMALL, f"runtime.root={reader / 'runs'}")
        assert ran.code == 0, ran.err
    return reader


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNABLE)
def test_the_commands_of_a_page_run_one_after_another(
    name: str, reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reader"
    shutil.copytree(reader, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr("lengthgen.probes.position.STEPS", 10)
    for line in RUNNABLE[name]:
        ran = here(*made_small(line)[1:])
        assert ran.code == 0, f"{line}\n{ran.err}"
    for code in blocks(re.sub(r"<!-- example: .*\n```", "", PAGES[name]), "python"):
        exec(compile(code, name, "exec"), {})


def test_commands_that_need_the_network_compose() -> None:
    lines = [line for page in PAGES.values() for line in lengthgen_commands(page)]
    asked = [shlex.split(line) for line in lines if needs_the_network(line)]
    trained = [words[2:] for words in asked if words[1] == "train"]
    assert len(trained) >= 2
    for words in trained:
        resolved(from_plain(compose(words, config_dir=None)))


def names(page: str, heading: str) -> list[str]:
    """Returns the names in the first column of the table below a heading."""
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


def test_tables_of_the_docs_have_what_lengthgen_list_shows() -> None:
    tables = re.findall(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", "".join(DOCS.values()), re.S)
    assert len(tables) >= 7
    for kind, table in tables:
        shown = re.sub(r"\]\([^)]*\)", "", table).splitlines()  # without addresses
        rows = [letters(line) for line in shown if line.startswith("| `")]
        assert rows == [*map(letters, here("list", kind).out.splitlines()[1:])], f"docs: {kind}"


def test_the_sweeps_that_pages_of_results_name_are_grids_of_runs() -> None:
    pages = "".join(page for name, page in DOCS.items() if name.startswith("results/"))
    lines = "".join(blocks(pages, "sh")).splitlines()
    grids = [
        shlex.split(ln, comments=True) for ln in lines if re.match("lengthgen (sweep|tune)", ln)
    ]
    assert len(grids) > 2
    for words in grids:
        overrides = [word for word in words if re.match(r"[\w.]+=", word)]
        points = study.expand_study(overrides, config_dir=None)
        assert len({tuple(point) for point in points}) == len(points) > 1, words
        assert resolve([*points[0], "train.init_from=null"]), words  # a run that is not here


def letters(text: str) -> str:
    """Returns a text without marks, such as those of Markdown."""
    return re.sub(r"[\W_]", "", text)


def test_tables_that_are_written_by_hand_have_a_row_for_each_choice() -> None:
    assert names(DOCS["schemes.md"], "Properties") == [*choices("scheme", config_dir=None)]
    effects = names(DOCS["variants.md"], "Effect with the default arguments")
    assert effects == [*choices("variant", config_dir=None)]
    studies = set(names(DOCS["sweeps.md"], "Studies"))
    assert studies == set(choices("study", config_dir=None))


def test_the_tables_of_schemes_by_mechanism_are_those_that_the_schemes_give() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "mechanisms.py"))
    assert written["page"]() == DOCS["schemes.md"], "run python docs/mechanisms.py"


@pytest.mark.parametrize(
    ("group", "adjective"), [("scheme", "positional"), ("variant", "training-free")]
)
def test_pages_say_how_many_there_are(group: str, adjective: str) -> None:
    number = rf"\b(\d+) \[?(?:{adjective} )?{group}s\b"
    said = {int(n) for text in PAGES.values() for n in re.findall(number, text)}
    assert said == {len(choices(group, config_dir=None))}


def test_every_file_that_a_page_names_exists() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for page in (README, contributing, *DOCS.values()):
        named = re.findall(r"`((?:scripts|lengthgen|tests|conf|results)/[\w./-]*)`", page)
        if page not in DOCS.values():  # of those, mkdocs checks the links
            named += re.findall(r"\]\(((?!http)[^)#]+)", page)
        written_by_readers = {"results/gpu", "conf/probe/"}  # no shipped probe has options
        for path in {path for path in named if "NAME" not in path} - written_by_readers:
            assert (ROOT / path).exists(), path


def test_the_readme_is_short_and_shows_drawn_figures() -> None:
    assert len(README.splitlines()) <= 120
    drawn = runpy.run_path(str(ROOT / "docs" / "figures.py"))["FIGURES"]
    for page in PAGES.values():
        assert {*re.findall(r"figures/([\w-]+)\.svg", page)} <= {*drawn}


def test_the_citation_and_the_changelog_name_the_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
