"""report: what the table and the CSV say of synthetic rows, and what is refused."""

import math
import re
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from eval_rows import Runs
from safetensors.numpy import save_file

from lengthgen.analysis.reference_results import anchors
from lengthgen.data.windows import position_bins
from lengthgen.errors import UserError
from lengthgen.report import collect
from lengthgen.report.figures.layout import MOST_NAMED


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


def rows_of(table: str) -> dict[str, list[str]]:
    """The cells of the first Markdown table by the first cell of each row."""
    lines = dropwhile(lambda line: not line.startswith("|"), table.splitlines())
    cells = [
        [cell.strip(" *=") for cell in row.strip("|").split("|")]
        for row in takewhile(lambda line: line.startswith("|"), lines)
    ]
    return {row[0]: row[1:] for row in cells}


def test_the_table_has_perplexity_per_length_and_the_ratio_of_the_longest_to_T(runs: Runs) -> None:
    table = collect.table([runs.write("rope", (math.log(20), 3.0, 4.0, math.log(45)))])
    rows = rows_of(table.split("Verdicts")[0])
    assert rows["scheme"] == ["seeds", "512", "1k", "2k", "16k", "16k/512"]
    assert rows["rope"] == ["1", "20.00", "20.09", "54.60", "45.00", "2.25"]


def test_the_table_says_why_a_cell_is_not_available(runs: Runs) -> None:
    table = collect.table([runs.write("rope"), runs.write("learned_absolute", (3.0,))])
    cells = rows_of(table)["learned_absolute"]
    assert cells == ["1", "20.09", "n/a (1)", "n/a (1)", "n/a (1)", "n/a"]
    assert "1. the table has 512 rows" in table


def test_the_table_shows_a_dash_where_nothing_was_evaluated(runs: Runs) -> None:
    table = collect.table([runs.write("rope"), runs.write("alibi", (3.0,), lengths=(512,))])
    assert rows_of(table)["alibi"] == ["1", "20.09", "-", "-", "-", "n/a"]
    assert "A dash: not evaluated." in table


def test_cells_that_were_evaluated_and_are_not_shown_are_said_with_the_command_that_helps(
    runs: Runs,
) -> None:
    paths = [runs.write("rope"), runs.write("alibi")]
    runs.write("alibi", (3.0,), lengths=(32768,), endpoints="deep", reach=32768)
    (said,) = [line for line in collect.table(paths).splitlines() if line.startswith("Not shown")]
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
    table = collect.table([path, other])
    (said,) = [line for line in table.splitlines() if line.startswith("Not shown")]
    assert "nonoverlap at 2k (other endpoints)" in said
    asked = "--lengths 512,1024,2048 --protocols nonoverlap"
    assert said.endswith(
        f"lengthgen eval {other.name} {asked} && lengthgen eval {path.name} {asked} --variants yarn"
    )


def test_cells_of_an_earlier_checkpoint_are_not_said_to_be_missing(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", (4.0,), tokens_seen=1024)
    assert "Not shown" not in collect.table([path])


def test_cells_that_were_also_evaluated_otherwise_are_said(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", (3.0,), lengths=(512,), precision="bf16")
    (said,) = [line for line in collect.table([path]).splitlines() if "Not shown" in line]
    assert said.startswith("Not shown: tail at 512 (bf16), evaluated otherwise than the rest")


def test_a_cell_that_lost_a_document_is_said(runs: Runs) -> None:
    path = runs.write("rope")
    log = path / "eval.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    (said,) = [line for line in collect.table([path]).splitlines() if "Not shown" in line]
    assert said.startswith(f"Not shown: tail at 16,384 of {path.name} has 1 of 2 documents")


def test_what_is_compared_with_the_headline_is_shown_under_its_condition(runs: Runs) -> None:
    path = runs.write("rope")
    for targets, loss in ((64, 3.1), (4096, 3.2)):
        runs.write("rope", (loss,), lengths=(1024,), protocol="swap", targets=targets)
    [swap] = [p for p in collect.gather([path]).points if p.protocol == "swap"]
    assert swap.targets == 64


def test_runs_of_two_definitions_of_one_variant_are_two_series(runs: Runs) -> None:
    paths = [
        runs.write("rope", seed=seed, variant="mine", parts_hash=parts)
        for seed, parts in ((1, "aaaaaaaa"), (2, "bbbbbbbb"))
    ]
    labels = set(collect.gather(paths).labels.values())
    assert labels == {"rope + mine (parts=aaaaaaaa)", "rope + mine (parts=bbbbbbbb)"}


def test_a_variant_that_was_evaluated_again_otherwise_has_its_last_numbers(runs: Runs) -> None:
    path = runs.write("rope", variant="mine", parts_hash="aaaaaaaa")
    runs.write("rope", (9.0,), lengths=(512,), variant="mine", parts_hash="bbbbbbbb")
    [point] = collect.gather([path]).points
    assert point.loss == 9.0


def test_a_run_that_was_stopped_midway_says_at_which_step(runs: Runs) -> None:
    paths = [runs.write(scheme, tokens_seen=4096) for scheme in ("rope", "alibi")]
    for path, tokens in zip(paths, (10_000, 4000), strict=True):
        config = path / "config.yaml"
        train = yaml.safe_dump({"train": {"tokens": tokens, "batch_tokens": 1024}})
        config.write_text(config.read_text() + train)
    (said,) = [line for line in collect.table(paths).splitlines() if "nfinished" in line]
    assert said.startswith(f"Unfinished: {paths[0].name} is at step 4 of 10; the command that")


def test_the_table_lists_a_run_without_rows_of_a_protocol(runs: Runs) -> None:
    one, two = runs.write("rope"), runs.write("alibi")
    runs.write("rope", protocol="nonoverlap", targets=None)
    whole = collect.markdown(collect.gather([one, two]))
    _, other = whole.split("Perplexity, nonoverlap")
    assert rows_of(other)["alibi"] == ["-"] * 6


def test_the_headline_table_comes_first(runs: Runs) -> None:
    path = runs.write("rope", protocol="nonoverlap", targets=None)
    runs.write("rope")
    whole = collect.markdown(collect.gather([path]))
    titles = [row for row in whole.splitlines() if row.startswith("Perplexity")]
    assert [title.split()[1] for title in titles] == ["matched", "nonoverlap:"]


def test_runs_that_differ_in_the_seed_alone_are_one_row(runs: Runs) -> None:
    rows = rows_of(collect.table([runs.write("rope"), runs.write("rope", seed=2)]))
    assert set(rows) == {"scheme", "-" * 6, "rope"}
    assert rows["rope"][0] == "2"


def test_a_report_is_figures_tables_numbers_and_a_page(runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    written = collect.write_report([runs.write("rope")], out)
    drawn = ["curve", "gain", "headline"]
    assert [path.name for path in written] == [
        *(f"{name}.{kind}" for name in drawn for kind in ("png", "svg")),
        *("table.md", "table.tex", "curve.csv", "findings.csv", "differences.csv", "report.html"),
    ]
    assert sorted(out.iterdir()) == sorted(written)
    for path in written:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG") == (path.suffix == ".png")
        assert (b"<svg" in content[:1000]) == (path.suffix == ".svg")


def test_rows_by_position_make_a_figure(runs: Runs) -> None:
    path = runs.write("rope")
    edges = position_bins(512, 1024)
    sums: dict[str, Any] = {
        "position_nats": [2.0] * len(edges),
        "position_tokens": [1] * len(edges),
    }
    about: dict[str, Any] = {"protocol": "per_position", "targets": None}
    runs.write("rope", (3.0,), lengths=(1024,), **about, **sums)
    found = collect.pictures(collect.gather([path]))
    assert {"positions.png", "positions.svg"} <= set(found)
    assert "curve-per_position.png" not in found  # one length is no curve


def test_panels_are_left_out_where_there_are_too_many_lines(runs: Runs) -> None:
    many = [
        runs.write(f"scheme{i}", (3.0, 2.0), lengths=(512, 1024)) for i in range(MOST_NAMED + 1)
    ]
    assert "headline.png" in collect.pictures(collect.gather(many[:2]))
    assert "headline.png" not in collect.pictures(collect.gather(many))


def test_altered_texts_have_no_figure_and_no_table_of_perplexity(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", (3.0, 3.0), lengths=(1024, 2048), protocol="swap")
    found = collect.gather([path])
    assert "curve-swap.png" not in collect.pictures(found)
    assert "Perplexity, swap" not in collect.markdown(found)


def test_references_are_the_variants_that_the_configuration_lists(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", variant="window")
    runs.write("rope", variant="yarn")
    config = path / "config.yaml"
    config.write_text(config.read_text() + "eval: {reference_variants: [window]}\n")
    lines = collect.gather([path]).by_protocol["tail"]
    assert [line.label for line in lines if line.reference] == ["rope + window"]


def test_runs_of_an_older_configuration_have_no_references(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", variant="window")
    assert not any(line.reference for line in collect.gather([path]).by_protocol["tail"])


def test_runs_that_are_not_alike_are_said_with_their_values(runs: Runs) -> None:
    paths = [runs.write("rope"), runs.write("alibi", train_length=1024, tokens_seen=8192)]
    said = [text for text in collect.gather(paths).remarks if text.startswith("Not like")]
    assert said == [
        "Not like with like: T is 1,024 (alibi (T=1024, 8,192 tokens)) and 512 (rope (T=512, "
        "4,096 tokens))",
        "Not like with like: tokens seen is 8,192 (alibi (T=1024, 8,192 tokens)) and 4,096 (rope "
        "(T=512, 4,096 tokens))",
    ]


def test_runs_that_are_alike_need_no_such_remark(runs: Runs) -> None:
    assert collect.gather([runs.write("rope"), runs.write("alibi")]).remarks == []


def test_anchors_are_those_of_the_evaluated_schemes(runs: Runs) -> None:
    found = collect.gather([runs.write("rope"), runs.write("bam")]).anchors
    assert {anchor.scheme for anchor in found} == {"rope"}


def test_no_published_perplexity_stands_in_a_table(runs: Runs, tmp_path: Path) -> None:
    collect.write_report([runs.write("alibi")], tmp_path)
    absolute = {f"{ppl:.2f}" for a in anchors() if a.scheme == "alibi" for ppl in a.ppl.values()}
    for name in ("table.md", "table.tex", "curve.csv", "findings.csv"):
        words = set(re.findall(r"[0-9.]+", (tmp_path / name).read_text()))
        assert words & absolute == set()


def test_a_group_is_all_runs_of_a_scheme(runs: Runs) -> None:
    one, two = runs.write("rope"), runs.write("rope", seed=2)
    other = runs.write("alibi")
    everyone = [one, other, two]
    assert collect.of_groups(everyone, ["rope"]) == [one, two]
    assert collect.of_groups(everyone, ["rope", "alibi"]) == everyone


def test_a_group_without_runs_is_refused_with_a_suggestion(runs: Runs) -> None:
    with pytest.raises(UserError, match="--group: no evaluated run of 'rop'; did you mean rope"):
        collect.of_groups([runs.write("rope")], ["rop"])


def test_the_page_is_given_what_the_run_directory_holds(runs: Runs) -> None:
    path = runs.write("rope")
    (path / "probes").mkdir()
    (path / "probes" / "receptive_field.svg").write_text("<svg/>")
    (path / "env.json").write_text('{"commit": "abc"}')
    (path / "train.jsonl").write_text('{"train/tokens": 100, "train/tokens_per_s": 50.0}\n')
    (path / "checkpoints" / "step-1").mkdir(parents=True)
    save_file({"w": np.zeros((3, 4))}, path / "checkpoints" / "step-1" / "model.safetensors")
    given = collect.exhibits(collect.gather([path]), [path])
    assert given.pictures[path.name] == [("receptive field", "<svg/>")]
    assert given.environments == {path.name: {"commit": "abc"}}
    cost = given.costs[path.name]
    assert (cost.parameters, cost.tokens, cost.seconds) == (12, 100, 2.0)


def test_a_run_directory_without_them_makes_a_page_too(runs: Runs) -> None:
    path = runs.write("rope")
    (path / "checkpoints" / "step-1").mkdir(parents=True)
    (path / "checkpoints" / "step-1" / "model.safetensors").write_bytes(b"damaged")
    given = collect.exhibits(collect.gather([path]), [path])
    assert (given.pictures, given.environments) == ({path.name: []}, {})
    assert given.costs[path.name].parameters is None


def test_other_protocols_have_figures_of_their_own_name(runs: Runs, tmp_path: Path) -> None:
    path = runs.write("rope")
    runs.write("rope", protocol="nonoverlap", targets=None)
    written = {path.name for path in collect.write_report([path], tmp_path / "out")}
    assert {"curve.png", "curve-nonoverlap.png", "curve-nonoverlap.svg"} <= written


def test_a_directory_that_cannot_be_made_is_refused(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file.*: cannot be written \(.*\); give --out DIR"):
        collect.write_report([runs.write("rope")], tmp_path / "file")


def test_a_run_without_evaluation_is_refused_with_the_command(runs: Runs) -> None:
    empty = runs.root / "rope-tiny-toy-s1-0a0a0a0a"
    empty.mkdir(parents=True)
    with pytest.raises(UserError, match=f"no evaluation in .*; run lengthgen eval {empty.name}"):
        collect.read([empty])


def test_a_run_of_incomplete_cells_is_refused_with_the_command(runs: Runs) -> None:
    half = runs.write("alibi", n_documents=3)
    with pytest.raises(UserError, match=f"no complete evaluation in {half.name}; run lengthgen"):
        collect.gather([runs.write("rope"), half])


def test_no_run_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="no run is named"):
        collect.read([])


def test_a_run_named_twice_counts_once(runs: Runs) -> None:
    path = runs.write("rope")
    assert collect.table([path, path.parent / "." / path.name]) == collect.table([path])


def test_two_runs_of_one_name_are_refused(runs: Runs, tmp_path: Path) -> None:
    other = Runs(tmp_path / "others").write("rope")
    with pytest.raises(UserError, match=r"lies in .*runs and in .*others; name one"):
        collect.read([runs.write("rope"), other])


@pytest.mark.parametrize("content", [None, "- a\n- b\n", "a: [", b"\xff\xfe\x00"])
def test_a_damaged_configuration_is_refused(runs: Runs, content: str | bytes | None) -> None:
    path = runs.write("rope")
    (path / "config.yaml").unlink()
    if content is not None:
        raw = content if isinstance(content, bytes) else content.encode()
        (path / "config.yaml").write_bytes(raw)
    with pytest.raises(UserError, match=r"config\.yaml( is damaged|$)"):
        collect.gather([path])


def test_runs_on_different_tokens_are_refused_in_a_report(runs: Runs) -> None:
    one, other = runs.write("rope"), runs.write("alibi", fingerprint="e" * 64)
    with pytest.raises(UserError, match="were measured on different tokens"):
        collect.table([one, other])
