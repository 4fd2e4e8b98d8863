"""What `lengthgen list` shows: the choices of a group, or the runs under a root."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lengthgen.config import compose
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.evaluation.precision import Audited
    from lengthgen.runs.directory import RunSummary


class Listing(NamedTuple):
    """The names of the columns, and the cells of each row."""

    head: list[str]
    rows: list[list[str]]


def choices(group: str, *, config_dir: Path | None) -> Listing:
    """Returns name and description of each choice of a group, and the variants of schemes."""
    head, rows = [group, "what"], list[list[str]]()
    for name in compose.choices(group, config_dir=config_dir):
        row = [name, compose.describe(group, name, config_dir=config_dir)]
        if group == "scheme":
            variants = compose.load(group, name, config_dir=config_dir).get("variants", {})
            row.append(", ".join(variants))
        rows.append(row)
    return Listing([*head, *(["variants"] if group == "scheme" else [])], rows)


def runs(root: Path) -> Listing:
    """Returns how far each run is, and its perplexities by the headline protocol."""
    from lengthgen.analysis import curves  # here and not above, since runs imports torch
    from lengthgen.runs.directory import list_runs, training_log
    from lengthgen.storage import read_rows

    head = ["run", "state", "step", "tokens", "ppl at T", "ppl at the longest", "why"]
    rows: list[list[str]] = []
    for summary in list_runs(root):
        try:
            trained = training_log(summary.path)
            points = [
                point
                for point in curves.curve(read_rows(summary.path / "eval.jsonl"))
                if point.protocol == curves.HEADLINE and point.variant is None
            ]
            curve = {p.length: p for p in curves.comparable(points) if p.ppl is not None}
        except UserError as error:  # a damaged file hides no other run
            rows.append([summary.run_id, "unreadable", "", "", "", "", str(error)])
            continue
        tokens = f"{trained[-1]['train/tokens']:,}" if trained else ""
        at_t = next((p for p in curve.values() if p.length == p.train_length), None)
        longest = curve[max(curve)] if curve else None
        ppls = [f"{p.ppl:,.2f} at {p.length:,}" if p else "" for p in (at_t, longest)]
        step = f"{summary.step}/{summary.steps}"
        why = "" if summary.state == "done" else _why(summary)
        rows.append([summary.run_id, summary.state, step, tokens, *ppls, why])
    return Listing(head, rows)


def _why(summary: "RunSummary") -> str:
    """Returns why a run is not done, and the command that continues it."""
    repeat = f"to continue: {summary.command}" if summary.command else None
    return "; ".join(said for said in (summary.reason, repeat) if said)


def protocols() -> Listing:
    """Returns what each protocol scores, and who scores so."""
    from lengthgen.evaluation.protocols import PROTOCOLS

    rows = [[one.name, one.says, one.source] for one in PROTOCOLS.values()]
    return Listing(["protocol", "what it scores", "source"], rows)


def audit(found: Sequence["Audited"], run: str) -> Listing:
    """Returns by how much nats per token move in another precision, a row per length."""
    change = f"{found[0].again_in} - {found[0].scored_in}" if found else ""
    head = ["run", "length", "windows", "tokens", f"nats {change}: mean", "mean |d|", "max |d|"]
    rows = [
        [
            run,
            *(f"{n:,}" for n in (one.length, one.n_windows, one.n_tokens)),
            *(f"{d:.1e}" for d in (one.mean, one.mean_absolute, one.max_absolute)),
        ]
        for one in found
    ]
    return Listing(head, rows)


def run_dirs(root: Path) -> list[Path]:
    """Returns the directories of the runs under a root, by name."""
    return sorted(path.parent for path in root.glob("*/config.yaml"))


def default_root() -> Path:
    """Returns where runs are kept unless runtime.root says otherwise."""
    return Path(compose.defaults()["runtime"]["root"])
