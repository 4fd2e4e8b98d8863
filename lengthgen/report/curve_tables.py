# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportInvalidTypeArguments=false, reportOperatorIssue=false, reportReturnType=false
"""The tables of curves: perplexity, verdicts, leaderboard, protocols, fine-tuning, rates."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import pandas as pd

from lengthgen.config.tuned_rates import Trial, Tuned
from lengthgen.evaluation.protocols import HEADLINE, named
from lengthgen.report.load import config_of
from lengthgen.report.series import Selection, loss_of, perplexity, short
from lengthgen.report.statistics import EPS, Sums, number
from lengthgen.report.statistics import Cell as Scored
from lengthgen.report.tables import TIE, UNKNOWN, Cell, Mark, Table

BEHIND = 0.05  # nats of loss at T above the least, from which on ratios to T mean little
MARKED = (
    f"Bold: the least of those compared; {TIE}: may be as good, all series of a length taken "
    "together at 95% (multiple comparisons with the best)."
)
NOT_COMPARED = (
    f"{UNKNOWN}: not compared with the least: fewer than two seeds or documents in common, or a "
    "diverged seed."
)
NOT_MARKED = "No value is marked as the best: that takes two seeds and two documents in common."
FAINT = (
    "In parentheses: the loss at T is over 0.05 nats above the least, so ratios to it are not "
    "comparable."
)
NOT_EVALUATED = "A dash: not evaluated."
VERDICTS = (
    f"Each verdict by itself, by the 95% interval of G(C) = loss(T) - loss(C). flat: all of it "
    f"within {EPS} of 0; uses: the interval and G of each seed above 0; harmed: below 0; unclear: "
    "the data do not decide; not trained: the loss at T is not below that of token frequencies. "
    f"c*: the least length up to T with a loss within {EPS} nats of the least one; where it is far "
    "below T, flat says nothing of text beyond T. Least |G| shown: the smallest |G| that the data "
    "detect at the longest length with 80% power."
)


class _Key(NamedTuple):
    series: str
    quantity: str
    length: int


class _Numbers:
    """The findings of one protocol by series, quantity and length."""

    def __init__(self, findings: pd.DataFrame, protocol: str) -> None:
        table = findings[findings["protocol"] == protocol]
        rows = table.fillna({"length": 0, "word": ""}).to_dict("records")
        self.rows = {_Key(r["series"], r["quantity"], int(r["length"])): r for r in rows}
        self.facts = {r["series"]: r for r in rows}
        self.lengths = sorted({key.length for key in self.rows if key.quantity == "loss"})
        names = (series for series, quantity, _ in self.rows if quantity in ("loss", "note"))
        self.series = sorted(dict.fromkeys(names), key=self._place)
        self.competitors = [name for name in self.series if not self.facts[name]["reference"]]

    def _place(self, series: str) -> tuple[Any, ...]:
        """Returns competitors first, by the loss at the longest length, then at the next one."""
        losses = [self.value(series, "loss", n) for n in reversed(self.lengths)]
        known = [math.inf if math.isnan(loss) else loss for loss in losses]
        return self.facts[series]["reference"], known, series

    def value(self, series: str, quantity: str, length: int = 0) -> float:
        """Returns a value; nan if there is none."""
        row = self.rows.get(_Key(series, quantity, length))
        return math.nan if row is None else row["value"]

    def T(self, series: str) -> int:
        return int(self.facts[series]["train_length"])

    def word(self, series: str, quantity: str, length: int = 0) -> str:
        return str(self.rows.get(_Key(series, quantity, length), {}).get("word", ""))

    def mark(self, series: str, quantity: str, length: int) -> Mark:
        return self.rows.get(_Key(series, quantity, length), {}).get("mark", "")

    def text(self, series: str, quantity: str, length: int, *, signed: bool) -> str:
        """Returns "+0.002 [-0.001, +0.004]", the value alone without an interval, "-" if none."""
        row = self.rows.get(_Key(series, quantity, length))
        if row is None:
            return "-"
        return written(row["value"], row["low"], row["high"], signed=signed)

    def n_seeds(self, series: str) -> str:
        n = int(self.facts[series]["n_seeds"])
        return "1 (this checkpoint)" if n == 1 else str(n)

    def used(self, series: str) -> str:
        return self.word(series, "c_star") or "n/a"

    def rank(self, series: str, length: int) -> str:
        """Returns the ranks that a series may have, "2" or "2 to 4"; "n/a" if they are unknown."""
        row = self.rows.get(_Key(series, "rank", length))
        if row is None:
            return "n/a"
        return " to ".join(dict.fromkeys((f"{row['low']:g}", f"{row['high']:g}")))

    def poor(self) -> set[str]:
        """Returns the series whose loss at T is far above the least of the same T."""
        at_T = {name: self.value(name, "loss", self.T(name)) for name in self.series}
        least: dict[int, float] = {}
        for name in self.competitors:
            if not math.isnan(at_T[name]):
                least[self.T(name)] = min(at_T[name], least.get(self.T(name), math.inf))
        return {n for n, loss in at_T.items() if loss > least.get(self.T(n), math.inf) + BEHIND}


def tables(selection: Selection, findings: pd.DataFrame) -> list[Table]:
    """Returns the tables of a selection, the most important first."""
    protocols = list(dict.fromkeys(findings["protocol"]))
    headline = _Numbers(findings, HEADLINE)
    unaltered = [name for name in protocols if named(name).altered is None] or protocols
    found = [
        _perplexities(selection, findings, unaltered[0]),
        _verdicts(headline),
        protocols_table(selection, findings),
        _leaderboard(headline, selection.rows),
        _before_and_after(headline, selection.rows),
        *(_perplexities(selection, findings, name) for name in unaltered[1:]),
        rates(*tuned_rates(selection.rows)),
    ]
    return [table for table in found if table is not None]


def notes(findings: pd.DataFrame) -> list[str]:
    """Returns what limits the numbers, each sentence with the series that it is of."""
    concerned: dict[str, list[str]] = {}
    for row in findings[findings["quantity"] == "note"].to_dict("records"):
        concerned.setdefault(row["word"], []).append(row["series"])
    return [f"{', '.join(of)}: {note}." for note, of in concerned.items()]


def written(value: float, low: float, high: float, *, signed: bool) -> str:
    """Returns "+0.002 [-0.001, +0.004]", and the value alone without an interval."""
    texts = [f"{round(x, 3) + 0.0:{'+' if signed else ''}.3f}" for x in (value, low, high)]
    shown = "n/a" if math.isnan(value) else texts[0]
    return shown if math.isnan(low) or math.isnan(high) else f"{shown} [{texts[1]}, {texts[2]}]"


def _perplexities(selection: Selection, findings: pd.DataFrame, protocol: str) -> Table:
    """Returns perplexity by length; competitors that lack the protocol have dashes.

    The least loss at the longest length stands first; references last, without being compared.
    """
    numbers = _Numbers(findings, protocol)
    lengths, faint = numbers.lengths, numbers.poor()
    trained = {numbers.T(name) for name in numbers.series}
    base = short(min(trained)) if len(trained) == 1 else "T"
    reasons = _reasons(numbers)
    rows = [
        [
            Cell(name),
            Cell(str(int(numbers.facts[name]["n_seeds"]))),
            *(_perplexity(numbers, name, n, reasons) for n in lengths),
            Cell(_ratio(numbers, name), "faint" if name in faint else ""),
        ]
        for name in numbers.series
    ]
    competing = set(findings.loc[~findings["reference"], "series"])
    head = ["scheme", "seeds", *map(short, lengths), f"{short(lengths[-1])}/{base}"]
    rows += [
        [Cell(s), *[Cell("-")] * (len(head) - 1)] for s in sorted(competing - {*numbers.series})
    ]
    return Table(
        key=f"perplexity-{protocol}".replace("_", "-"),
        title=f"Perplexity, {_scored(selection.rows, protocol)}; {selection.title}",
        head=head,
        rows=rows,
        notes=[*_numbered(reasons), *_marked(rows, numbers.competitors), *_dashes(rows)],
    )


def _scored(rows: pd.DataFrame, protocol: str) -> str:
    """Returns what was scored: protocol, targets, endpoints, documents."""
    own = rows[rows["protocol"] == protocol]
    n_tokens = int(own.groupby(["run", "series", "length"])["n_tokens"].sum().max())
    documents = _count(int(own["n_documents"].max()), "document")
    if protocol == HEADLINE:
        K = int(own["targets"].max())
        endpoints = _count(n_tokens // K, "endpoint")
        return f"matched tail: K={K} targets before each of {endpoints} in {documents}"
    return f"{protocol}: {named(protocol).summary}; up to {n_tokens:,} tokens of {documents}"


def _count(n: int, singular: str) -> str:
    return f"{n} {singular}{'s' * (n != 1)}"


def _reasons(numbers: _Numbers) -> list[str]:
    """Returns the reasons for having no value."""
    of_losses = (row["word"] for key, row in numbers.rows.items() if key.quantity == "loss")
    return list(dict.fromkeys(word for word in of_losses if word))


def _numbered(reasons: Sequence[str]) -> list[str]:
    return [f"{i}. {reason}" for i, reason in enumerate(reasons, start=1)]


def _marked(rows: Sequence[Sequence[Cell]], competitors: Sequence[str]) -> list[str]:
    """Returns what the marks in a table mean, or why there are none."""
    marks = {cell.mark for row in rows for cell in row}
    known = {"best": MARKED, "unknown": NOT_COMPARED, "faint": FAINT}
    texts = [text for mark, text in known.items() if mark in marks]
    return texts if "best" in marks or len(competitors) < 2 else [NOT_MARKED, *texts]


def _dashes(rows: Sequence[Sequence[Cell]]) -> list[str]:
    return [NOT_EVALUATED] if any(Cell("-") in row for row in rows) else []


def _perplexity(
    numbers: _Numbers, series: str, length: int, reasons: Sequence[str], *, marked: bool = True
) -> Cell:
    if reason := numbers.word(series, "loss", length):
        return Cell(f"n/a ({reasons.index(reason) + 1})")
    loss = numbers.value(series, "loss", length)
    if math.isnan(loss):
        return Cell("-")
    mark = numbers.mark(series, "loss", length)
    return Cell(number(perplexity(loss)), mark if marked else "")


def _ratio(numbers: _Numbers, series: str) -> str:
    """Returns the perplexity at the longest length over that at T."""
    last = numbers.value(series, "loss", numbers.lengths[-1])
    at_T = numbers.value(series, "loss", numbers.T(series))
    if math.isnan(last) or math.isnan(at_T) or math.isinf(at_T):
        return "n/a"
    return number(perplexity(last - at_T))


def _verdicts(numbers: _Numbers) -> Table | None:
    """Returns what the text beyond T is to each series at each length, with the interval of G."""
    gains = [key for key in numbers.rows if key.quantity == "gain"]
    lengths = sorted({key.length for key in gains if key.length > numbers.T(key.series)})
    if not lengths:
        return None
    rows: list[list[Cell]] = []
    remedies: list[str] = []
    for name in numbers.competitors:
        row = [Cell(name), Cell(numbers.n_seeds(name)), Cell(numbers.used(name))]
        own = [n for n in lengths if _Key(name, "gain", n) in numbers.rows and n > numbers.T(name)]
        for n in lengths:
            gain = numbers.rows[name, "gain", n] if n in own else None
            row.append(Cell("-" if gain is None else _judged(gain)))
        shown = numbers.value(name, "detectable", max(own, default=0))
        rows.append([*row, Cell("n/a" if math.isnan(shown) else f"{shown:.3f}")])
        unclear = [n for n in own if numbers.word(name, "gain", n) == "unclear"]
        if unclear and (remedy := numbers.word(name, "detectable", max(unclear))):
            gain = numbers.text(name, "gain", max(unclear), signed=True)
            remedies.append(f"{name}: G({short(max(unclear))}) = {gain}; {remedy}.")
    return Table(
        key="verdicts",
        title="Verdicts on the text beyond T, with the 95% interval of the context gain G in nats",
        head=["scheme", "seeds", "c*", *map(short, lengths), "least |G| shown"],
        rows=rows,
        notes=[VERDICTS, *remedies, *_dashes(rows)],
    )


def _judged(gain: Mapping[str, Any]) -> str:
    """Returns "uses [+0.010, +0.030]"."""
    _, _, bounds = written(gain["value"], gain["low"], gain["high"], signed=True).partition(" ")
    return f"{gain['word']} {bounds}".rstrip()


def protocols_table(selection: Selection, findings: pd.DataFrame) -> Table | None:
    """Returns the same runs under every protocol; None if there is one alone."""
    protocols = list(dict.fromkeys(findings["protocol"]))
    if len(protocols) < 2:
        return None
    by_protocol = {name: _Numbers(findings, name) for name in protocols}
    lengths = sorted({n for numbers in by_protocol.values() for n in numbers.lengths})
    reasons = list(dict.fromkeys(r for numbers in by_protocol.values() for r in _reasons(numbers)))
    rows = [
        [
            *(Cell(series), Cell(protocol), Cell(str(int(numbers.facts[series]["n_seeds"])))),
            *(_perplexity(numbers, series, n, reasons, marked=False) for n in lengths),
            Cell(_ratio(numbers, series)),
        ]
        for series in sorted({s for numbers in by_protocol.values() for s in numbers.competitors})
        for protocol, numbers in by_protocol.items()
        if series in numbers.competitors
    ]
    return Table(
        key="protocols",
        title=f"Protocol matters: perplexity of the same runs under each; {selection.title}",
        head=["scheme", "protocol", "seeds", *map(short, lengths), "longest/T"],
        rows=rows,
        notes=[
            *_numbered(reasons),
            *(f"{name}: {named(name).summary} ({named(name).source})" for name in protocols),
            *_dashes(rows),
        ],
    )


def _leaderboard(numbers: _Numbers, rows: pd.DataFrame) -> Table | None:
    """Returns the series by their loss at the longest length, with what each costs.

    A variant has the cost of its checkpoint. None without two series.
    """
    there = numbers.competitors
    if len(there) < 2:
        return None
    longest = numbers.lengths[-1]
    runs = rows.drop_duplicates(["series", "run"])
    has_memory = bool(runs["peak_mib"].notna().any())
    least = next((w for s in there if (w := numbers.word(s, "behind", longest))), "")
    head = ["scheme", "seeds", "NLL at T", f"NLL at {short(longest)}", f"less that of {least}"]
    head += ["rank", "c*", "verdict", "far-copy gain", "parameters", "tokens/s"]
    body: list[list[Cell]] = []
    for name in there:
        cost = runs[runs["series"] == name]
        is_judged = longest > numbers.T(name)
        body.append(
            [
                *(Cell(name), Cell(numbers.n_seeds(name))),
                Cell(numbers.text(name, "loss", numbers.T(name), signed=False)),
                Cell(
                    numbers.text(name, "loss", longest, signed=False),
                    numbers.mark(name, "loss", longest),
                ),
                Cell("0" if name == least else numbers.text(name, "behind", longest, signed=True)),
                *(Cell(numbers.rank(name, longest)), Cell(numbers.used(name))),
                Cell((numbers.word(name, "gain", longest) if is_judged else "") or "-"),
                Cell(numbers.text(name, "far_gain", longest, signed=True) if is_judged else "-"),
                Cell(
                    " or ".join(f"{n:,.0f}" for n in sorted(set(cost["parameters"].dropna())))
                    or "-"
                ),
                *(_median(cost[c]) for c in ("tokens_per_s", *["peak_mib"] * has_memory)),
            ]
        )
    memory = "Peak MiB: the most memory of training, of tensors on a GPU, else of the process."
    return Table(
        key="leaderboard",
        title=f"Leaderboard by the loss at {short(longest)}, nats per token with 95% intervals",
        head=[*head, *["peak MiB"] * has_memory],
        rows=body,
        notes=[
            "Differences are paired by document and seed, each interval by itself at 95%. Rank: "
            "those that a series may have, all compared jointly at 95%. Far-copy gain: G on "
            "targets whose bigram stands beyond T only. tokens/s: of training, the median over "
            "seeds; of runs on one idle machine alone it is a comparison of schemes.",
            *([memory] if has_memory else []),
            *_marked(body, there),
            *_dashes(body),
        ],
    )


def _median(values: "pd.Series") -> Cell:
    return Cell(f"{median(values):,.0f}" if len(values) and values.notna().all() else "-")


def _before_and_after(numbers: _Numbers, rows: pd.DataFrame) -> Table | None:
    """Returns what further training brought to runs that began with the weights of others.

    None if no series has its base among the others.
    """
    runs = rows[rows["variant"].isna()].drop_duplicates(["series", "run"])
    series_of = dict(zip(runs["run"], runs["series"], strict=True))
    bases: dict[str, set[str | None]] = {}
    for row in runs.to_dict("records"):
        init = config_of(row).get("train", {}).get("init_from") or {}
        bases.setdefault(row["series"], set()).add(series_of.get(str(init.get("run"))))
    pairs = [(s, base) for s in numbers.competitors for base in bases.get(s, ()) if base]
    pairs = [(s, base) for s, base in pairs if len(bases[s]) == 1]
    if not pairs:
        return None
    sums = Sums(rows, loss_of)
    known = {s: [n for n in numbers.lengths if _is_finite(numbers, s, n)] for s in numbers.series}
    lengths = sorted({n for s, _ in pairs for n in known[s]})
    body: list[list[Cell]] = []
    for series, base in pairs:
        cells = [(Scored(HEADLINE, series, n), Scored(HEADLINE, base, n)) for n in lengths]
        estimates = [sums.difference(*pair) for pair in cells]
        texts = [
            "-" if e is None else written(e.value, e.low, e.high, signed=True) for e in estimates
        ]
        body.append([Cell(series), Cell(base), *map(Cell, texts)])
    return Table(
        key="before-after",
        title="Loss minus that of the run it began with, nats per token, paired by document",
        head=["scheme", "began with", *map(short, lengths)],
        rows=body,
        notes=["Each interval by itself at 95%; below 0: further training helped.", *_dashes(body)],
    )


def _is_finite(numbers: _Numbers, series: str, length: int) -> bool:
    return not math.isnan(numbers.value(series, "loss", length))


def tuned_rates(rows: pd.DataFrame) -> tuple[list[tuple[str, Tuned]], dict[str, list[float]]]:
    """Returns the tuned rates of runs by scheme, and the train.lr of those without."""
    tuned: dict[tuple[str, str], tuple[str, Tuned]] = {}
    untuned: dict[str, list[float]] = {}
    for row in rows.drop_duplicates("run").to_dict("records"):
        name, train = str(row["scheme"]), config_of(row).get("train", {})
        if train.get("tuned"):
            chosen = Tuned.model_validate(train["tuned"])
            tuned[name, chosen.model_dump_json()] = name, chosen
        elif train["lr"] not in untuned.setdefault(name, []):
            untuned[name].append(train["lr"])
    return list(tuned.values()), untuned


def rates(
    tuned: Sequence[tuple[str, Tuned]], untuned: Mapping[str, Sequence[float]]
) -> Table | None:
    """Returns the grids of learning rates that schemes were tuned on, the chosen ones marked.

    `untuned` holds the rates of schemes that have no grid. None if no scheme has one.
    """
    if not tuned:
        return None
    lrs = sorted({trial.lr for _, chosen in tuned for trial in chosen.grid})
    rows: list[list[Cell]] = []
    about: dict[str, list[str]] = {}
    for name, chosen in tuned:
        ratios = dict.fromkeys(trial.scheme_lr_ratio for trial in chosen.grid)
        for ratio in ratios:
            at = {trial.lr: trial for trial in chosen.grid if trial.scheme_lr_ratio == ratio}
            best = chosen.lr if ratio == chosen.scheme_lr_ratio else None
            is_plain = ratio is None or (ratio == 1 and len(ratios) == 1)
            label = name if is_plain else f"{name}, scheme_lr_ratio {ratio:g}"
            rows.append([Cell(label), *(_trial(at.get(lr), best) for lr in lrs)])
        seeds = f"seed{'s' * (len(chosen.seeds) > 1)} {', '.join(map(str, chosen.seeds))}"
        training = (
            f"corpus {chosen.corpus} ({chosen.fingerprint}), model {chosen.model}, T = "
            f"{chosen.length:,}, {chosen.tokens:,} tokens in batches of {chosen.batch_tokens:,}, "
            f"{seeds}"
        )
        about.setdefault(training, []).append(name)
    edges = [f"{name} ({k}={x:g})" for name, chosen in tuned for k, x in chosen.at_edge.items()]
    texts = [f"{', '.join(of)}: {training}." for training, of in about.items()]
    if untuned:
        texts.append(f"Not tuned: {_listed(untuned.items())}.")
    if edges:
        texts.append(f"The best rate is at the edge of the grid, so extend it: {', '.join(edges)}.")
    return Table(
        key="rates",
        title="Loss at T on the tuning split, in nats per token, by train.lr",
        head=["scheme", *(f"{lr:g}" for lr in lrs)],
        rows=rows,
        notes=[
            "Bold: the rate that was chosen, by the least mean over seeds. The tuning split holds "
            "1 in 20 training documents; no result is measured on it.",
            *texts,
        ],
    )


def _listed(untuned: Iterable[tuple[str, Sequence[float]]]) -> str:
    return ", ".join(f"{name} ({', '.join(f'{lr:g}' for lr in lrs)})" for name, lrs in untuned)


def _trial(trial: Trial | None, best: float | None) -> Cell:
    if trial is None:
        return Cell("-")
    text = "diverged" if math.isinf(trial.loss) else f"{trial.loss:.4f}"
    return Cell(text, "best" if trial.lr == best else "")
