"""The sections of the page: one of each series, and the tables of perplexity."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import yaml

from lengthgen.analysis.curves import perplexity
from lengthgen.analysis.findings import Finding
from lengthgen.analysis.formatting import number, short
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.seed_groups import Series
from lengthgen.config import compose
from lengthgen.evaluation.protocols import HEADLINE, named
from lengthgen.report import curve_tables
from lengthgen.report.collect import Report
from lengthgen.report.curve_tables import Write
from lengthgen.report.figures import curve
from lengthgen.report.figures.chart import Chart
from lengthgen.report.figures.inline import Picture, inline
from lengthgen.report.figures.ratios import multiples
from lengthgen.report.page_charts import times
from lengthgen.report.table_formats import Table, plain_table


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


def sections(report: Report) -> list[Section]:
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
    return plain_table(["source", "of", "T", "protocol", "ppl(C) / ppl(T) at C"], rows)


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
    return plain_table(["length", *texts], rows)


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
    return plain_table(["seed", *map(short, lengths), "run"], rows)


def _configuration(report: Report, line: Series) -> str:
    """Returns the YAML of the scheme, and of the variant."""
    config = report.configs[line.runs[0]]
    scheme = {key: value for key, value in config.get("scheme", {}).items() if key != "variants"}
    variants = {**config.get("variants", {}), **config.get("scheme", {}).get("variants", {})}
    names = line.variant.split("+") if line.variant else []
    chosen = {name: variants[name] for name in names if name in variants}
    shown = {"scheme": scheme, **({"variants": chosen} if chosen else {})}
    return yaml.safe_dump(shown, sort_keys=False)
