"""The house stays small: each room has a budget of lines of code, parts included, and so has all.

A line of code is one that holds more than a comment or a docstring. To raise a number, change it
here, say why in a comment on its line, and cut as much elsewhere: PACKAGE is the sum that may be.
"""

import ast
import io
import tokenize
from functools import cache
from pathlib import Path

from repository import ROOT

PACKAGE, TESTS, SCRIPTS = 19_134, 15_513, 1_166  # 3 % above what is there
ROOMS = {
    "api": 156,
    "cli": 1178,
    "config": 1335,
    "context": 870,
    "data": 1788,
    "encoder_decoder": 229,
    "errors, escaping, files, terminal": 438,
    "evaluation": 1206,
    "experiment": 281,
    "generation": 90,
    "hub": 1171,
    "model": 1139,
    "pipeline": 115,
    "probes": 604,
    "report": 2369,
    "runs": 759,
    "schemes": 2613,
    "sweep": 681,
    "tasks": 1332,
    "tracking": 346,
    "training": 390,
}
FILE = 500
IGNORED = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}
OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def code_lines(path: Path) -> frozenset[int]:
    """Returns the numbers of the lines that hold code."""
    text = path.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, OWNERS) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docstrings |= {*range(first.lineno, (first.end_lineno or first.lineno) + 1)}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in IGNORED:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return frozenset(lines - docstrings)


def sizes(folder: Path) -> dict[Path, int]:
    return {path: len(code_lines(path)) for path in sorted(folder.rglob("*.py"))}


def longest(folder: Path, n: int = 10) -> str:
    """Returns the longest files and functions of a folder, with their lines of code."""
    functions: dict[str, int] = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                own = {*range(node.lineno, (node.end_lineno or 0) + 1)} & code_lines(path)
                functions[f"{path.name}:{node.name}"] = len(own)
    files = {str(path.relative_to(folder)): size for path, size in sizes(folder).items()}
    named: list[str] = []
    for of in (files, functions):
        named += [f"{name} {of[name]}" for name in sorted(of, key=lambda name: -of[name])[:n]]
    return "; longest: " + ", ".join(named)


def test_no_room_is_larger_than_its_budget() -> None:
    rooms: dict[str, int] = {}
    for path, size in sizes(ROOT / "lengthgen").items():
        name = path.relative_to(ROOT / "lengthgen").parts[0].removesuffix(".py")
        rooms[name] = rooms.get(name, 0) + size
    over: list[str] = []
    for names, budget in ROOMS.items():
        n = sum(rooms.pop(name, 0) for name in names.split(", "))
        if n > budget:
            over.append(f"{names}: {n} lines of code, {n - budget} more than its budget")
    over += [f"{name}: no budget" for name in rooms if not name.startswith("__")]
    assert not over, "; ".join(over) + longest(ROOT / "lengthgen")


def test_all_is_within_its_budget() -> None:
    for name, budget in (("lengthgen", PACKAGE), ("tests", TESTS), ("scripts", SCRIPTS)):
        n = sum(sizes(ROOT / name).values())
        assert n <= budget, f"{name}: {n} lines of code, not {budget}" + longest(ROOT / name)


def test_no_file_is_long() -> None:
    long = {path.name: n for path, n in sizes(ROOT / "lengthgen").items() if n > FILE}
    assert not long
