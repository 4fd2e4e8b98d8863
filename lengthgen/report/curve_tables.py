"""The tables of a report: perplexity, verdicts, key numbers, differences, protocols."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from lengthgen.analysis.comparisons import Comparison, Mark, compare, difference, least_at
from lengthgen.analysis.curves import Point, perplexity
from lengthgen.analysis.effective_context import recl
from lengthgen.analysis.findings import Finding
from lengthgen.analysis.formatting import headline, number, short, subject
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.seed_groups import Series, least_at_T, ordered
from lengthgen.analysis.used_context import EPS
from lengthgen.config.tuned_rates import Trial, Tuned
from lengthgen.evaluation.protocols import named
from lengthgen.report.run_records import Cost
from lengthgen.report.table_formats import TIE, UNKNOWN, Cell, Table

MARKED = (
    f"Bold: the least of those compared; {TIE}: may be as good, all series of a length taken "
    "together at 95% (multiple comparisons with the best)."
)
EDGE = "The best rate is at the edge of the grid, so extend it:"
NOT_COMPARED = (
    f"{UNKNOWN}: not compared with the least: fewer than two seeds or documents in common, or a "
    "diverged seed."
)
NOT_MARKED = "No value is marked as the best: that takes two seeds and two documents in common."
FAINT = (
    "In parentheses: the loss at T is over 0.05 nats above the least, so ratios to it are not "
    "comparable."
)
BEHIND = 0.05  # nats of loss at T above the least, from which on ratios to T mean little
NOT_EVALUATED = "A dash: not evaluated."
VERDICTS = (
    f"Each verdict by itself, by the 95% interval of G. All of it within {EPS} of 0: ignores if c* "
    "is at least T/2, short-sighted if it is below, no gain if other text there would raise the "
    "loss, else unclear. Otherwise uses: the interval and G of each seed above 0; harmed: below 0; "
    f"unclear: the data do not decide. c*: the least length up to T with a loss within {EPS} nats "
    "of the least one. Least |G| shown: the smallest |G| that the data detect at the longest "
    "length with 80% power."
)
Write = Callable[[float], str]
GAINS = (2, 4, 16)  # multiples of T
SWAPPED = 4
SHARES = (0.1, 0.5, 1.0)  # of the targets that count in RECL
RECL = (
    "Relative effective context length in tokens (RECL, Dai et al. 2019, App. C): up to where "
    "each step to a longer text gains 1% of the perplexity, if each target takes the smaller of "
    "its baseline (the group's least loss at the shorter length) and the scheme's own loss at the "
    "longer one; so erratic losses count as gain, and a scheme that is harmed on average can have "
    f"a long RECL. Hardest {SHARES[0]:.0%}: that share of the targets, those of largest baseline."
)


def competitors(lines: Sequence[Series]) -> list[Series]:
    """Returns the series that are compared: all but the references."""
    return [line for line in lines if not line.reference]


def judged(findings: Sequence[Finding]) -> list[Finding]:
    """Returns the findings of the competitors, by the loss at the longest length."""
    by_label = {finding.series.label: finding for finding in findings}
    return [by_label[line.label] for line in ordered(competitors([f.series for f in findings]))]


def poor(lines: Sequence[Series]) -> set[str]:
    """Returns the labels of series whose loss at T is far above the least of the same T."""
    least = least_at_T(competitors(lines))
    return {
        line.label
        for line in lines
        if line.losses().get(T := line.train_length, math.inf) > least.get(T, math.inf) + BEHIND
    }


def perplexities(lines: Sequence[Series], everyone: Sequence[str]) -> Table:
    """Returns perplexity by length under one protocol; series of `everyone` without it are listed.

    The least loss at the longest length stands first; references last, without being compared.
    """
    lines, faint = ordered(lines), poor(lines)
    points = [p for line in lines for p in line.points]
    lengths = sorted({p.length for p in points})
    trained = {p.train_length for p in points}
    base = short(min(trained)) if len(trained) == 1 else "T"
    reasons = _reasons(points)
    compared = {n: compare(competitors(lines), n) for n in lengths}
    head = ["scheme", "seeds", *map(short, lengths), f"{short(lengths[-1])}/{base}"]
    rows = [
        [
            Cell(line.label),
            Cell(str(len(line.runs))),
            *(_perplexity(line, n, reasons, compared[n]) for n in lengths),
            Cell(_ratio(line, lengths[-1]), "faint" if line.label in faint else ""),
        ]
        for line in lines
    ]
    absent = sorted(set(everyone) - {line.label for line in lines})
    rows += [[Cell(label), *(Cell("-") for _ in head[1:])] for label in absent]
    return Table(
        key=f"perplexity-{points[0].protocol}".replace("_", "-"),
        title=f"Perplexity, {headline(points)}; {subject(points)}",
        head=head,
        rows=rows,
        notes=[*_numbered(reasons), *marked(rows, competitors(lines)), *_dashes(rows)],
    )


def _reasons(points: Sequence[Point]) -> list[str]:
    """Returns the reasons for having no value."""
    return list(dict.fromkeys(p.skipped for p in points if p.skipped is not None))


def _numbered(reasons: Sequence[str]) -> list[str]:
    return [f"{i}. {reason}" for i, reason in enumerate(reasons, start=1)]


def marked(rows: Sequence[Sequence[Cell]], lines: Sequence[Series]) -> list[str]:
    """Returns what the marks in a table mean, or why there are none."""
    marks = {cell.mark for row in rows for cell in row}
    known = {"best": MARKED, "unknown": NOT_COMPARED, "faint": FAINT}
    texts = [text for mark, text in known.items() if mark in marks]
    return texts if "best" in marks or len(lines) < 2 else [NOT_MARKED, *texts]


def _perplexity(
    line: Series, length: int, reasons: Sequence[str], compared: Comparison | None
) -> Cell:
    losses, skipped = line.losses(), line.skipped
    if length in losses:
        return Cell(number(perplexity(losses[length])), _mark(compared, line))
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
    texts = [f"{', '.join(of)}: {about}." for about, of in notes.items()]
    if untuned:
        of = (f"{name} ({', '.join(f'{lr:g}' for lr in lrs)})" for name, lrs in untuned.items())
        texts.append(f"Not tuned: {', '.join(of)}.")
    return Table(
        key="rates",
        title="Loss at T on the tuning split, in nats per token, by train.lr",
        head=["scheme", *(f"{lr:g}" for lr in lrs)],
        rows=rows,
        notes=[
            "Bold: the rate that was chosen, by the least mean over seeds. The tuning split holds "
            "1 in 20 training documents; no result is measured on it.",
            *texts,
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
    lengths = sorted({n for finding in judged(findings) for n in finding.verdicts})
    if not lengths:
        return None
    rows: list[list[Cell]] = []
    for finding in judged(findings):
        row = [Cell(finding.series.label), Cell(n_seeds(finding)), Cell(used(finding))]
        for n in lengths:
            found = finding.verdicts.get(n)
            row.append(Cell(f"{found.word} {bounds(found.gain)}".rstrip() if found else "-"))
        rows.append([*row, Cell(detectable(finding))])
    return Table(
        key="verdicts",
        title="Verdicts on the text beyond T, with the 95% interval of the context gain G in nats",
        head=["scheme", "seeds", "c*", *map(short, lengths), "least |G| shown"],
        rows=rows,
        notes=[VERDICTS, *remedies(judged(findings)), *_dashes(rows)],
    )


def n_seeds(finding: Finding) -> str:
    """Returns the number of seeds; of one, that it is of this checkpoint."""
    n = len(finding.series.runs)
    return "1 (this checkpoint)" if n == 1 else str(n)


def used(finding: Finding) -> str:
    """Returns the used context c* with its bounds where they differ, "n/a" if it is unknown."""
    found = finding.used
    if found is None:
        return "n/a"
    return found.text if found.low == found.high else f"{found.text} {found.interval}"


def detectable(finding: Finding) -> str:
    """Returns the least |G| at the longest length that the data show at 95% with power 80%."""
    longest = max(finding.verdicts, default=None)
    value = math.nan if longest is None else finding.gain[longest].detectable
    return "n/a" if math.isnan(value) else f"{value:.3f}"


def remedies(findings: Sequence[Finding]) -> list[str]:
    """Returns what would decide the verdicts that are unclear, at the longest such length."""
    texts: list[str] = []
    for finding in findings:
        unclear = [n for n, found in finding.verdicts.items() if found.word == "unclear"]
        if unclear:
            texts.append(f"{finding.series.label}: {finding.verdicts[max(unclear)].why}.")
    return texts


def key_numbers(findings: Sequence[Finding]) -> Table | None:
    """Returns the few numbers that a paper needs of each series."""
    if not judged(findings):
        return None
    gains = [f"G({k}T)" for k in GAINS]
    head = ["scheme", "NLL(T)", "NLL(longest)", "c*", *gains, "least |G| shown", f"U({SWAPPED}T)"]
    faint = poor([finding.series for finding in findings])
    rows = [
        [
            Cell(f.series.label),
            *map(Cell, _key_numbers(f)),
            *(
                Cell(_factor(f, eps), "faint" if f.series.label in faint else "")
                for eps in (0.01, 0.05)
            ),
        ]
        for f in judged(findings)
    ]
    return Table(
        key="key-numbers",
        title="Key numbers, in nats per token with 95% intervals",
        head=[*head, "far-copy gain", "bits/byte at T", "XF .01", "XF .05"],
        rows=rows,
        notes=[
            "NLL: loss, with T tokens and at the longest length. G(C) = NLL(T) - NLL(C). XF: how "
            "many T are reached without losing more than .01 or .05 nats. U: what other text "
            "beyond T costs. Far-copy gain: G at the longest length on targets whose bigram stands "
            "beyond T only.",
            *([FAINT] if any(cell.mark == "faint" for row in rows for cell in row) else []),
            *_dashes(rows),
        ],
    )


def _key_numbers(finding: Finding) -> list[str]:
    T = finding.series.train_length
    longest = max(finding.far_gain, default=T)
    per_byte = finding.bits_per_byte.get(T)
    return [
        *(written(finding.loss.get(n), plain) for n in (T, max(finding.loss, default=T))),
        used(finding),
        *(written(finding.gain.get(k * T), change) for k in GAINS),
        detectable(finding),
        written(finding.swap.get(SWAPPED * T), change),
        written(finding.far_gain[longest] if longest > T else None, change),
        "-" if per_byte is None else f"{per_byte:.3f}",
    ]


def _factor(finding: Finding, eps: float) -> str:
    return next((factor.text for factor in finding.factors if factor.eps == eps), "-")


def written(estimate: Estimate | None, write: Write) -> str:
    """Returns "+0.002 [-0.001, +0.004]", the value alone without an interval, "-" without it."""
    if estimate is None:
        return "-"
    return f"{write(estimate.value)} {bounds(estimate, write)}".rstrip()


def change(nats: float) -> str:
    """Returns "+0.123", and "n/a" for the difference of two infinite losses."""
    return "n/a" if math.isnan(nats) else f"{round(nats, 3) + 0.0:+.3f}"


def plain(nats: float) -> str:
    """Returns "3.120"."""
    return f"{round(nats, 3) + 0.0:.3f}"


def bounds(estimate: Estimate, write: Write = change) -> str:
    """Returns "[-0.001, +0.004]", or nothing where there is no interval."""
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return ""
    return f"[{write(estimate.low)}, {write(estimate.high)}]"


def against_least(lines: Sequence[Series]) -> Table | None:
    """Returns by how much each series is worse than the least, at T and at the longest length.

    Next to it are the ranks that it may have.
    """
    compared = ordered(competitors(lines))
    lengths = sorted(
        {line.train_length for line in compared} | {max((0, *line.losses())) for line in compared}
    )
    columns = {n: found for n in lengths if (found := least_at(compared, n)) is not None}
    if len(compared) < 2 or not columns:
        return None
    head = [
        name
        for n, (least, _) in columns.items()
        for name in (f"at {short(n)} (least: {least.label})", f"rank at {short(n)}")
    ]
    rows = [
        [
            Cell(line.label),
            *(
                cell
                for n, (least, found) in columns.items()
                for cell in (_behind(line, least, n, found), Cell(_rank(found, line)))
            ),
        ]
        for line in compared
    ]
    return Table(
        key="differences",
        title="Loss minus the least, nats per token, paired by document and seed",
        head=["scheme", *head],
        rows=rows,
        notes=[
            "Each interval by itself at 95%; marks and ranks of a column hold jointly at 95%.",
            *marked(rows, compared),
            *_dashes(rows),
        ],
    )


def before_and_after(lines: Sequence[Series], bases: Mapping[str, str]) -> Table | None:
    """Returns what further training brought to runs that began with the weights of others.

    `bases` holds by run the one that it began with. None if no series has its base among them.
    """
    there = ordered(competitors(lines))
    by_run = {run: line for line in there if line.variant is None for run in line.runs}
    pairs = [
        (line, before)
        for line in there
        if line.variant is None
        and (before := by_run.get(bases.get(line.runs[0], ""))) is not None
        and all(by_run.get(bases.get(run, "")) is before for run in line.runs)
    ]
    if not pairs:
        return None
    lengths = sorted({n for pair in pairs for n in pair[0].losses()})
    rows = [
        [
            Cell(line.label),
            Cell(before.label),
            *(Cell(written(difference(line, before, n), change)) for n in lengths),
        ]
        for line, before in pairs
    ]
    return Table(
        key="before-after",
        title="Loss minus that of the run it began with, nats per token, paired by document",
        head=["scheme", "began with", *map(short, lengths)],
        rows=rows,
        notes=["Each interval by itself at 95%; below 0: further training helped.", *_dashes(rows)],
    )


def _behind(line: Series, least: Series, length: int, found: Comparison | None) -> Cell:
    estimate = None if line is least else difference(line, least, length)
    if estimate is None and line is not least:
        return Cell("-")
    return Cell("0" if line is least else written(estimate, change), _mark(found, line))


def _mark(compared: Comparison | None, line: Series) -> Mark:
    return "" if compared is None else compared.mark(line.label)


def _rank(compared: Comparison | None, line: Series) -> str:
    return "n/a" if compared is None else compared.rank_text(line.label)


def leaderboard(findings: Sequence[Finding], costs: Mapping[str, Cost]) -> Table | None:
    """Returns the series by their loss at the longest length, with what each costs.

    `costs` are by run; a variant has those of its checkpoint. None without two series.
    """
    there = judged(findings)
    longest = max((n for finding in there for n in finding.loss), default=0)
    if len(there) < 2 or not longest:
        return None
    found = compare([finding.series for finding in there], longest)
    took = [[costs[run] for run in finding.series.runs] for finding in there]
    head = ["scheme", "seeds", f"NLL at {short(longest)}", "rank", "NLL at T", "c*", "verdict"]
    head += ["parameters", "tokens/s"]
    notes = [
        "Rank: those that a series may have, all compared jointly at 95%. tokens/s: of training, "
        "the median over seeds; of runs on one idle machine alone it is a comparison of schemes."
    ]
    if measured := any(cost.peak_mib is not None for of in took for cost in of):
        head.append("peak MiB")
        notes.append(
            "Peak MiB: the most memory of training, of tensors on a GPU, else of the process."
        )
    rows = [
        [
            Cell(finding.series.label),
            Cell(n_seeds(finding)),
            Cell(written(finding.loss.get(longest), plain), _mark(found, finding.series)),
            Cell(_rank(found, finding.series)),
            Cell(written(finding.loss.get(finding.series.train_length), plain)),
            Cell(used(finding)),
            Cell(finding.verdicts[longest].word if longest in finding.verdicts else "-"),
            *_costs(of, memory=measured),
        ]
        for finding, of in zip(there, took, strict=True)
    ]
    return Table(
        key="leaderboard",
        title=f"Leaderboard by the loss at {short(longest)}, nats per token with 95% intervals",
        head=head,
        rows=rows,
        notes=[
            *notes,
            *marked(rows, [finding.series for finding in there]),
            *_dashes(rows),
        ],
    )


def _costs(of: Sequence[Cost], *, memory: bool) -> list[Cell]:
    """Returns parameters, speed and memory of runs, a dash where that of one run is unknown."""
    sizes = {cost.parameters for cost in of if cost.parameters is not None}
    amounts = [[cost.tokens_per_s for cost in of]]
    if memory:
        amounts.append([cost.peak_mib for cost in of])
    known = [[value for value in values if value is not None] for values in amounts]
    return [
        Cell(" or ".join(f"{n:,}" for n in sorted(sizes)) or "-"),
        *(Cell(f"{median(values):,.0f}" if len(values) == len(of) else "-") for values in known),
    ]


def effective_context(lines: Sequence[Series]) -> Table | None:
    """Returns the relative effective context length of each series, where it is known."""
    found = {share: recl(lines, top=share) for share in SHARES}
    if not any(found.values()):
        return None
    columns = [{label: short(n) for label, n in of.items()} for of in found.values()]
    return Table(
        key="recl",
        title="Relative effective context length, in tokens",
        head=["scheme", *(f"hardest {share:.0%}" for share in SHARES)],
        rows=[
            [Cell(line.label), *(Cell(of.get(line.label, "-")) for of in columns)] for line in lines
        ],
        notes=[RECL],
    )


def warnings(findings: Sequence[Finding], remarks: Sequence[str]) -> list[str]:
    """Returns all that limits what the numbers say, each warning with the series it is of."""
    concerned: dict[str, list[str]] = {}
    for finding in findings:
        for warning in finding.warnings:
            concerned.setdefault(warning, []).append(finding.series.label)
    return [*(f"{', '.join(of)}: {warning}." for warning, of in concerned.items()), *remarks]


def protocols(series: Mapping[str, Sequence[Series]]) -> Table | None:
    """Returns the same runs under every protocol; None if there is one alone."""
    if len(series) < 2:
        return None
    points = [p for lines in series.values() for line in lines for p in line.points]
    lengths = sorted({p.length for p in points})
    labels = sorted({line.label for lines in series.values() for line in competitors(lines)})
    reasons = _reasons(points)
    rows = [
        [
            Cell(label),
            Cell(protocol),
            Cell(str(len(line.runs))),
            *(_perplexity(line, n, reasons, None) for n in lengths),
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
            *_numbered(reasons),
            *(
                f"{protocol}: {named(protocol).summary} ({named(protocol).source})"
                for protocol in series
            ),
            *_dashes(rows),
        ],
    )
