"""The words behind a command: overrides, runs, folders; how they complete and what they mean."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthgen.cli.printing import say_once
from lengthgen.errors import UserError, suggestion

if TYPE_CHECKING:
    from lengthgen.config.schema import Config


def complete_overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    from lengthgen.cli import completion

    before = ctx.params.get("overrides") or []
    return completion.overrides(before, incomplete, config_dir=ctx.params.get("config_dir"))


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    from lengthgen.cli import completion

    return completion.runs(ctx.params.get("words") or [], incomplete)


def complete_schemes(ctx: typer.Context, incomplete: str) -> list[str]:
    from lengthgen.cli import completion

    return completion.schemes(ctx.params.get("words") or [], incomplete)


def _allow(ctx: typer.Context, files: list[Path] | None) -> list[Path] | None:
    """Takes --plugin FILE as the user's word that this content may run, now and later."""
    if not ctx.resilient_parsing:  # a Tab runs nothing
        from lengthgen.config import trust
        from lengthgen.config.plugins import Plugin

        for file in files or []:
            given = Plugin.read(file)
            given.allow()
            trust.remember(given.sha256, file)
    return files


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE ...]",
        help="Overrides, such as scheme=alibi train.length=1024; Tab completes them.",
        autocompletion=complete_overrides,
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN ...] [KEY=VALUE ...]",
        help="Run ids, unique beginnings of ids, or paths; and runtime.* overrides.",
        autocompletion=complete_runs,
    ),
]
ConfigDir = Annotated[
    Path | None, typer.Option("--config-dir", metavar="DIR", help="Folder with groups of your own.")
]

Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Python file with parts of your own, or of a run whose code you have read.",
        callback=_allow,
    ),
]


def split(
    words: list[str] | None, *, sections: tuple[str, ...]
) -> tuple[list[str], dict[str, Any]]:
    """Parts RUNs from KEY=VALUEs, and returns the latter by key.

    Raises UserError for a key outside the sections, or unknown within them.
    """
    from lengthgen.config import compose

    overrides = [word for word in words or [] if "=" in word and not Path(word).exists()]
    names = [word for word in words or [] if word not in overrides]
    changes = compose.values(overrides) if overrides else {}
    for key in changes:
        if key.partition(".")[0] not in sections or "." not in key:
            taken = " and ".join(f"{section}.*" for section in sections)
            raise UserError(f"{key}: only {taken} can be given here; the run fixes the rest")
        from lengthgen.config import schema

        known = [one for one in schema.known_keys() if one.partition(".")[0] in sections]
        if key not in known:
            raise UserError(f"{key}: unknown key; {suggestion(key, known)}")
    return names, changes


def configs_of(
    run_dirs: Sequence[Path],
    changes: Mapping[str, Any],
    *,
    config_dir: Path | None = None,
    plugins: Sequence[Path] = (),
) -> "list[Config]":
    """Returns the configurations of runs with the changes, all checked before any is used.

    Raises UserError for code of a run that is not allowed, and for plugins that no run has.
    """
    found = read_configs(run_dirs, changes, config_dir=config_dir)
    brought = {plugin.sha256 for config in found for plugin in config.plugins}
    for config in found:
        for plugin in config.plugins:
            plugin.refuse_unless_allowed()
    from lengthgen.config.plugins import Plugin

    for path in plugins:
        if Plugin.read(path).sha256 not in brought:
            names = ", ".join(run_dir.name for run_dir in run_dirs)
            raise UserError(f"--plugin: {path} is no plugin of {names}; drop it")
    return found


def read_configs(
    run_dirs: Sequence[Path], changes: Mapping[str, Any], *, config_dir: Path | None = None
) -> "list[Config]":
    """Returns the configurations of runs with the changes; no code of a run needs to be allowed."""
    from lengthgen import pipeline
    from lengthgen.config import compose, schema, trust
    from lengthgen.runs import directory

    found: list[Config] = []
    for run_dir in run_dirs:
        trust.refuse_links(run_dir)
        plain = schema.to_plain(directory.load_config(run_dir))
        plain["variants"] |= compose.variants(config_dir=config_dir)
        plain["runtime"]["cache"] = _cache_of(plain["runtime"]["cache"], run_dir, changes)
        for key, value in {"runtime.root": str(run_dir.parent), **changes}.items():
            section, _, name = key.partition(".")
            plain[section][name] = value
        found.append(pipeline.validate(schema.from_plain(plain)))
    return found


def _cache_of(cache: str | None, run_dir: Path, changes: Mapping[str, Any]) -> str | None:
    """Returns a run's runtime.cache if it is a token cache here.

    A run may be a stranger's, whose configuration chooses no folder that is to be written to.
    """
    if cache is None or "runtime.cache" in changes or any(Path(cache).glob("*/meta.json")):
        return cache
    say_once(
        f"{run_dir.name}: its runtime.cache={cache} is no token cache here; "
        f"{run_dir.parent}/.cache is used (runtime.cache=FOLDER chooses)"
    )
    return None


def lengths_of(text: str) -> list[int]:
    return [
        positive(word.strip(), "--lengths", "lengths like 512,2048") for word in text.split(",")
    ]


def positive(word: str, option: str, example: str) -> int:
    if not re.fullmatch(r"[0-9]+", word) or int(word) == 0:
        raise UserError(f"{option}: {word!r} is not a positive integer; give {example}")
    return int(word)


def root_of(changes: Mapping[str, Any]) -> Path:
    from lengthgen.cli import listing

    given = "runtime.root" in changes
    return Path(changes["runtime.root"]) if given else listing.default_root()
