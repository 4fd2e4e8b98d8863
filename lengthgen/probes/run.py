"""Probes of a run: what probes.jsonl lacks is computed, and pictures are drawn of it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lengthgen import probes
from lengthgen.config import registry
from lengthgen.config.plugins import Plugin
from lengthgen.config.schema import TaskCorpus
from lengthgen.errors import UserError
from lengthgen.evaluation.evaluator import cell_facts
from lengthgen.evaluation.protocols import HEADLINE, PROTOCOLS, Cell
from lengthgen.experiment import Experiment
from lengthgen.files import append_rows, read_rows, replace_file
from lengthgen.model.build import redesigned
from lengthgen.probes.base import Panel, Probe, ProbeInputs, ProbeRow
from lengthgen.report.style import new_figure, saved, styled
from lengthgen.runs import status
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress

# Of a cell, that a row of a probe holds too:
OF_CELL = "run weights scheme seed fingerprint train_length tokens_seen endpoints variant parts"


def probe_classes(plugins: Sequence[Plugin] = ()) -> dict[str, type[Probe]]:
    """Returns all probes by name, those of this folder and of plugins.

    Raises UserError for a plugin that fails, and for two probes of one name.
    """
    modules = registry.modules_of(probes.__name__, probes.__path__)
    return dict(sorted(registry.registered(modules, Probe, plugins).items()))


def requested_probes(names: Sequence[str], *, plugins: Sequence[Plugin] = ()) -> list[Probe]:
    """Returns the probes requested, all if none is. Raises UserError for an unknown one."""
    known = probe_classes(plugins)
    for name in names:
        registry.class_named(name, known, plugins, what="probe", where="--probes")
    return [registry.construct(known[name], {}, where=f"probe {name}") for name in names or known]


def probe(
    experiment: Experiment, run_dir: Path, chosen: list[Probe], show: Progress
) -> dict[str, str]:
    """Computes what probes.jsonl lacks for this checkpoint and text; returns summaries by title.

    The model is probed as it is and under eval.variants; pictures are in the run's folder probes.
    Raises UserError if the run has no checkpoint, or is of a task.
    """
    config = experiment.config
    if isinstance(config.corpus, TaskCorpus):
        raise UserError(f"probe: {run_dir.name} is of a task, and probes read text; name another")
    config.refuse_arch("probe")
    opened = experiment.opened(run_dir, say=show.say).trained(ranks=ALONE, show=show)
    planned, model = opened.plan, opened.model.requires_grad_(False)
    model.checkpointing = True  # gradients of long texts would not fit in memory
    inputs = ProbeInputs(
        model=model,
        corpus=planned.corpus,
        endpoints=planned.endpoints,
        max_context=planned.max_context,
        seed=config.eval.seed,
        show=show,
    )
    summaries: dict[str, str] = {}
    designs = zip(config.eval.variants, experiment.evaluated_variants, strict=True)
    variants = {name: redesigned(model, design) for name, design in designs}
    with status.run_lock(run_dir, "probe"):
        for variant, scheme in {None: model.scheme, **variants}.items():
            with model.under(scheme.requires_grad_(False)):
                cell = Cell(PROTOCOLS[HEADLINE], variant, config.train.length)
                facts = cell_facts(cell, opened)
                about = {key: facts[key] for key in OF_CELL.split()}
                about |= {"windows": len(planned.endpoints), "eval_seed": config.eval.seed}
                for each in chosen:
                    key = {**about, "probe": each.name, "code": registry.digest_of(type(each))}
                    summaries[title_of(key)] = _summary(each, run_dir, key, inputs)
    return summaries


def title_of(row: ProbeRow) -> str:
    """Returns the name of a probe, with that of the variant it is of."""
    return row["probe"] if row["variant"] is None else f"{row['probe']} + {row['variant']}"


def _summary(chosen: Probe, run_dir: Path, key: ProbeRow, inputs: ProbeInputs) -> str:
    """Returns what a probe shows, computed only if the run's rows do not have it yet; draws it.

    Raises UserError for any error of a probe, with its line; nothing is written then.
    """
    log = run_dir / probes.LOG
    picture = run_dir / "probes" / f"{title_of(key).replace(' ', '')}.png"
    kept = [row for row in read_rows(log) if key.items() <= row.items()]
    with registry.errors_of(type(chosen), where=f"probe {chosen.name}"):
        # As they are read again.
        rows = kept or json.loads(json.dumps([{**key, **row} for row in chosen.rows(inputs)]))
        measured = [row for row in rows if "skipped" not in row]
        title = f"{title_of(key)}: {key['run']}, {key['tokens_seen']:,} tokens seen"
        drawing = drawn(title, chosen.panels(measured)) if measured else None
        summary = chosen.summary(rows)
    if not kept:
        append_rows(log, rows)
    if drawing is not None:
        replace_file(picture, drawing)
    return summary


@styled()
def drawn(title: str, panels: Mapping[str, Panel]) -> bytes:
    """Returns a PNG of panels by their titles, three beside each other."""
    n_rows, n_columns = -(-len(panels) // 3), min(3, len(panels))
    figure = new_figure(title, width=1 + 3.2 * n_columns, height=1.2 + 2.4 * n_rows)
    grid = figure.subplots(n_rows, n_columns, squeeze=False).flatten()
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes, (name, panel) in zip(grid, panels.items(), strict=False):
        what, _, x_name = name.partition(" over ")
        axes.set_title(what, fontsize=8)
        axes.set_xlabel(x_name, fontsize=8)
        if not isinstance(panel, Mapping):
            axes.imshow(panel, aspect="auto")
            axes.locator_params(integer=True)
            shades = f"{np.min(panel):.2g} (dark) to {np.max(panel):.2g}"
            axes.set_xlabel(f"head; {shades}", fontsize=8)
            axes.set_ylabel("layer", fontsize=8)
            continue
        for label, line in panel.items():
            x, y = np.array(line if isinstance(line, tuple) else (range(len(line)), line))
            axes.plot(x, y, marker="." if len(x) < 40 else "", label=label)
            if x[-1] > 40:
                axes.set_xscale("symlog", base=4, linthresh=1)
                axes.xaxis.set_major_formatter("{x:g}")
        axes.legend(frameon=False, fontsize=7)
    return saved(figure, "png")
