"""The arguments and options that commands share, how they complete, and the runs they name."""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthgen.cli.console import warn_once
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.config.schema import Config


def complete_overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns groups, their choices and dotted keys, from the YAML files alone.

    A shell may break the line at "=", as bash does: scheme=ro arrives as "scheme", "=", "ro", and
    scheme= as "scheme", ""; only what stands behind the "=" is to be returned then.
    """
    from lengthgen.config.overrides import completions

    before, key = _before(ctx), ""
    if len(before) > 1 and before[-1] == "=":
        key = f"{before[-2]}="
    elif before and not incomplete:
        key = f"{before[-1]}="
    config_dir = ctx.params.get("config_dir")
    with suppress(UserError):  # a broken YAML of the user's: a shell has no place for a message
        words = completions(key + incomplete, config_dir=config_dir)
        if words or incomplete:
            return [word.removeprefix(key) for word in words]
        return completions("", config_dir=config_dir)
    return []


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the ids of the runs in runtime.root, as it stands on the line, and keys.

    The keys are those of eval and runtime, and all of a command that selects runs by them.
    """
    from lengthgen.config.user import root_of

    given = re.search(r"runtime\.root ?= ?(\S+)", " ".join(_before(ctx)))
    root = root_of({"runtime.root": given[1]} if given else {})
    ids = sorted(path.parent.name for path in root.glob("*/config.yaml"))
    # Of another name a shell would run parts.
    fitting = [n for n in ids if n.startswith(incomplete) and re.fullmatch(r"[\w.=+,-]+", n)]
    keys = complete_overrides(ctx, incomplete)
    return fitting + keys


def _before(ctx: typer.Context) -> list[str]:
    """Returns the arguments before the incomplete one."""
    return ctx.params.get("overrides") or ctx.params.get("arguments") or []


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE ...]",
        help="Overrides, such as scheme=alibi train.length=1024; Tab completes them.",
        autocompletion=complete_overrides,
    ),
]
Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN ...] [KEY=VALUE ...]",
        help="Ids, their beginnings, globs, paths; scheme=rope state=stopped; and overrides.",
        autocompletion=complete_runs,
    ),
]
VariantNames = Annotated[
    str | None,
    typer.Option(
        metavar="V",
        help="Training-free variant, a+b merges two; several for eval and probe: V,V.",
    ),
]
ConfigDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder with custom groups.")]
PluginFiles = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Python file to run: custom parts, or those of a run."),
]
Gpus = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Processes of one run, by torchrun.")
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Score N documents alone: eval.endpoints=N."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


def limited(limit: int | None) -> list[str]:
    """Returns the override of --limit."""
    return [] if limit is None else [f"eval.endpoints={limit}"]


def refuse_limit(limit: int | None, configs: "Iterable[Config]") -> None:
    """Raises UserError for --limit where a run is of a task, all tests of which are scored."""
    if limit is not None and any(config.corpus.source == "task" for config in configs):
        raise UserError("--limit: of a task all tests are scored; task.examples_per_length is less")


def names_and_overrides(arguments: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Returns the RUNs and the KEY=VALUEs; the name of a file may hold a "="."""
    overrides = [word for word in arguments or [] if "=" in word and not os.path.exists(word)]
    return [word for word in arguments or [] if word not in overrides], overrides


def chosen_runs(
    arguments: Sequence[str] | None, *sections: str
) -> tuple[list[Path], dict[str, Any]]:
    """Returns the directories of the runs that arguments choose, and values of KEY=VALUEs by key.

    RUNs are paths, ids, their beginnings and globs such as rope-*. KEY=VALUEs of the sections are
    changes; the others are conditions such as seed=1,2 and state=stopped, which keep of the RUNs,
    or of all runs, those that meet them. Without either it is the newest.

    Raises UserError for a key that is unknown in the sections.
    """
    from lengthgen.config.overrides import checked_changes, plain_values
    from lengthgen.config.user import root_of
    from lengthgen.runs import directory

    names, overrides = names_and_overrides(arguments)
    changing = [w for w in overrides if w.startswith(tuple(f"{name}." for name in sections))]
    changes = checked_changes(plain_values(changing), sections)
    root = root_of(changes)
    found, conditions = named_runs(names, root), [w for w in overrides if w not in changing]
    if conditions:
        found = meeting(found or directory.every(root), conditions)
    return found or [directory.newest_run(root)], changes


def named_runs(names: Sequence[str], root: Path) -> list[Path]:
    """Returns the directories of RUNs. Raises UserError if one is none, or of several all are."""
    from lengthgen.runs import directory

    found = list[Path]()
    for name in names:
        try:
            found += directory.find_all(name, root)
        except UserError:
            if len(names) == 1 or not Path(name).is_dir():
                raise
            warn_once(f"{name}: no run, left out")  # runs/* has more than runs
    if names and not found:
        raise UserError(f"none of {', '.join(names)} is a run")
    return list(dict.fromkeys(found))


def meeting(run_dirs: Sequence[Path], conditions: Sequence[str]) -> list[Path]:
    """Returns the runs that meet conditions such as scheme=rope, seed=1,2 and state=stopped.

    One that is damaged has the state unreadable, and no other value: a line names it, unless states
    are asked for. Raises UserError for none.
    """
    from lengthgen.runs import directory, status
    from lengthgen.runs.selection import runs_matching

    configs: dict[str, dict[str, Any]] = {}
    for path in run_dirs:
        try:
            configs[str(path)] = directory.plain_config(path)
            if any(condition.startswith("state=") for condition in conditions):
                run = directory.load_config(path).run_id
                configs[str(path)]["state"] = status.read_status(path, run=run).state
        except UserError as error:
            configs[str(path)] = {"state": "unreadable"}
            if not any(condition.startswith("state=") for condition in conditions):
                warn_once(f"{path}: unreadable, left out: {error}")
    kept = runs_matching(configs, conditions)
    return [path for path in run_dirs if str(path) in kept]


def selection(arguments: Sequence[str] | None) -> tuple[list[str], Path, list[str]]:
    """Returns the RUNs, the folder of runs, and the conditions of a command that shows all runs."""
    from lengthgen.config.overrides import plain_values
    from lengthgen.config.user import root_of

    names, overrides = names_and_overrides(arguments)
    roots = [word for word in overrides if word.startswith("runtime.root=")]
    conditions = [word for word in overrides if word not in roots]
    return names, root_of(plain_values(roots)), conditions


def comma_words(text: str | None) -> list[str]:
    """Returns the words of A,B,...; none of an option that is not given."""
    return [word.strip() for word in text.split(",")] if text is not None else []
