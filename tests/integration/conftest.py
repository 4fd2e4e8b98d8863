"""The run that tests of faults start from."""

from pathlib import Path

import pytest
from faults import here, train_words


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a finished run of RoPE that nothing happened to; not to be changed."""
    root = tmp_path_factory.mktemp("undisturbed")
    ran = here(*train_words(root, "scheme=rope"))
    assert ran.code == 0, ran.err
    return root
