"""The run directory survives what happens to it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from small import VOCAB, small_config, some_tokens

from lengthgen.config.schema import Config
from lengthgen.data import corpora
from lengthgen.errors import UserError
from lengthgen.files import sha256_of
from lengthgen.model.build import create
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, directory, status
from lengthgen.training.optim import adamw

RUN = "rope-tiny-toy-s1-0a0a0a0a"


class Trained(NamedTuple):
    config: Config
    model: Transformer
    optimizer: torch.optim.AdamW


@pytest.fixture
def trained() -> Trained:
    """A model and an optimizer that has moments."""
    config = small_config("scheme=learned_absolute")
    model = create(config, vocab_size=VOCAB)
    optimizer = adamw(model, config.train)
    tokens = some_tokens(16)
    model.token_nll(model(tokens), tokens).sum().backward()
    optimizer.step()
    return Trained(config, model, optimizer)


def save(run_dir: Path, trained: Trained, *steps: int) -> list[Path]:
    for step in steps:
        checkpoints.save(
            run_dir,
            run=RUN,
            step=step,
            unlogged=(1.5, step),
            memory=None,
            model=trained.model,
            optimizer=trained.optimizer,
        )
    return sorted((run_dir / "checkpoints").iterdir())


def newest(run_dir: Path) -> tuple[checkpoints.Checkpoint | None, list[str]]:
    said: list[str] = []
    return checkpoints.newest(run_dir, run=RUN, say=said.append), said


def test_a_checkpoint_restores_weights_and_moments_bit_for_bit(
    tmp_path: Path, trained: Trained
) -> None:
    save(tmp_path, trained, 5)
    found, said = newest(tmp_path)
    assert found is not None
    assert found.step == 5
    assert found.unlogged == (1.5, 5)
    assert said == []
    for name, weight in trained.model.state_dict().items():
        assert torch.equal(found.weights[name], weight)
    want: dict[str, Any] = trained.optimizer.state_dict()
    assert found.optimizer["param_groups"] == want["param_groups"]
    for key, state in want["state"].items():
        for name, value in state.items():
            assert torch.equal(found.optimizer["state"][key][name], value)


def test_only_the_two_newest_checkpoints_are_kept(tmp_path: Path, trained: Trained) -> None:
    kept = save(tmp_path, trained, 1, 2, 3, 4)
    assert [path.name for path in kept] == ["step-00000003", "step-00000004"]


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, os.remove])
@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt", "sha256.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, trained: Trained, name: str, damage: Any
) -> None:
    newest_path = save(tmp_path, trained, 1, 2)[-1]
    damage(newest_path / name)
    found, said = newest(tmp_path)
    assert found is not None
    assert found.step == 1
    assert len(said) == 1
    assert str(newest_path) in said[0]


def test_half_a_checkpoint_under_its_temporary_name_is_not_one(
    tmp_path: Path, trained: Trained
) -> None:
    first = save(tmp_path, trained, 1)[0]
    shutil.copytree(first, tmp_path / "checkpoints" / ".tmp-1")
    found, _ = newest(tmp_path)
    assert found is not None
    assert found.step == 1
    assert [path.name for path in save(tmp_path, trained, 2)] == [first.name, "step-00000002"]
    assert newest(tmp_path / "nothing") == (None, [])


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, trained: Trained) -> None:
    folder = save(tmp_path, trained, 1)[0]
    marker = tmp_path / "ran"

    class Attack:
        def __reduce__(self) -> tuple[Any, tuple[list[str]]]:
            return subprocess.check_call, (["touch", str(marker)],)

    torch.save(Attack(), folder / "trainer.pt")
    sums = json.loads((folder / "sha256.json").read_text())
    sums["trainer.pt"] = sha256_of(folder / "trainer.pt")
    (folder / "sha256.json").write_text(json.dumps(sums))
    found, said = newest(tmp_path)
    assert found is None
    assert len(said) == 1
    assert not marker.exists()


def test_a_root_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match=r"runtime\.root: cannot write"),
        status.run_lock(tmp_path / "file" / "run", "train"),
    ):
        pass


def test_a_run_is_found_by_its_id_its_beginning_and_its_path(tmp_path: Path) -> None:
    for scheme in ("rope", "alibi"):
        config = small_config(f"scheme={scheme}", f"runtime.root={tmp_path}")
        config.run_dir.mkdir()
        directory.write_config(config, config.run_dir)
        assert directory.load_config(config.run_dir) == config
        assert directory.find(config.run_id, tmp_path) == config.run_dir
        assert directory.find(scheme, tmp_path) == config.run_dir
        assert directory.find(str(config.run_dir), Path("elsewhere")) == config.run_dir
    assert {run.state for run in directory.list_runs(tmp_path)} == {"stopped"}
    with pytest.raises(UserError, match="begins several runs"):
        directory.find("", tmp_path)
    with pytest.raises(UserError, match=r"no such run in .* did you mean rope-"):
        directory.find("ropetiny-synthetic-s1", tmp_path)
    with pytest.raises(UserError, match=r"^there/rope: no folder of a run, and no such run in"):
        directory.find("there/rope", tmp_path)


def test_an_empty_root_says_how_to_make_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lengthgen train"):
        directory.newest(tmp_path)


@pytest.mark.parametrize("content", ["a: [", "- 1", "seed: x"])
def test_a_damaged_configuration_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(UserError):
        directory.load_config(tmp_path)
    with pytest.raises(UserError, match=r"no config\.yaml"):
        directory.load_config(tmp_path / "none")


def test_damaged_later_checkpoints_give_way_to_a_fresh_one(
    tmp_path: Path, trained: Trained
) -> None:
    for path in save(tmp_path, trained, 12, 14):
        truncate(path / "trainer.pt")
    assert [path.name for path in save(tmp_path, trained, 5)] == ["step-00000005"]


def test_one_unreadable_run_does_not_hide_the_others(tmp_path: Path) -> None:
    config = small_config(f"runtime.root={tmp_path}")
    for name in (config.run_id, "broken"):
        (tmp_path / name).mkdir()
    directory.write_config(config, config.run_dir)
    (tmp_path / "broken" / "config.yaml").write_text("a: [")
    states = {run.run_id: run.state for run in directory.list_runs(tmp_path)}
    assert states == {config.run_id: "stopped", "broken": "unreadable"}


def test_a_run_without_its_configuration_is_listed_with_the_remedy(tmp_path: Path) -> None:
    run_dir = tmp_path / "rope-tiny-synthetic-s1-0a0a0a0a"
    run_dir.mkdir()
    (run_dir / "env.json").write_text("{}")
    (run,) = directory.list_runs(tmp_path)
    assert (run.run_id, run.state) == (run_dir.name, "unreadable")
    missing = r"config\.yaml is missing; repeat the lengthgen train command of this run"
    assert re.search(missing, str(run.reason))
    with pytest.raises(UserError, match=missing):
        directory.load_config(directory.find(str(run_dir), tmp_path))


def test_provenance_does_not_need_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(f"runtime.cache={tmp_path}")
    corpus = corpora.load(config.corpus, cache_dir=tmp_path, say=print)
    monkeypatch.setenv("PATH", "")
    directory.write_provenance(tmp_path, corpus, run=config.run_id)
    written = json.loads((tmp_path / "env.json").read_text())
    assert written["commit"] is None
    assert written["fingerprint"] == corpus.fingerprint
    (tmp_path / "env.json").write_text("[]")
    with pytest.raises(UserError, match=r"env\.json is damaged"):
        directory.check_corpus(tmp_path, corpus, run=config.run_id)


def test_a_command_with_a_byte_that_is_no_utf_8_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(f"runtime.cache={tmp_path}")
    corpus = corpora.load(config.corpus, cache_dir=tmp_path, say=print)
    monkeypatch.setattr("sys.argv", ["lengthgen", "train", "--config-dir", os.fsdecode(b"c\xff")])
    directory.write_provenance(tmp_path, corpus, run=config.run_id)
    assert directory.read_provenance(tmp_path, run=config.run_id)["argv"][-1] == r"c\xff"
    directory.check_corpus(tmp_path, corpus, run=config.run_id)


def test_a_run_of_before_a_setting_of_evaluation_existed_has_its_default(tmp_path: Path) -> None:
    config = small_config(f"runtime.root={tmp_path}")
    config.run_dir.mkdir()
    directory.write_config(config, config.run_dir)
    path = config.run_dir / "config.yaml"
    plain = yaml.safe_load(path.read_text())
    del plain["eval"]["blocks"], plain["runtime"]["log_every"]
    path.write_text(yaml.safe_dump(plain))
    found = directory.load_config(config.run_dir)
    assert (found.eval.blocks, found.runtime.log_every) == (16, 10)
    assert found.eval.lengths == config.eval.lengths
    assert found.run_id == config.run_id
    del plain["train"]["lr"]
    path.write_text(yaml.safe_dump(plain))
    with pytest.raises(UserError, match=r"train\.lr"):
        directory.load_config(config.run_dir)


@pytest.mark.parametrize("scheme", ["t5", "rope"])
def test_a_run_of_before_schemes_had_a_rate_keeps_its_name_and_a_ratio_of_1(
    tmp_path: Path, scheme: str
) -> None:
    words = [f"scheme={scheme}", f"runtime.root={tmp_path}"]
    config = small_config(*words, "train.scheme_lr_ratio=1")
    config.run_dir.mkdir()
    directory.write_config(config, config.run_dir)
    path = config.run_dir / "config.yaml"
    plain = yaml.safe_load(path.read_text())
    del plain["train"]["scheme_lr_ratio"], plain["scheme"]["lr_ratio"]
    path.write_text(yaml.safe_dump(plain))
    found = directory.load_config(config.run_dir)
    assert found.scheme_lr_ratio == 1
    assert found.run_id == config.run_id == config.run_dir.name
    science = {key: plain[key] for key in ("seed", "scheme", "model", "corpus", "train")}
    del science["train"]["checkpoint_every"], science["scheme"]["variants"]
    digest = hashlib.sha256(json.dumps(science, sort_keys=True).encode()).hexdigest()[:8]
    assert found.run_id.endswith(digest)  # as the name was made before


def test_a_run_is_named_by_the_ratio_in_force_however_it_was_given() -> None:
    own = small_config("scheme=t5")
    assert own.scheme_lr_ratio == own.scheme.lr_ratio == 16
    said = small_config("scheme=t5", "train.scheme_lr_ratio=16")
    other = small_config("scheme=t5", "train.scheme_lr_ratio=2")
    assert said.run_id == own.run_id
    assert len({own.run_id, other.run_id, small_config("scheme=kerple").run_id}) == 3
    assert small_config("scheme=rope").scheme_lr_ratio == 1


def test_a_checkpoint_of_another_run_is_refused_by_name(tmp_path: Path, trained: Trained) -> None:
    [folder] = save(tmp_path, trained, 5)
    with pytest.raises(UserError) as caught:
        checkpoints.newest(tmp_path, run="mine", say=print)
    assert str(caught.value).startswith(
        f"{folder}: a checkpoint of run {RUN}, but config.yaml here is of run mine; restore"
    )


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt"])
def test_a_checkpoint_of_two_steps_is_damaged(tmp_path: Path, trained: Trained, name: str) -> None:
    four, five = save(tmp_path, trained, 4, 5)
    sums = json.loads((five / "sha256.json").read_text())
    sums[name] = json.loads((four / "sha256.json").read_text())[name]
    (five / "sha256.json").write_text(json.dumps(sums))
    shutil.copy(four / name, five / name)
    found, said = newest(tmp_path)
    assert found is not None
    assert found.step == 4
    assert said == [f"{five} is damaged and skipped: its files are not of one run and step"]


def test_a_checkpoint_is_of_the_step_in_its_folder_s_name(tmp_path: Path, trained: Trained) -> None:
    [folder] = save(tmp_path, trained, 5)
    folder.rename(folder.with_name("step-00000009"))
    assert newest(tmp_path)[0] is None


def test_equal_weights_are_equal_files(tmp_path: Path, trained: Trained) -> None:
    one, other = (save(tmp_path / name, trained, 5)[0] for name in "ab")
    assert (one / "sha256.json").read_bytes() == (other / "sha256.json").read_bytes()
