"""A disk that is full or read-only ends a command in one line, and costs nothing but time."""

import logging
import shutil
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faults import (
    PAGE,
    Disk,
    begin,
    ended,
    eval_words,
    here,
    one_run,
    result,
    small_disk,
    train_words,
)
from small import VOCAB, small_config, some_tokens
from small_corpora import files, load

from lengthgen.config.schema import Config
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.errors import UserError
from lengthgen.files import append_rows, replace_file
from lengthgen.model.build import create
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, directory, status
from lengthgen.training.optim import adamw

pytestmark = pytest.mark.slow

MEGABYTE = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Disk]:
    with small_disk(tmp_path / "disk", n_bytes=8 * MEGABYTE) as found:
        yield found


class Usage(NamedTuple):
    free: int


@pytest.fixture
def room_is_taken_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every look at the free room succeed: somebody else takes it afterwards."""

    def usage(path: Path) -> Usage:
        return Usage(free=1 << 40)

    monkeypatch.setattr(shutil, "disk_usage", usage)


def copied(root: Path, disk: Disk) -> Path:
    """Returns a copy of a root on the small disk."""
    shutil.copytree(root, disk.folder / "runs")
    return disk.folder / "runs"


# Full


@pytest.mark.usefixtures("room_is_taken_later")
def test_wherever_the_disk_fills_up_training_ends_in_one_line_and_goes_on_afterwards(
    disk: Disk, undisturbed: Path
) -> None:
    root = disk.folder / "runs"
    words = train_words(root, "scheme=rope", f"runtime.cache={undisturbed}/.cache")
    refused: list[str] = []
    pages = (0, 1, 1, 1, *range(2, 8), *range(8, 512, 20))  # a file more fits at every one
    for leave_bytes in (n * PAGE for n in pages):
        disk.fill(leave_bytes=leave_bytes)
        ran = here(*words)
        if ran.code == 0:
            break
        assert str(disk.folder) in ran.error
        assert "free disk space" in ran.error
        refused.append(ran.error)
    disk.empty()
    ran = here(*words)
    assert ran.code == 0, ran.err
    assert result(root) == result(undisturbed)
    for name in ("status.json", "config.yaml", "env.json", "checkpoints/step-"):
        assert [said for said in refused if name in said], name


@pytest.fixture
def writer() -> tuple[Config, Transformer, Any]:
    config = small_config("scheme=rope")
    model = create(config, vocab_size=VOCAB)
    optimizer = adamw(model, config.train)
    model.token_nll(model(some_tokens(16)), some_tokens(16)).sum().backward()
    optimizer.step()
    return config, model, optimizer


def test_a_checkpoint_that_does_not_fit_is_named_and_the_one_before_it_stays(
    disk: Disk, writer: tuple[Config, Transformer, Any]
) -> None:
    _, model, optimizer = writer

    def save(step: int) -> None:
        checkpoints.save(
            disk.folder,
            run="a",
            step=step,
            unlogged=(0.0, 0),
            memory=None,
            model=model,
            optimizer=optimizer,
        )

    save(3)
    before = disk.free_bytes
    save(4)
    needed = before - disk.free_bytes
    for leave_bytes in range(0, needed, needed // 24):
        disk.fill(leave_bytes=leave_bytes)
        with pytest.raises(UserError) as caught:
            save(5)
        said = str(caught.value)
        assert said.startswith(f"{disk.folder}/checkpoints/step-00000005: cannot write the")
        assert "(No space left on device); free disk space" in said or "os error 28" in said
        found = checkpoints.newest(disk.folder, run="a", say=print)
        assert found is not None
        assert found.step == 4
        names = {path.name for path in (disk.folder / "checkpoints").iterdir()}
        assert names == {"step-00000003", "step-00000004"}


def a_corpus(folder: Path) -> TokenizedCorpus:
    (folder / "texts").mkdir()
    for i in range(2):
        (folder / "texts" / f"{i}.txt").write_text("some words " * 100 * (i + 1))
    return load(files(folder / "texts"), folder / "cache").corpus


WRITES: dict[str, Callable[[Path, Config, TokenizedCorpus], None]] = {
    "train.jsonl": lambda run, config, corpus: append_rows(run / "train.jsonl", [{"a": 1}]),
    "curve.csv": lambda run, config, corpus: replace_file(run / "curve.csv", b"1"),
    "config.yaml": lambda run, config, corpus: directory.write_config(config, run),
    "env.json": lambda run, config, corpus: directory.write_provenance(
        run, corpus, run=config.run_id
    ),
    "DONE": lambda run, config, corpus: status.mark_trained(run, step=8, weights="0" * 64, rows=[]),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_file_that_does_not_fit_is_named_and_leaves_no_part_of_it(
    disk: Disk, tmp_path: Path, name: str
) -> None:
    config = small_config("scheme=rope", f"runtime.root={tmp_path}")
    corpus = a_corpus(tmp_path)
    disk.fill()
    with pytest.raises(UserError, match=rf"{name}: cannot be written \(No space left .*; free"):
        WRITES[name](disk.folder, config, corpus)
    left = {path.name: path.stat().st_size for path in disk.folder.iterdir()}
    assert set(left) - {name} == {"filler"}
    assert left.get(name, 0) == 0


def test_lines_that_the_log_has_no_room_for_are_lost_without_a_word(
    disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("lengthgen.test")
    with directory.logged(disk.folder):
        log.info("the first line")
        disk.fill()
        for _ in range(200):
            log.info("a line " * 20)
        disk.empty()
        log.info("the last line")
    assert capsys.readouterr() == ("", "")
    written = (disk.folder / "log.txt").read_text()
    assert "the first line" in written
    assert "the last line" in written


def test_a_log_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "log.txt").mkdir()
    with (
        pytest.raises(UserError, match=r"log\.txt: cannot be written \(Is a directory\); free"),
        directory.logged(tmp_path),
    ):
        pass


def test_a_full_disk_while_tokenising_leaves_nothing_and_the_next_build_succeeds(
    disk: Disk, folder: Path, tmp_path: Path
) -> None:
    """As test_token_cache does with a limit on the size of files, on a real file system."""
    cache_dir = disk.folder / "cache"
    want = load(files(folder), tmp_path / "elsewhere").corpus.fingerprint
    n_refused = 0
    for leave_bytes in range(0, 60_000, 4096):
        disk.fill(leave_bytes=leave_bytes)
        try:
            found = load(files(folder), cache_dir).corpus.fingerprint
        except UserError as error:
            n_refused += 1
            assert str(error).startswith("runtime.cache: ")  # noqa: PT017, it may also succeed
            assert not [path for path in cache_dir.glob("*") if path.is_dir()]
        else:
            assert found == want
            break
    assert n_refused > 2
    disk.empty()
    assert load(files(folder), cache_dir).corpus.fingerprint == want


def test_an_evaluation_without_room_names_its_file_and_loses_no_row(
    disk: Disk, undisturbed: Path, tmp_path: Path
) -> None:
    root = copied(undisturbed, disk)
    before = result(root)
    words = eval_words(root, "--protocols", "tail,nonoverlap,per_position,swap")
    disk.fill()
    assert "endpoints.jsonl: cannot be written (No space left" in here(*words).error
    disk.fill(leave_bytes=4096)
    assert "eval.jsonl: cannot be written (No space left" in here(*words).error
    assert result(root)["rows"] >= before["rows"]
    disk.empty()
    assert here(*words).code == 0
    elsewhere = shutil.copytree(undisturbed, tmp_path / "elsewhere")
    assert here(*eval_words(elsewhere, *words[3:])).code == 0
    assert result(root) == result(elsewhere)


def test_a_report_without_room_names_its_file_and_leaves_the_one_before(
    disk: Disk, undisturbed: Path
) -> None:
    out = disk.folder / "report"
    words = ["report", f"runtime.root={undisturbed}", "--out", str(out)]
    assert here(*words).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    disk.fill(leave_bytes=8192)
    said = here(*words).error
    assert said.startswith(f"{out}/")
    assert "cannot be written (No space left" in said
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_probe_without_room_names_its_file(disk: Disk, undisturbed: Path) -> None:
    root = copied(undisturbed, disk)
    words = ["probe", f"runtime.root={root}", "runtime.threads=1", "--probes", "shift_invariance"]
    disk.fill()
    assert "probes.jsonl: cannot be written (No space left" in here(*words).error
    disk.empty()
    assert here(*words).code == 0


# Weights & Biases on a full disk


def test_wandb_without_room_stops_nothing(tmp_path: Path, undisturbed: Path) -> None:
    run_dir = small_config("scheme=rope", f"runtime.root={tmp_path}").run_dir
    words = [*train_words(tmp_path, "scheme=rope"), "runtime.wandb=offline"]
    with small_disk(run_dir / "wandb", n_bytes=65536) as disk:
        disk.fill()
        ran = ended(begin(*words, environment={"HOME": str(tmp_path)}))
        assert ran.code == 0, ran.err
        assert "Traceback" not in ran.err
        assert len([line for line in ran.err.splitlines() if "W&B" in line]) <= 2
        assert result(tmp_path) == result(undisturbed)


@pytest.mark.usefixtures("room_is_taken_later")
def test_wandb_beside_a_run_without_room_adds_nothing_to_its_one_line(
    disk: Disk, undisturbed: Path
) -> None:
    root = disk.folder / "runs"
    words = [*train_words(root, "scheme=rope"), "runtime.wandb=offline"]
    process = begin(*words, environment={"HOME": str(disk.folder)})
    while not list(root.glob("rope-*/wandb/offline-run-*/*.wandb")):
        assert process.poll() is None, ended(process)
        time.sleep(0.01)
    disk.fill()
    ran = ended(process)
    assert "cannot " in ran.error
    disk.empty()
    ran = ended(begin(*words, environment={"HOME": str(disk.folder)}))
    assert ran.code == 0, ran.err
    assert result(root) == result(undisturbed)


# Read-only


def test_an_export_without_room_leaves_nothing(disk: Disk, undisturbed: Path) -> None:
    words = ["export", str(one_run(undisturbed)), str(disk.folder / "model")]
    disk.empty()
    before = disk.free_bytes
    assert here(*words).code == 0
    needed = before - disk.free_bytes
    shutil.rmtree(disk.folder / "model")
    for leave_bytes in range(0, needed, needed // 12):
        disk.fill(leave_bytes=leave_bytes)
        said = here(*words).error
        assert said.startswith(f"{disk.folder}/model: cannot be written (")
        assert "free disk space" in said
        assert [path.name for path in disk.folder.iterdir()] == ["filler"]


def test_a_run_in_a_read_only_root_is_refused_in_one_line(disk: Disk) -> None:
    disk.refuse_writing()
    said = here(*train_words(disk.folder / "runs", "scheme=rope")).error
    assert said.startswith("runtime.cache: cannot write")
    assert "(Read-only file system)" in said


def test_a_run_whose_root_alone_is_read_only_is_refused_in_one_line(
    disk: Disk, tmp_path: Path
) -> None:
    disk.refuse_writing()
    root = disk.folder / "runs"
    said = here(*train_words(root, "scheme=rope", f"runtime.cache={tmp_path}/cache")).error
    assert said.startswith(f"runtime.root: cannot write {root}")
    assert "(Read-only file system)" in said
    assert "give runtime.root=FOLDER" in said


def test_a_finished_run_in_a_read_only_root_can_be_listed_evaluated_and_reported(
    disk: Disk, undisturbed: Path, tmp_path: Path
) -> None:
    root = copied(undisturbed, disk)
    listed = here("list", "runs", f"runtime.root={root}")
    evaluated = here(*eval_words(root))
    disk.refuse_writing()
    assert here("list", "runs", f"runtime.root={root}") == listed
    assert here(*eval_words(root)) == evaluated
    ran = here("report", f"runtime.root={root}", "--out", str(tmp_path / "report"))
    assert ran.code == 0, ran.err
    assert (tmp_path / "report" / "report.html").exists()


def test_more_of_a_run_in_a_read_only_root_is_refused_in_one_line(
    disk: Disk, undisturbed: Path
) -> None:
    root = copied(undisturbed, disk)
    (run_dir,) = root.glob("rope-*")
    disk.refuse_writing()
    for words in (
        eval_words(root, "--lengths", "8,16"),
        train_words(root, "scheme=rope"),
        ["report", f"runtime.root={root}", "--out", str(root / "report")],
    ):
        said = here(*words).error
        assert "(Read-only file system)" in said
        assert str(root) in said
    assert run_dir.name in {path.name for path in root.iterdir()}
