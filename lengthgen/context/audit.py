"""The audit of a model: how much context it uses, on one page with one sentence on top."""

import math
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lengthgen import experiment, pipeline
from lengthgen.context import report as of_context
from lengthgen.data.windows import n_targets
from lengthgen.errors import Say, UserError, out_of_memory
from lengthgen.evaluation.evaluator import EvalRow
from lengthgen.evaluation.protocols import HEADLINE, TimeLimit
from lengthgen.experiment import Experiment
from lengthgen.hub import imported
from lengthgen.report import report
from lengthgen.report.load import asked_for, config_json, load_rows, only
from lengthgen.report.report import ReportSection
from lengthgen.report.series import select, short
from lengthgen.report.statistics import (
    CurvePoint,
    Sums,
    loss_of,
    perplexity,
    shown_number,
    unchanged,
)
from lengthgen.report.tables import Table, TableCell
from lengthgen.runs import directory
from lengthgen.terminal import duration

AUDITED = (HEADLINE, *of_context.OWN_PROTOCOLS)
MULTIPLES = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)  # of T: the lengths by default
SIDE_BY_SIDE = "nonoverlap"
MADE_OF = (
    "Change of the loss from {} to {} tokens, on the same tokens at both, with its 95 % interval. "
    "Convention: what windows side by side, or sliding, gain more than the matched tail, since at "
    "{} more of their tokens have little context. Positions: what the last {} keys alone, or a "
    "variant, lose less than the matched tail, which sees distances that training did not have."
)


def found(name: str, root: Path, overrides: Sequence[str], say: Say) -> tuple[Path, Sequence[str]]:
    """Returns the run of a name, and the overrides of its audit.

    A folder in Hugging Face layout, or of the Hub, is imported, with those of its corpus.
    """
    try:
        return directory.find(name, root), overrides
    except UserError:
        is_folder = (Path(name).expanduser() / "config.json").is_file()
        if not is_folder and (name.count("/") != 1 or Path(name).exists()):
            raise
        words = [word for word in overrides if word.startswith(("corpus", "runtime."))]
        run_dir = imported.import_model(name, name=None, length=None, overrides=words, say=say)
        return run_dir, [word for word in overrides if not word.startswith("corpus")]


def audit(
    run_dir: Path,
    changes: dict[str, Any],
    *,
    lengths: Sequence[str],
    variants: Sequence[str],
    minutes: float | None,
    out: Path | None,
    say: Say,
) -> tuple[list[ReportSection], Path]:
    """Returns the sections of the audit of a run, and its page; measures what is missing.

    Where memory or time ends, the page shows what was measured up to there.
    """
    limit = TimeLimit(math.inf if minutes is None else time.monotonic() + 60 * minutes)
    given = experiment.of_run(run_dir, changes)
    T, wanted = given.config.train.length, [*lengths] or _fitting(given, run_dir, say)
    measures = changes | {"eval.lengths": wanted, "eval.variants": [*variants]}
    settings = [measures | {"eval.protocols": [*AUDITED]}]
    asking = experiment.of_run(run_dir, settings[0])
    if beyond := sorted(n for n in asking.config.eval.lengths if n > T)[:1]:
        plain = {"eval.variants": [], "eval.reference_variants": [], "eval.lengths": [T, *beyond]}
        conventions = (SIDE_BY_SIDE, f"sliding-{max(1, T // 2)}")
        settings += [changes | plain | {"eval.protocols": [name]} for name in conventions]
    tables = list[pd.DataFrame]()
    for each in settings:
        measured = list[EvalRow]()
        try:
            asking = experiment.of_run(run_dir, each)
            for *_, rows in pipeline.evaluate_runs([run_dir], [asking], limit=limit):
                measured += rows
        except UserError as error:  # of lengths that do not divide max_context
            if each["eval.protocols"] != [SIDE_BY_SIDE]:
                raise
            say(f"not side by side: {error}")
            continue
        except Exception as error:
            if (line := out_of_memory(error)) is None:
                raise
            say(line)
        loaded = load_rows([run_dir], say=say)
        rows = asked_for(loaded, dict.fromkeys(loaded["run"].unique(), asking.config.eval))
        tables.append(only(rows, measured) if measured else rows)
    if limit.left:
        left = dict.fromkeys(f"{cell.protocol.name} {short(cell.length)}" for cell in limit.left)
        seconds = limit.seconds * limit.left_cost / limit.cost
        again = shlex.join(["lengthgen", *sys.argv[1:]])
        say(f"left out, about {duration(seconds)}: {', '.join(left)}. To go on: {again}")
    rows = pd.concat(tables)
    rows.attrs = tables[0].attrs
    rows["config"] = config_json(given.config)  # with the eval.effective of now
    rows = rows.reset_index(drop=True)
    made = [audit_section(rows), *report.sections(rows)]
    made = [part for part in made if part.title != of_context.TITLE]
    page, *_ = report.write_pages(rows, made, out or run_dir / "audit")
    return made, page


def _fitting(asking: Experiment, run_dir: Path, say: Say) -> list[int]:
    """Returns T/8 ... 4T, up to what the longest document has."""
    config = asking.config
    corpus = directory.load_corpus(config, asking.source, run_dir, say=say)
    longest = int(n_targets(corpus, corpus.validation).max(initial=0))
    every = [max(1, int(k * config.train.length)) for k in MULTIPLES]
    fitting = [n for n in every if n + config.eval.targets <= longest]
    if not fitting:
        return every  # which the plan refuses, with a remedy
    if left := [short(n) for n in every if n not in fitting]:
        say(f"{', '.join(left)}: left out, the longest document has {longest:,} tokens")
    return fitting


def audit_section(rows: pd.DataFrame) -> ReportSection:
    """Returns what stands on top: sentences, how far, and what a published number is made of."""
    made = of_context.section(rows)
    if made is None:
        raise UserError("audit: nothing was measured; give more --minutes, or shorter --lengths")
    (selection, *_) = select(rows)
    split = [*_split(selection.rows)]
    return ReportSection(
        title="Audit",
        drawings=made.drawings,
        sentences=made.sentences,
        tables=[made.tables[0], *split, *made.tables[1:]],
        data=made.data,
        summary=made.summary,
    )


def _split(rows: pd.DataFrame) -> Iterator[Table]:
    """Yields what the change of the loss from T to the first length beyond it is made of."""
    T = int(rows["train_length"].iloc[0])
    sums, base = Sums(rows, loss_of), next(iter(unchanged(rows).values()))
    lengths = sorted(p.length for p in sums.rows if p[:2] == (HEADLINE, base) and p.length > T)
    if not lengths:
        return
    C, protocols = lengths[0], [*dict.fromkeys(rows["protocol"])]
    lines = [("side by side", "convention", SIDE_BY_SIDE, base)]
    lines += [(p, "convention", p, base) for p in protocols if p.startswith("sliding-")]
    lines.append(("matched tail", "context, positions", HEADLINE, base))
    variants = rows[rows["variant"].notna()].drop_duplicates("series")
    for series, variant in zip(variants["series"], variants["variant"], strict=True):
        lines.append((f"matched tail, {variant}", "positions", HEADLINE, series))
    cells = list[list[TableCell]]()
    for name, part, protocol, series in lines:
        points = CurvePoint(protocol, series, C), CurvePoint(protocol, base, T)
        if (sample := sums.sample(points)) is not None:
            change, losses = sample.gap(0, 1), [sample.mean(i).value for i in (1, 0)]
            interval = f"{change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
            words = [name, part, *(shown_number(perplexity(loss)) for loss in losses), interval]
            cells.append([*map(TableCell, words)])
    names = short(T), short(C)
    yield Table(
        title=f"What a change of perplexity beyond T is made of, {base}",
        head=["scored", "holds", *names, "change, nats"],
        rows=cells,
        notes=[MADE_OF.format(*names, names[0], names[0])],
    )
