"""Colours, markers and line styles: a scheme looks alike in every figure."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lengthgen.analysis.seed_groups import Series

# Okabe-Ito and Tol's muted set without their light colours: told apart on white with any eyes.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#332288", "#882255", "#999933", "#117733", "#AA4499", "#666666"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
SALT = 48036  # of the hash of a scheme's name; with this one the classic schemes do not collide


@dataclass(frozen=True, kw_only=True)
class Look:
    """Colour and marker of a scheme."""

    colour: str
    marker: str


def looks(schemes: Iterable[str]) -> dict[str, Look]:
    """Returns a look for each scheme, by a hash of its name, no two alike.

    A scheme whose slot an alphabetically earlier one holds takes the next slot that no scheme of
    this figure wants, so the others keep theirs.
    """
    n = len(COLOURS)
    slots: dict[int, str] = {}
    displaced: list[str] = []
    for name in sorted(set(schemes)):
        if slots.setdefault(_slot(name), name) != name:
            displaced.append(name)
    for name in displaced:
        tried = (turn * n + (_slot(name) + i) % n for turn in itertools.count() for i in range(n))
        slots[next(slot for slot in tried if slot not in slots)] = name
    return {
        name: Look(colour=COLOURS[slot % n], marker=MARKERS[(slot + slot // n) % len(MARKERS)])
        for slot, name in slots.items()
    }


def _slot(scheme: str) -> int:
    digest = hashlib.sha256(f"{SALT}:{scheme}".encode()).digest()
    return int.from_bytes(digest[:8]) % len(COLOURS)


def line_looks(lines: Sequence[Series]) -> dict[str, dict[str, Any]]:
    """Returns the drawing arguments of each label: a scheme's look, a line style per series.

    A reference has the colour of its scheme and no marker.
    """
    by_scheme = looks(line.scheme for line in lines)
    found: dict[str, dict[str, Any]] = {}
    n_drawn = Counter[str]()
    for line in sorted(lines, key=lambda line: (line.variant is not None, line.label)):
        look = by_scheme[line.scheme]
        if line.reference:
            found[line.label] = {"color": look.colour, "marker": "", "linestyle": (0, (3, 2))}
            continue
        n = n_drawn[line.scheme]
        n_drawn[line.scheme] += 1
        found[line.label] = {
            "color": look.colour,
            "marker": look.marker,
            "linestyle": DASHES[n % len(DASHES)],
            "markerfacecolor": "white" if n // len(DASHES) % 2 else look.colour,
        }
    return found
