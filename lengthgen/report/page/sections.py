"""A section per series: its numbers with intervals, its seeds, its probes and its YAML."""

import math
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

import yaml

from lengthgen.analysis.curves import perplexity
from lengthgen.analysis.findings import Factor, Finding
from lengthgen.analysis.formatting import number, short
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.seed_groups import Series
from lengthgen.report.page.contents import Contents
from lengthgen.report.page.looks import swatch
from lengthgen.report.page.markup import Child, image, table, tag
from lengthgen.report.page.numbers import plain, ppl, signed
from lengthgen.report.page.verdicts import badge


def sections(contents: Contents) -> list[Element]:
    """Returns a section per series, closed; tail findings first open their numbers."""
    by_label = {finding.series.label: finding for finding in contents.findings}
    return [_section(contents, line, by_label.get(line.label)) for line in contents.lines]


def _section(contents: Contents, line: Series, finding: Finding | None) -> Element:
    verdicts = {} if finding is None else finding.verdicts
    title: list[Child] = [swatch(contents.strokes[line.label]), tag("b", line.label), " "]
    return tag(
        "details",
        tag("summary", *title, *(badge(verdicts[n].word) for n in sorted(verdicts)[-1:])),
        *(_numbers(finding) if finding else []),
        tag("h4", "Seeds"),
        _seeds(line),
        *_probes(contents, line),
        *_configuration(contents, line),
        id=contents.keys[line.label],
    )


def _numbers(finding: Finding) -> list[Element]:
    columns: dict[str, Mapping[int, str]] = {
        "perplexity": _each(finding.loss, ppl),
        "G(C)": _each(finding.gain, signed),
        "U(C), swapped": _each(finding.swap, signed),
        "U(C), shuffled": _each(finding.shuffle, signed),
        "far-copy loss": _each(finding.far, plain),
        "other loss": _each(finding.near, plain),
        "bits per byte": {n: f"{bits:.3f}" for n, bits in finding.bits_per_byte.items()},
        "loss": _each(finding.loss, plain),
    }
    known = {name: values for name, values in columns.items() if values}
    rows = [
        [short(n), *(values.get(n, "-") for values in known.values())] for n in sorted(finding.loss)
    ]
    found = [tag("h4", "Numbers"), table(["length", *known], rows)]
    said = [verdict.why for _, verdict in sorted(finding.verdicts.items())]
    if finding.used is not None:
        of = f"{finding.used.text}, interval {finding.used.interval}"
        said.append(f"c*, the least length up to T that loses no more than 0.01 nats: {of}")
    said += [f"XF({f.eps:g} nats): {_reached(f)}" for f in finding.factors]
    if finding.peak is not None:
        said.append(f"Peak, the length of least loss: {short(finding.peak)}")
    if finding.unigram is not None:
        floor = number(perplexity(finding.unigram))
        said.append(f"Unigram floor, each token by its frequency in training: {floor}")
    return [*found, tag("ul", *(tag("li", f"{text}.") for text in said))]


def _reached(factor: Factor) -> str:
    return factor.text if math.isnan(factor.low) else f"{factor.text}, interval {factor.interval}"


def _each(estimates: Mapping[int, Estimate], write: Any) -> dict[int, str]:
    return {n: write(estimate) for n, estimate in estimates.items()}


def _seeds(line: Series) -> Element:
    lengths = sorted({p.length for p in line.points})
    seeds = {p.run: p.seed for p in line.points}
    rows: list[list[Child]] = []
    for run in sorted(line.runs, key=lambda run: (seeds[run], run)):
        losses = line.curve(run)
        values = [number(perplexity(losses[n])) if n in losses else "-" for n in lengths]
        rows.append([str(seeds[run]), *values, tag("code", run)])
    return table(["seed", *map(short, lengths), "run"], rows)


def _probes(contents: Contents, line: Series) -> list[Element]:
    if line.variant is not None:
        return []
    found: list[Element] = []
    for run in line.runs:
        pictures = [image(picture) for picture in contents.pictures.get(run, ())]
        if pictures:
            heading = tag("h4", "Probes of ", tag("code", run))
            found += [heading, tag("div", *pictures, class_="pictures")]
    return found


def _configuration(contents: Contents, line: Series) -> list[Element]:
    """Returns the YAML of the scheme, and of the variant."""
    config = contents.configs.get(line.runs[0], {})
    scheme = {key: value for key, value in config.get("scheme", {}).items() if key != "variants"}
    variants = {**config.get("variants", {}), **config.get("scheme", {}).get("variants", {})}
    names = line.variant.split("+") if line.variant else []
    chosen = {name: variants[name] for name in names if name in variants}
    shown = {"scheme": scheme, **({"variants": chosen} if chosen else {})}
    return [tag("h4", "Configuration"), tag("pre", yaml.safe_dump(shown, sort_keys=False))]
