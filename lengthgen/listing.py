"""What `lengthgen list` shows: the choices of a group, or the runs under a root."""

from pathlib import Path
from typing import NamedTuple

from lengthgen import compose


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
    from lengthgen import statistics  # here and not above, since runs imports torch
    from lengthgen.runs import list_runs
    from lengthgen.tracking import read_rows

    head = ["run", "state", "step", "tokens", "ppl at T", "ppl at the longest"]
    rows: list[list[str]] = []
    for summary in list_runs(root):
        trained = read_rows(summary.path / "train.jsonl")
        tokens = f"{trained[-1]['train/tokens']:,}" if trained else ""
        points = [
            point
            for point in statistics.curve(read_rows(summary.path / "eval.jsonl"))
            if point.protocol == statistics.HEADLINE and point.variant is None
        ]
        curve = {p.length: p for p in statistics.comparable(points) if p.ppl is not None}
        at_t = next((p for p in curve.values() if p.length == p.train_length), None)
        longest = curve[max(curve)] if curve else None
        ppls = [f"{p.ppl:,.2f} at {p.length:,}" if p else "" for p in (at_t, longest)]
        rows.append(
            [summary.run_id, summary.state, f"{summary.step}/{summary.steps}", tokens, *ppls]
        )
    return Listing(head, rows)


def run_dirs(root: Path) -> list[Path]:
    """Returns the directories of the runs under a root, by name."""
    return sorted(path.parent for path in root.glob("*/config.yaml"))


def default_root() -> Path:
    """Returns where runs are kept unless runtime.root says otherwise."""
    return Path(compose.defaults()["runtime"]["root"])
