"""The page: one HTML file that holds its figures, loads nothing and runs no script."""

import base64
from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from lengthgen import escaping
from lengthgen.report.section import Section

WORDS = ("uses", "flat", "harmed", "unclear")  # of verdicts, which the page colours


def render(title: str, sections: Sequence[Section], *, svgs: Mapping[str, bytes]) -> str:
    """Returns the page; `svgs` are the figures by name.

    Every text may come from a file, and is escaped. Figures are images, so that what an SVG holds
    can neither run nor load anything.
    """
    environment = Environment(
        loader=PackageLoader("lengthgen.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=escaping.html,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    images = {
        name: f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
        for name, svg in svgs.items()
    }
    template = environment.get_template("report.html.j2")
    return template.render(
        title=title, sections=sections, images=images, word=_word, unbroken=_unbroken
    )


def _word(text: str) -> str:
    """Returns the verdict that a cell begins with, or nothing."""
    return next((word for word in WORDS if text.startswith(word)), "")


def _unbroken(text: str) -> Markup:
    """Returns a text, escaped, whose interval stays on one line."""
    shown = escape(escaping.visible(text))
    return shown.replace(", ", Markup(",&nbsp;")).replace("&lt;= ", Markup("&lt;=&nbsp;"))
