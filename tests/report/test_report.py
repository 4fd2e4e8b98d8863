"""report: what the table and the CSV say of synthetic rows, and what is refused."""

import gzip
import json
import math
import os
import re
import shutil
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from eval_rows import Runs, gathered, row, table_of
from repository import ROOT
from safetensors.numpy import save_file

from lengthgen.analysis.reference_results import published_curves
from lengthgen.config import compose
from lengthgen.data.windows import position_bins
from lengthgen.errors import UserError
from lengthgen.evaluation import rows as eval_rows
from lengthgen.report import collect, pictures, run_records, study, write
from lengthgen.report.collect import Report
from lengthgen.report.figures.layout import MOST_NAMED, panels
from lengthgen.runs import directory, status

OTHER = "rope-tiny-toy-s2-0b0b0b0b"


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


def markdown(report: Report) -> str:
    return collect.markdown(collect.contents(report), report.remarks)


def test_the_table_has_perplexity_per_length_and_the_ratio_of_the_longest_to_T(runs: Runs) -> None:
    table = table_of(runs.write("rope", (math.log(20), 3.0, 4.0, math.log(45))))
    rows = rows_of(table.split("Verdicts")[0])
    assert rows["scheme"] == ["seeds", "512", "1k", "2k", "16k", "16k/512"]
    assert rows["rope"] == ["1", "20.00", "20.09", "54.60", "45.00", "2.25"]


def test_the_table_says_why_a_cell_is_not_available(runs: Runs) -> None:
    table = table_of(runs.write("rope"), runs.write("learned_absolute", (3.0,)))
    cells = rows_of(table)["learned_absolute"]
    assert cells == ["1", "20.09", "n/a (1)", "n/a (1)", "n/a (1)", "n/a"]
    assert "1. the table has 512 rows" in table


def test_the_table_shows_a_dash_where_nothing_was_evaluated(runs: Runs) -> None:
    table = table_of(runs.write("rope"), runs.write("alibi", (3.0,), lengths=(512,)))
    assert rows_of(table)["alibi"] == ["1", "20.09", "-", "-", "-", "n/a"]
    assert "A dash: not evaluated." in table


def test_cells_that_were_evaluated_and_are_not_shown_are_said_with_the_command_that_helps(
    runs: Runs,
) -> None:
    paths = [runs.write("rope"), runs.write("alibi")]
    runs.write("alibi", (3.0,), lengths=(32768,), endpoints="deep", reach=32768)
    (said,) = [line for line in table_of(*paths).splitlines() if line.startswith("Not shown")]
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
    table = table_of(path, other)
    (said,) = [line for line in table.splitlines() if line.startswith("Not shown")]
    assert "nonoverlap at 2k (other endpoints)" in said
    asked = "--lengths 512,1024,2048 --protocols nonoverlap"
    assert said.endswith(
        f"lengthgen eval {other.name} {asked} && lengthgen eval {path.name} {asked} --variants yarn"
    )


def test_cells_of_an_earlier_checkpoint_are_not_said_to_be_missing(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", (4.0,), tokens_seen=1024)
    assert "Not shown" not in table_of(path)


def test_cells_that_were_also_evaluated_otherwise_are_said(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", (3.0,), lengths=(512,), precision="bf16")
    (said,) = [line for line in table_of(path).splitlines() if "Not shown" in line]
    assert said.startswith("Not shown: tail at 512 (bf16), evaluated otherwise than the rest")


def test_a_cell_that_lost_a_document_is_said(runs: Runs) -> None:
    path = runs.write("rope")
    log = path / "eval.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    (said,) = [line for line in table_of(path).splitlines() if "Not shown" in line]
    assert said.startswith(f"Not shown: tail at 16,384 of {path.name} has 1 of 2 documents")


def test_what_is_compared_with_the_headline_is_shown_under_its_condition(runs: Runs) -> None:
    path = runs.write("rope")
    for targets, loss in ((64, 3.1), (4096, 3.2)):
        runs.write("rope", (loss,), lengths=(1024,), protocol="swap", targets=targets)
    [swap] = [p for p in gathered(path).points if p.protocol == "swap"]
    assert swap.targets == 64


def test_runs_of_two_definitions_of_one_variant_are_two_series(runs: Runs) -> None:
    paths = [
        runs.write("rope", seed=seed, variant="mine", parts_hash=parts)
        for seed, parts in ((1, "aaaaaaaa"), (2, "bbbbbbbb"))
    ]
    labels = {line.label for line in gathered(*paths).lines}
    assert labels == {"rope + mine (parts=aaaaaaaa)", "rope + mine (parts=bbbbbbbb)"}


def test_a_variant_that_was_evaluated_again_otherwise_has_its_last_numbers(runs: Runs) -> None:
    path = runs.write("rope", variant="mine", parts_hash="aaaaaaaa")
    runs.write("rope", (9.0,), lengths=(512,), variant="mine", parts_hash="bbbbbbbb")
    [point] = gathered(path).points
    assert point.loss == 9.0


def test_a_run_that_was_stopped_midway_says_at_which_step(runs: Runs) -> None:
    paths = [runs.write(scheme, tokens_seen=4096) for scheme in ("rope", "alibi")]
    for path, tokens in zip(paths, (10_000, 4000), strict=True):
        config = path / "config.yaml"
        train = yaml.safe_dump({"train": {"tokens": tokens, "batch_tokens": 1024}})
        config.write_text(config.read_text() + train)
    (said,) = [line for line in table_of(*paths).splitlines() if "nfinished" in line]
    assert said.startswith(f"Unfinished: {paths[0].name} is at step 4 of 10; the command that")


@pytest.mark.parametrize(
    "train", [{"tokens": 10_000}, {"tokens": None, "batch_tokens": 1024}, {"batch_tokens": 1024}]
)
def test_a_configuration_without_a_budget_is_not_unfinished(
    runs: Runs, train: dict[str, int | None]
) -> None:
    path = runs.write("rope", tokens_seen=4096)
    config = path / "config.yaml"
    config.write_text(config.read_text() + yaml.safe_dump({"train": train}))
    assert "nfinished" not in table_of(path)


def test_a_rate_that_is_no_number_is_said_in_one_line(runs: Runs) -> None:
    path = runs.write("rope")
    config = path / "config.yaml"
    plain = yaml.safe_load(config.read_text())
    plain["scheme"]["lr_ratio"] = "x"
    config.write_text(yaml.safe_dump(plain))
    with pytest.raises(UserError, match=r"config\.yaml is damaged: .*lr_ratio"):
        table_of(path)


def test_the_table_lists_a_run_without_rows_of_a_protocol(runs: Runs) -> None:
    one, two = runs.write("rope"), runs.write("alibi")
    runs.write("rope", protocol="nonoverlap", targets=None)
    whole = markdown(gathered(one, two))
    _, other = whole.split("Perplexity, nonoverlap")
    assert rows_of(other)["alibi"] == ["-"] * 6


def test_the_headline_table_comes_first(runs: Runs) -> None:
    path = runs.write("rope", protocol="nonoverlap", targets=None)
    runs.write("rope")
    whole = markdown(gathered(path))
    titles = [row for row in whole.splitlines() if row.startswith("Perplexity")]
    assert [title.split()[1] for title in titles] == ["matched", "nonoverlap:"]


def test_runs_that_differ_in_the_seed_alone_are_one_row(runs: Runs) -> None:
    rows = rows_of(table_of(runs.write("rope"), runs.write("rope", seed=2)))
    assert set(rows) == {"scheme", "-" * 6, "rope"}
    assert rows["rope"][0] == "2"


def test_a_report_is_figures_tables_numbers_and_a_page(runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    written = write.write_report(study.from_runs([runs.write("rope")]), out)
    drawn = ["curve", "gain", "headline"]
    assert [path.name for path in written] == [
        *(f"{name}.{kind}" for name in drawn for kind in ("png", "svg")),
        *("table.md", "table.tex", "curve.csv", "findings.csv", "differences.csv", "report.html"),
        *("rows.jsonl.gz", "manifest.json"),
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
    found = pictures.draw_text(gathered(path))
    assert {"positions.png", "positions.svg"} <= set(found)
    assert "curve-per_position.png" not in found  # one length is no curve


@pytest.mark.slow
def test_panels_are_left_out_where_there_are_too_many_lines(runs: Runs) -> None:
    many = [
        runs.write(f"scheme{i}", (3.0, 2.0), lengths=(512, 1024)) for i in range(MOST_NAMED + 1)
    ]
    assert "headline.png" in pictures.draw_text(gathered(*many[:2]))
    assert "headline.png" not in pictures.draw_text(gathered(*many))


@pytest.mark.slow
def test_runs_of_two_lengths_of_training_have_a_row_of_panels_each_in_the_same_colours(
    runs: Runs,
) -> None:
    paths = [
        runs.write(name, train_length=T, suffix=f"{T:08d}", parts={name: {}, "length": {"T": T}})
        for T, names in ((1024, "bcdg"), (512, "abcdef"))
        for name in (f"scheme_{letter}" for letter in names)
    ]
    found = gathered(*paths)
    first, second = pictures.by_train_length(found)
    assert [chart.trained for chart in (*first, *second)] == [[512], [512], [1024], [1024]]
    assert {line.name for line in first[0].shown} == {f"scheme_{letter}" for letter in "abcdef"}
    assert {line.name for line in second[0].shown} == {f"scheme_{letter}" for letter in "bcdg"}
    looks: dict[str, set[str]] = {}
    for chart in (*first, *second):
        for line in chart.shown:
            looks.setdefault(line.name, set()).add(f"{line.style}")
    assert [len(styles) for styles in looks.values()] == [1] * 7
    assert len(set[str].union(*looks.values())) == 7
    [legend] = panels([*first, *second], rows=2).legends
    assert {text.get_text() for text in legend.get_texts()} == {*looks}
    assert "headline.png" in pictures.draw_text(found)


def test_altered_texts_have_no_figure_and_no_table_of_perplexity(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", (3.0, 3.0), lengths=(1024, 2048), protocol="swap")
    found = gathered(path)
    assert "curve-swap.png" not in pictures.draw_text(found)
    assert "Perplexity, swap" not in markdown(found)


def test_references_are_the_variants_that_the_configuration_lists(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", variant="window")
    runs.write("rope", variant="yarn")
    config = path / "config.yaml"
    config.write_text(config.read_text() + "eval: {reference_variants: [window]}\n")
    lines = gathered(path).by_protocol["tail"]
    assert [line.label for line in lines if line.reference] == ["rope + window"]


def test_runs_of_an_older_configuration_have_no_references(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", variant="window")
    assert not any(line.reference for line in gathered(path).by_protocol["tail"])


def test_runs_that_are_not_alike_are_said_with_their_values(runs: Runs) -> None:
    paths = [runs.write("rope"), runs.write("alibi", train_length=1024, tokens_seen=8192)]
    said = [text for text in gathered(*paths).remarks if text.startswith("Not like")]
    assert said == [
        "Not like with like: T is 1,024 (alibi (T=1024, 8,192 tokens)) and 512 (rope (T=512, "
        "4,096 tokens))",
        "Not like with like: tokens seen is 8,192 (alibi (T=1024, 8,192 tokens)) and 4,096 (rope "
        "(T=512, 4,096 tokens))",
    ]


def test_runs_that_are_alike_need_no_such_remark(runs: Runs) -> None:
    assert gathered(runs.write("rope"), runs.write("alibi")).remarks == []


def test_anchors_are_those_of_the_evaluated_schemes(runs: Runs) -> None:
    found = gathered(runs.write("rope"), runs.write("bam")).published_curves
    assert {paper.scheme for paper in found} == {"rope"}


def test_no_published_perplexity_stands_in_a_table(runs: Runs, tmp_path: Path) -> None:
    write.write_report(study.from_runs([runs.write("alibi")]), tmp_path)
    absolute = {
        f"{ppl:.2f}" for a in published_curves() if a.scheme == "alibi" for ppl in a.ppl.values()
    }
    for name in ("table.md", "table.tex", "curve.csv", "findings.csv"):
        words = set(re.findall(r"[0-9.]+", (tmp_path / name).read_text()))
        assert words & absolute == set()


def test_runs_are_selected_by_the_words_that_trained_them(runs: Runs) -> None:
    one, two = runs.write("rope"), runs.write("rope", seed=2)
    other = runs.write("alibi")
    everyone = [one, other, two]

    def selected(*words: str) -> list[Path]:
        conditions = compose.alternatives(words)
        return run_records.selected_dirs(everyone, conditions, say=pytest.fail)

    assert selected() == selected("scheme=rope,alibi") == everyone
    assert selected("scheme=rope") == [one, two]
    assert selected("scheme=rope", "seed=range(2,3)") == [two]
    assert selected("seed=1") == [one, other]
    assert selected("task=null") == everyone


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scheme=rop"], "scheme=rop: no evaluated run has this value; did you mean rope?"),
        (["seed=1,7"], "seed=7: no evaluated run has this value; known: 1, 2"),
        (["task=copy"], "task: no evaluated run has this key; "),
        (["sede=1"], "sede: no evaluated run has this key; did you mean seed?"),
        (["scheme=alibi", "seed=2"], "no evaluated run has all of scheme, seed as given"),
    ],
)
def test_a_condition_that_no_run_meets_is_refused(
    runs: Runs, words: list[str], message: str
) -> None:
    paths = [runs.write("rope", seed=2), runs.write("alibi")]
    conditions = compose.alternatives(words)
    with pytest.raises(UserError, match=re.escape(message)):
        run_records.selected_dirs(paths, conditions, say=pytest.fail)
    with pytest.raises(UserError, match=re.escape(message)):
        study.join([study.from_runs(paths)], conditions=conditions)


def test_the_page_is_given_what_the_run_directory_holds(runs: Runs) -> None:
    path = runs.write("rope")
    (path / "probes").mkdir()
    (path / "probes" / "receptive_field.svg").write_text("<svg/>")
    (path / "env.json").write_text('{"commit": "abc", "host": "mine"}')
    steps = ({"train/step": 1, "train/tokens": 50, "train/peak_mib": 640.5}, {"train/step": 2})
    lines = [{"train/tokens": 100, "train/tokens_per_s": 50.0, **step} for step in steps]
    (path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "checkpoints" / "step-1").mkdir(parents=True)
    save_file({"w": np.zeros((3, 4))}, path / "checkpoints" / "step-1" / "model.safetensors")
    [record] = study.from_runs([path]).records
    assert record.probes == {"receptive field": "<svg/>"}
    assert record.environment == {"commit": "abc"}
    assert record.cost == run_records.Cost(parameters=12, tokens=100, seconds=2.0, peak_mib=640.5)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("env.json", json.dumps({"run": OTHER}).encode()),
        ("probes/bias.svg", run_records.with_run(b"<svg/>", OTHER)),
    ],
)
def test_what_lies_in_a_run_and_is_of_another_one_is_refused(
    runs: Runs, name: str, content: bytes
) -> None:
    path = runs.write("rope")
    (path / "probes").mkdir()
    (path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} .*of run {OTHER}.*; (restore|lengthgen probe)"):
        study.from_runs([path])
    (path / name).write_bytes(content.replace(OTHER.encode(), path.name.encode()))
    [record] = study.from_runs([path]).records
    assert record.probes == ({"bias": "<svg/>"} if name.endswith("svg") else {})


@pytest.mark.slow
def test_a_report_of_folders_and_runs_equals_that_of_all_runs(runs: Runs, tmp_path: Path) -> None:
    paths = [runs.write(scheme, seed=seed) for scheme in ("alibi", "rope") for seed in (1, 2)]
    whole = study.from_runs(paths)
    write.write_report(study.from_runs([*paths[2:], paths[0]]), tmp_path / "part")
    joined = study.join([study.from_folder(tmp_path / "part"), study.from_runs(paths[:2])])
    assert joined.rows == whole.rows
    write.write_report(joined, tmp_path / "joined")
    write.write_report(whole, tmp_path / "whole")
    for path in (tmp_path / "whole").iterdir():
        if path.name not in ("manifest.json", "report.html"):
            assert (tmp_path / "joined" / path.name).read_bytes() == path.read_bytes()


def test_a_run_in_two_sources_has_the_rows_of_both(runs: Runs) -> None:
    path = runs.write("rope")
    whole = study.from_runs([path])
    lines = (path / "eval.jsonl").read_text().splitlines(keepends=True)
    (path / "eval.jsonl").write_text("".join(lines[: len(lines) // 2]))
    first = study.from_runs([path])
    (path / "eval.jsonl").write_text("".join(lines[len(lines) // 3 :]))
    assert study.join([first, study.from_runs([path])]).rows == whole.rows


def test_a_run_of_a_folder_can_be_left_out_and_its_name_must_be_known(runs: Runs) -> None:
    paths = [runs.write(scheme) for scheme in ("alibi", "rope")]
    both = study.from_runs(paths)
    left = study.join([both], without=[paths[0].name])
    assert left.rows == study.from_runs(paths[1:]).rows
    for without, message in (
        (["rop"], f"--without: no run 'rop' here; known: {paths[0].name}, {paths[1].name}"),
        ([path.name for path in paths], "--without: no run is left"),
    ):
        with pytest.raises(UserError) as caught:
            study.join([both], without=without)
        assert str(caught.value).startswith(message)


def test_the_runs_that_meet_conditions_are_taken_from_folders(runs: Runs) -> None:
    paths = [runs.write("alibi"), runs.write("rope"), runs.write("rope", seed=2)]
    studies = [study.from_runs(paths[:2]), study.from_runs(paths[2:])]
    rope = compose.alternatives(["scheme=rope"])
    assert study.join(studies, conditions=rope).rows == study.from_runs(paths[1:]).rows
    one = study.join(studies, conditions=rope, without=[paths[1].name])
    assert one.rows == study.from_runs(paths[2:]).rows


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"nats": 1.5}, "row of tail, "), ({"weights": "0" * 64}, "weights")],
)
def test_sources_that_contradict_each_other_are_refused(
    runs: Runs, changed: dict[str, Any], message: str
) -> None:
    path = runs.write("rope")
    first = study.from_runs([path])
    lines = [json.loads(line) for line in (path / "eval.jsonl").read_text().splitlines()]
    lines[-1] |= changed
    (path / "eval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=rf"run {path.name} is not the same .* \({message}"):
        study.join([first, study.from_runs([path])])


@pytest.mark.slow
def test_rows_of_another_report_are_refused(runs: Runs, tmp_path: Path) -> None:
    for scheme in ("rope", "alibi"):
        write.write_report(study.from_runs([runs.write(scheme)]), tmp_path / scheme)
    shutil.copy(tmp_path / "alibi/rows.jsonl.gz", tmp_path / "rope")
    with pytest.raises(UserError, match=r"rows\.jsonl\.gz is not what manifest\.json next to it"):
        study.from_folder(tmp_path / "rope")
    (tmp_path / "rope/manifest.json").write_text("[")
    with pytest.raises(UserError, match=r"manifest\.json is damaged \(.*; restore it, or report"):
        study.from_folder(tmp_path / "rope")


def test_a_run_directory_without_them_makes_a_page_too(runs: Runs) -> None:
    path = runs.write("rope")
    (path / "checkpoints" / "step-1").mkdir(parents=True)
    (path / "checkpoints" / "step-1" / "model.safetensors").write_bytes(b"damaged")
    [record] = study.from_runs([path]).records
    assert (record.probes, record.environment, record.cost.parameters) == ({}, None, None)


def test_other_protocols_have_figures_of_their_own_name(runs: Runs, tmp_path: Path) -> None:
    path = runs.write("rope")
    runs.write("rope", protocol="nonoverlap", targets=None)
    written = {path.name for path in write.write_report(study.from_runs([path]), tmp_path / "out")}
    assert {"curve.png", "curve-nonoverlap.png", "curve-nonoverlap.svg"} <= written


def test_a_directory_that_cannot_be_made_is_refused(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file.*: cannot be written \(.*\); name another folder"):
        write.write_report(study.from_runs([runs.write("rope")]), tmp_path / "file")


def test_a_run_without_evaluation_is_refused_with_the_command(runs: Runs) -> None:
    empty = runs.write("rope", lengths=[])
    with pytest.raises(UserError, match=r"training is not complete .*; lengthgen train continues"):
        run_records.evaluated([empty])
    status.mark_trained(empty, step=1, weights="0", rows=[])
    with pytest.raises(UserError, match=f"no evaluation in .*; run lengthgen eval {empty.name}"):
        run_records.evaluated([empty])


def diverged(run_dir: Path) -> Path:
    (run_dir / "eval.jsonl").unlink()
    state = status.Status("diverged", reason="the loss is nan in step 7")
    status.write(run_dir, state, run=run_dir.name)
    return run_dir


def test_a_seed_that_diverged_in_training_counts_as_an_infinite_loss(runs: Runs) -> None:
    trained = [runs.write("rope", seed=seed) for seed in (1, 2)]
    lost = diverged(runs.write("rope", seed=3))
    found = gathered(*trained, lost)
    (finding,) = found.findings
    assert [*finding.series.runs] == [path.name for path in (*trained, lost)]
    assert math.isinf(finding.loss[512].value)
    assert math.isnan(finding.gain[1024].low)
    (warning,) = [one for one in finding.warnings if one.startswith("diverged")]
    assert warning == f"diverged: {lost.name} at 512, 1k, 2k, 16k, counted as an infinite loss"
    again = study.from_runs([*trained, lost])
    assert [*map(len, (record.rows for record in again.records))] == [8, 8, 8]


def test_answers_of_a_seed_that_diverged_in_training_are_all_wrong(runs: Runs) -> None:
    of_task = {"first_wrong": [None, 3], "token_hits": 9, "stop_errors": 1, "answer_ranks": [1, 2]}
    found = eval_rows.diverged({"nats": 1.0, "n_windows": 2, **of_task}, run="a", seed=2)
    assert found == {
        **{"nats": None, "n_windows": 2, "run": "a", "seed": 2, "weights": None},
        **{"first_wrong": [0, 0], "token_hits": 0, "stop_errors": 0},
    }


def test_a_diverged_run_of_which_no_seed_is_evaluated_is_refused_and_says_why(runs: Runs) -> None:
    other, lost = runs.write("alibi"), diverged(runs.write("rope"))
    with pytest.raises(UserError, match=f"{lost.name} diverged in training .the loss is nan in"):
        gathered(other, lost)


def test_runs_without_an_evaluation_are_named(runs: Runs) -> None:
    kept = [runs.write("rope"), runs.write("nope")]
    kept[1].joinpath("eval.jsonl").unlink()
    kept[1].joinpath("eval.jsonl").mkdir()  # which cannot be read, as it says when it is
    seed, alone = diverged(runs.write("rope", seed=2)), diverged(runs.write("alibi"))
    stopped = runs.write("t5")
    (stopped / "eval.jsonl").unlink()
    (nameless := runs.write("fire")).joinpath("config.yaml").unlink()
    (nameless / "eval.jsonl").unlink()
    (nameless / "env.json").write_text("{}")
    said: list[str] = []
    found = run_records.reportable(directory.run_dirs(runs.root), say=said.append)
    assert found == sorted([*kept, seed])
    missing, others = said
    assert re.fullmatch(
        f"{nameless.name} is not shown: .*config.yaml is missing; repeat .*", missing
    )
    assert others == (
        f"without an evaluation, and not shown: {alone.name} (diverged), {stopped.name} (stopped)"
    )


def test_a_linked_run_bears_the_name_of_its_link(runs: Runs) -> None:
    moved = runs.write("rope")
    link = runs.root / "elsewhere"
    link.symlink_to(moved)
    assert {row["run"] for row in run_records.evaluated([link])} == {"elsewhere"}


def test_cells_of_two_conditions_are_not_shown_for_their_own_reasons(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", (3.0,), lengths=(256,), endpoints="deep", reach=32768)
    runs.write("rope", (3.0,), lengths=(128,), targets=8)
    lines = [line for line in table_of(path).splitlines() if line.startswith("Not shown")]
    assert [line.partition(", evaluated")[0] for line in lines] == [
        "Not shown: tail at 128 (K=8)",
        "Not shown: tail at 256 (endpoints 32,768 deep)",
    ]


def test_a_run_of_incomplete_cells_is_refused_with_the_command(runs: Runs) -> None:
    half = runs.write("alibi", n_documents=3)
    with pytest.raises(UserError, match=f"no complete evaluation in {half.name}; run lengthgen"):
        gathered(runs.write("rope"), half)


def test_no_run_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="no run is named"):
        run_records.evaluated([])


def test_a_run_named_twice_counts_once(runs: Runs) -> None:
    path = runs.write("rope")
    assert table_of(path, path.parent / "." / path.name) == table_of(path)


def test_two_runs_of_one_name_are_refused(runs: Runs, tmp_path: Path) -> None:
    other = Runs(tmp_path / "others").write("rope")
    with pytest.raises(UserError, match=r"lies in .*runs and in .*others; name one"):
        run_records.evaluated([runs.write("rope"), other])


@pytest.mark.parametrize("content", [None, "- a\n- b\n", "a: [", b"\xff\xfe\x00"])
def test_a_damaged_configuration_is_refused(runs: Runs, content: str | bytes | None) -> None:
    path = runs.write("rope")
    (path / "config.yaml").unlink()
    if content is not None:
        raw = content if isinstance(content, bytes) else content.encode()
        (path / "config.yaml").write_bytes(raw)
    with pytest.raises(UserError, match=r"config\.yaml( is damaged|$)"):
        gathered(path)


def test_runs_on_different_tokens_are_refused_in_a_report(runs: Runs) -> None:
    one, other = runs.write("rope"), runs.write("alibi", fingerprint="e" * 64)
    with pytest.raises(UserError, match="were measured on different tokens"):
        table_of(one, other)


# Made again from its folder


def answered(runs: Runs, scheme: str) -> Path:
    """Writes a run of a task that this version does not know."""
    path = runs.root / f"{scheme}-tiny-mine-s1-0a0a0a0a"
    path.mkdir(parents=True)
    task = {"name": "mine", "kind": "mine", "length": 512, "arguments": {}}
    plain = {"seed": 1, "scheme": {"name": scheme, "parts": {}}, "corpus": {"task": task}}
    (path / "config.yaml").write_text(yaml.safe_dump(plain))
    about = {"run": path.name, "scheme": scheme, "corpus": "mine", "protocol": "answers"}
    answers = {"n_windows": 8, "first_wrong": [None] * 7 + [0], "token_hits": 9, "stop_errors": 0}
    with (path / "eval.jsonl").open("a") as file:
        for length in (256, 512, 1024):
            one = row(**about, **answers, length=length, n_documents=1, targets=None)
            file.write(json.dumps(one) + "\n")
    return path


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_folder_is_made_again_from_its_rows_alone_with_the_same_bytes(
    runs: Runs, tmp_path: Path
) -> None:
    paths = [
        runs.write(scheme, losses, seed=seed)
        for scheme, losses in (("rope", (3.0, 2.5, 4.0, 5.0)), ("learned_absolute", (3.0,)))
        for seed in (1, 2)
    ]
    (paths[0] / "probes").mkdir()
    (paths[0] / "probes" / "bias.svg").write_text("<svg/>")
    (paths[0] / "env.json").write_text('{"commit": "abc", "argv": ["x", "train", "seed=1"]}')
    with (paths[1] / "config.yaml").open("a") as file:
        file.write("odd: {1: 2021-01-01, 2: .inf}\n")
    everything = [*paths, answered(runs, "alibi"), answered(runs, "rope")]
    write.write_report(study.from_runs(everything), tmp_path / "out")
    before = contents_of(tmp_path / "out")
    shutil.rmtree(runs.root)
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("rows.jsonl.gz", "manifest.json"):
        (kept / name).write_bytes(before[name])
    write.write_report(study.from_folder(kept), kept)
    assert contents_of(kept) == before
    assert len(before) > 15


def test_the_manifest_holds_commands_commits_tokens_and_runs(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/some/bin/lengthgen", "report", "runs/one"])
    path = runs.write("rope")
    env: dict[str, Any] = {"commit": "abc", "argv": ["x", "train", "seed=1"]}
    env["corpus"] = {"versions": {"python": "3.11.7", "sympy": "1.14.0"}, "folder": "python-1"}
    (path / "env.json").write_text(json.dumps(env))
    found = json.loads(study.from_runs([path]).manifest)
    assert found["command"].startswith("lengthgen report")
    assert found["libraries"]["matplotlib"]
    assert found["tokens"] == ["f" * 64]
    assert found["corpora"] == {"f" * 64: {"python": "3.11.7", "sympy": "1.14.0"}}
    assert found["endpoints"] == {"tail": ["0123456789ab"]}
    about = {"command": "lengthgen train seed=1", "commit": "abc", "training_seconds": None}
    assert found["runs"] == {path.name: about}


STUDIES = sorted((ROOT / "results").rglob("rows.jsonl.gz"))


@pytest.mark.slow
@pytest.mark.parametrize("rows", STUDIES, ids=lambda path: path.parent.name)
def test_a_committed_study_is_what_its_rows_give(rows: Path, tmp_path: Path) -> None:
    """Drawings depend on the versions of libraries, numbers do not."""
    write.write_report(study.from_folder(rows.parent), tmp_path)
    made, committed = contents_of(tmp_path), contents_of(rows.parent)
    wrote = json.loads(committed["manifest.json"])["libraries"]
    here = directory.environment()["libraries"]
    if any(wrote[name] != here[name] for name in ("matplotlib", "numpy")):
        drawn = (".png", ".svg", ".html")
        made = {name: content for name, content in made.items() if not name.endswith(drawn)}
        committed = {name: committed[name] for name in made}
    assert made.keys() == committed.keys()
    assert [name for name, content in made.items() if committed[name] != content] == []


def gzipped(*lines: object) -> bytes:
    return gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode(), mtime=0)


def test_a_report_is_made_of_what_its_folder_holds(runs: Runs, tmp_path: Path) -> None:
    dated = runs.write("alibi", seed=2)
    with (dated / "config.yaml").open("a") as file:
        file.write("when: 2001-01-01\n")  # YAML's date is a text in JSON
    found = study.from_runs([runs.write("rope"), dated])
    write.write_files({study.ROWS: found.rows, study.MANIFEST: found.manifest}, tmp_path / "made")
    assert study.from_folder(tmp_path / "made").records == found.records


def test_names_that_are_no_utf_8_are_read_again(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = runs.write("rope")
    rows = (path / "eval.jsonl").read_text()
    (path / "eval.jsonl").write_text(rows.replace(f'"{path.name}"', "null"))
    path = path.rename(path.with_name(os.fsdecode(b"rope\xff")))
    (path / "probes").mkdir()
    (path / "probes" / os.fsdecode(b"bias\xfe.svg")).write_text("<svg/>")
    monkeypatch.setattr("sys.argv", ["lengthgen", "report", str(path)])
    found = study.from_runs([path])
    write.write_files({study.ROWS: found.rows, study.MANIFEST: found.manifest}, tmp_path / "made")
    (record,) = study.from_folder(tmp_path / "made").records
    assert (record.run, [*record.probes]) == (r"rope\xff", [r"bias\xfe"])
    assert json.loads(found.manifest)["command"].endswith(r"rope\xff'")


def test_rows_that_could_not_be_read_again_are_refused(runs: Runs) -> None:
    with pytest.raises(UserError, match="field kind, which no row has; delete such rows"):
        study.from_runs([runs.write("rope", kind="run")])


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"rows", gzipped(), gzipped({"format": 3}), gzipped({"format": 2}), gzipped(1)),
        *(gzipped({"kind": "run"}), gzipped({"kind": "run", "run": {"run": "x"}})),
        *(gzipped({"kind": "run", "run": {"run": "x", "config": {}}}, {"format": 2}),),
        *(gzip.compress(b"{", mtime=0), gzip.compress(b"\xff", mtime=0), gzipped({"a": 1})[:-9]),
    ],
    ids=range(12),
)
def test_damaged_or_foreign_rows_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(content)
    (tmp_path / "manifest.json").write_bytes(b"{}")
    with pytest.raises(UserError, match=r"rows\.jsonl\.gz is damaged or was not .*; restore it"):
        _ = study.from_folder(tmp_path).records


def test_a_folder_that_lacks_its_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(gzipped())
    with pytest.raises(UserError, match=r"manifest\.json: cannot be read .*; restore it"):
        study.from_folder(tmp_path)
