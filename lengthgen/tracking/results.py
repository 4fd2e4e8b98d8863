"""What W&B is given of an evaluated run: its curve with bands, the verdicts, the figure."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lengthgen.analysis import curves
from lengthgen.analysis.accuracy import Accuracy, accuracies
from lengthgen.analysis.curves import Point, perplexity
from lengthgen.analysis.findings import Finding, findings
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.seed_groups import Series
from lengthgen.config.schema import Config, to_plain
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import BY_POSITION, HEADLINE
from lengthgen.evaluation.rows import stored
from lengthgen.report import collect
from lengthgen.report.figures import curve
from lengthgen.report.figures.accuracy import accuracy
from lengthgen.report.figures.layout import laid_out
from lengthgen.report.figures.positions import positions
from lengthgen.report.figures.style import rendered
from lengthgen.runs import directory, status
from lengthgen.tracking.wandb_run import CurvePoint, Results, Say, Tracker
from lengthgen.tracking.wandb_state import is_shown, load_sent, start_again, unsynced


def push(config: Config, run_dir: Path, *, again: bool, say: Say) -> None:
    """Sends W&B what it lacks of a run; all of it, as a fresh W&B run, if `again`.

    Raises UserError, before W&B is opened, if the run's files are damaged or another
    process trains the run.
    """
    if config.runtime.wandb == "off":
        raise UserError("runtime.wandb=off: so nothing can be pushed; drop it")
    with status.run_lock(run_dir, "train"):
        found = results(run_dir)
        if again:
            start_again(config, run_dir)
        sent = load_sent(config, run_dir)
        if is_shown(config, run_dir):
            say(_nothing_new(sent.run_id, unsynced(sent, run_dir)))
            return
        with Tracker(config, run_dir, say=say) as tracker:
            tracker.results(lambda: found)


def _nothing_new(run_id: str, offline: Sequence[Path]) -> str:
    folders = " ".join(map(str, offline))
    upload = f"offline, to upload: wandb sync {folders}; " if offline else ""
    return f"W&B: has all of {run_id} already; {upload}--again sends it to a fresh W&B run"


def results(run_dir: Path) -> Results:
    """Returns what eval.jsonl shows of the run alone: intervals are over documents.

    Raises UserError as analysis.curves and findings do.
    """
    config = directory.load_config(run_dir)
    rows = [{**row, "run": run_dir.name} for row in stored(run_dir, run=config.run_id)]
    points = curves.comparable(curves.curve(rows))
    configs = {run_dir.name: to_plain(config)}
    by_protocol = collect.by_protocol(points, configs)
    judged, answered = findings(by_protocol), accuracies(by_protocol.get("answers", []))
    found = {finding.series.variant: finding for finding in judged}
    return Results(
        curve=[
            *(
                _curve_point(p, found.get(p.variant) if p.protocol == HEADLINE else None)
                for p in points
                if p.loss is not None
            ),
            *(
                CurvePoint(_prefix("answers", measured.series.variant), length, _shares(estimate))
                for measured in answered
                for length, estimate in measured.exact.items()
            ),
        ],
        summary={
            **{key: value for finding in judged for key, value in _summary(finding).items()},
            **{key: value for measured in answered for key, value in _answers(measured).items()},
        },
        pictures=_pictures(by_protocol, judged, answered),
    )


def _shares(estimate: Estimate) -> dict[str, float]:
    values = {"accuracy": estimate.value}
    return values | {"accuracy_low": estimate.low, "accuracy_high": estimate.high}


def _answers(measured: Accuracy) -> dict[str, float | str]:
    """Returns the means on seen and unseen lengths, of accuracy and of decoded tests, and L50."""
    prefix = _prefix("answers", measured.series.variant)
    means = {"seen": measured.seen, "unseen": measured.unseen}
    return {
        **{f"{prefix}/accuracy_{name}": e.value for name, e in means.items() if e is not None},
        f"{prefix}/half_length_text": measured.half_length,
        **{
            f"{prefix}/{measure.replace(' ', '_')}_{name}": mean.value
            for measure, decoded in measured.decoded.items()
            for name, mean in (("seen", decoded.seen), ("unseen", decoded.unseen))
            if mean is not None
        },
    }


def _curve_point(p: Point, finding: Finding | None) -> CurvePoint:
    """Returns the numbers of a point, with bounds and context gain where there are any."""
    values = {"loss": p.loss, "ppl": p.ppl, "bits_per_byte": p.bits_per_byte}
    if finding is not None and p.length in finding.loss:
        loss = finding.loss[p.length]
        if not math.isnan(loss.low):
            values |= {"ppl_low": perplexity(loss.low), "ppl_high": perplexity(loss.high)}
    if finding is not None and p.length in finding.gain:
        values["context_gain"] = finding.gain[p.length].value
    known = {name: x for name, x in values.items() if x is not None and not math.isnan(x)}
    return CurvePoint(_prefix(p.protocol, p.variant), p.length, known)


def _summary(finding: Finding) -> dict[str, float | str]:
    """Returns the verdicts, used context, peak and extrapolation factors of a headline curve.

    The words are of this checkpoint, not of other seeds. The factors are those of
    0.01 and (loose) 0.05 nats; the text of one shows whether it is censored, as ">= 32".
    """
    prefix = _prefix(HEADLINE, finding.series.variant)
    summary: dict[str, float | str] = {
        f"{prefix}/verdict@{length}": verdict.word for length, verdict in finding.verdicts.items()
    }
    if finding.used is not None:
        summary[f"{prefix}/used_context"] = finding.used.value
    if finding.peak is not None:
        summary[f"{prefix}/peak_length"] = finding.peak
    for name, factor in zip(("", "_loose"), finding.factors, strict=False):
        summary[f"{prefix}/extrapolation_factor{name}"] = factor.value
        summary[f"{prefix}/extrapolation_factor{name}_text"] = factor.text
    return summary


def _prefix(protocol: str, variant: str | None) -> str:
    """Returns where numbers stand: eval for the headline, else with protocol and variant."""
    if protocol in (HEADLINE, "answers") and variant is None:
        return "eval"
    return f"eval/{protocol}" if variant is None else f"eval/{protocol}/{variant}"


def _pictures(
    by_protocol: Mapping[str, Sequence[Series]],
    judged: Sequence[Finding],
    answered: Sequence[Accuracy],
) -> dict[str, bytes]:
    """Returns the report's figures of what was evaluated, as PNG files."""
    headline = by_protocol.get(HEADLINE)
    charts = {
        "figures/curve": curve.perplexities(headline, judged) if headline else None,
        "figures/context_gain": curve.gains(judged),
        "figures/per_position": positions(by_protocol.get(BY_POSITION, [])),
        "figures/accuracy": accuracy(
            answered, unit="in the unit of the task", chance=0.0, published=()
        ),
    }
    return {key: rendered(laid_out(chart), "png") for key, chart in charts.items() if chart}
