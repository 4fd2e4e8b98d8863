"""The page: one report.html that opens from disk and loads nothing from elsewhere.

Its tree is built of elements, never of strings, so that no text of a run becomes markup; a content
security policy, which allows the page's own script alone, would stop it if it did.
"""

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from xml.etree.ElementTree import Element

from lengthgen.analysis.curves import HEADLINE
from lengthgen.analysis.formatting import headline, short, subject
from lengthgen.report.page import method
from lengthgen.report.page.charts import charts
from lengthgen.report.page.contents import Contents
from lengthgen.report.page.costs import Cost, cost, parameters
from lengthgen.report.page.markup import Picture, document, tag
from lengthgen.report.page.sections import sections
from lengthgen.report.page.tables import tables
from lengthgen.report.page.tasks import Tasks, exhibited
from lengthgen.report.page.verdicts import verdicts

__all__ = ["Contents", "Cost", "Picture", "Tasks", "cost", "html", "parameters"]


def html(contents: Contents | None, tasks: Tasks | None = None) -> str:
    """Returns the page of runs of text, of tasks, or of both; in ASCII.

    Raises UserError as findings.compare does.
    """
    parts = _parts(contents) if contents is not None else []
    parts[2:2] = exhibited(tasks)  # behind verdicts and curves
    links = {part.get("id", ""): part[0].text or "" for part in parts}
    title = _title(contents) if contents is not None else "Accuracy of tasks over length"
    return document(
        tag(
            "html",
            _head(title),
            tag(
                "body",
                _top(title, contents, links),
                tag("main", *parts),
                tag("script", _file("page.js")),
            ),
            lang="en",
        )
    )


def _head(title: str) -> Element:
    digest = base64.b64encode(hashlib.sha256(_file("page.js").encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    secure = tag("meta", content=policy)
    secure.set("http-equiv", "Content-Security-Policy")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        secure,
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", _file("page.css")),
    )


def _file(name: str) -> str:
    return resources.files("lengthgen.report.page").joinpath(name).read_text(encoding="utf-8")


def _title(contents: Contents) -> str:
    names = contents.schemes
    measured = names[0] if len(names) == 1 else f"{len(names)} positional schemes"
    trained = ", ".join(map(str, contents.train_lengths))
    longest = short(max(p.length for p in contents.points))
    return f"{measured}, trained at T = {trained}, measured up to {longest} tokens"


def _top(title: str, contents: Contents | None, parts: Mapping[str, str]) -> Element:
    said: list[Element] = []
    if contents is not None:
        first = [p for line in next(iter(contents.series.values())) for p in line.points]
        said = [tag("p", f"{', '.join(contents.schemes)}; {headline(first)}; {subject(first)}.")]
    links = [tag("a", name, href=f"#{key}") for key, name in parts.items()]
    return tag("header", tag("h1", title), *said, tag("nav", *links, aria_label="Parts"))


def _parts(contents: Contents) -> list[Element]:
    """Returns the parts of the page, each with its heading first."""
    said = method.warnings(contents)
    listed = [tag("ul", *(tag("li", one) for one in said))] if said else [tag("p", "None.")]
    found: dict[str, tuple[str, list[Element]]] = {
        "verdicts": ("Verdicts", _verdicts(contents)),
        "curves": ("Curves", charts(contents)),
        "tables": ("Tables", tables(contents)),
        "schemes": ("Schemes", sections(contents)),
        "method": ("Method", method.method(contents)),
        "costs": ("Costs", method.costs(contents)),
        "warnings": (f"Warnings ({len(said)})", listed),
    }
    return [
        tag("section", tag("h2", name), *children, id=key)
        for key, (name, children) in found.items()
        if children
    ]


def _verdicts(contents: Contents) -> list[Element]:
    if not contents.findings:
        return [tag("p", f"None: no run was evaluated under the protocol {HEADLINE}.")]
    asked = "What does the text further back than T tokens do to the model, at each length?"
    hint = tag("p", "Tables that do not fit scroll sideways.", class_="note narrow")
    return [tag("p", asked), hint, *verdicts(contents)]
