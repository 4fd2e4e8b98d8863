"""Probes: what a trained checkpoint does with positions, in rows of numbers and a picture each."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.errors import UserError, suggestion
from lengthgen.evaluation.evaluator import Show, open_run, trained_model
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.probes import (
    attention,
    bias,
    position,
    receptive_field,
    shift_invariance,
    word_position,
)
from lengthgen.probes.inputs import ProbeInputs, Row
from lengthgen.report.figures import probes as pictures
from lengthgen.report.figures.style import rendered
from lengthgen.runs import status
from lengthgen.runs.distributed import ALONE
from lengthgen.storage import append_rows, read_rows, replace_file

FORMAT = 1  # of a row of probes.jsonl; a change of what its numbers mean raises it


class Probe(NamedTuple):
    """An analysis: its numbers, what decides them, what they come to, and their picture."""

    rows: Callable[[ProbeInputs], list[Row]]
    settings: Callable[[ProbeInputs], Row]
    summary_of: Callable[[list[Row]], str]  # of rows that have numbers
    figure: pictures.Draw

    def summary(self, rows: list[Row]) -> str:
        """Returns a line, also for rows that are all skipped."""
        measured = [row for row in rows if "skipped" not in row]
        return self.summary_of(measured) if measured else f"n/a: {rows[0]['skipped']}"


PROBES: Mapping[str, Probe] = {
    one.NAME: Probe(one.rows, one.settings, one.summary, getattr(pictures, one.NAME))
    for one in (shift_invariance, receptive_field, attention, bias, word_position, position)
}


class Outcome(NamedTuple):
    """A probe's summary of a run, and its picture; None where all rows are skipped."""

    probe: str
    summary: str
    picture: Path | None


def named(words: Sequence[str] | None) -> list[str]:
    """Returns the names of the probes requested, all if None. Refuses unknown ones."""
    for word in words or []:
        if word not in PROBES:
            raise UserError(f"--probes: no such probe {word!r}; {suggestion(word, PROBES)}")
    return [name for name in PROBES if words is None or name in words]


def probe(config: Config, run_dir: Path, names: Sequence[str], *, show: Show) -> list[Outcome]:
    """Computes what probes.jsonl lacks for this checkpoint and text; draws all requested.

    Pictures are probes/NAME.png and .svg. Raises UserError if the run has no checkpoint, or is of a
    task.
    """
    if isinstance(config.corpus, TaskCorpus):
        raise UserError(f"probe: {run_dir.name} is of a task, and probes read text; name another")
    opened = open_run(config, run_dir, ranks=ALONE, show=show)
    planned, corpus = opened.planned, opened.planned.corpus
    inputs = ProbeInputs(
        model=trained_model(config, opened).requires_grad_(False),
        corpus=corpus,
        endpoints=planned.endpoints,
        reach=planned.reach,
        seed=config.eval.seed,
        show=show,
    )
    about = {
        "format": FORMAT,
        "run": run_dir.name,
        "scheme": config.scheme.name,
        "model": config.model.name,
        "seed": config.seed,
        "corpus": corpus.name,
        "fingerprint": corpus.fingerprint,
        "train_length": config.train.length,
        "tokens_seen": opened.tokens_seen,
        "endpoints": planned.manifest(HEADLINE),
        "windows": len(planned.endpoints),
        "eval_seed": config.eval.seed,
    }
    with status.run_lock(run_dir, "probe"):
        return [_outcome(name, run_dir, about, inputs) for name in names]


def _outcome(name: str, run_dir: Path, about: Row, inputs: ProbeInputs) -> Outcome:
    """Returns the outcome of a probe, computed only if the run's rows do not have it yet."""
    chosen, log = PROBES[name], run_dir / "probes.jsonl"
    key = {**about, "probe": name, "settings": chosen.settings(inputs)}

    def kept() -> list[Row]:
        return [row for row in read_rows(log) if all(row.get(k) == key[k] for k in key)]

    if not kept():
        append_rows(log, [{**key, **row} for row in chosen.rows(inputs)])
    found = kept()
    picture = run_dir / "probes" / f"{name}.png"
    if all("skipped" in row for row in found):
        for path in (picture, picture.with_suffix(".svg")):
            path.unlink(missing_ok=True)
        return Outcome(name, chosen.summary(found), None)
    picture.parent.mkdir(exist_ok=True)
    drawn = chosen.figure(found)
    for path in (picture, picture.with_suffix(".svg")):
        replace_file(path, rendered(drawn, path.suffix[1:]))
    return Outcome(name, chosen.summary(found), picture)
