"""The tables of a report: perplexity, verdicts, key numbers, differences, protocols."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import combinations

from lengthgen.findings import Difference, Finding, difference, ties
from lengthgen.intervals import Estimate
from lengthgen.protocols import named
from lengthgen.rates import Trial, Tuned
from lengthgen.series import Series
from lengthgen.statistics import Curve, Point, context_gain, perplexity
from lengthgen.typeset import TIE, Cell, Table, csv_text
from lengthgen.wording import headline, number, short, subject

MARKED = (
    f"Bold: the least at its length. Behind a value, {TIE}: not called different from the least "
    "(the 95% interval of the paired difference holds 0, or the seeds disagree)."
)
EDGE = "The best rate is at the edge of the grid, so extend it:"
NOT_EVALUATED = "A dash: not evaluated."
GAINS = (2, 4, 16)  # multiples of T
SWAPPED = 4


def competitors(lines: Sequence[Series]) -> list[Series]:
    """Returns the series that are compared: all but the references."""
    return [line for line in lines if not line.reference]


def _judged(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.series.reference]


def perplexities(lines: Sequence[Series], everyone: Sequence[str]) -> Table:
    """Returns perplexity by length under one protocol; series of `everyone` without it are listed.

    References stand last, without being compared.
    """
    lines = [*competitors(lines), *(line for line in lines if line.reference)]
    points = [p for line in lines for p in line.points]
    lengths = sorted({p.length for p in points})
    trained = {p.train_length for p in points}
    base = short(min(trained)) if len(trained) == 1 else "T"
    reasons = list(dict.fromkeys(p.skipped for p in points if p.skipped is not None))
    marks = _marks(competitors(lines), lengths)
    head = ["scheme", "seeds", *map(short, lengths), f"{short(lengths[-1])}/{base}"]
    rows = [
        [
            Cell(line.label),
            Cell(str(len(line.runs))),
            *(_perplexity(line, n, reasons, marks) for n in lengths),
            Cell(_ratio(line, lengths[-1])),
        ]
        for line in lines
    ]
    absent = sorted(set(everyone) - {line.label for line in lines})
    rows += [[Cell(label), *(Cell("-") for _ in head[1:])] for label in absent]
    notes = [f"{i}. {reason}" for i, reason in enumerate(reasons, start=1)]
    return Table(
        key=f"perplexity-{points[0].protocol}".replace("_", "-"),
        title=f"Perplexity, {headline(points)}; {subject(points)}",
        head=head,
        rows=rows,
        notes=[*notes, *([MARKED] if marks else []), *_dashes(rows)],
    )


def _marks(lines: Sequence[Series], lengths: Sequence[int]) -> dict[tuple[str, int], str]:
    """Returns which series is best at a length, and which are not called different from it."""
    found: dict[tuple[str, int], str] = {}
    for n in lengths:
        at_n = ties([line for line in lines if n in line.losses()], n)
        if at_n is not None and sum(n in line.losses() for line in lines) > 1:
            best, tied = at_n
            found |= {(line.label, n): "tie" for line in tied} | {(best.label, n): "best"}
    return found


def _perplexity(
    line: Series, length: int, reasons: Sequence[str], marks: Mapping[tuple[str, int], str]
) -> Cell:
    losses, skipped = line.losses(), line.skipped
    if length in losses:
        text, mark = number(perplexity(losses[length])), marks.get((line.label, length))
        return Cell(text, "best" if mark == "best" else "tie" if mark == "tie" else "")
    return Cell(f"n/a ({reasons.index(skipped[length]) + 1})" if length in skipped else "-")


def _ratio(line: Series, longest: int) -> str:
    """Returns the perplexity at the longest length over that at T."""
    losses = line.losses()
    last, at_T = losses.get(longest), losses.get(line.train_length)
    if last is None or at_T is None or math.isinf(at_T):
        return "n/a"
    return number(perplexity(last - at_T))


def rates(
    tuned: Sequence[tuple[str, Tuned]], untuned: Mapping[str, Sequence[float]]
) -> Table | None:
    """Returns the grids of learning rates that schemes were tuned on, the chosen ones marked.

    `untuned` holds the rates of schemes that have no grid. None if no scheme has one.
    """
    if not tuned:
        return None
    lrs = sorted({trial.lr for _, one in tuned for trial in one.grid})
    rows: list[list[Cell]] = []
    notes: dict[str, list[str]] = {}
    for name, one in tuned:
        ratios = dict.fromkeys(trial.scheme_lr_ratio for trial in one.grid)
        for ratio in ratios:
            at = {trial.lr: trial for trial in one.grid if trial.scheme_lr_ratio == ratio}
            best = one.lr if ratio == one.scheme_lr_ratio else None
            plain = ratio is None or (ratio == 1 and len(ratios) == 1)
            label = name if plain else f"{name}, scheme_lr_ratio {ratio:g}"
            rows.append([Cell(label), *(_trial(at.get(lr), best) for lr in lrs)])
        seeds = f"seed{'s' * (len(one.seeds) > 1)} {', '.join(map(str, one.seeds))}"
        about = (
            f"corpus {one.corpus} ({one.fingerprint}), model {one.model}, T = {one.length:,}, "
            f"{one.tokens:,} tokens in batches of {one.batch_tokens:,}, {seeds}"
        )
        notes.setdefault(about, []).append(name)
    edges = [f"{name} ({key}={at:g})" for name, one in tuned for key, at in one.at_edge.items()]
    said = [f"{', '.join(of)}: {about}." for about, of in notes.items()]
    if untuned:
        of = (f"{name} ({', '.join(f'{lr:g}' for lr in lrs)})" for name, lrs in untuned.items())
        said.append(f"Not tuned: {', '.join(of)}.")
    return Table(
        key="rates",
        title="Loss at T on the tuning split, in nats per token, by train.lr",
        head=["scheme", *(f"{lr:g}" for lr in lrs)],
        rows=rows,
        notes=[
            "Bold: the rate that was chosen, by the least mean over seeds. The tuning split holds "
            "1 in 20 training documents; no result is measured on it.",
            *said,
            *([f"{EDGE} {', '.join(edges)}."] if edges else []),
        ],
    )


def _trial(trial: Trial | None, best: float | None) -> Cell:
    if trial is None:
        return Cell("-")
    text = "diverged" if math.isinf(trial.loss) else f"{trial.loss:.4f}"
    return Cell(text, "best" if trial.lr == best else "")


def _dashes(rows: Sequence[Sequence[Cell]]) -> list[str]:
    return [NOT_EVALUATED] if any(Cell("-") in row for row in rows) else []


def verdicts(findings: Sequence[Finding]) -> Table | None:
    """Returns what the text beyond T is to each series at each length, with the interval of G."""
    lengths = sorted({n for finding in _judged(findings) for n in finding.verdicts})
    if not lengths:
        return None
    rows: list[list[Cell]] = []
    for finding in _judged(findings):
        row = [Cell(finding.series.label)]
        for n in lengths:
            found = finding.verdicts.get(n)
            row.append(Cell(f"{found.word} {bounds(found.gain)}".rstrip() if found else "-"))
        rows.append(row)
    return Table(
        key="verdicts",
        title="Verdicts on the text beyond T, with the 95% interval of the context gain G in nats",
        head=["scheme", *map(short, lengths)],
        rows=rows,
        notes=[
            "uses: G above 0. ignores: G within 0.01 of 0. no gain: the same, though other text "
            "there would raise the loss. harmed: G below 0. unclear: the interval decides nothing, "
            "or the seeds disagree.",
            *_dashes(rows),
        ],
    )


def key_numbers(findings: Sequence[Finding]) -> Table | None:
    """Returns the few numbers that a paper needs of each series."""
    if not _judged(findings):
        return None
    gains = [f"G({k}T)" for k in GAINS]
    head = ["scheme", "NLL(T)", *gains, "XF .01", "XF .05", f"U({SWAPPED}T)"]
    rows = [[Cell(f.series.label), *map(Cell, _key_numbers(f))] for f in _judged(findings)]
    return Table(
        key="key-numbers",
        title="Key numbers, in nats per token with 95% intervals",
        head=[*head, "far-copy gain", "bits/byte at T"],
        rows=rows,
        notes=[
            "NLL(T): loss with T tokens. G(C) = NLL(T) - NLL(C). XF: how many T are reached "
            "without losing more than .01 or .05 nats. U: what other text beyond T costs. "
            "Far-copy gain: G at the longest length on targets whose bigram stands beyond T only.",
            *_dashes(rows),
        ],
    )


def _key_numbers(finding: Finding) -> list[str]:
    T = finding.series.train_length
    longest = max(finding.far, default=T)
    far_gain = "-"
    if longest > T and T in finding.far:
        far_gain = _change(finding.far[T].value - finding.far[longest].value)
    per_byte = finding.bits_per_byte.get(T)
    return [
        f"{finding.loss[T].value:.3f} {bounds(finding.loss[T], '.3f')}".rstrip()
        if T in finding.loss
        else "-",
        *(_with_bounds(finding.gain.get(k * T)) for k in GAINS),
        *(_factor(finding, eps) for eps in (0.01, 0.05)),
        _with_bounds(finding.swap.get(SWAPPED * T)),
        far_gain,
        "-" if per_byte is None else f"{per_byte:.3f}",
    ]


def _factor(finding: Finding, eps: float) -> str:
    return next((factor.text for factor in finding.factors if factor.eps == eps), "-")


def _with_bounds(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{_change(estimate.value)} {bounds(estimate)}".rstrip()


def _change(nats: float) -> str:
    if math.isnan(nats):  # the difference of two infinite losses
        return "n/a"
    return f"{round(nats, 3) + 0.0:+.3f}"


def bounds(estimate: Estimate, how: str = "+.3f") -> str:
    """Returns "[-0.001, +0.004]", or nothing where there is no interval."""
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return ""
    low, high = (format(round(bound, 3) + 0.0, how) for bound in (estimate.low, estimate.high))
    return f"[{low}, {high}]"


def pairs(lines: Sequence[Series]) -> Iterator[tuple[Series, Series, Difference]]:
    """Yields the paired differences of competing series, at T and at the longest length."""
    for a, b in combinations(competitors(lines), 2):
        shared = a.losses().keys() & b.losses().keys()
        if a.train_length == b.train_length and shared:
            for length in sorted({a.train_length, max(shared)} & shared):
                found = difference(a, b, length)
                if found is not None:
                    yield a, b, found


def against_best(lines: Sequence[Series]) -> Table | None:
    """Returns by how much each series is worse than the best, at T and at the longest length."""
    compared = competitors(lines)
    lengths = sorted(
        {line.train_length for line in compared} | {max((0, *line.losses())) for line in compared}
    )
    best = {n: found[0] for n in lengths if (found := ties(compared, n)) is not None}
    if len(compared) < 2 or not best:
        return None
    rows = [[Cell(line.label), *(_behind(line, best[n], n) for n in best)] for line in compared]
    return Table(
        key="differences",
        title="Loss minus that of the best series, nats per token, paired by document and seed",
        head=["scheme", *(f"at {short(n)} (best: {best[n].label})" for n in best)],
        rows=rows,
        notes=[
            f"Behind an interval, {TIE}: not called different from the best (it holds 0, or the "
            "seeds disagree).",
            *_dashes(rows),
        ],
    )


def _behind(line: Series, best: Series, length: int) -> Cell:
    if line is best:
        return Cell("0", "best")
    found = difference(line, best, length)
    if found is None:
        return Cell("-")
    return Cell(_with_bounds(found.estimate), "" if found.called else "tie")


def protocols(series: Mapping[str, Sequence[Series]]) -> Table | None:
    """Returns the same runs under every protocol; None if there is one alone."""
    if len(series) < 2:
        return None
    points = [p for lines in series.values() for line in lines for p in line.points]
    lengths = sorted({p.length for p in points})
    labels = sorted({line.label for lines in series.values() for line in competitors(lines)})
    rows = [
        [
            Cell(label),
            Cell(protocol),
            Cell(str(len(line.runs))),
            *(_perplexity(line, n, [*line.skipped.values()], {}) for n in lengths),
            Cell(_ratio(line, lengths[-1])),
        ]
        for label in labels
        for protocol, lines in series.items()
        for line in lines
        if line.label == label
    ]
    return Table(
        key="protocols",
        title=f"Protocol matters: perplexity of the same runs under each; {subject(points)}",
        head=["scheme", "protocol", "seeds", *map(short, lengths), f"{short(lengths[-1])}/T"],
        rows=rows,
        notes=[
            *(
                f"{protocol}: {named(protocol).says} ({named(protocol).source})"
                for protocol in series
            ),
            *_dashes(rows),
        ],
    )


def points_csv(points: Sequence[Point], labels: Mapping[Curve, str]) -> str:
    """Returns one line per point: its series, all its fields and, under the headline, its gain."""
    gains = {id(gain.point): gain for gain in context_gain(points)}
    names = [field.name for field in fields(Point) if field.name != "rows"]
    rows: list[list[object]] = []
    for p in points:
        gain = gains.get(id(p))
        derived = (gain.nats, gain.ratio) if gain else (None, None)
        rows.append([labels[p.run, p.variant], *(getattr(p, name) for name in names), *derived])
    return csv_text(["series", *names, "context_gain", "ratio_to_T"], rows)


def differences_csv(lines: Sequence[Series]) -> str:
    """Returns a line per pair of competing series and length."""
    rows = [
        [a.label, b.label, d.length, *_numbers(d.estimate), d.called, len(d.estimate.seeds)]
        for a, b, d in pairs(lines)
    ]
    return csv_text(["a", "b", "length", "a_minus_b", "low", "high", "called", "n_seeds"], rows)


def findings_csv(findings: Sequence[Finding]) -> str:
    """Returns a line per series, quantity and length: value, 95% interval, and a verdict's word."""
    rows: list[list[object]] = []
    for finding in findings:
        series = [finding.series.label, len(finding.series.runs), finding.series.train_length]
        for quantity in ("loss", "gain", "swap", "shuffle", "far", "near"):
            estimates: Mapping[int, Estimate] = getattr(finding, quantity)
            for length, estimate in estimates.items():
                word = finding.verdicts[length].word if _has_word(finding, quantity, length) else ""
                rows.append([*series, quantity, length, *_numbers(estimate), word])
        for n, bits in finding.bits_per_byte.items():
            rows.append([*series, "bits_per_byte", n, *_written(bits, math.nan, math.nan), ""])
        for factor in finding.factors:
            found = _written(factor.value, factor.low, factor.high)
            rows.append([*series, f"factor_{factor.eps:g}", "", *found, factor.text])
    head = ["series", "n_seeds", "train_length", "quantity", "length", "value", "low", "high"]
    return csv_text([*head, "said"], rows)


def _has_word(finding: Finding, quantity: str, length: int) -> bool:
    return quantity == "gain" and length in finding.verdicts


def _numbers(estimate: Estimate) -> list[float | str]:
    return _written(estimate.value, estimate.low, estimate.high)


def _written(*values: float) -> list[float | str]:
    """Returns the values, empty where there is none."""
    return ["" if math.isnan(value) else value for value in values]
