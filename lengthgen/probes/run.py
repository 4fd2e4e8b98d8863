"""Probes of a run: what probes.jsonl lacks is computed, and pictures are drawn of it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lengthgen import probes
from lengthgen.config import compose
from lengthgen.config import plugins as plugin_files
from lengthgen.config.registry import construct, modules_of, registered, subclasses
from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.errors import UserError, suggestion
from lengthgen.evaluation.evaluator import open_run, trained_model
from lengthgen.evaluation.protocols import HEADLINE, named
from lengthgen.files import append_rows, read_rows, replace_file
from lengthgen.probes.base import Probe
from lengthgen.probes.inputs import Other, ProbeInputs, Row
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
    """Returns all probes by name, those of this folder and of plugins, in the order of output.

    Raises UserError for a plugin that fails, and for two probes of one name.
    """
    found = registered(modules_of(probes.__name__, probes.__path__), Probe, plugins)
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def probes_of(files: Sequence[Path]) -> list[str]:
    """Returns the plugins that define a probe; the others hold parts of a run's scheme."""
    given = plugin_files.give(files)
    return [digest for digest in given if subclasses(plugin_files.module(digest), Probe)]


def build(
    names: Sequence[str] | None, *, config_dir: Path | None = None, plugins: Sequence[str] = ()
) -> list[Probe]:
    """Returns the probes requested, all if None, with the options that conf/probe/NAME.yaml holds.

    Raises UserError for an unknown probe, and for options that do not fit its signature or that it
    refuses.
    """
    known = registry(plugins)
    for name in names or []:
        if name not in known:
            raise UserError(f"--probes: no such probe {name!r}; {suggestion(name, known)}")
    with_options = compose.choices(compose.PROBE, config_dir=config_dir)
    found: list[Probe] = []
    for name in known if names is None else [name for name in known if name in names]:
        given = (
            compose.load(compose.PROBE, name, config_dir=config_dir) if name in with_options else {}
        )
        found.append(construct(known[name], given, where=f"probe.{name}"))
    return found


def probe(
    config: Config,
    run_dir: Path,
    chosen: Sequence[Probe],
    *,
    others: Sequence[Other] = (),
    show: Progress,
) -> list[Outcome]:
    """Computes what probes.jsonl lacks for this checkpoint and text; draws all requested.

    `others`: runs that it may be compared with. Pictures are probes/NAME.png and .svg. Raises
    UserError if the run has no checkpoint, or is of a task.
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
        reach=planned.max_context,
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
        return [_outcome(one, run_dir, about, inputs) for one in chosen]


def _outcome(
    chosen: Probe, run_dir: Path, about: Mapping[str, object], inputs: ProbeInputs
) -> Outcome:
    """Returns the outcome of a probe, computed only if the run's rows do not have it yet."""
    log = run_dir / "probes.jsonl"
    settings = json.loads(json.dumps(chosen.settings(inputs)))  # as rows hold them
    key: Row = {**about, "probe": chosen.name, "settings": settings}

    def kept() -> list[Row]:
        return [row for row in read_rows(log) if all(row.get(k) == key[k] for k in key)]

    rows = kept()
    if not rows:
        append_rows(log, [{**key, **row} for row in chosen.rows(inputs)])
        rows = kept()
    measured = [row for row in rows if "skipped" not in row]
    picture = run_dir / "probes" / f"{chosen.name}.png"
    if not measured:
        for path in (picture, picture.with_suffix(".svg")):
            path.unlink(missing_ok=True)
        return Outcome(chosen.name, f"n/a: {rows[0]['skipped']}", None)
    drawn = chosen.figure(rows)
    picture.parent.mkdir(exist_ok=True)
    replace_file(picture, saved(drawn, "png"))
    replace_file(picture.with_suffix(".svg"), saved(drawn, "svg"))
    return Outcome(chosen.name, chosen.summary(measured), picture)
