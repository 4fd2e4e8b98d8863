"""A checkpoint holds what was trained, or is named as damaged; what cannot be read is kept."""

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import files_limited_to
from small import refusal

from lengthgen.runs import checkpoints, status
from lengthgen.runs.checkpoints import FILES, TRAINER, WEIGHTS, Checkpoint

RUN = "rope-tiny-toy-s1-0a0a0a0a"


def save(run_dir: Path, *steps: int) -> list[Path]:
    for step in steps:
        weights = {"embedding.weight": torch.full((9, 4), float(step))}
        trainer = {"unlogged": (1.5, step), "optimizers": [torch.ones(9, 4)]}
        checkpoints.save(run_dir, run=RUN, step=step, weights=weights, trainer=trainer)
    return status.checkpoint_folders(run_dir)


def newest(run_dir: Path, *files: str) -> Checkpoint:
    checkpoint = checkpoints.newest(run_dir, run=RUN, files=files or FILES)
    assert checkpoint is not None
    return checkpoint


def test_the_two_newest_are_kept_and_the_umask_decides_who_may_read_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        kept = save(tmp_path, 1, 2, 3, 4)
    finally:
        os.umask(before)
    assert [path.name for path in kept] == ["step-00000003", "step-00000004"]
    assert {path.stat().st_mode & 0o777 for path in kept[0].iterdir()} == {0o640}


def test_kept_weights_stay_and_nothing_resumes_from_them(tmp_path: Path) -> None:
    weights = {"embedding.weight": torch.ones(99, 99)}
    keep = partial(checkpoints.save, tmp_path, run=RUN, weights=weights)
    before = os.umask(0o027)
    try:
        keep(step=7)
        kept = {path: path.read_bytes() for path in (tmp_path / "kept" / "step-00000007").iterdir()}
        with files_limited_to(600):
            assert "step-00000009: cannot be written" in refusal(keep, step=9)
    finally:
        os.umask(before)
    save(tmp_path, 4, 5, 6)
    assert newest(tmp_path).step == 6
    assert {p: p.read_bytes() for p in tmp_path.glob("kept/**/*") if p.is_file()} == kept
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o640}


def refused(run_dir: Path) -> str:
    """Returns why no checkpoint is read, whose files are then as they were."""
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    said = refusal(newest, run_dir)
    assert {path: path.read_bytes() for path in before} == before
    return said


@pytest.mark.parametrize("name", [*FILES, "sha256.json"])
def test_a_damaged_checkpoint_is_refused_with_help(tmp_path: Path, name: str) -> None:
    last = save(tmp_path, 1, 2)[-1]
    content = bytearray((last / name).read_bytes())
    content[len(content) // 2] ^= 1
    (last / name).write_bytes(content)
    assert f"{last}: lengthgen train then starts from the checkpoint before" in refused(tmp_path)
    shutil.rmtree(last)
    assert newest(tmp_path).step == 1


def test_weights_are_read_without_the_optimizer(tmp_path: Path) -> None:
    [folder] = save(tmp_path, 5)
    (folder / TRAINER).unlink()
    assert newest(tmp_path, WEIGHTS).step == 5
    message = refused(tmp_path)
    assert "trainer.pt does not exist" in message
    assert "starts from step 0: no other is left" in message


@pytest.mark.parametrize("keep", [True, False])
def test_a_finished_run_keeps_its_last_weights_and_all_if_asked(tmp_path: Path, keep: bool) -> None:
    before, last = save(tmp_path, 1, 2)
    checkpoints.mark_trained(tmp_path, run=RUN, keep_optimizer=keep)
    assert (before.exists(), (last / TRAINER).exists()) == (keep, keep)
    assert newest(tmp_path, WEIGHTS).step == 2
    n_bytes = sum(f.stat().st_size for f in [*before.glob("*"), *last.glob(TRAINER)])
    assert checkpoints.drop_optimizer(tmp_path) == n_bytes
    assert "train.keep_optimizer=true" in refused(tmp_path)
    assert newest(tmp_path, WEIGHTS).step == 2


def test_half_a_checkpoint_and_what_lies_beside_them_are_none(tmp_path: Path) -> None:
    assert checkpoints.newest(tmp_path, run=RUN) is None
    [first] = save(tmp_path, 1)
    for name in (".tmp", "step-00000007.bak", "step-backup", "step-00000001 (copy)"):
        shutil.copytree(first, first.with_name(name))
    assert newest(tmp_path).step == 1
    save(tmp_path, 2)
    assert [p.name for p in first.parent.iterdir() if p.name.startswith(".")] == []
    first.rename(first.with_name("step-00000006"))
    assert "step-00000006 holds step 1" in refused(tmp_path)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    [folder] = save(tmp_path, 1)
    marker = tmp_path / "ran"

    class Attack:
        def __reduce__(self) -> tuple[Any, tuple[list[str]]]:
            return subprocess.check_call, (["touch", str(marker)],)

    torch.save(Attack(), folder / TRAINER)
    with pytest.raises(Exception, match="Weights only load failed"):
        newest(tmp_path, WEIGHTS).trainer_state()
    assert not marker.exists()


def test_another_run_and_a_folder_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    [folder] = save(tmp_path, 5)
    said = refusal(checkpoints.newest, tmp_path, run="mine")
    assert said.startswith(f"{folder} is of run {RUN}, but config.yaml here of mine")
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "checkpoints").symlink_to("checkpoints")  # ELOOP, which root has too
    assert "checkpoints: cannot be read (Too many levels" in refused(tmp_path)
