# pyright: basic, reportArgumentType=false, reportCallIssue=false
"""The audit of a model: how much context it uses, on one page with one sentence on top."""

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lengthgen import experiment, pipeline
from lengthgen.context import report as of_context
from lengthgen.context.lengths import own_rows
from lengthgen.data.sources import Say
from lengthgen.data.windows import n_targets
from lengthgen.errors import UserError, out_of_memory
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.experiment import Experiment
from lengthgen.hub import imported
from lengthgen.report import report
from lengthgen.report.load import asked, load_rows
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

MEASURES = (HEADLINE, *of_context.PROTOCOLS)
MULTIPLES = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)  # of T: the lengths by default
SIDE_BY_SIDE = "nonoverlap"
SPLIT = (
    "Convention: what windows side by side, or sliding, add for the tokens that begin them. "
    "Context: what a length changes for the same tokens. Positions: what the model loses at that "
    "length to one that sees the last T keys alone. Differences to the matched tail there in nats, "
    "with the 95 % interval where the tokens are the same."
)


def found(name: str, root: Path, overrides: Sequence[str], say: Say) -> Path:
    """Returns the run of a name; a folder in Hugging Face layout, or of the Hub, is imported."""
    try:
        return directory.find(name, root)
    except UserError:
        is_folder = (Path(name).expanduser() / "config.json").is_file()
        if not is_folder and (name.count("/") != 1 or Path(name).exists()):
            raise
        words = [word for word in overrides if word.startswith(("corpus", "runtime."))]
        return imported.import_model(name, name=None, length=None, overrides=words, say=say)


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
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    asking = experiment.of_run(run_dir, changes)
    T = asking.config.train.length
    wanted = [*lengths] or _fitting(asking, run_dir, say)
    measures = changes | {"eval.lengths": wanted, "eval.variants": [*variants]}
    settings = [measures | {"eval.protocols": [*MEASURES]}]
    sliding = f"sliding-{max(1, T // 2)}"
    plain = measures | {"eval.variants": [], "eval.reference_variants": []}
    settings += [plain | {"eval.protocols": [name]} for name in (SIDE_BY_SIDE, sliding)]
    tables: list[pd.DataFrame] = []
    for each in settings:
        try:
            asking = experiment.of_run(run_dir, each)
            seconds = deadline - time.monotonic()
            if seconds > 0 or not tables:
                pipeline.evaluate_runs([run_dir], [asking], seconds=seconds)
        except UserError as error:  # of lengths that do not divide max_context
            if each["eval.protocols"] != [SIDE_BY_SIDE]:
                raise
            say(f"not side by side: {error}")
            continue
        except Exception as error:
            if (line := out_of_memory(error)) is None:
                raise
            say(line)
        measured = load_rows([run_dir], say=say)
        own = dict.fromkeys(measured["run"].unique(), asking.config.eval)
        tables.append(asked(measured, own))
    rows = pd.concat(tables).drop_duplicates(["protocol", "variant", "length", "document"])
    rows.attrs = tables[0].attrs
    made = [
        audit_section(rows.reset_index(drop=True)),
        *report.sections(rows.reset_index(drop=True)),
    ]
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
        raise UserError("audit: there was no time for a measurement; give more --minutes")
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
    """Yields what the loss of the unchanged model at a length beyond T is made of."""
    T = int(rows["train_length"].iloc[0])
    sums, bases = Sums(rows[rows["document"].notna()], loss_of), unchanged(rows)
    base = next(iter(bases.values()))
    tail = own_rows(rows, HEADLINE)
    lengths = sorted({*tail.loc[tail["series"] == base, "length"]})
    beyond = [n for n in lengths if n > T][:1] or lengths[-1:]
    for length in beyond:
        matched = CurvePoint(HEADLINE, base, length)
        protocols = [*dict.fromkeys(rows["protocol"])]
        sliding = [name for name in protocols if name.startswith("sliding-")]
        lines = [
            ("convention", "side by side", CurvePoint(SIDE_BY_SIDE, base, length)),
            *(("convention", name, CurvePoint(name, base, length)) for name in sliding),
            ("", f"matched tail, {short(length)}", matched),
            ("context", f"matched tail, {short(T)}", CurvePoint(HEADLINE, base, T)),
        ]
        variants = rows[rows["variant"].notna()].drop_duplicates("series")
        for series, variant in zip(variants["series"], variants["variant"], strict=True):
            lines.append(("positions", variant, CurvePoint(HEADLINE, series, length)))
        cells = list[list[TableCell]]()
        for part, name, point in lines:
            sample, of_matched = sums.sample([point]), sums.sample([matched])
            if sample is None or of_matched is None:
                continue
            loss = sample.mean(0).value
            is_same = point.protocol == HEADLINE
            cells.append(
                [
                    TableCell(name),
                    TableCell(part),
                    TableCell(shown_number(perplexity(loss))),
                    TableCell(f"{loss:.3f}"),
                    TableCell(
                        _difference(sums, point, matched)
                        if is_same
                        else f"{loss - of_matched.mean(0).value:+.3f}"
                    ),
                ]
            )
        yield Table(
            title=f"What the loss at {short(length)} tokens is made of, {base}",
            head=["scored", "part", "perplexity", "nats", "to the matched tail"],
            rows=cells,
            notes=[SPLIT],
        )


def _difference(sums: Sums, point: CurvePoint, matched: CurvePoint) -> str:
    if point == matched or (found := sums.difference(point, matched)) is None:
        return "-"
    return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
