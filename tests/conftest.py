"""What every test starts from."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from small_corpora import TEXTS


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from a second thread, and two that wait for each other spin."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def forget_plugins() -> Generator[None]:
    """Unloads the plugins of a test, so that the next one may define the same names."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("lengthgen_plugin_"):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of four documents, two of them hard on tokenizers."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_bytes(text.encode())
    return folder


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"
