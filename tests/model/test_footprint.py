"""What can never fit in the memory of a machine is refused before it is allocated."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluated import ALONE, QUIET
from small import small_config

from lengthgen import memory
from lengthgen.config.schema import from_overrides
from lengthgen.data import corpora
from lengthgen.errors import UserError
from lengthgen.pipeline import train_and_evaluate


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.batch_tokens=1e14"], r"^train.batch_tokens=100000000000000: at least 2,980,232.2"),
        (["train.length=1e14", "train.batch_tokens=1e14"], r"^train.batch_tokens=1000000"),
        (["model.d_model=1048576"], r"^model.n_layers=2 model.d_model=1048576 model.d_ff=64, "),
        (["model.d_ff=16777216", "model.n_layers=64"], r"^model.n_layers=64 model.d_model=32 "),
        (
            ["train.length=1e8", "train.batch_tokens=1e8", "model.d_ff=16777216"],
            r"1 windows of 100000000 tokens at a time: at least .* GiB of memory are needed",
        ),
        (["corpus.document_tokens=1e14"], r"^corpus.documents=20 corpus.document_tokens=10000"),
        (["corpus.documents=1e14"], r"^corpus.documents=100000000000000 "),
    ],
)
def test_more_than_the_machine_has_is_refused_in_one_line(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    words = [*overrides, "eval.lengths=[16,32,64]", f"runtime.root={tmp_path}"]
    with pytest.raises(UserError, match=message) as caught:
        train_and_evaluate(small_config(*words), ranks=ALONE, show=QUIET)
    assert " GiB; lower " in str(caught.value)
    assert not list(tmp_path.glob("*/checkpoints"))


def test_examples_that_no_memory_holds_are_refused(tmp_path: Path) -> None:
    words = ["task=copy", "task.examples=1e14"]
    corpus = from_overrides(words, config_dir=None, plugins=[]).corpus
    with pytest.raises(UserError, match=r"^task.examples=100000000000000 "):
        corpora.load(corpus, cache_dir=tmp_path, say=QUIET.say)


@pytest.mark.parametrize(
    "allocate",
    [lambda: bytearray(1 << 60), lambda: torch.empty(1 << 55), lambda: np.empty(1 << 55)],
)
def test_an_error_of_an_allocation_is_known_as_one(allocate: Callable[[], object]) -> None:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        allocate()
    assert memory.is_exhausted(caught.value)


def test_the_memory_of_this_machine_is_known() -> None:
    assert 2**28 < memory.total_bytes() < 2**50
