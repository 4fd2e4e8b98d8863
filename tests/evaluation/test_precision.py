"""The audit scores the same targets again, and tells by how much they move."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from evaluated import ALONE, QUIET, save_model, with_eval
from small import small_config

from lengthgen.config.schema import Config
from lengthgen.data.corpora import load
from lengthgen.errors import UserError
from lengthgen.evaluation.precision import audit
from lengthgen.model.build import create
from lengthgen.pipeline import train_and_evaluate
from lengthgen.runs.checkpoints import weights_sha256
from lengthgen.storage import read_rows, write_rows


def in_root(root: Path, cache: Path) -> Config:
    return small_config(f"runtime.root={root}", f"runtime.cache={cache}", "eval.endpoints=6")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return train_and_evaluate(
        in_root(tmp_path_factory.mktemp("runs"), cache), ranks=ALONE, show=QUIET
    )


@pytest.fixture
def run(trained: Path, tmp_path: Path, cache: Path) -> tuple[Config, Path]:
    """A trained run of one's own to change."""
    config = in_root(tmp_path, cache)
    return config, shutil.copytree(trained, config.run_dir)


def test_the_same_precision_moves_nothing_but_the_digits_kept(run: tuple[Config, Path]) -> None:
    config, run_dir = run
    found = audit(config, run_dir, precision="fp32", ranks=ALONE, show=QUIET)
    assert [one.length for one in found] == [16, 32, 64]
    assert {one.n_tokens for one in found} == {2 * 8}  # K targets of each document
    assert [one.n_windows for one in found] == [2 * 8, 2, 2]  # S(T) is 1 for so short a T
    assert all(one.max_absolute <= 2e-6 for one in found)


def test_the_rows_of_packed_text_are_scored_again(tmp_path: Path, cache: Path) -> None:
    packed = ["corpus.packed=true", "eval.endpoints=3"]
    config = small_config(*packed, f"runtime.root={tmp_path}", f"runtime.cache={cache}")
    found = audit(
        config,
        train_and_evaluate(config, ranks=ALONE, show=QUIET),
        precision="fp32",
        ranks=ALONE,
        show=QUIET,
    )
    assert {one.n_tokens for one in found} == {3 * 8}
    assert all(one.max_absolute <= 2e-6 for one in found)


def test_double_precision_moves_fp32_little_and_bf16_a_lot(run: tuple[Config, Path]) -> None:
    config, run_dir = run
    sizes: dict[str, float] = {}
    for precision in ("fp32", "bf16"):
        one = with_eval(config, precision=precision)
        found = audit(one, run_dir, precision="fp64", ranks=ALONE, show=QUIET)
        assert {(a.scored_in, a.again_in) for a in found} == {(precision, "fp64")}
        sizes[precision] = max(a.max_absolute for a in found)
    assert 0 < sizes["fp32"] < 1e-4 < sizes["bf16"]


def test_it_notices_rows_of_other_weights(run: tuple[Config, Path]) -> None:
    config, run_dir = run
    corpus = load(config.corpus, cache_dir=config.runtime.cache_dir, say=QUIET.say)
    model = create(config, vocab_size=corpus.vocab_size)
    with torch.no_grad():
        model.embedding.weight *= 2
    save_model(run_dir, model, config, step=config.train.steps)
    log, weights = run_dir / "eval.jsonl", weights_sha256(run_dir, step=config.train.steps)
    write_rows(log, [{**row, "weights": weights} for row in read_rows(log)])
    found = audit(config, run_dir, precision="fp32", ranks=ALONE, show=QUIET)
    assert all(abs(one.mean) <= one.mean_absolute <= one.max_absolute for one in found)
    assert min(one.mean_absolute for one in found) > 1e-2


def test_an_audit_is_kept(run: tuple[Config, Path]) -> None:
    config, run_dir = run
    found = audit(config, run_dir, precision="fp64", ranks=ALONE, show=QUIET)
    lines = (run_dir / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["max_absolute"] for line in lines] == [a.max_absolute for a in found]
    weights = weights_sha256(run_dir, step=config.train.steps)
    for line in lines:
        assert json.loads(line).items() >= {"run": config.run_id, "weights": weights}.items()


def test_without_the_headline_there_is_nothing_to_score_again(run: tuple[Config, Path]) -> None:
    config, run_dir = run
    config = with_eval(config, protocols=["nonoverlap"])
    with pytest.raises(UserError, match="--audit: scores tail again"):
        audit(config, run_dir, precision="fp64", ranks=ALONE, show=QUIET)


def test_rows_of_other_targets_are_no_measure(run: tuple[Config, Path]) -> None:
    """The same endpoints with twice the targets: their rows hold other tokens first."""
    config, run_dir = run
    one_each = with_eval(config, endpoints_per_document=1)
    for targets in (8, 16, 8):
        changed = with_eval(one_each, targets=targets)
        found = audit(changed, run_dir, precision="fp32", ranks=ALONE, show=QUIET)
        assert {a.n_tokens for a in found} == {2 * targets}
        assert all(a.max_absolute <= 2e-6 for a in found)
