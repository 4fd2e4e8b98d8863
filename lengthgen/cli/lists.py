"""lengthgen list."""

from pathlib import Path
from typing import Annotated

import typer

from lengthgen.analysis import curves
from lengthgen.cli import completion
from lengthgen.cli.arguments import ConfigDir, Plugin, split
from lengthgen.cli.completion import GROUPS, KINDS
from lengthgen.cli.console import warn_once
from lengthgen.cli.tables import print_table
from lengthgen.config import compose
from lengthgen.errors import UserError, suggestion
from lengthgen.evaluation.protocols import HEADLINE, known
from lengthgen.evaluation.rows import stored
from lengthgen.runs.directory import list_runs, training_log


def list_kind(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="|".join(KINDS), help="What to list.", autocompletion=completion.kinds
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
    elif kind == "probes":
        print_table(*probes(plugin or []))
    elif (found := runs(compose.root_of(changes)))[1]:
        print_table(*found)
    else:
        warn_once(f"no runs in {compose.root_of(changes)} yet")


def choices(group: str, *, config_dir: Path | None) -> tuple[list[str], list[list[str]]]:
    """Returns name and description of each choice of a group, and the variants of schemes."""
    head, rows = [group, "what"], list[list[str]]()
    for name in compose.choices(group, config_dir=config_dir):
        row = [name, compose.describe(group, name, config_dir=config_dir)]
        if group == "scheme":
            variants = compose.load(group, name, config_dir=config_dir).get("variants", {})
            row.append(", ".join(variants))
        rows.append(row)
    return [*head, *(["variants"] if group == "scheme" else [])], rows


def protocols() -> tuple[list[str], list[list[str]]]:
    """Returns what each protocol scores, and where it comes from."""
    rows = [[p.name, p.summary, p.source] for p in known().values()]
    return ["protocol", "what it scores", "source"], rows


def probes(plugins: list[Path]) -> tuple[list[str], list[list[str]]]:
    """Returns what each probe shows; probes of plugins are included."""
    from lengthgen import probes as probing

    known = probing.registry(probing.probes_of(plugins))
    rows = [[name, (probe.__doc__ or "").partition("\n")[0]] for name, probe in known.items()]
    return ["probe", "what it shows"], rows


def runs(root: Path) -> tuple[list[str], list[list[str]]]:
    """Returns how far each run is, and its perplexities by the headline protocol."""
    head = ["run", "state", "step", "tokens", "ppl at T", "ppl at the longest", "why"]
    own = (HEADLINE, None)  # of the model as it was trained
    rows: list[list[str]] = []
    for run in list_runs(root):
        try:
            trained = training_log(run.path, run=run.trained_as)
            stored_rows = stored(run.path, run=run.trained_as)
            shown = [row for row in stored_rows if (row.get("protocol"), row.get("variant")) == own]
            points = curves.comparable(curves.curve(shown))
            curve = {p.length: p for p in points if p.ppl is not None}
        except UserError as error:  # a damaged file hides no other run
            rows.append([run.run_id, "unreadable", "", "", "", "", str(error)])
            continue
        tokens = f"{trained[-1]['train/tokens']:,}" if trained else ""
        at_t = next((p for p in curve.values() if p.length == p.train_length), None)
        longest = curve[max(curve)] if curve else None
        ppls = [f"{p.ppl:,.2f} at {p.length:,}" if p else "" for p in (at_t, longest)]
        repeat = f"to continue: {run.command}" if run.command else None
        repeat = None if run.state == "diverged" else repeat  # it would again
        why = "" if run.state == "done" else "; ".join(filter(None, (run.reason, repeat)))
        rows.append([run.run_id, run.state, f"{run.step}/{run.steps}", tokens, *ppls, why])
    return head, rows
