"""report: what the table and the CSV say of synthetic rows, and what is refused."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from eval_rows import Runs

from lengthgen import report
from lengthgen.errors import UserError


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


def rows_of(table: str) -> dict[str, list[str]]:
    """The cells of a Markdown table by the first cell of each row."""
    cells = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in table.splitlines()
        if row.startswith("|")
    ]
    return {row[0]: row[1:] for row in cells}


def test_the_table_has_perplexity_per_length_and_the_ratio_of_the_longest_to_T(runs: Runs) -> None:
    rows = rows_of(report.table([runs.write("rope", (math.log(20), 3.0, 4.0, math.log(45)))]))
    assert rows["scheme"] == ["seeds", "512", "1k", "2k", "16k", "16k/512"]
    assert rows["rope"] == ["1", "20.00", "20.09", "54.60", "45.00", "2.25"]


def test_the_table_says_why_a_cell_is_not_available(runs: Runs) -> None:
    table = report.table([runs.write("rope"), runs.write("learned_absolute", (3.0,))])
    cells = rows_of(table)["learned_absolute"]
    assert cells == ["1", "20.09", "n/a (1)", "n/a (1)", "n/a (1)", "n/a"]
    assert "1. the table has 512 rows" in table


def test_the_table_shows_a_dash_where_nothing_was_evaluated(runs: Runs) -> None:
    table = report.table([runs.write("rope"), runs.write("alibi", (3.0,), lengths=(512,))])
    assert rows_of(table)["alibi"] == ["1", "20.09", "-", "-", "-", "n/a"]
    assert "`-`: not evaluated" in table


def test_cells_that_were_evaluated_and_are_not_shown_are_said_with_the_command_that_helps(
    runs: Runs,
) -> None:
    paths = [runs.write("rope"), runs.write("alibi")]
    runs.write("alibi", (3.0,), lengths=(32768,), endpoints="deep", reach=32768)
    (said,) = [line for line in report.table(paths).splitlines() if line.startswith("Not shown")]
    command = f"lengthgen eval {paths[1].name} {paths[0].name} --lengths 512,1024,2048,16384,32768"
    assert said == (
        "Not shown: tail at 32k (endpoints 32,768 deep), evaluated otherwise than the rest. "
        f"All in one table: {command}"
    )


def test_the_command_for_hidden_cells_names_their_protocol_and_variants(runs: Runs) -> None:
    path, other = runs.write("rope"), runs.write("alibi")
    about: dict[str, Any] = {"protocol": "nonoverlap", "targets": None}
    for variant in (None, "yarn"):
        runs.write("rope", (3, 3), lengths=(512, 1024), variant=variant, **about)
        runs.write("rope", (3,), lengths=(2048,), variant=variant, endpoints="other", **about)
    runs.write("alibi", (3, 3), lengths=(512, 1024), **about)
    table = report.table([path, other])
    (said,) = [line for line in table.splitlines() if line.startswith("Not shown")]
    assert "nonoverlap at 2k (other endpoints)" in said
    asked = "--lengths 512,1024,2048 --protocols nonoverlap"
    assert said.endswith(
        f"lengthgen eval {other.name} {asked} && lengthgen eval {path.name} {asked} --variants yarn"
    )


def test_cells_that_are_shown_under_another_condition_are_not_said(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", (3.0,), lengths=(512,), precision="bf16")
    runs.write("rope", (4.0,), tokens_seen=1024)
    assert "Not shown" not in report.table([path])


def test_a_run_that_was_stopped_midway_says_at_which_step(runs: Runs) -> None:
    paths = [runs.write(scheme, tokens_seen=4096) for scheme in ("rope", "alibi")]
    for path, tokens in zip(paths, (10_000, 4000), strict=True):
        config = path / "config.yaml"
        train = yaml.safe_dump({"train": {"tokens": tokens, "batch_tokens": 1024}})
        config.write_text(config.read_text() + train)
    (said,) = [line for line in report.table(paths).splitlines() if "nfinished" in line]
    assert said.startswith(f"Unfinished: {paths[0].name} is at step 4 of 10; the command that")


def test_the_table_lists_a_run_without_rows_of_a_protocol(runs: Runs) -> None:
    one, two = runs.write("rope"), runs.write("alibi")
    runs.write("rope", protocol="nonoverlap", targets=None)
    _, other = report.table([one, two]).split("Perplexity, nonoverlap")
    assert rows_of(other)["alibi"] == ["-"] * 6


def test_the_headline_table_comes_first(runs: Runs) -> None:
    path = runs.write("rope", protocol="nonoverlap", targets=None)
    runs.write("rope")
    titles = [row for row in report.table([path]).splitlines() if row.startswith("Perplexity")]
    assert [title.split()[1] for title in titles] == ["matched", "nonoverlap:"]


def test_runs_that_differ_in_the_seed_alone_are_one_row(runs: Runs) -> None:
    rows = rows_of(report.table([runs.write("rope"), runs.write("rope", seed=2)]))
    assert set(rows) == {"scheme", "-" * 6, "rope"}
    assert rows["rope"][0] == "2"


def test_the_csv_parses_back_to_the_same_numbers(runs: Runs, tmp_path: Path) -> None:
    path = runs.write("rope", (3.1, 1 / 3, 7.7))
    report.write_report([path], tmp_path / "out")
    with (tmp_path / "out" / "curve.csv").open(newline="") as file:
        parsed = list(csv.DictReader(file))
    for point, row in zip(report.gather([path]).points, parsed, strict=True):
        for name in ("loss", "ppl", "bits_per_byte"):
            number = getattr(point, name)
            assert row[name] == "" if number is None else float(row[name]) == number
        assert int(row["length"]) == point.length
        assert row["skipped"] == (point.skipped or "")


def test_the_csv_holds_gain_and_ratio_of_the_headline(runs: Runs) -> None:
    parsed = list(csv.DictReader(report.long_csv(report.gather([runs.write("rope")])).splitlines()))
    assert [float(row["context_gain"]) for row in parsed] == [0.0, 0.5, -1.0, -2.0]
    assert float(parsed[-1]["ratio_to_T"]) == math.exp(2.0)


def test_a_report_is_two_figures_a_table_and_a_csv(runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    written = report.write_report([runs.write("rope")], out)
    assert [path.name for path in written] == ["curve.png", "curve.svg", "table.md", "curve.csv"]
    assert sorted(out.iterdir()) == sorted(written)
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in written[1].read_bytes()


def test_other_protocols_have_figures_of_their_own_name(runs: Runs, tmp_path: Path) -> None:
    path = runs.write("rope")
    runs.write("rope", protocol="nonoverlap", targets=None)
    written = {path.name for path in report.write_report([path], tmp_path / "out")}
    assert {"curve.png", "curve-nonoverlap.png", "curve-nonoverlap.svg"} <= written


def test_a_directory_that_cannot_be_made_is_refused(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file.*: cannot be written \(.*\); give --out DIR"):
        report.write_report([runs.write("rope")], tmp_path / "file")


def test_a_run_without_evaluation_is_refused_with_the_command(runs: Runs) -> None:
    empty = runs.root / "rope-tiny-toy-s1-0a0a0a0a"
    empty.mkdir(parents=True)
    with pytest.raises(UserError, match=f"no evaluation in .*; run lengthgen eval {empty.name}"):
        report.read([empty])


def test_a_run_of_incomplete_cells_is_refused_with_the_command(runs: Runs) -> None:
    half = runs.write("alibi", n_documents=3)
    with pytest.raises(UserError, match=f"no complete evaluation in {half.name}; run lengthgen"):
        report.gather([runs.write("rope"), half])


def test_no_run_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="no run is named"):
        report.read([])


def test_a_run_named_twice_counts_once(runs: Runs) -> None:
    path = runs.write("rope")
    assert report.table([path, path.parent / "." / path.name]) == report.table([path])


def test_two_runs_of_one_name_are_refused(runs: Runs, tmp_path: Path) -> None:
    other = Runs(tmp_path / "others").write("rope")
    with pytest.raises(UserError, match=r"lies in .*runs and in .*others; name one"):
        report.read([runs.write("rope"), other])


@pytest.mark.parametrize("content", [None, "- a\n- b\n", "a: [", b"\xff\xfe\x00"])
def test_a_damaged_configuration_is_refused(runs: Runs, content: str | bytes | None) -> None:
    path = runs.write("rope")
    (path / "config.yaml").unlink()
    if content is not None:
        raw = content if isinstance(content, bytes) else content.encode()
        (path / "config.yaml").write_bytes(raw)
    with pytest.raises(UserError, match=r"config.yaml: missing or damaged"):
        report.gather([path])


def test_runs_on_different_tokens_are_refused_in_a_report(runs: Runs) -> None:
    one, other = runs.write("rope"), runs.write("alibi", fingerprint="e" * 64)
    with pytest.raises(UserError, match="were measured on different tokens"):
        report.table([one, other])
