"""A file that was damaged is mended, or named in one line; it never changes a number in silence."""

import json
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faults import HARMS, eval_words, here, result, train_words

from lengthgen.errors import UserError
from lengthgen.evaluation.rows import stored
from lengthgen.report import collect, html, study
from lengthgen.runs import status
from lengthgen.runs.directory import training_log
from lengthgen.storage import add_checksum, read_rows, strip_checksum, write_rows

pytestmark = pytest.mark.slow

STEPS = 8
FILES = [
    ".cache/.overlap-*.bin",
    *(
        f".cache/synthetic-*/{name}"
        for name in (
            *("meta.json", "tokenizer.json", "train.bin", "train.names.json"),
            *("train.offsets.bin", "validation.bin", "validation.names.json"),
            "validation.offsets.bin",
        )
    ),
    *(
        f"rope-*/{name}"
        for name in (
            *("config.yaml", "env.json", "status.json", "DONE", "log.txt", "endpoints.jsonl"),
            *("train.jsonl", "eval.jsonl"),
        )
    ),
    *(
        f"rope-*/checkpoints/step-{step:08d}/{name}"
        for step in (STEPS - 2, STEPS)
        for name in ("model.safetensors", "trainer.pt", "sha256.json")
    ),
]
SHOWN = ["config.yaml", "env.json", "train.jsonl", "eval.jsonl", "model.safetensors"]


class Finished(NamedTuple):
    """A finished run in root, a copy of it to be harmed, and what commands say of it."""

    root: Path
    copy: Path
    said: dict[str, str]

    def fresh(self) -> Path:
        """Returns the copy as it was before any harm."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.root, self.copy)
        return self.copy


def words_of(command: str, root: Path) -> list[str]:
    return {
        "train": train_words(root, "scheme=rope"),
        "eval": eval_words(root),
        "list": ["list", "runs", f"runtime.root={root}"],
    }[command]


@pytest.fixture(scope="module")
def finished(undisturbed: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    said: dict[str, str] = {}
    found = Finished(undisturbed, tmp_path_factory.mktemp("finished") / "copy", said)
    for command in ("train", "eval", "list"):
        ran = here(*words_of(command, found.fresh()))
        assert ran.code == 0, ran.err
        said[command] = ran.out
    return found


def one(root: Path, pattern: str) -> Path:
    (path,) = root.glob(pattern)
    return path


def test_every_file_of_a_finished_run_is_harmed_here(finished: Finished) -> None:
    there = {path for path in finished.root.rglob("*") if path.is_file() and path.stat().st_size}
    assert there == {one(finished.root, pattern) for pattern in FILES}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("pattern", FILES)
def test_a_damaged_file_is_mended_or_named_in_one_line(
    finished: Finished, pattern: str, harm: str
) -> None:
    in_cache = pattern.startswith(".cache")  # which nothing but its two users reads
    for command in ("eval", "train") if in_cache else ("list", "eval", "train"):
        path = one(finished.fresh(), pattern)
        path.write_bytes(HARMS[harm](path.read_bytes()))
        ran = here(*words_of(command, finished.copy))
        if ran.code == 0 and command == "list":
            known = numbers(finished.said["list"]) | perplexities(finished)
            assert numbers(ran.out) <= known or "unreadable" in ran.out
        elif ran.code == 0:
            assert ran.out == finished.said[command]
        else:
            assert str(finished.copy) in ran.error
            continue
        if command == "train" and path.name != "train.jsonl":
            assert result(finished.copy) == result(finished.root)


def numbers(text: str) -> set[str]:
    """Returns all numbers of a listed run or of a page, but for those in the path of a file."""
    return set(re.findall(r"(?<![-\w])[0-9][0-9.,/e-]*", re.sub(r"/\S+", "", text)))


def perplexities(finished: Finished) -> set[str]:
    """Returns those of the table that training ends with, and the lengths they are at."""
    return numbers(finished.said["train"])


@pytest.mark.parametrize("pattern", FILES)
def test_a_lost_file_is_made_again_or_was_not_needed(finished: Finished, pattern: str) -> None:
    one(finished.fresh(), pattern).unlink()
    ran = here(*words_of("train", finished.copy))
    assert ran.code == 0, ran.err
    assert ran.out == finished.said["train"]
    if not pattern.endswith("train.jsonl"):
        assert result(finished.copy) == result(finished.root)


def shown(run: Path) -> tuple[set[Any], str]:
    """Returns the points of a report, and the page."""
    found = collect.gather(study.from_runs([run]).records)
    text = html.render(found)
    return {repr(point) for point in found.points}, text


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", SHOWN)
def test_a_report_shows_no_number_that_damage_has_changed(
    finished: Finished, name: str, harm: str
) -> None:
    points, text = shown(one(finished.fresh(), "rope-*"))
    path = sorted(finished.copy.glob(f"rope-*/**/{name}"))[-1]
    path.write_bytes(HARMS[harm](path.read_bytes()))
    try:
        still, now = shown(one(finished.copy, "rope-*"))
    except UserError as error:
        assert finished.copy.name in str(error)  # noqa: PT017, it may also succeed
        return
    assert still <= points
    if still == points:
        assert numbers(now) <= numbers(text)


def test_a_damaged_picture_of_a_probe_is_named_by_the_report(finished: Finished) -> None:
    run = one(finished.fresh(), "rope-*")
    (run / "probes").mkdir()
    (run / "probes" / "bias.svg").write_bytes(b"<svg>\xff</svg>")
    with pytest.raises(UserError, match=r"bias\.svg is damaged .*; lengthgen probe .* again"):
        study.from_runs([run])


@pytest.mark.parametrize("harm", [HARMS["truncated to a half"], HARMS["zeros"], Path.unlink])
def test_the_last_checkpoint_of_a_trained_run_is_not_replaced_by_the_one_before(
    finished: Finished, harm: Callable[[Any], Any]
) -> None:
    path = one(finished.fresh(), f"rope-*/checkpoints/step-{STEPS:08d}/model.safetensors")
    if harm is Path.unlink:
        path.unlink()
    else:
        path.write_bytes(harm(path.read_bytes()))
    out = finished.copy.with_name("exported")
    run = one(finished.copy, "rope-*")
    for words in (words_of("eval", finished.copy), ["export", str(run), str(out)]):
        said = here(*words).error
        assert f"the last checkpoint, of step {STEPS}, is damaged or lost; the lengthgen" in said
    assert not out.exists()
    assert here(*words_of("train", finished.copy)).code == 0
    assert here(*words_of("eval", finished.copy)).out == finished.said["eval"]


def test_a_row_with_another_number_is_refused_with_file_and_line(finished: Finished) -> None:
    log = one(finished.fresh(), "rope-*/eval.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    nats = json.loads(lines[1])["nats"]
    log.write_text("".join([lines[0], lines[1].replace(str(nats), str(nats + 1)), *lines[2:]]))
    assert f"{log}:2: damaged row" in here(*words_of("eval", finished.copy)).error


def test_a_configuration_with_another_number_is_refused(finished: Finished) -> None:
    path = one(finished.fresh(), "rope-*/config.yaml")
    path.write_text(path.read_text().replace("targets: 8", "targets: 4"))
    said = here(*words_of("eval", finished.copy)).error
    assert f"{path} is damaged (the text differs from the checksum in its first line)" in said
    assert "repeat the lengthgen train command" in said


def test_an_environment_with_another_number_is_refused_and_not_shown(finished: Finished) -> None:
    run = one(finished.fresh(), "rope-*")
    path = run / "env.json"
    path.write_text(path.read_text().replace('"python": "', '"python": "77'))
    said = here(*words_of("eval", finished.copy)).error
    assert f"{path} is damaged; remove it if the corpus is still the same" in said
    _, text = shown(run)
    assert f"77{platform.python_version()}" not in text


def test_a_token_cache_with_another_number_in_its_description_is_built_again(
    finished: Finished,
) -> None:
    path = one(finished.fresh(), ".cache/synthetic-*/meta.json")
    written = path.read_text()
    path.write_text(written.replace('"documents": 20', '"documents": 21'))
    ran = here(*words_of("eval", finished.copy))
    assert ran.code == 0
    assert f"removing the damaged token cache {path.parent} (" in ran.err
    assert path.read_text() == written


def test_a_configuration_that_cannot_be_read_is_one_line(finished: Finished) -> None:
    path = one(finished.fresh(), "rope-*/config.yaml")
    path.unlink()
    path.mkdir()
    said = here(*words_of("eval", finished.copy)).error
    assert f"{path}: cannot be read (Is a directory); fix its permissions" in said


def test_rows_and_configurations_without_a_checksum_are_read_as_an_older_run_wrote_them(
    finished: Finished,
) -> None:
    run = one(finished.fresh(), "rope-*")
    env = json.loads(strip_checksum((run / "env.json").read_bytes()))
    del env["format"]
    (run / "env.json").write_text(json.dumps(env, indent=1))
    (run / "DONE").write_text(f"{STEPS}\n")
    config = run / "config.yaml"
    first, rest = config.read_text().split("\n", 1)
    assert first.startswith("# crc32")
    config.write_text(rest)
    for name in ("eval.jsonl", "train.jsonl"):
        rows = read_rows(run / name)
        for row in rows:
            row.pop("weights", None)
            if name == "train.jsonl":
                del row["run"]
        (run / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for command in ("eval", "list"):
        assert here(*words_of(command, finished.copy)).out == finished.said[command]


@pytest.mark.parametrize("name", ["config.yaml", "env.json", "train.jsonl", "eval.jsonl", "DONE"])
def test_a_missing_checksum_makes_no_file_of_a_run_an_older_one(
    finished: Finished, name: str
) -> None:
    path = one(finished.fresh(), f"rope-*/{name}")
    path.write_text(path.read_text().replace("crc32", "crc31", 1))
    if name == "DONE":
        assert status.read_done(path.parent) == status.Done(0)
        return
    command = "list" if name == "train.jsonl" else "eval"
    ran = here(*words_of(command, finished.copy))
    assert str(path) in (ran.out if command == "list" else ran.error)
    assert "damaged" in ran.out + ran.err


OTHER = "rope-tiny-synthetic-s2-0a0a0a0a"


@pytest.mark.parametrize("name", ["train.jsonl", "eval.jsonl"])
def test_intact_rows_of_another_run_are_refused_by_name(finished: Finished, name: str) -> None:
    log = one(finished.fresh(), f"rope-*/{name}")
    run, rows = log.parent.name, read_rows(log)
    write_rows(log, [*rows[:-1], {**rows[-1], "run": OTHER}])
    wanted = f"{log}:{len(rows)}: a row of run {OTHER}, but config.yaml here is of run {run};"
    for read in (
        lambda: study.from_runs([log.parent]),
        lambda: training_log(log.parent, run=run) and stored(log.parent, run=run),
    ):
        with pytest.raises(UserError) as caught:
            read()
        assert str(caught.value).startswith(wanted)
    assert wanted in here(*words_of("list", finished.copy)).out.replace("\n", "")


def test_the_environment_of_another_run_is_refused_by_name(finished: Finished) -> None:
    path = one(finished.fresh(), "rope-*/env.json")
    run = path.parent.name
    env = json.loads(strip_checksum(path.read_bytes()))
    path.write_bytes(add_checksum(json.dumps({**env, "run": OTHER}, indent=1).encode()))
    wanted = f"{path} is of run {OTHER}, but config.yaml here is of run {run}; restore it"
    assert wanted in here(*words_of("eval", finished.copy)).error
    assert wanted in here(*words_of("list", finished.copy)).out.replace("\n", "")


def test_the_token_cache_of_another_corpus_is_built_again(finished: Finished) -> None:
    folder = one(finished.fresh(), ".cache/synthetic-*")
    before = (folder / "meta.json").read_bytes()
    moved = folder.rename(folder.with_name("synthetic-000000000000"))
    shutil.copytree(moved, folder)
    meta = before.replace(folder.name.encode(), moved.name.encode())
    body = strip_checksum(before).replace(folder.name.encode(), moved.name.encode())
    assert meta != before
    (folder / "meta.json").write_bytes(add_checksum(body))
    ran = here(*words_of("eval", finished.copy))
    assert f"the damaged token cache {folder} (it is {moved.name}); it is built again" in ran.err
    assert ran.out == finished.said["eval"]
    assert (folder / "meta.json").read_bytes() == before


def test_a_run_twice_is_no_second_seed_under_whatever_name(finished: Finished) -> None:
    run = one(finished.fresh(), "rope-*")
    other = shutil.copytree(run, run.with_name("another-seed"))
    with pytest.raises(UserError, match=f"another-seed and .* are one run, {run.name}; name one"):
        study.from_runs([run, other])


def test_a_run_that_was_renamed_is_evaluated_and_reported_as_it_was(finished: Finished) -> None:
    run = one(finished.fresh(), "rope-*")
    before = (run / "eval.jsonl").read_bytes()
    renamed = run.rename(run.with_name("renamed"))
    points, _ = shown(renamed)
    assert len(points) == len(shown(one(finished.root, "rope-*"))[0])
    assert here("eval", str(renamed), f"runtime.root={finished.copy}").code == 0
    assert (renamed / "eval.jsonl").read_bytes() == before


@pytest.mark.parametrize("harm", ["a line is deleted", "two are swapped", "one is twice"])
def test_a_line_of_the_training_log_that_was_moved_is_found(finished: Finished, harm: str) -> None:
    log = one(finished.fresh(), "rope-*/train.jsonl")
    first, second, *rest = log.read_bytes().splitlines(keepends=True)
    assert rest
    log.write_bytes(
        b"".join(
            {
                "a line is deleted": [second, *rest],
                "two are swapped": [second, first, *rest],
                "one is twice": [first, first, second, *rest],
            }[harm]
        )
    )
    with pytest.raises(UserError, match=r"train\.jsonl: its \d+ rows are not the \d+ that were"):
        study.from_runs([log.parent])
    log.unlink()
    assert study.from_runs([log.parent]).records[0].cost.tokens is None


def test_an_evaluation_of_other_weights_is_not_counted(finished: Finished) -> None:
    log = one(finished.fresh(), "rope-*/eval.jsonl")
    rows = read_rows(log)
    write_rows(log, [{**row, "weights": "0" * 64} for row in rows[1:]] + rows[:1])
    assert stored(log.parent, run=log.parent.name) == rows[:1]
    assert here(*words_of("eval", finished.copy)).out == finished.said["eval"]
    assert stored(log.parent, run=log.parent.name) != rows[:1]
