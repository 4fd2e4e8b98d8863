"""Elements of the page: built as a tree, so that text is escaped when it is written."""

import base64
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element, tostring

Child = Element | str


def tag(name: str, *children: Child, **attributes: str | float | None) -> Element:
    """Returns an element of HTML or SVG.

    In attributes class_ is class, data_why is data-why, and one that is None is left out.
    """
    element = Element(name)
    for key, value in attributes.items():
        if value is not None:
            written = value if isinstance(value, str) else f"{round(value, 2):g}"
            element.set(key.rstrip("_").replace("_", "-"), written)
    return extend(element, *children)


def extend(element: Element, *children: Child) -> Element:
    """Appends elements and text in their order and returns the element."""
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + child
        else:
            element.text = (element.text or "") + child
    return element


def document(root: Element) -> str:
    """Returns the page as text, in ASCII."""
    return "<!DOCTYPE html>\n" + tostring(root, encoding="us-ascii", method="html").decode()


def table(
    header: Sequence[Child], rows: Sequence[Sequence[Child]], *, class_: str | None = None
) -> Element:
    """Returns a table that scrolls in its own box; each row begins with its name.

    Cells that are td elements stay as they are.
    """
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(_cell(cell) for cell in row[1:]))
        for row in rows
    ]
    whole = tag("table", tag("thead", head), tag("tbody", *body), class_=class_)
    return tag("div", whole, class_="scroll")


def _cell(content: Child) -> Element:
    if isinstance(content, Element) and content.tag == "td":
        return content
    return tag("td", content)


class Picture(NamedTuple):
    """A picture of a probe: the text of an SVG file, or the bytes of a PNG."""

    name: str
    content: str | bytes


def image(picture: Picture) -> Element:
    """Returns the picture as part of the page; as an image, an SVG can neither run nor load."""
    if isinstance(picture.content, str):
        kind, content = "svg+xml", picture.content.encode()
    else:
        kind, content = "png", picture.content
    source = base64.b64encode(content).decode()
    return tag(
        "figure",
        tag("img", src=f"data:image/{kind};base64,{source}", alt=picture.name),
        tag("figcaption", picture.name),
        class_="picture",
    )
