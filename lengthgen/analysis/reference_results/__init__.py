"""Published numbers: perplexities over length as ratios to that at T, accuracies of tasks.

README.md says where they are from.
"""

import csv
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class PublishedCurve:
    """A published curve: one scheme in one table. Perplexities are known at T among others."""

    source: str
    citation: str  # authors and year
    arxiv: str
    table: str
    corpus: str
    params: str
    protocol: str  # as it is called here: the one that scores the same tokens
    scheme: str  # as it is called here
    train_length: int
    note: str  # what differs from the scheme of that name, or is uncertain; may be empty
    ppl: dict[int, float]  # by length; without the lengths at which memory did not suffice

    def ratios(self) -> dict[float, float]:
        """Returns ppl(C) / ppl(T) by C / T."""
        at_T = self.ppl[self.train_length]
        return {n / self.train_length: ppl / at_T for n, ppl in self.ppl.items()}


@dataclass(frozen=True, kw_only=True)
class PublishedAccuracy:
    """A published accuracy: the mean over unseen lengths, train_length + 1 to test_length."""

    citation: str
    arxiv: str
    task: str  # as it is called here; some have no counterpart
    scheme: str  # as it is called here
    note: str  # what differs from the scheme of that name; may be empty
    train_length: int
    test_length: int
    accuracy: float


def accuracies() -> list[PublishedAccuracy]:
    """Returns the published accuracies of tasks, in the order of the file."""
    sources = {row["source"]: row for row in _rows("sources.csv")}
    about = ("source", "what", "name", "task", "train_length", "test_length")
    return [
        PublishedAccuracy(
            citation=sources[row["source"]]["citation"],
            arxiv=sources[row["source"]]["arxiv"],
            task=row["name"],
            scheme=re.sub(r"_partial\d+$", "", column),
            note=re.sub(r"^.*_partial(\d+)$|^.*$", lambda m: _partial(m[1]), column),
            train_length=int(row["train_length"]),
            test_length=int(row["test_length"]),
            accuracy=float(row[column]),
        )
        for row in _rows("task_accuracy.csv")
        for column in row
        if column not in about
    ]


def _partial(percent: str | None) -> str:
    return f"{percent}% of the channels rotated" if percent else ""


def published_curves() -> list[PublishedCurve]:
    """Returns the published curves of two lengths or more, in the order of the file."""
    sources = {row["source"]: row for row in _rows("sources.csv")}
    curves: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in _rows("perplexity.csv"):
        key = tuple(row[name] for name in ("table", "protocol", "scheme", "train_length"))
        curves.setdefault(key, []).append(row)
    return [_anchor(rows, sources[rows[0]["source"]]) for rows in curves.values() if len(rows) > 1]


def _anchor(rows: list[dict[str, str]], source: dict[str, str]) -> PublishedCurve:
    first = rows[0]
    ppl = {int(row["length"]): float(row["ppl"]) for row in rows if row["ppl"]}
    return PublishedCurve(
        source=first["source"],
        citation=source["citation"],
        arxiv=source["arxiv"],
        table=first["table"],
        corpus=first["corpus"],
        params=first["params"],
        protocol=first["protocol"],
        scheme=first["scheme"],
        train_length=int(first["train_length"]),
        note="; ".join(dict.fromkeys(row["note"] for row in rows if row["ppl"] and row["note"])),
        ppl=dict(sorted(ppl.items())),
    )


def _rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
