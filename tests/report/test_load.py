# pyright: basic, reportArgumentType=false
"""load: run directories and folders of rows become one table, and what cannot be shown is named."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from frames import frame, write_run
from pyarrow import parquet

from lengthgen.cli.lists import record, runs_table
from lengthgen.config.schema import Config
from lengthgen.errors import Diverged, UserError
from lengthgen.files import append_rows, read_rows, write_rows
from lengthgen.report import report
from lengthgen.report.load import COLUMNS, ROWS, load_rows, save_rows, typed
from lengthgen.report.statistics import findings
from lengthgen.runs import directory, status

LOSSES = {512: 3.0, 1024: 2.5}


def loaded(*paths: Path) -> tuple[pd.DataFrame, list[str]]:
    """The table, and the lines that were said."""
    said: list[str] = []
    return load_rows(paths, say=said.append), said


def test_a_run_gives_a_row_per_document_with_what_is_known_of_the_run(tmp_path: Path) -> None:
    path = write_run(tmp_path, losses=LOSSES)
    config: Config = directory.load_config(path)
    steps = [(i + 1, 4096 * (i + 1)) for i in range(2)]
    append_rows(
        path / "train.jsonl",
        [
            {"run": config.run_id, "train/step": step, "train/tokens": tokens}
            | {"train/tokens_per_s": 1024.0, "train/loss": 3.0, "train/peak_mib": 100.0 * step}
            for step, tokens in steps
        ],
    )
    rows, said = loaded(path)
    assert said == []
    assert list(rows.columns) == COLUMNS
    assert len(rows) == 4
    first = rows.iloc[0]
    assert (first["run"], first["recipe"]) == (config.run_id, config.recipe)
    assert (first["train_seconds"], first["peak_mib"]) == (8.0, 200.0)
    assert json.loads(first["config"])["scheme"]["name"] == "rope"
    assert "runtime" not in json.loads(first["config"])


def test_rows_of_another_training_of_the_same_id_are_not_counted(tmp_path: Path) -> None:
    path = write_run(tmp_path, losses=LOSSES)
    about, row = ({"run": path.name, **ROWS_OF[name]} for name in ("env.json", "train.jsonl"))
    write_rows(path / "env.json", [about | {"training": "own"}])
    twins = [{"train/tokens": 1, "training": "other"}, {}, {"training": "own"}]
    for twin, seconds in zip(twins, (None, 3, 3), strict=True):
        write_rows(path / "train.jsonl", [row | twin])
        [found] = loaded(path)[0]["train_seconds"].drop_duplicates()
        assert found == seconds or (seconds is None and math.isnan(found))


def test_rows_of_weights_that_are_no_longer_the_last_are_not_shown(tmp_path: Path) -> None:
    path, good = (write_run(tmp_path, s, losses=LOSSES, weights="old") for s in ("rope", "alibi"))
    write_rows(path / "DONE", [{"run": path.name, "weights": "new"}])
    rows, (line,) = loaded(tmp_path)
    assert {*rows["run"]} == {good.name}
    assert "it is not evaluated; run lengthgen eval" in line


def test_a_saved_table_is_read_back_the_same_and_joins_runs(tmp_path: Path) -> None:
    wrong = [[None, 3, 0]] * 60
    rows = frame(lambda s, d, n: None if s == 2 and n == 512 else 3.0)
    rows = rows.assign(first_wrong=wrong, n_windows=3.0)
    save_rows(rows, tmp_path / "study")
    again, _ = loaded(tmp_path / "study")
    pd.testing.assert_frame_equal(again, rows, check_categorical=False)
    assert again["first_wrong"].iloc[0] == [None, 3, 0]
    manifest = json.loads((tmp_path / "study" / "manifest.json").read_text())
    assert manifest["runs"].keys() == set(rows["run"])
    both, _ = loaded(tmp_path / "study", write_run(tmp_path / "runs", "alibi", losses=LOSSES))
    assert set(both["scheme"]) == {"rope", "alibi"}


def test_groups_of_documents_are_kept_and_counted_where_known(tmp_path: Path) -> None:
    rows = frame(3.0).drop(columns="group")
    parquet.write_table(pa.Table.from_pandas(rows, preserve_index=False), tmp_path / ROWS)
    before, said = loaded(tmp_path)
    assert said == []
    assert {*before["group"]} == {None}
    group_of = {"a": "one", "b": "one", "c": "two"}
    named = typed(before.assign(group=[*map(group_of.get, before["document"])]))
    save_rows(named, tmp_path / "study")
    again, _ = loaded(tmp_path / "study")
    pd.testing.assert_frame_equal(again, named, check_categorical=False)
    for known, counted in ((again, True), (before, False)):
        made = report.sections(known)
        assert ("documents: 5 of 4 groups (at most 2 of one)" in report.table_text(made)) == counted
        assert ("toy: 5 of 4 groups" in made[-1].facts.get("documents", "")) == counted


def test_what_was_scored_or_defined_again_counts_as_it_is_now(tmp_path: Path) -> None:
    path = write_run(tmp_path, losses={512: 3.0})
    write_run(tmp_path, losses={512: 4.0})
    write_run(tmp_path, losses={512: 3.0, 1024: 3.0}, variant="ntk", parts="old")
    write_run(tmp_path, losses={512: 5.0}, variant="ntk", parts="new")
    rows, said = loaded(path.rename(tmp_path / "renamed"))
    assert set(rows["run"]) == {path.name}
    assert said == []
    assert rows.loc[rows["variant"].isna(), "nats"].tolist() == [32.0, 32.0]
    assert rows.loc[rows["variant"].notna(), "parts"].tolist() == ["new", "new"]


def test_of_a_run_that_was_trained_again_no_length_of_before_is_shown(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", losses={512: 3.0, 1024: 3.0}, weights="old")
    save_rows(loaded(path)[0], tmp_path / "study")
    (path / "eval.jsonl").unlink()
    write_run(tmp_path / "runs", losses={512: 2.0}, weights="new")
    for paths in ((tmp_path / "study", path), (path, tmp_path / "study")):
        rows, _ = loaded(*paths)
        assert rows[["length", "nats"]].to_numpy().tolist() == [[512, 16.0]] * 2


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the last row of eval.jsonl, whose checksum is that of the changed row."""
    rows = read_rows(path / "eval.jsonl")
    change(rows[-1])
    write_rows(path / "eval.jsonl", rows)


# Nine lists of nine of the list before: 2.4 KB that are 4e8 words.
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


def unreadable(path: Path) -> None:
    """Makes a path raise OSError, for root too."""
    path.rename(path.with_name(f".{path.name}"))
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: (path / "config.yaml").write_text("{"), "config.yaml"),
        (lambda path: (path / "config.yaml").write_bytes(other(path)), "which lies in "),
        (lambda path: (path / "eval.jsonl").write_text("{\n{\n"), "eval.jsonl:1: damaged row"),
        (lambda path: unreadable(path / "config.yaml"), "config.yaml: cannot be read (Too many"),
        (lambda path: unreadable(path / "eval.jsonl"), "eval.jsonl: cannot be read (Too many"),
        (lambda path: unreadable(path), "cannot be read (Too many"),
        (lambda path: (path / "eval.jsonl").unlink(), "its training is stopped"),
        (lambda path: (path / "env.json").write_text("[]\n"), "env.json"),
        (
            lambda path: write_rows(
                path / "env.json", [ROWS_OF["env.json"] | {"run": path.name, "n_parameters": "x"}]
            ),
            "its files are damaged (ValueError",
        ),
        (lambda path: shutil.copytree(path, path.parent / "a copy"), "it is run rope-"),
        (
            lambda path: rewrite(path, lambda row: row.update(length="x")),
            "jsonl:2: damaged row, length",
        ),
        (
            lambda path: rewrite(path, lambda row: row.update(protocol="later")),
            "no protocol 'later'",
        ),
        (lambda path: (path / "config.yaml").unlink(), "it has no config.yaml"),
        (lambda path: (path / "config.yaml").write_text(BOMB), "config.yaml: cannot be read"),
        (
            lambda path: rewrite(path, lambda row: row.update(n_tokens=0)),
            "jsonl:2: damaged row, n_tokens: no token",
        ),
        (
            lambda path: rewrite(path, lambda row: row.update(nats="2.5")),
            "jsonl:2: damaged row, nats",
        ),
        (
            lambda path: rewrite(path, lambda row: row.update(scheme=5)),
            "jsonl:2: damaged row, scheme",
        ),
        (
            lambda path: rewrite(path, lambda row: row.pop("train_length")),
            "train_length: Field required",
        ),
    ],
)
def test_a_run_that_cannot_be_shown_is_one_line_and_the_others_are_shown(
    damage: Callable[[Path], object], why: str, tmp_path: Path
) -> None:
    runs = [write_run(tmp_path, seed=s, losses={1024: 2.5}) for s in (1, 2)]
    damage(runs[1])
    rows, (line,) = loaded(tmp_path)
    assert runs[0].name in set(rows["run"])
    assert " is not shown: " in line
    assert why in line
    assert "\n" not in line


def test_losses_by_position_are_drawn_of_the_runs_that_can_be_read(tmp_path: Path) -> None:
    lists = {"position_nats": [1.0] * 576, "position_tokens": [1] * 576}  # of T=512, to 1024
    for seed in (1, 2):
        path = write_run(tmp_path, seed=seed, losses={1024: 2.5}, **lists)
    rewrite(path, lambda row: row.pop("train_length"))
    assert report.sections(loaded(tmp_path)[0])[0].figures.keys() == {"positions"}


def other(path: Path) -> bytes:
    """The configuration of the other run."""
    (config,) = (p for p in path.parent.glob("*/config.yaml") if p.parent != path)
    return config.read_bytes()


def test_nothing_to_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run to show in"):
        loaded(tmp_path)
    (tmp_path / ROWS).write_bytes(b"PAR1")
    with pytest.raises(UserError, match="no run to show in"):
        loaded(tmp_path)


def test_a_folder_of_an_older_format_is_named_and_hides_no_run(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", losses=LOSSES)
    save_rows(loaded(path)[0].assign(run="older"), tmp_path / "study")
    kept = pd.read_parquet(tmp_path / "study" / ROWS).drop(columns="chance")
    kept.to_parquet(tmp_path / "study" / ROWS)
    rows, (line,) = loaded(path, tmp_path / "study")
    assert f"{ROWS} lacks the column chance; report its runs again" in line
    assert set(rows["run"]) == {path.name}


def test_a_bit_that_flips_in_the_saved_rows_changes_no_number(tmp_path: Path) -> None:
    before, _ = loaded(write_run(tmp_path, losses=LOSSES))
    save_rows(before, tmp_path)
    content = (tmp_path / ROWS).read_bytes()
    nats = parquet.ParquetFile(tmp_path / ROWS).metadata.row_group(0).column(COLUMNS.index("nats"))
    first, refused = nats.dictionary_page_offset or nats.data_page_offset, 0
    places = range(first, first + nats.total_compressed_size, 5)
    for at in (*places, *range(len(content) - 900, len(content), 90)):  # the footer too
        (tmp_path / ROWS).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            assert loaded(tmp_path)[0]["nats"].tolist() == before["nats"].tolist()
        except UserError:
            refused += 1
    assert refused > len(places) / 2


def test_a_run_that_diverged_in_training_has_the_cells_of_another_seed(tmp_path: Path) -> None:
    good = write_run(tmp_path, losses=LOSSES)
    lost, alone = write_run(tmp_path, seed=2), write_run(tmp_path, "alibi")
    for run in (lost, alone):
        record = status.record_status(run, run=run.name, evaluation_id="x")
        with pytest.raises(Diverged), record:
            raise Diverged("loss is nan at step 3")
    rows, (line,) = loaded(lost, good, alone)
    assert f"{alone.name} " in line
    assert "it diverged in training, and no other seed is evaluated" in line
    assert rows.groupby("seed")["nats"].count().to_dict() == {1: 4, 2: 0}
    losses = findings(rows).query("quantity == 'loss'")
    assert losses["value"].tolist() == [math.inf, math.inf]
    assert set(losses["n_seeds"]) == {2}


WRONG = ["text", "3", 0, -1, math.inf, None, [], {}, True, 0.5, 10**400]


@pytest.mark.parametrize("name", ["eval.jsonl", "train.jsonl", "env.json", "DONE", "status.json"])
def test_no_value_of_a_row_hides_another_run_from_list_or_report(name: str, tmp_path: Path) -> None:
    """Each value of the last row of a file becomes one of WRONG, or goes; checksums fit."""
    victim, other = (write_run(tmp_path, seed=s, losses=LOSSES) for s in (1, 2))
    if name != "eval.jsonl":
        write_rows(victim / name, [ROWS_OF[name] | {"run": victim.name}])
    rows = read_rows(victim / name)
    for i, key in enumerate(sorted(rows[-1].keys() - {"run"})):
        for changed in [{**rows[-1], key: value} for value in (WRONG[i % len(WRONG)], "GONE")]:
            kept = {k: x for k, x in changed.items() if x != "GONE"}
            write_rows(victim / name, [*rows[:-1], kept])
            listed = [record(path) for path in directory.run_dirs(tmp_path)]
            assert [row["run"] for row in listed] == [victim.name, other.name]
            assert len(runs_table(listed)[1]) == 2
            assert other.name in set(loaded(tmp_path)[0]["run"])


ROWS_OF: dict[str, dict[str, Any]] = {
    "train.jsonl": {"train/step": 1, "train/tokens": 9, "train/tokens_per_s": 3.0}
    | {"train/peak_mib": 100.0, "train/loss": 3.0},
    "env.json": {"argv": ["lengthgen", "train"], "n_parameters": 9, "commit": "0"},
    "DONE": {"weights": None},
    "status.json": status.Status("done", evaluated="0", host="here", pid=1)._asdict(),
}
