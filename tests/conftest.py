"""What every test starts from."""

import functools
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch
from commands import Shell, here, one_run, train_words
from hub_stub import Hub, serving
from hypothesis import settings
from small import small_config
from small_corpora import TEXTS, load_tokens

from lengthgen.config.user import user_cache
from lengthgen.data.corpora import TokenizedCorpus

# The same examples in every run, and few: a test that draws is as quick as one that lists.
settings.register_profile(
    "lengthgen", derandomize=True, max_examples=25, deadline=None, database=None
)
settings.load_profile("lengthgen")


LONGEST = ("test_slurm", "test_sweep_run", "test_distributed", "test_readme", "test_train")


def pytest_configure() -> None:
    """Makes Ctrl-C an interrupt, also of programs that tests start.

    A shell makes what it starts in the background ignore it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts long files first: at the end, one would leave the other cores idle.

    These are a few, and then those with most slow tests. The order within a file stays.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (item.path.stem not in LONGEST, -slow[item.path]))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from a second thread, and two that wait for each other spin.

    Numbers drawn without a generator are the same in every run.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps what tests allow out of the account that runs them, and the other way round."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    wheels = user_cache() / "wheels"  # of corpus=python, if they are there
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("user_cache"))  # of corpora
    if wheels.is_dir():
        user_cache().mkdir()
        (user_cache() / "wheels").symlink_to(wheels)
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))  # lengthgen.yaml
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # main() then leaves the environment alone
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Gives the root of the run of some words, which is trained once; not to be changed."""

    @functools.cache
    def trained(*words: str) -> Path:
        root = tmp_path_factory.mktemp("finished") / "runs"
        ran = here(*train_words(root, *words))
        assert ran.code == 0, ran.err
        return root

    return trained


@pytest.fixture
def own(finished: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Gives a copy of the finished run of some words, in runs/ of the test's folder."""

    def copied(*words: str) -> Path:
        (run_dir,) = shutil.copytree(finished(*words), tmp_path / "runs").glob("*-*-*")
        return run_dir

    return copied


@pytest.fixture
def undisturbed(finished: Callable[..., Path]) -> Path:
    """The root of a finished run of RoPE that nothing happened to."""
    return finished("scheme=rope")


@pytest.fixture
def trained(own: Callable[..., Path]) -> Path:
    """The root of a copy of the run that nothing happened to."""
    return own("scheme=rope").parent


@pytest.fixture
def run_dir(trained: Path) -> Path:
    """The directory of that copy."""
    return one_run(trained)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of four documents, two of them hard on tokenizers."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_bytes(text.encode())
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token cache that runs share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def corpus(cache: Path) -> TokenizedCorpus:
    """The corpus of SMALL."""
    return load_tokens(small_config().corpus, cache_dir=cache, say=print)


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    """Commands given in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Shell()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Generator[dict[str, bytes]]:
    """The files that a repository of a Hub on this machine has been given."""
    Hub.kept.clear()
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
    with serving(Hub) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        yield Hub.kept
