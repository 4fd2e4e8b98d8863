"""lengthgen list."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthgen.cli.arguments import (
    ConfigDir,
    Json,
    PluginFiles,
    complete_runs,
    meeting,
    named_runs,
    selection,
)
from lengthgen.cli.console import echo, print_table, warn_once
from lengthgen.config.registry import beside_core
from lengthgen.errors import UserError, suggestion

GROUPS = {
    "schemes": "scheme",
    "variants": "variant",
    "models": "model",
    "corpora": "corpus",
    "tasks": "task",
    "studies": "study",
}
Listed = tuple[list[str], list[list[str]]]  # head and rows
LISTS: dict[str, Callable[[list[Path]], Listed]] = {}  # by kind, of plugins
for _subpackage in beside_core("cli"):
    LISTS.update(getattr(_subpackage, "LISTS", {}))
KINDS = (*GROUPS, "protocols", *LISTS, "runs")
KNOWN = ", ".join(KINDS)


def list_kind(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="KIND", help=f"{KNOWN}.", autocompletion=lambda: list(KINDS)),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN ...] [KEY=VALUE ...]",
            help="Which runs: rope-*, scheme=rope,alibi state=stopped; runtime.root=DIR: where.",
            autocompletion=complete_runs,
        ),
    ] = None,
    config_dir: ConfigDir = None,
    plugin: PluginFiles = None,
    as_json: Json = False,
) -> None:
    """List what can be chosen, or the runs there are."""
    if kind not in KINDS:
        what = f"no such kind {kind!r}; {suggestion(kind, KINDS)}" if kind else f"what? {KNOWN}"
        raise UserError(f"list: {what}")
    names, root, conditions = selection(arguments)
    if kind != "runs" and (unused := names + conditions):
        raise UserError(f"{unused[0]}: list chooses among runs alone; drop it")
    if kind == "runs":
        records = runs(root, names, conditions)
        if not records:
            warn_once(f"no runs in {root} yet")
        head, rows = runs_table(records)
    else:
        head, rows = listed_choices(kind, config_dir=config_dir, plugins=plugin or [])
        records = [dict(zip(head, row, strict=True)) for row in rows]
    if as_json:
        echo(json.dumps(records, indent=1))
    elif rows:
        print_table(head, rows)


def listed_choices(kind: str, *, config_dir: Path | None, plugins: list[Path]) -> Listed:
    """Returns what there is of a kind, and what it is; with schemes their own variants."""
    from lengthgen.config import conf

    if kind in LISTS:
        return LISTS[kind](plugins)
    if kind == "protocols":
        from lengthgen.evaluation.protocols import known

        rows = [[p.name, p.summary, p.source] for p in known().values()]
        return ["protocol", "what it scores", "source"], rows
    files = conf.choices(GROUPS[kind], config_dir=config_dir)
    head, rows = [GROUPS[kind], "what"], [[n, conf.describe(file)] for n, file in files.items()]
    if kind == "schemes":
        head.append("variants")
        for row, file in zip(rows, files.values(), strict=True):
            row.append(", ".join(conf.read_yaml(file).get("variants") or {}))
    return head, rows


def runs(
    root: Path, names: Sequence[str] = (), conditions: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Returns the records of the runs of these names that meet conditions, the newest last."""
    from lengthgen.runs import directory

    run_dirs = named_runs(names, root) or directory.run_dirs(root)
    if conditions and run_dirs:
        run_dirs = meeting(run_dirs, conditions)
    return [record(run_dir) for run_dir in sorted(run_dirs, key=directory.written_at)]


def record(run_dir: Path) -> dict[str, Any]:
    """Returns how far a run is, and its perplexities by the headline protocol at each length.

    One that is damaged has the state "unreadable": it hides no other run.
    """
    from lengthgen.files import reading

    try:
        with reading(run_dir):
            return _record(run_dir)
    except UserError as error:
        of_run = {"run": run_dir.name, "folder": str(run_dir)}
        return of_run | {"state": "unreadable", "reason": str(error)}


def _record(run_dir: Path) -> dict[str, Any]:
    from lengthgen.evaluation.stored import HEADLINE, loss, stored
    from lengthgen.runs import directory, status

    config = directory.load_config(run_dir)
    state, reason, *_ = status.read_status(run_dir, run=config.run_id)
    trained = directory.read_log(run_dir, run=config.run_id)
    rows = stored(run_dir, run=config.run_id)
    steps = [*map(status.step_of, status.checkpoint_folders(run_dir))]
    headline = [row for row in rows if (row["protocol"], row["variant"]) == (HEADLINE, None)]
    newest = dict.fromkeys((row["endpoints"], row["length"]) for row in reversed(headline))
    most = Counter(endpoints for endpoints, _ in newest).most_common(1)  # of equals, the newest
    headline = [row for row in headline if row["endpoints"] == most[0][0]]
    step = max([*steps, *(int(row["train/step"]) for row in trained[-1:])], default=0)
    ppl: dict[int, float | None] = {}
    for n in sorted({row["length"] for row in headline}):
        nats = loss([row for row in headline if row["length"] == n])
        ppl[n] = math.exp(nats) if nats is not None and nats < 709 else None
    return {
        "run": run_dir.name,
        "folder": str(run_dir),
        "scheme": config.scheme.name,
        "seed": config.seed,
        "lr": config.train.lr,
        "T": headline[0]["train_length"] if headline else config.train.length,
        "state": state,
        "reason": reason,
        "step": step,
        "steps": config.train.steps,
        "tokens": step * config.train.batch_tokens,
        "budget": config.train.steps * config.train.batch_tokens,
        "ppl": ppl,
    }


def runs_table(records: Sequence[dict[str, Any]]) -> Listed:
    """Returns records as a table, with the perplexities at T and at the longest length."""
    rows: list[list[str]] = []
    for r in records:
        ppl = r.get("ppl") or {}
        shown = [(n, ppl.get(n)) for n in (r["T"], max(ppl))] if ppl else []
        ppls = ["" if x is None else f"{x:,.2f} at {n:,}" for n, x in shown] or ["", ""]
        about = [str(r.get(key, "")) for key in ("scheme", "seed", "lr", "T")]
        tokens = f"{r['tokens']:,} of {r['budget']:,}" if r.get("budget") else ""  # imported: 0
        rows.append([r["run"], *about, tokens, r["state"], *ppls, r["reason"] or ""])
    head = ["run", "scheme", "seed", "lr", "T", "tokens", "state", "ppl at T"]
    return [*head, "ppl at the longest", "why"], rows
