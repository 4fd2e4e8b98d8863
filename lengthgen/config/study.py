"""The grid of a study: what `lengthgen sweep study=NAME` makes besides setting the file's keys.

`grid` in conf/study/NAME.yaml is a list of blocks. A block holds overrides as a command line takes
them: "a,b" is an axis, of which every combination is a point; a list is one value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lengthgen.config import compose, conf
from lengthgen.config.overrides import expand_grid, overrides_of
from lengthgen.errors import UserError

STUDY = "study"


def expand_study(overrides: Sequence[str], *, config_dir: Path | None) -> list[list[str]]:
    """Returns one list of overrides per point: those of `expand_grid` for each block.

    Raises UserError as that does, and for a grid of another form.
    """
    expand_grid(overrides, config_dir=config_dir)  # refuses a key that is set twice
    studies = [word for word in overrides if word.startswith(f"{STUDY}=")]
    names = [point for word in studies for (point,) in expand_grid([word], config_dir=config_dir)]
    points: list[list[str]] = []
    for name in names or [""]:
        one = [name if word in studies else word for word in overrides]
        for words in _with_blocks(one, config_dir=config_dir):
            of_block = expand_grid(words, config_dir=config_dir)
            known = [*points]  # blocks may agree after an override
            points += [point for point in of_block if point not in known]
    return points


def first_point(overrides: Sequence[str], *, config_dir: Path | None) -> list[str]:
    """Returns the overrides with what their study adds to them: the first value of each axis.

    It is the block that adds the least, so that nothing is added to a whole point. Raises
    UserError for a grid of another form.
    """
    words = min(_with_blocks(overrides, config_dir=config_dir), key=len)
    added = [word for word in words if word not in overrides]
    firsts = {word: expand_grid([word], config_dir=config_dir)[0][0] for word in added}
    return [firsts.get(word, word) for word in words]


def _with_blocks(overrides: Sequence[str], *, config_dir: Path | None) -> list[list[str]]:
    """Returns the overrides once for each block of their study, with the block's behind its name.

    A choice of a group that blocks vary, such as scheme=t5, is made in the blocks that name it, or
    in the first if none does. Another key replaces that of every block.
    """
    given = {word.partition("=")[0].lstrip("+~"): word for word in overrides}
    blocks = _blocks(given.get(STUDY, ""), config_dir=config_dir)
    if not blocks:
        return [[*overrides]]
    chosen: dict[str, Sequence[list[str]]] = {}  # the names of a group that each block takes
    for group in given.keys() & {key for block in blocks for key in block}:
        if conf.choices(group, config_dir=config_dir):
            names = _values(given[group], config_dir)
            of_blocks = [_values(b[group], config_dir) if group in b else [] for b in blocks]
            others = [name for name in names if not any(name in known for known in of_blocks)]
            chosen[group] = [[name for name in names if name in known] for known in of_blocks]
            chosen[group][0].extend(others)
    replacing = [word for key, word in given.items() if key != STUDY and key not in chosen]
    several: list[list[str]] = []
    for n, block in enumerate(blocks):
        if not all(names[n] for names in chosen.values()):
            continue
        below = [word for key, word in block.items() if key not in chosen]
        kept = compose.beneath(below, replacing, config_dir=config_dir)
        words: list[str] = []
        for key, word in given.items():
            words.append(f"{key}={','.join(chosen[key][n])}" if key in chosen else word)
            words += kept if key == STUDY else []
        several.append(words)
    return several


def _values(word: str, config_dir: Path | None) -> list[str]:
    """Returns the values of an override, without its key."""
    points = expand_grid([word], config_dir=config_dir)
    return [point.partition("=")[2] for (point,) in points]


def _blocks(word: str, *, config_dir: Path | None) -> list[dict[str, str]]:
    """Returns the overrides of each block by key; none of a study without a grid."""
    (name, *_) = _values(word, config_dir) if word else [""]
    file = conf.choices(STUDY, config_dir=config_dir).get(name)
    blocks: object = conf.read_yaml(file).get(conf.GRID, []) if file else []
    is_grid = isinstance(blocks, list) and all(
        isinstance(block, Mapping) for block in cast("list[object]", blocks)
    )
    if not is_grid:
        raise UserError(f"{file}: grid: give a list of blocks, such as [{{scheme: 'rope,alibi'}}]")
    return [
        {key.lstrip("+~"): _as_word(key, value) for key, value in block.items()}
        for block in cast("list[dict[str, Any]]", blocks)
    ]


def _as_word(key: str, value: object) -> str:
    return f"{key}={value}" if isinstance(value, str) else overrides_of({key: value})[0]
