"""Probes of a run: what probes.jsonl lacks is computed, and pictures are drawn of it."""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple

from lengthgen import probes
from lengthgen.config import compose
from lengthgen.config.registry import construct, registered
from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.errors import UserError, suggestion
from lengthgen.evaluation.evaluator import open_run, trained_model
from lengthgen.evaluation.protocols import HEADLINE, named
from lengthgen.files import append_rows, read_rows, replace_file
from lengthgen.probes.base import Probe, ProbeInputs, Row
from lengthgen.probes.figures import draw
from lengthgen.report.style import saved
from lengthgen.runs import status
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress

FORMAT = 1  # of a row of probes.jsonl; a change of what its numbers mean raises it


class Outcome(NamedTuple):
    """A probe's summary of a run, and its picture; None where all rows are skipped."""

    probe: str
    summary: str
    picture: Path | None


def registry(plugins: Sequence[str] = ()) -> dict[str, type[Probe]]:
    """Returns all probes by name, those of this folder and of plugins.

    Raises UserError for a plugin that fails, and for two probes of one name.
    """
    names = [file.name for file in iter_modules(probes.__path__) if file.name != "cli"]
    modules = [import_module(f"{probes.__name__}.{name}") for name in names]
    return dict(sorted(registered(modules, Probe, plugins).items()))


def build(
    names: Sequence[str] | None, *, config_dir: Path | None = None, plugins: Sequence[str] = ()
) -> list[Probe]:
    """Returns the probes requested, all if None, with the options that conf/probe/NAME.yaml holds.

    Raises UserError for an unknown probe, and for options that do not fit.
    """
    known = registry(plugins)
    for name in names or []:
        if name not in known:
            raise UserError(f"--probes: no such probe {name!r}; {suggestion(name, known)}")
    with_options = compose.choices(compose.PROBE, config_dir=config_dir)
    options = {
        name: compose.load(compose.PROBE, name, config_dir=config_dir)
        for name in known
        if name in with_options
    }
    return [
        construct(known[name], options.get(name, {}), where=f"probe.{name}")
        for name in known
        if names is None or name in names
    ]


def probe(
    config: Config,
    run_dir: Path,
    chosen: Sequence[Probe],
    *,
    others: Sequence[tuple[Config, Path]] = (),
    show: Progress,
) -> list[Outcome]:
    """Computes what probes.jsonl lacks for this checkpoint and text; draws all requested.

    `others`: runs that it may be compared with. Pictures are probes/NAME.png. Raises UserError if
    the run has no checkpoint, or is of a task.
    """
    if isinstance(config.corpus, TaskCorpus):
        raise UserError(f"probe: {run_dir.name} is of a task, and probes read text; name another")
    config.refuse_arch("probe")
    opened = open_run(config, run_dir, ranks=ALONE, show=show)
    planned, corpus = opened.planned, opened.planned.corpus
    inputs = ProbeInputs(
        model=trained_model(config, opened).requires_grad_(False),
        corpus=corpus,
        endpoints=planned.endpoints,
        max_context=planned.max_context,
        seed=config.eval.seed,
        show=show,
        others=others,
    )
    about = {
        "format": FORMAT,
        "run": config.run_id,
        "weights": opened.sha256,
        "scheme": config.scheme.name,
        "model": config.model.name,
        "seed": config.seed,
        "corpus": corpus.name,
        "fingerprint": corpus.fingerprint,
        "train_length": config.train.length,
        "tokens_seen": opened.tokens_seen,
        "endpoints": named(HEADLINE).manifest(planned),
        "windows": len(planned.endpoints),
        "eval_seed": config.eval.seed,
    }
    with status.run_lock(run_dir, "probe"):
        return [_outcome(each, run_dir, about, inputs) for each in chosen]


def _outcome(
    chosen: Probe, run_dir: Path, about: Mapping[str, object], inputs: ProbeInputs
) -> Outcome:
    """Returns the outcome of a probe, computed only if the run's rows do not have it yet."""
    log, picture = run_dir / "probes.jsonl", run_dir / "probes" / f"{chosen.name}.png"
    settings = json.loads(json.dumps(chosen.settings(inputs)))  # as rows hold them
    key: Row = {**about, "probe": chosen.name, "settings": settings}

    def kept() -> list[Row]:
        return [row for row in read_rows(log) if all(row.get(k) == key[k] for k in key)]

    if not kept():
        append_rows(log, [{**key, **row} for row in chosen.rows(inputs)])
    rows = kept()
    measured = [row for row in rows if "skipped" not in row]
    skipped = "; ".join(dict.fromkeys(row["skipped"] for row in rows if "skipped" in row))
    if not measured:
        picture.unlink(missing_ok=True)
        return Outcome(chosen.name, f"n/a: {skipped}", None)
    title = f"{chosen.name}: {key['run']}, {key['tokens_seen']:,} tokens seen"
    title += f"; elsewhere n/a: {skipped}" if skipped else ""
    drawn = draw(title, chosen.panels(measured), columns=chosen.columns)
    replace_file(picture, saved(drawn, "png"))
    return Outcome(chosen.name, chosen.summary(measured), picture)
