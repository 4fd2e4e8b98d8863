"""What every test starts from."""

import sys
from collections.abc import Generator

import pytest


@pytest.fixture(autouse=True)
def forget_plugins() -> Generator[None]:
    """Unloads the plugins of a test, so that the next one may define the same names."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("lengthgen_plugin_"):
            del sys.modules[name]
