"""lengthgen list."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.arguments import ConfigDir, Plugin, split
from lengthgen.cli.console import print_table, warn_once
from lengthgen.config.registry import rooms
from lengthgen.errors import UserError, suggestion

GROUPS = {
    "schemes": "scheme",
    "variants": "variant",
    "models": "model",
    "corpora": "corpus",
    "tasks": "task",
    "experiments": "experiment",
}
Listed = tuple[list[str], list[list[str]]]  # head and rows
LISTS: dict[str, Callable[[list[Path]], Listed]] = {}  # of the rooms beside the core
for _room in rooms("cli"):
    LISTS.update(getattr(_room, "LISTS", {}))
KINDS = (*GROUPS, "protocols", *LISTS, "runs")


def list_kind(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help=f"{', '.join(KINDS)}.", autocompletion=lambda: list(KINDS)
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE ...]", help="runtime.root=DIR: where the runs are."),
    ] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """List what can be chosen, or the runs there are."""
    names, changes = split(arguments, sections=("runtime",))
    if names:
        raise UserError(f"{names[0]}: not readable as an override; give runtime.root=DIR")
    if kind not in KINDS:
        raise UserError(f"list: no such kind {kind!r}; {suggestion(kind, KINDS)}")
    if kind in GROUPS:
        print_table(*choices(GROUPS[kind], config_dir=config_dir))
    elif kind == "protocols":
        print_table(*protocols())
    elif kind in LISTS:
        print_table(*LISTS[kind](plugin or []))
    else:
        from lengthgen.config import compose

        root = compose.root_of(changes)
        head, rows = runs(root)
        print_table(head, rows) if rows else warn_once(f"no runs in {root} yet")


def choices(group: str, *, config_dir: Path | None) -> Listed:
    """Returns name and description of each choice of a group, and the variants of schemes."""
    from lengthgen.config import compose

    files = compose.choices(group, config_dir=config_dir)
    if group != "scheme":
        return [group, "what"], [[name, compose.describe(file)] for name, file in files.items()]
    return [group, "what", "variants"], [
        [name, compose.describe(file), ", ".join(compose.read(file).get("variants", {}))]
        for name, file in files.items()
    ]


def protocols() -> Listed:
    """Returns what each protocol scores, and where it comes from."""
    from lengthgen.evaluation.protocols import known

    rows = [[p.name, p.summary, p.source] for p in known().values()]
    return ["protocol", "what it scores", "source"], rows


def runs(root: Path) -> Listed:
    """Returns how far each run is, and its perplexities by the headline protocol."""
    from lengthgen.runs import directory

    head = ["run", "state", "step", "tokens", "ppl at T", "ppl at the longest", "why"]
    rows: list[list[str]] = []
    for run_dir in sorted(directory.run_dirs(root), key=lambda path: path.lstat().st_mtime):
        try:
            rows.append([run_dir.name, *_progress(run_dir)])
        except UserError as error:  # a damaged file hides no other run
            rows.append([run_dir.name, "unreadable", "", "", "", "", str(error)])
    return head, rows


def _progress(run_dir: Path) -> list[str]:
    """Returns the cells of a run behind its name."""
    from lengthgen.evaluation.protocols import HEADLINE
    from lengthgen.evaluation.rows import loss, stored
    from lengthgen.files import read_rows
    from lengthgen.runs import directory, status

    config = directory.load_config(run_dir)
    state, reason, *_ = status.read_status(run_dir, run=config.run_id)
    trained = read_rows(run_dir / "train.jsonl", run=config.run_id)
    step = trained[-1]["train/step"] if trained else 0
    own = [
        row
        for row in stored(run_dir, run=config.run_id)
        if (row["protocol"], row["variant"]) == (HEADLINE, None)
    ]
    ppls = ["", ""]
    if own:
        shown = own[0]["train_length"], max(row["length"] for row in own)
        losses = [loss([row for row in own if row["length"] == n]) for n in shown]
        ppls = [
            "" if x is None else f"{math.exp(x) if x < 709 else math.inf:,.2f} at {n:,}"
            for n, x in zip(shown, losses, strict=True)
        ]
    tokens = f"{trained[-1]['train/tokens']:,}" if trained else ""
    return [state, f"{step}/{config.train.steps}", tokens, *ppls, reason or ""]
