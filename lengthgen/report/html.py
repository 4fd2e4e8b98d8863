"""The page: one report.html that opens from disk and loads nothing from elsewhere.

Jinja2 escapes all text of a run; a content security policy, which allows the page's own script
alone, would stop what slipped through.
"""

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from lengthgen import escaping
from lengthgen.analysis.curves import perplexity
from lengthgen.analysis.findings import Finding
from lengthgen.analysis.formatting import headline, number, short, subject
from lengthgen.analysis.intervals import LEVEL, Estimate
from lengthgen.analysis.seed_groups import Series, ordered, sampled, scheme_lr_ratio
from lengthgen.analysis.used_context import EPS
from lengthgen.analysis.verdicts import Word
from lengthgen.config import compose, tuned_rates
from lengthgen.evaluation.protocols import BY_POSITION, HEADLINE, named
from lengthgen.report import curve_tables
from lengthgen.report.collect import Report
from lengthgen.report.figures import curve
from lengthgen.report.figures.chart import Chart, Line
from lengthgen.report.figures.inline import inline, swatch
from lengthgen.report.figures.layout import MOST_NAMED
from lengthgen.report.figures.positions import AVERAGED, positions
from lengthgen.report.figures.ratios import multiples, ratios
from lengthgen.report.figures.style import line_styles
from lengthgen.report.table_formats import Cell, Table

MISSING = object()
Write = Callable[[float], str]
EVALUATION = ("eval", "runtime")  # sections as of training; what was evaluated may differ
MEANINGS: dict[Word, tuple[str, str]] = {  # a sign next to the colour, and what is meant
    "uses": ("\u25b2", "the text beyond T lowers the loss"),
    "no gain": ("\u25c6", f"it is read (swapping it hurts), but G(C) is within {EPS} of 0"),
    "ignores": ("\u25a0", f"G(C) is within {EPS} of 0, and c* is at least T/2"),
    "short-sighted": ("\u25e7", f"G(C) is within {EPS} of 0, but c* is below T/2"),
    "harmed": ("\u25bc", "it raises the loss"),
    "unclear": ("?", "the data do not decide; the sentence with it states what would"),
}
PARTS = {
    **{"tables": "Tables", "schemes": "Schemes", "method": "Method"},
    "costs": "Costs",
}
GREY = "Grey: published curves of the same schemes, of other models; point at one to see which."
SHARED = "Lines share their documents, so bands that overlap are no tie; see the tables."
OTHER_PROTOCOL = (
    "Dashed: measured under another protocol, so not comparable in height; hidden until the button "
    "with the protocol's name is pressed. Dashed lines may leave the axes."
)


class Picture(NamedTuple):
    """A figure: the text of an SVG file."""

    name: str
    svg: str

    @property
    def address(self) -> str:
        """The picture as a data URI; as an image, an SVG can neither run nor load anything."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """What the page shows of tasks."""

    pictures: Sequence[Picture]
    tables: Sequence[Table]
    remarks: Sequence[str]  # what is not shown or not comparable


def render(
    report: Report | None, tasks: Tasks | None = None, overview: Sequence[Picture] = ()
) -> str:
    """Returns the page of runs of text, of tasks, or of both; in ASCII.

    `overview`: figures of all series at once, shown behind the charts. Raises UserError as
    comparisons.compare does.
    """
    environment = Environment(
        loader=PackageLoader("lengthgen", "report"),
        autoescape=True,
        finalize=escaping.html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    script, style = (_source(environment, name) for name in ("report.js", "report.css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = environment.get_template("report.html.j2")
    shown = {"title": "Accuracy of tasks over length"} | (_shown(report) if report else {})
    parts = {"tasks": "Tasks"} if tasks is not None else {}
    if report is not None:
        first = {"verdicts": "Verdicts"} | ({"curves": "Curves"} if shown["charts"] else {})
        warned = {"warnings": f"Warnings ({len(shown['warnings'])})"}
        parts = first | parts | PARTS | warned
    page = template.render(
        **{"report": report, "tasks": tasks, "parts": parts, "overview": overview, **shown},
        **{"script": script, "style": style, "digest": digest},
    )
    return page.encode("ascii", "xmlcharrefreplace").decode()


def _source(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _shown(report: Report) -> dict[str, Any]:
    """Returns what the template needs of runs of text next to the report itself."""
    names, lengths = report.schemes, sorted({p.train_length for p in report.points})
    measured = names[0] if len(names) == 1 else f"{len(names)} positional schemes"
    longest = short(max(p.length for p in report.points))
    first = [p for line in next(iter(report.by_protocol.values())) for p in line.points]
    judged = curve_tables.judged(report.findings)
    trained = ", ".join(map(str, lengths))
    return {
        "title": f"{measured}, trained at T = {trained}, measured up to {longest} tokens",
        "about": f"{', '.join(names)}; {headline(first)}; {subject(first)}.",
        "judged": judged,
        "verdict_lengths": sorted({n for finding in judged for n in finding.verdicts}),
        "epsilons": sorted({factor.eps for finding in judged for factor in finding.factors}),
        "faint": curve_tables.poor([finding.series for finding in report.findings]),
        "meanings": MEANINGS,
        "charts": charts(report),
        "swatches": swatches(report),
        "perplexities": perplexities(report),
        "leaderboard": curve_tables.leaderboard(report.findings, report.costs),
        "sections": _sections(report),
        "facts": facts(report),
        "scored": _scored_how(report),
        "protocols": protocols(report),
        "rates": curve_tables.rates(*tuned_rates.of_runs(report.configs.values())),
        "settings": settings(report),
        "costs": costs(report),
        "warnings": curve_tables.warnings(report.findings, report.remarks),
        "headline": HEADLINE,
        **{name: getattr(curve_tables, name) for name in ("bounds", "change", "detectable")},
        **{"seeds": curve_tables.n_seeds, "used": curve_tables.used, "short": short},
    }


# Charts


class Entry(NamedTuple):
    """A line of a legend: what its button hides and shows, and the values that can be read."""

    key: str
    label: str
    swatch: str  # of a group of published lines; a series has that of the page
    values: Sequence[str]
    pressed: bool
    later: bool = False  # one of many series, hidden by the script until it is requested


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A chart with its caption, its legend, and the places where values can be read."""

    name: str  # of letters and hyphens
    title: str
    caption: str
    svg: str
    stops: Sequence[tuple[float, str]]  # how far from left (0) to right (1), and what it is called
    entries: Sequence[Entry]


def charts(report: Report) -> list[Exhibit]:
    """Returns the charts that there are numbers for, the headline first."""
    others = {a.protocol for a in report.published_curves} & {*report.by_protocol} - {HEADLINE}
    found = [
        _perplexity(report),
        _gain(report),
        _positions(report),
        *(_ratios(report, protocol) for protocol in [HEADLINE, *sorted(others)]),
    ]
    return [exhibit for exhibit in found if exhibit is not None]


def swatches(report: Report) -> dict[str, str]:
    """Returns a sample of each series' line as SVG, by label."""
    styles = line_styles(report.lines)
    return {line.label: swatch(styles[line.label], thin=line.reference) for line in report.lines}


def _perplexity(report: Report) -> Exhibit | None:
    findings, lines = report.findings, report.by_protocol.get(HEADLINE, ())
    caption = [
        "The same tokens are scored at every length; only the text before them differs.",
        f"{_band(lines)} {SHARED} Dotted: what the last T tokens alone give (crop).",
    ]
    if any(line.reference for line in lines):
        caption.append("Thin: the same model with attention to the last T tokens alone.")
    if any(finding.unigram is not None for finding in findings):
        caption.append("Unigram floor: each token predicted by its frequency in training.")
    return _exhibit(
        report,
        curve.perplexities(lines, findings) if findings else None,
        name="perplexity",
        title="Tail perplexity over length",
        caption=[*caption, "Both axes are logarithmic."],
        write=number,
        stop=_tokens,
    )


def _band(lines: Iterable[Series]) -> str:
    return f"The band is the 95% interval over {sampled(lines)}."


def _gain(report: Report) -> Exhibit | None:
    band = _band(finding.series for finding in report.findings)
    return _exhibit(
        report,
        curve.gains(report.findings),
        name="gain",
        title="Context gain G(C)",
        caption=[
            "G(C) = loss(T) - loss(C) on the same tokens. Above 0 the text beyond T helps, below 0",
            f"it harms. {band} The vertical axis is linear near 0 and logarithmic further away.",
        ],
        write=lambda nats: curve_tables.change(nats) if nats else "0",
        stop=_tokens,
    )


def _positions(report: Report) -> Exhibit | None:
    return _exhibit(
        report,
        positions(report.by_protocol.get(BY_POSITION, ())),
        name="positions",
        title="Loss at each position",
        caption=[
            "L(i): mean loss at position i of one pass over long windows from random offsets,",
            f"{AVERAGED}. The horizontal axis is logarithmic.",
        ],
        write=curve_tables.plain,
        stop="position {:,.0f}".format,
    )


def _ratios(report: Report, protocol: str) -> Exhibit | None:
    is_headline, lines = protocol == HEADLINE, report.by_protocol.get(protocol, ())
    findings = report.findings if is_headline else ()
    chart = ratios(lines, report.published_curves, findings=findings, all_protocols=is_headline)
    band = _band(lines) if is_headline else "Means over seeds."
    caption = [f"ppl(C) / ppl(T) over C / T. {band}"]
    if chart is not None and chart.behind:
        caption.append(GREY)
    if chart is not None and any(not one.comparable for one in chart.behind):
        caption.append(OTHER_PROTOCOL)
    return _exhibit(
        report,
        chart,
        name="ratios" if protocol == HEADLINE else f"ratios-{protocol}".replace("_", "-"),
        title=f"Perplexity relative to that at T, {protocol}",
        caption=caption,
        write=lambda ratio: times(ratio) if ratio != 1 else "1",
        stop="C = {:g} T".format,
    )


def _tokens(length: float) -> str:
    return f"{short(int(length))} tokens"


def times(value: float) -> str:
    """Returns a ratio with three digits after the point, fewer where it is large."""
    return f"{value:.3f}" if value < 10 else number(value)


def _exhibit(
    report: Report,
    chart: Chart | None,
    *,
    name: str,
    title: str,
    caption: Sequence[str],
    write: Write,
    stop: Write,
) -> Exhibit | None:
    if chart is None or not any(line.lengths for line in chart.lines):
        return None
    styles = line_styles(report.lines)
    lines = [replace(line, style=styles[line.name], seeds=()) for line in chart.lines]
    xs = sorted({x for line in lines for x in line.values})
    groups = {one.group: one for one in chart.behind}
    keys = {group: f"published-{name}-{i}" for i, group in enumerate(groups)}
    drawn = inline(replace(chart, lines=lines), keys={**report.keys, **keys}, name=name, at=xs)
    first = _first(report)
    entries = [
        Entry(
            key=report.keys[line.name],
            label=line.name,
            swatch="",
            values=[_value(line, x, write) for x in xs],
            pressed=True,
            later=line.name not in first,
        )
        for line in sorted(lines, key=lambda line: line.reference)
    ]
    for group, one in groups.items():
        style = {"color": "0.6", "linestyle": "-" if one.comparable else "--"}
        grey = swatch(style, thin=True)
        entries.append(Entry(keys[group], group, grey, [""] * len(xs), one.comparable))
    return Exhibit(
        name=name,
        title=title,
        caption=" ".join(caption),
        svg=drawn.svg,
        stops=list(zip(drawn.across, map(stop, xs), strict=True)),
        entries=entries,
    )


def _first(report: Report) -> set[str]:
    """Returns the labels of what shows at first: of many series, those of least loss alone."""
    lines = report.by_protocol.get(HEADLINE) or report.lines
    own = [line for line in ordered(lines) if not line.reference]
    first = own[:MOST_NAMED]
    of_first = (one for one in report.lines if any(one.is_reference_of(line) for line in first))
    return {line.label for line in (*first, *of_first)}


def _value(line: Line, x: float, write: Write) -> str:
    """Returns value and interval; the value alone if there is no interval, or if it is exact."""
    if x not in line.values:
        return "-"
    value = line.values[x]
    low, high = (bound.get(x, math.nan) for bound in (line.low, line.high))
    if math.isnan(low) or math.isnan(high) or low == value == high:
        return write(value)
    return f"{write(value)} [{write(low)}, {write(high)}]"


# Tables


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    cells = [[Cell(text) for text in row] for row in rows]
    return Table(key="", title="", head=head, rows=cells, notes=[])


def perplexities(report: Report) -> list[tuple[str, str, Table]]:
    """Returns the tables of perplexity with title and explanation, a protocol each, and RECL."""
    found: list[tuple[str, str, Table]] = []
    for protocol, lines in report.by_protocol.items():
        about, is_headline = named(protocol), protocol == HEADLINE
        explanation = f"Perplexity, {about.summary} ({about.source})."
        title = "Matched tail" if is_headline else protocol
        found.append((title, explanation, curve_tables.perplexities(lines, [])))
        longest = (
            curve_tables.effective_context(curve_tables.competitors(lines)) if is_headline else None
        )
        if longest is not None:
            found.append(("RECL", "", longest))
    return found


class Section(NamedTuple):
    """What the page shows of one series."""

    key: str
    label: str
    sources: Sequence[str]  # of the scheme, and of each variant: what it is, authors, arXiv id
    claim: str  # what the paper claims of lengths beyond T; empty for variants, and if not known
    finding: Finding | None
    curve: str  # SVG; empty without one
    numbers: Table | None
    sentences: Sequence[str]
    published: Table | None
    seeds: Table
    pictures: Mapping[str, Sequence[Picture]]  # by run
    settings: str


def _sections(report: Report) -> list[Section]:
    lines = report.by_protocol.get(HEADLINE, ())
    chart = curve.perplexities(lines, report.findings) if report.findings else None
    return [_section(report, line, chart) for line in report.lines]


def _section(report: Report, line: Series, chart: Chart | None) -> Section:
    finding = next((one for one in report.findings if one.series.label == line.label), None)
    probes = {} if line.variant else {run: report.runs[run].probes for run in line.runs}
    return Section(
        key=report.keys[line.label],
        label=line.label,
        sources=_sources(line),
        claim=_claim(line),
        finding=finding,
        curve="" if chart is None else _own_curve(chart, line, name=report.keys[line.label]),
        numbers=None if finding is None else _numbers(finding),
        sentences=[] if finding is None else _sentences(finding),
        published=_published(report, line),
        seeds=_seeds(line),
        pictures={
            run: [Picture(name, svg) for name, svg in found.items()]
            for run, found in probes.items()
            if found
        },
        settings=_configuration(report, line),
    )


def _sources(line: Series) -> list[str]:
    """Returns the descriptions of the scheme and its variants that conf/ has."""
    chosen = [("scheme", line.scheme)]
    chosen += [("variant", name) for name in line.variant.split("+")] if line.variant else []
    return [
        compose.describe(group, name, config_dir=None)
        for group, name in chosen
        if name in compose.choices(group, config_dir=None)
    ]


def _claim(line: Series) -> str:
    known = compose.choices("scheme", config_dir=None)
    if line.variant is not None or line.scheme not in known:
        return ""
    return compose.claim(line.scheme, config_dir=None)


def _own_curve(chart: Chart, line: Series, *, name: str) -> str:
    """Returns the chart with the line of one series, its seeds and its references alone."""
    itself = next((one for one in chart.lines if one.name == line.label and one.lengths), None)
    if itself is None:
        return ""
    own = [one for one in chart.lines if one is itself or one.is_reference_of(itself)]
    keys = {one.name: f"own-{name}" for one in own}
    return inline(replace(chart, lines=own), keys=keys, name=f"own-{name}", at=()).svg


def _published(report: Report, line: Series) -> Table | None:
    """Returns ppl(C) / ppl(T) of this series, and as published of its scheme; None without any."""
    curves = [one for one in report.published_curves if one.scheme == line.scheme]
    if line.variant is not None or not curves:
        return None
    here = {
        protocol: multiples(one.losses(), one)
        for protocol, lines in report.by_protocol.items()
        for one in lines
        if one.label == line.label
    }
    shown: dict[tuple[str, ...], Mapping[float, float]] = {
        ("this report", "", str(line.train_length), protocol): of
        for protocol, of in here.items()
        if of
    }
    for one in curves:
        about = f"{one.corpus}, {one.params}" + (f"; {one.note}" if one.note else "")
        shown[one.citation, about, str(one.train_length), one.protocol] = one.ratios()
    rows = (
        [*about, ", ".join(f"{k:g} T: {times(of[k])}" for k in sorted(of) if k > 1)]
        for about, of in shown.items()
    )
    return _table(["source", "of", "T", "protocol", "ppl(C) / ppl(T) at C"], rows)


def _numbers(finding: Finding) -> Table:
    def ppl(nats: float) -> str:
        return number(perplexity(nats))

    columns: dict[str, tuple[Mapping[int, Estimate], Write]] = {
        "perplexity": (finding.loss, ppl),
        "G(C)": (finding.gain, curve_tables.change),
        "U(C), swapped": (finding.swap, curve_tables.change),
        "U(C), shuffled": (finding.shuffle, curve_tables.change),
        "far-copy loss": (finding.far, curve_tables.plain),
        "G(C), far-copy": (finding.far_gain, curve_tables.change),
        "other loss": (finding.near, curve_tables.plain),
        "G(C), others": (finding.near_gain, curve_tables.change),
        "loss": (finding.loss, curve_tables.plain),
    }
    texts = {
        name: {n: curve_tables.written(estimate, write) for n, estimate in estimates.items()}
        for name, (estimates, write) in columns.items()
        if estimates
    }
    if finding.bits_per_byte:
        texts["bits per byte"] = {n: f"{bits:.3f}" for n, bits in finding.bits_per_byte.items()}
    lengths = sorted(finding.loss)
    rows = ([short(n), *(of.get(n, "-") for of in texts.values())] for n in lengths)
    return _table(["length", *texts], rows)


def _sentences(finding: Finding) -> list[str]:
    sentences = [verdict.why for _, verdict in sorted(finding.verdicts.items())]
    if finding.used is not None:
        of = f"{finding.used.text}, interval {finding.used.interval}"
        sentences.append(f"c*, the least length up to T that loses no more than 0.01 nats: {of}")
    for factor in finding.factors:
        interval = "" if math.isnan(factor.low) else f", interval {factor.interval}"
        sentences.append(f"XF({factor.eps:g} nats): {factor.text}{interval}")
    if finding.peak is not None:
        sentences.append(f"Peak, the length of least loss: {short(finding.peak)}")
    if finding.unigram is not None:
        floor = number(perplexity(finding.unigram))
        sentences.append(f"Unigram floor, each token by its frequency in training: {floor}")
    return sentences


def _seeds(line: Series) -> Table:
    lengths = sorted({p.length for p in line.points})
    seeds = {p.run: p.seed for p in line.points}
    rows: list[list[str]] = []
    for run in sorted(line.runs, key=lambda run: (seeds[run], run)):
        losses = line.curve(run)
        values = [number(perplexity(losses[n])) if n in losses else "-" for n in lengths]
        rows.append([str(seeds[run]), *values, run])
    return _table(["seed", *map(short, lengths), "run"], rows)


def _configuration(report: Report, line: Series) -> str:
    """Returns the YAML of the scheme, and of the variant."""
    config = report.configs[line.runs[0]]
    scheme = {key: value for key, value in config.get("scheme", {}).items() if key != "variants"}
    variants = {**config.get("variants", {}), **config.get("scheme", {}).get("variants", {})}
    names = line.variant.split("+") if line.variant else []
    chosen = {name: variants[name] for name in names if name in variants}
    shown = {"scheme": scheme, **({"variants": chosen} if chosen else {})}
    return yaml.safe_dump(shown, sort_keys=False)


# Method and costs


def facts(report: Report) -> dict[str, str]:
    """Returns the settings and fingerprints that decide the numbers, by name; none is empty."""
    points, configs = report.points, report.configs
    environments = {
        run: record.environment
        for run, record in report.runs.items()
        if record.environment is not None
    }
    libraries = [
        f"{name} {version}"
        for one in environments.values()
        for name, version in [
            ("lengthgen", one.get("lengthgen", "unknown")),
            *one.get("libraries", {}).items(),
        ]
    ]
    own = {(str(c.get("scheme", {}).get("name")), scheme_lr_ratio(c)) for c in configs.values()}
    devices = [
        ", ".join(map(str, one.get("devices", []))) or one.get("processor") or "CPU"
        for one in environments.values()
    ]
    found: dict[str, Iterable[str]] = {
        "corpus": [p.corpus + (" (packed)" if p.packed else "") for p in points],
        "fingerprint of its tokens": [p.fingerprint for p in points],
        "models": [p.model for p in points],
        "trained at T": [f"{p.train_length:,} tokens" for p in points],
        "tokens seen": [f"{p.tokens_seen:,}" for p in points],
        "seeds": [str(p.seed) for p in points],
        "learning rate": _values(configs, "train", "lr"),
        "rate of the schemes' own parameters": [
            f"{name}: {ratio:.15g} times" for name, ratio in sorted(own) if ratio != 1
        ],
        "training precision": _values(configs, "train", "precision"),
        "interval": [
            f"{LEVEL:.0%}, from variance components of seeds and documents, each with its own "
            "Student's t; paired by seed and document. The unit is the document, or a block of a "
            "packed stream, or the example of a task. From one seed it is of this checkpoint on "
            "other documents. Of shares of right answers at least Wilson's."
        ],
        "commit": _values(environments, "commit"),
        "python": _values(environments, "python"),
        "libraries": libraries,
        "devices": devices,
        "platform": _values(environments, "platform"),
    }
    return {name: _joined(values) for name, values in found.items() if _joined(values)}


def _joined(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _values(plain: Mapping[str, Mapping[str, Any]], *path: str) -> list[str]:
    """Returns what each run holds under a path of keys."""
    found: list[str] = []
    for run in sorted(plain):
        value: Any = plain[run]
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            found.append(str(value))
    return found


def _scored_how(report: Report) -> str:
    tail = [p for p in report.points if p.protocol == HEADLINE]
    if not tail:
        return "The runs were not evaluated under the headline protocol, so there are no verdicts."
    return (
        f"The headline is the {headline(tail)}: each window ends at the same place at every "
        "length, and the same tokens are scored. Losses are sums of nats over tokens, divided "
        "once. Schemes are compared on the same documents with the same seeds. All pairs of a "
        "length are compared jointly: equal schemes are called different in at most 5% of tables. "
        "From one seed no scheme is called better than another."
    )


def protocols(report: Report) -> Table:
    """Returns what was scored under each protocol."""
    rows: list[list[str]] = []
    for protocol, lines in report.by_protocol.items():
        points = [p for line in lines for p in line.points]
        last = named(protocol).last
        K = [last if p.targets is None else p.targets for p in points]
        rows.append(
            [
                protocol,
                _joined("all" if n is None else str(n) for n in K),
                _joined(f"{p.reach:,}" for p in points),
                _joined(p.endpoints for p in points),
                _joined(p.precision for p in points),
                f"{max(p.n_documents for p in points):,}",
                f"{max(p.n_tokens for p in points):,}",
                _joined(map(short, sorted({p.length for p in points}))),
            ]
        )
    head = ["protocol", "K", "reach", "endpoints (hash)", "precision", "documents", "tokens"]
    return _table([*head, "lengths"], rows)


def settings(report: Report) -> str:
    """Returns the settings of training that the runs share as YAML; empty if there are none."""
    same = shared([*report.configs.values()])
    trained = {key: value for key, value in same.items() if key not in EVALUATION}
    return yaml.safe_dump(trained, sort_keys=False) if trained else ""


def shared(plains: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the keys and values that all mappings have in common, at every depth."""
    if not plains:
        return {}
    first, *others = plains
    found: dict[str, Any] = {}
    for key, value in first.items():
        values = [other.get(key, MISSING) for other in others]
        if isinstance(value, Mapping) and all(isinstance(other, Mapping) for other in values):
            inner = shared([value, *values])
            if inner or not value:
                found[key] = inner
        elif all(other == value for other in values):
            found[key] = value
    return found


def costs(report: Report) -> Table:
    """Returns what each run took to train."""
    rows = [
        [
            run,
            *(
                "-" if amount is None else f"{amount:,.0f}"
                for amount in (cost.parameters, cost.tokens, cost.tokens_per_s)
            ),
            "-" if cost.seconds is None else duration(cost.seconds),
        ]
        for run, cost in sorted((run, record.cost) for run, record in report.runs.items())
    ]
    return _table(["run", "parameters", "training tokens", "tokens/s", "training time"], rows)


def duration(seconds: float) -> str:
    """Returns 42 s, 3 min 5 s or 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
