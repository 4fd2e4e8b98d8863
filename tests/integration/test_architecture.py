"""What holds for the source as a whole: layering, one home for each library, yamls, the wheel."""

import ast
import itertools
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repository import ROOT

from lengthgen import schemes
from lengthgen.config import conf

PACKAGE = ROOT / "lengthgen"

SOURCES = sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    """Returns the dotted name of a module below the package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def docstrings(tree: ast.AST) -> set[int]:
    """Returns the ids of the nodes that are docstrings."""
    bodies = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, bodies) and node.body]
    return {id(statement.value) for statement in first if isinstance(statement, ast.Expr)}


def test_no_code_outside_the_schemes_names_a_scheme_or_a_part() -> None:
    names = {*schemes.part_classes(), *conf.choices("scheme", config_dir=None)}
    names -= {"repo", "string"}  # words of other fields too
    naming: list[str] = []
    for path in SOURCES:
        tree = parse(path)
        skipped = docstrings(tree)
        naming += [
            f"{named(path)}:{node.lineno}: {node.value!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and node.value in names and id(node) not in skipped
            # Some protocols are called as their papers are; pretrained models have schemes of ours.
            if not dotted(path).startswith(("schemes.", "evaluation.protocols", "hub.families"))
        ]
    assert naming == []


# A command, and the function that does its work; one in so many, folders and sizes of a source.
SHARED = {
    *("main", "train", "evaluate", "evaluate_runs", "import_model", "push", "write_report"),
    *("HELD_OUT", "LEFT_OUT", "LONG_BYTES"),
}
LISTED = {"COMMANDS", "LISTS", "OBJECTIVES", "PROTOCOLS", "SECTIONS"}  # of subpackages


def public_names(tree: ast.Module) -> set[str]:
    """Returns the functions, classes and constants that a module defines."""
    defined = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    targets = [x for n in tree.body if isinstance(n, ast.Assign) for x in n.targets]
    targets += [n.target for n in tree.body if isinstance(n, ast.AnnAssign)]
    nodes = [node for target in targets for node in ast.walk(target)]
    defined += [x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]
    return {name for name in defined if name[0] != "_" and len(name) > 1}


def test_a_public_name_has_one_meaning() -> None:
    counts = Counter(name for path in SOURCES for name in public_names(parse(path)))
    assert {name for name, n in counts.items() if n > 1} == SHARED | LISTED
    assert len(SHARED) <= 10


def test_modules_and_signals_that_windows_lacks_are_used_in_functions_alone() -> None:
    lacking, at_the_top = {"fcntl", "resource", "termios", "pwd", "grp"}, list[str]()
    for path in SOURCES:
        for statement in parse(path).body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                names = {getattr(statement, "module", ""), *(a.name for a in statement.names)}
                at_the_top += [named(path)] * bool(lacking & names)
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                names = {n.attr for n in ast.walk(statement) if isinstance(n, ast.Attribute)}
                at_the_top += [named(path)] * bool({"SIGUSR1", "SIGUSR2", "SIGHUP"} & names)
    assert at_the_top == []


def test_every_file_is_ascii() -> None:
    files = [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "conf").rglob("*.yaml")]
    assert [named(path) for path in files if not path.read_bytes().isascii()] == []


YAMLS = sorted((ROOT / "conf").rglob("*.yaml"))


@pytest.mark.parametrize("path", YAMLS, ids=named)
def test_a_yaml_begins_with_what_it_is(path: Path) -> None:
    said = [line for line in path.read_text().splitlines() if not line.startswith("# @package")]
    assert said[0].startswith("# ")
    assert len(said[0]) > 20


@pytest.mark.slow
def test_the_wheel_carries_conf_and_runs_from_an_empty_folder(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    conf = installed.glob("lengthgen/conf/**/*.yaml")
    shipped = sorted(path.relative_to(installed / "lengthgen") for path in conf)
    assert shipped == [path.relative_to(ROOT) for path in YAMLS]
    ran = subprocess.run(
        [sys.executable, "-m", "lengthgen", "list", "schemes"],
        cwd=empty,
        env={"PYTHONPATH": str(installed), "PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    )
    _, *names = [line.split("\t")[0] for line in ran.stdout.splitlines()]
    assert names == [path.stem for path in YAMLS if path.parent.name == "scheme"]
    assert list(empty.iterdir()) == []


def test_every_dependency_has_one_version_that_its_bounds_allow() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = itertools.chain(*project["optional-dependencies"].values())
    asked = [Requirement(text) for text in (*project["dependencies"], *optional)]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    for requirement in asked:
        name = canonicalize_name(requirement.name)
        assert name == "pip" or requirement.specifier.contains(pins[name], prereleases=True), name
