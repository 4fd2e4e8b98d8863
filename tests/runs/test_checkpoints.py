"""A checkpoint holds what was trained, or is named as damaged; what cannot be read is kept."""

import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small import VOCAB, small_config, some_tokens

from lengthgen.errors import UserError
from lengthgen.model.build import create
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, status
from lengthgen.runs.checkpoints import FILES, TRAINER, WEIGHTS, Checkpoint
from lengthgen.training.optim import adamw

RUN = "rope-tiny-toy-s1-0a0a0a0a"


class Trained(NamedTuple):
    model: Transformer
    optimizer: torch.optim.AdamW


@pytest.fixture(scope="module")
def trained() -> Trained:
    """A model and an optimizer that has moments."""
    config = small_config("scheme=learned_absolute")
    model = create(config, vocab_size=VOCAB)
    optimizer = adamw(model, config.train)
    tokens = some_tokens(16)
    model.token_nll(model(tokens), tokens).sum().backward()
    optimizer.step()
    return Trained(model, optimizer)


def save(run_dir: Path, trained: Trained, *steps: int) -> list[Path]:
    for step in steps:
        checkpoints.save(
            run_dir,
            run=RUN,
            step=step,
            weights=trained.model.state_dict(),
            trainer={"unlogged": (1.5, step), "optimizer": trained.optimizer.state_dict()},
        )
    return status.checkpoint_folders(run_dir)


def newest(run_dir: Path, *files: str) -> tuple[Checkpoint | None, list[str]]:
    said: list[str] = []
    return checkpoints.newest(run_dir, run=RUN, say=said.append, files=files or FILES), said


def test_a_checkpoint_restores_weights_and_moments_bit_for_bit(
    tmp_path: Path, trained: Trained
) -> None:
    save(tmp_path, trained, 5)
    checkpoint, said = newest(tmp_path)
    assert checkpoint is not None
    assert (checkpoint.step, said) == (5, [])
    for name, weight in trained.model.state_dict().items():
        assert torch.equal(checkpoint.weights[name], weight)
    state = checkpoint.trainer_state()
    assert state["unlogged"] == (1.5, 5)
    want: dict[str, Any] = trained.optimizer.state_dict()
    assert state["optimizer"]["param_groups"] == want["param_groups"]
    for key, moments in want["state"].items():
        for name, value in moments.items():
            assert torch.equal(state["optimizer"]["state"][key][name], value)


def test_only_the_two_newest_checkpoints_are_kept(tmp_path: Path, trained: Trained) -> None:
    kept = save(tmp_path, trained, 1, 2, 3, 4)
    assert [path.name for path in kept] == ["step-00000003", "step-00000004"]


def test_the_umask_decides_who_may_read_a_checkpoint(tmp_path: Path, trained: Trained) -> None:
    before = os.umask(0o027)
    try:
        [folder] = save(tmp_path, trained, 1)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", [*FILES, "sha256.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, trained: Trained, name: str
) -> None:
    last = save(tmp_path, trained, 1, 2)[-1]
    flip_a_bit(last / name)
    checkpoint, [said] = newest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert said.startswith(f"{last} is damaged and skipped: ")


def test_if_all_are_damaged_nothing_begins_again_by_itself(
    tmp_path: Path, trained: Trained
) -> None:
    for folder in save(tmp_path, trained, 1, 2):
        flip_a_bit(folder / WEIGHTS)
    with pytest.raises(UserError, match=r"all checkpoints are damaged; restore one, or remove "):
        newest(tmp_path)


@pytest.mark.parametrize("code", [errno.EACCES, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", [*FILES, "sha256.json"])
def test_a_checkpoint_that_cannot_be_read_is_an_error_and_not_damage(
    tmp_path: Path, trained: Trained, name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, trained, 1, 2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    opened = os.open

    def refused(path: Any, *given: Any, **named: Any) -> int:
        if Path(path).name == name:
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, *given, **named)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(UserError, match=rf"step-00000002/{name}: cannot be read .* changed"):
        newest(tmp_path)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in before} == before


def test_weights_are_read_without_the_optimizer(tmp_path: Path, trained: Trained) -> None:
    [folder] = save(tmp_path, trained, 5)
    (folder / TRAINER).unlink()
    checkpoint, _ = newest(tmp_path, WEIGHTS)
    assert checkpoint is not None
    assert checkpoint.step == 5
    with pytest.raises(UserError, match=r"trainer\.pt: cannot be read \(No such file"):
        newest(tmp_path)


def test_half_a_checkpoint_under_its_temporary_name_is_not_one(
    tmp_path: Path, trained: Trained
) -> None:
    [first] = save(tmp_path, trained, 1)
    shutil.copytree(first, tmp_path / "checkpoints" / ".tmp-1")
    checkpoint, _ = newest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 1
    save(tmp_path, trained, 2)
    assert [p.name for p in first.parent.iterdir() if p.name.startswith(".")] == []
    assert newest(tmp_path / "nothing") == (None, [])


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, trained: Trained) -> None:
    [folder] = save(tmp_path, trained, 1)
    marker = tmp_path / "ran"

    class Attack:
        def __reduce__(self) -> tuple[Any, tuple[list[str]]]:
            return subprocess.check_call, (["touch", str(marker)],)

    torch.save(Attack(), folder / TRAINER)
    checkpoint, _ = newest(tmp_path, WEIGHTS)
    assert checkpoint is not None
    with pytest.raises(Exception, match="Weights only load failed"):
        checkpoint.trainer_state()
    assert not marker.exists()


def test_a_checkpoint_of_another_run_is_refused_by_name(tmp_path: Path, trained: Trained) -> None:
    [folder] = save(tmp_path, trained, 5)
    with pytest.raises(UserError) as caught:
        checkpoints.newest(tmp_path, run="mine", say=print)
    assert str(caught.value).startswith(
        f"{folder}: a checkpoint of run {RUN}, but config.yaml here is of run mine; restore"
    )
