"""The page: one report.html that opens from disk and loads nothing from elsewhere.

Jinja2 escapes all text of a run; a content security policy, which allows the page's own script
alone, would stop what slipped through.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from lengthgen import escaping
from lengthgen.analysis.formatting import headline, short, subject
from lengthgen.analysis.used_context import EPS
from lengthgen.analysis.verdicts import Word
from lengthgen.config import tuned_rates
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.report import curve_tables, page_charts, page_method, page_sections
from lengthgen.report.collect import Report
from lengthgen.report.figures.inline import Picture
from lengthgen.report.table_formats import Table

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
        "charts": page_charts.charts(report),
        "swatches": page_charts.swatches(report),
        "perplexities": page_sections.perplexities(report),
        "leaderboard": curve_tables.leaderboard(report.findings, report.costs),
        "sections": page_sections.sections(report),
        "facts": page_method.facts(report),
        "scored": page_method.scored_how(report),
        "protocols": page_method.protocols(report),
        "rates": curve_tables.rates(*tuned_rates.from_configs(report.configs.values())),
        "settings": page_method.settings(report),
        "costs": page_method.costs(report),
        "warnings": curve_tables.warnings(report.findings, report.remarks),
        "headline": HEADLINE,
        **{name: getattr(curve_tables, name) for name in ("bounds", "change", "detectable")},
        **{"seeds": curve_tables.n_seeds, "used": curve_tables.used, "short": short},
    }
