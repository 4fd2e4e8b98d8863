"""Checkpoints before the last are shown by their tokens, and in nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import CONFIG, frame

from lengthgen.report import report
from lengthgen.report.report import ReportSection
from lengthgen.report.statistics import findings

TOKENS = (1000, 2000, 4000)
LAST = 4000


def loss_at(tokens: int, scale: float) -> Any:
    """Returns a loss that falls with tokens, and rises beyond T = 512 the more of them."""

    def loss(seed: int, document: str, length: int) -> float:
        noise = (seed * 7 + ord(document) * 3 + length) % 11 / 300
        beyond = np.log2(max(length, 512) / 512)
        return 5 - scale * np.log10(tokens) / 2 + scale * beyond * tokens / 9000 + noise

    return loss


def rows_of(*schemes: str, tokens: tuple[int, ...] = TOKENS) -> pd.DataFrame:
    """Returns the rows of three seeds of schemes at checkpoints."""
    tables: list[pd.DataFrame] = []
    for n, (i, scheme) in ((n, each) for n in tokens for each in enumerate(schemes)):
        config = {**CONFIG, "scheme": {"name": scheme, "parts": {scheme: {}}, "variants": {}}}
        about: dict[str, Any] = {"scheme": scheme, "config": config, "weights": f"{scheme}{n}"}
        lengths = (256, 512, 1024, 4096, 8192)
        loss = loss_at(n, 1 + i / 9)
        tables.append(frame(loss, lengths=lengths, tokens_seen=n, **about))
    return pd.concat(tables, ignore_index=True)


def shown_of(rows: pd.DataFrame) -> ReportSection:
    (section,) = (s for s in report.sections(rows) if s.title.startswith("Over training"))
    return section


def lines_of(section: ReportSection, name: str) -> list[dict[float, float]]:
    """Returns the lines of each panel of a figure that have a value at every checkpoint."""
    return [
        dict(zip(line.get_xdata(), line.get_ydata(), strict=True))  # pyright: ignore[reportArgumentType]
        for axes in section.figures[name].axes
        for line in axes.lines
        if len(line.get_xdata()) == len(TOKENS)  # pyright: ignore[reportArgumentType]
    ]


def test_earlier_checkpoints_change_nothing_of_what_is_shown_of_the_last(tmp_path: Path) -> None:
    every, last = rows_of("rope", "alibi"), rows_of("rope", "alibi", tokens=(LAST,))
    several, alone = tmp_path / "several", tmp_path / "alone"
    report.write_pages(every, report.sections(every), several)
    report.write_pages(last, report.sections(last), alone)
    written = {p.name: p.read_bytes() for p in alone.iterdir()}
    assert not [name for name in written if "training" in name]
    for name in ("curves.csv", "curve.svg", "gain.svg"):
        assert (several / name).read_bytes() == written[name]
    assert (several / "table.md").read_bytes().startswith(written["table.md"])
    assert b"Over training" in (several / "report.html").read_bytes()
    assert findings(every).equals(findings(last))


def test_an_incomplete_last_checkpoint_is_not_replaced_by_an_earlier_one() -> None:
    rows = rows_of("rope", "alibi")
    lost = (rows["tokens_seen"] == LAST) & (rows["document"] == "a") & (rows["scheme"] == "rope")
    assert {*findings(rows.loc[~lost])["series"]} == {"alibi"}


def test_a_seed_without_earlier_checkpoints_is_left_out_over_training() -> None:
    rows = rows_of("rope", "alibi")
    alone = (rows["seed"] == 2) & (rows["tokens_seen"] < LAST)
    assert lines_of(shown_of(rows.loc[~alone]), "training") == lines_of(
        shown_of(rows.loc[rows["seed"] != 2]), "training"
    )
    assert findings(rows.loc[~alone]).equals(findings(rows))


def test_lines_go_through_what_each_checkpoint_alone_shows() -> None:
    rows = rows_of("rope", "alibi")
    section = shown_of(rows)
    alone = {n: findings(rows.loc[rows["tokens_seen"] == n]) for n in TOKENS}

    def values(quantity: str, length: int) -> list[dict[float, float]]:
        """Returns the value by tokens of each series."""
        by_series: dict[str, dict[float, float]] = {}
        for n, known in alone.items():
            own = known[(known["quantity"] == quantity) & (known["length"] == length)]
            for series, value in zip(own["series"], own["value"], strict=True):
                by_series.setdefault(series.partition(" (")[0], {})[n] = value
        return [by_series[name] for name in sorted(by_series)]

    losses = values("loss", 512)
    assert lines_of(section, "training") == [pytest.approx(line) for line in losses]
    gains = [line for length in (1024, 4096) for line in values("gain", length)]
    assert lines_of(section, "training-gain") == [pytest.approx(line) for line in gains]
    by_loss = [
        {loss[n]: gain[n] for n in loss} for gain, loss in zip(gains, losses * 2, strict=True)
    ]
    assert lines_of(section, "training-gain-by-loss") == [pytest.approx(line) for line in by_loss]
    assert {
        axes.get_xlim()[0] > axes.get_xlim()[1]
        for axes in section.figures["training-gain-by-loss"].axes
        if axes.axison
    } == {True}


def test_tables_have_a_column_for_each_checkpoint_and_a_verdict_at_each() -> None:
    perplexity, c_star, *gains = shown_of(rows_of("rope", "alibi")).tables
    for table in (perplexity, c_star, *gains):
        assert [*table.head[2:]] == ["1,000", "2,000", "4,000"]
        assert sorted(row[0].text for row in table.rows) == ["alibi", "rope"]
    assert [table.title.split()[2] for table in gains] == ["1k", "4k"]
    for row in perplexity.rows:
        values = [float(cell.text) for cell in row[2:]]
        assert values == sorted(values, reverse=True)
    assert {
        cell.text.split()[0].rstrip("*")
        for table in gains
        for row in table.rows
        for cell in row[2:]
    } <= {
        "harmed",
        "unclear",
    }


def test_many_series_have_a_panel_each() -> None:
    names = ["alibi", "cope", "fire", "fox", "kerple", "nope", "rope", "t5", "xpos"]
    for figure in shown_of(rows_of(*names)).figures.values():
        panels = [axes for axes in figure.axes if axes.axison]
        assert sorted(axes.get_title(loc="left") for axes in panels) == names


def test_a_series_without_earlier_checkpoints_stands_in_the_curve_alone() -> None:
    rows = pd.concat([rows_of("rope"), rows_of("alibi", tokens=(LAST,))], ignore_index=True)
    assert {row[0].text for table in shown_of(rows).tables for row in table.rows} == {"rope"}
