"""The token cache: exact token bytes, the same tokens everywhere, nothing half-built trusted."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import pytest
import tokenizers

from lengthgen import config, corpora
from lengthgen.corpora import TokenizedCorpus
from lengthgen.errors import UserError

TEXTS = {
    "plain.txt": "the cat sat on the mat, and the mat was flat\n" * 30,
    "accents.txt": "na\u00efve caf\u00e9 \u4f60\u597d \U0001f600\u200d\U0001f600 e\u0301\n" * 20,
    "special.txt": "a <|bos|> b <|bos|><|endoftext|>\t\r\n  c\x00\x7f\xa0\xad\n" * 10,
    "longest.txt": "def attend(q, k, v):\n    return softmax(q @ k) @ v\n" * 40,
}

CLIENT = """
import json, os, sys
from pathlib import Path
from lengthgen import config, corpora
from lengthgen.errors import UserError

plain, cache_dir, deadly = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def say(message):
    if deadly and deadly in message:
        os.kill(os.getpid(), 9)

corpus = getattr(config, plain["source"].capitalize() + "Corpus").model_validate(plain)
try:
    sys.stdout.write(corpora.load(corpus, cache_dir=cache_dir, say=say).fingerprint)
except UserError as error:
    sys.exit(f"UserError: {error}")
"""


class Loaded(NamedTuple):
    corpus: TokenizedCorpus
    said: list[str]


def plain_files(folder: Path, **changes: object) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": "files",
        "source": "files",
        "path": str(folder),
        "validation_path": None,
        "text_column": "text",
        "tokenizer": "bpe",
        "vocab_size": 300,
        "bos": True,
        "packed": False,
    }
    return plain | changes


def files(folder: Path, **changes: object) -> config.FilesCorpus:
    return config.FilesCorpus.model_validate(plain_files(folder, **changes))


def load(corpus: config.Corpus, cache_dir: Path) -> Loaded:
    said: list[str] = []
    return Loaded(corpora.load(corpus, cache_dir=cache_dir, say=said.append), said)


def cache_folder(cache_dir: Path) -> Path:
    (folder,) = (path for path in cache_dir.iterdir() if path.is_dir())
    return folder


def client(
    plain: dict[str, Any], cache_dir: Path, *, deadly: str = "", file_bytes: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Loads a corpus in another process, which dies at a message or may not write large files."""

    def limit() -> None:
        import resource

        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    return subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(plain), str(cache_dir), deadly],
        cwd=Path(__file__).parent.parent,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


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


# Tokens


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes"])
def test_the_bytes_of_its_tokens_are_the_bytes_of_a_document(
    folder: Path, cache_dir: Path, tokenizer: str
) -> None:
    loaded = load(files(folder, tokenizer=tokenizer), cache_dir).corpus
    found = {
        name: int(loaded.token_bytes[split.document(i)].sum())
        for split in (loaded.train, loaded.validation)
        for i, name in enumerate(split.names)
    }
    assert found == {name: len(text.encode()) for name, text in TEXTS.items()}


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes"])
def test_tokens_decode_to_the_text_they_were_made_from(
    folder: Path, cache_dir: Path, tokenizer: str
) -> None:
    loaded = load(files(folder, tokenizer=tokenizer), cache_dir).corpus
    saved = tokenizers.Tokenizer.from_file(str(loaded.tokenizer_path))
    found = {
        name: saved.decode(split.document(i).tolist())
        for split in (loaded.train, loaded.validation)
        for i, name in enumerate(split.names)
    }
    assert found == TEXTS


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes"])
def test_no_text_is_encoded_as_the_bos_token(folder: Path, cache_dir: Path, tokenizer: str) -> None:
    loaded = load(files(folder, tokenizer=tokenizer), cache_dir).corpus
    for split in (loaded.train, loaded.validation):
        assert loaded.bos_id not in split.tokens


def test_ids_of_the_byte_tokenizer_are_bytes(folder: Path, cache_dir: Path) -> None:
    loaded = load(files(folder, tokenizer="bytes"), cache_dir).corpus
    i = loaded.train.names.index("longest.txt")
    assert loaded.train.document(i).tolist() == list(TEXTS["longest.txt"].encode())
    assert (loaded.bos_id, loaded.vocab_size) == (256, 257)


def test_the_saved_byte_tokenizer_encodes_as_the_cache_does(folder: Path, cache_dir: Path) -> None:
    loaded = load(files(folder, tokenizer="bytes"), cache_dir).corpus
    saved = corpora.read_tokenizer(loaded.tokenizer_path)
    for name, text in TEXTS.items():
        assert saved.encode(text).ids == list(text.encode()), name


def test_a_small_corpus_has_fewer_tokens_than_were_asked_for(folder: Path, cache_dir: Path) -> None:
    loaded = load(files(folder, vocab_size=50_000), cache_dir).corpus
    saved = tokenizers.Tokenizer.from_file(str(loaded.tokenizer_path))
    assert loaded.vocab_size == saved.get_vocab_size() == len(loaded.token_bytes) < 2_000


def test_a_trained_vocabulary_has_the_size_asked_for(folder: Path, cache_dir: Path) -> None:
    loaded = load(files(folder, vocab_size=290), cache_dir).corpus
    assert loaded.vocab_size == 290


def test_no_bos_id_is_given_if_the_corpus_wants_none(folder: Path, cache_dir: Path) -> None:
    assert load(files(folder, bos=False), cache_dir).corpus.bos_id is None


def test_packed_documents_are_one_with_the_bos_token_between_them(
    folder: Path, cache_dir: Path
) -> None:
    apart = load(files(folder), cache_dir).corpus.train
    packed = load(files(folder, packed=True), cache_dir).corpus
    assert packed.packed
    assert packed.train.lengths.tolist() == [len(packed.train.tokens)]
    at = np.flatnonzero(packed.train.tokens == packed.bos_id)
    pieces = np.split(packed.train.tokens, at)
    found = [pieces[0].tolist(), *(piece[1:].tolist() for piece in pieces[1:])]
    assert found == [apart.document(i).tolist() for i in range(len(apart.names))]


def test_meta_counts_documents_tokens_and_bytes(folder: Path, cache_dir: Path) -> None:
    loaded = load(files(folder), cache_dir).corpus
    for split, name in ((loaded.train, "train"), (loaded.validation, "validation")):
        assert loaded.meta[name] == {
            "documents": len(split.names),
            "tokens": len(split.tokens),
            "bytes": sum(len(TEXTS[one].encode()) for one in split.names),
            "longest": split.lengths.max(),
        }


def test_random_documents_are_tokenised_by_bytes(cache_dir: Path) -> None:
    corpus = config.SyntheticCorpus(
        name="synthetic",
        source="synthetic",
        documents=20,
        document_tokens=100,
        alphabet=20,
        copy_tokens=5,
        copies=2,
        seed=0,
        tokenizer="bytes",
        vocab_size=257,
        bos=True,
        packed=False,
    )
    loaded = load(corpus, cache_dir).corpus
    assert loaded.train.lengths.tolist() == [200] * 20
    assert loaded.validation.lengths.tolist() == [200] * 2


def test_the_standard_library_has_a_dozen_validation_documents_beyond_16k_tokens(
    cache_dir: Path,
) -> None:
    corpus = config.StdlibCorpus(
        name="stdlib", source="stdlib", tokenizer="bpe", vocab_size=4096, bos=True, packed=False
    )
    loaded = load(corpus, cache_dir).corpus
    assert np.count_nonzero(loaded.validation.lengths >= 16_385) >= 12


# A tokenizer.json of one's own


def test_a_given_tokenizer_encodes_as_the_one_it_was_saved_from(
    folder: Path, cache_dir: Path
) -> None:
    trained = load(files(folder), cache_dir).corpus
    given = load(files(folder, tokenizer=str(trained.tokenizer_path)), cache_dir).corpus
    assert given.fingerprint == trained.fingerprint


def test_ids_beyond_16_bits_are_kept(folder: Path, cache_dir: Path, tmp_path: Path) -> None:
    tokenizer = corpora.byte_tokenizer()
    tokenizer.add_tokens([f"<{i}>" for i in range(70_000)])
    (folder / "rare.txt").write_text("<69999> " * 500)
    tokenizer.save(str(tmp_path / "large.json"))
    loaded = load(files(folder, tokenizer=str(tmp_path / "large.json")), cache_dir).corpus
    assert loaded.train.tokens.dtype == np.uint32
    assert 257 + 69_999 in loaded.train.tokens


def test_a_missing_tokenizer_is_named(folder: Path, cache_dir: Path) -> None:
    with pytest.raises(UserError, match=r"corpus.tokenizer: bite does not exist; .* mean bytes\?"):
        load(files(folder, tokenizer="bite"), cache_dir)


def test_an_unreadable_tokenizer_is_named(folder: Path, cache_dir: Path) -> None:
    with pytest.raises(UserError, match=r"corpus.tokenizer: cannot read .*/texts: .*directory"):
        load(files(folder, tokenizer=str(folder)), cache_dir)


def test_a_file_that_is_no_tokenizer_is_named(folder: Path, cache_dir: Path) -> None:
    path = folder / "plain.txt"
    with pytest.raises(UserError, match=r"plain.txt is not a tokenizer.json of the tokenizers"):
        load(files(folder, tokenizer=str(path)), cache_dir)


def test_a_tokenizer_that_is_not_byte_level_is_refused(
    folder: Path, cache_dir: Path, tmp_path: Path
) -> None:
    model = tokenizers.models.WordLevel(vocab={"<s>": 0, "a": 1}, unk_token="<s>")
    tokenizers.Tokenizer(model).save(str(tmp_path / "words.json"))
    with pytest.raises(UserError, match=r"words.json is not byte-level"):
        load(files(folder, tokenizer=str(tmp_path / "words.json")), cache_dir)


@pytest.mark.parametrize(
    ("changes", "key"), [({}, "bos"), ({"packed": True, "bos": False}, "packed")]
)
def test_a_tokenizer_without_bos_is_refused_where_one_is_needed(
    folder: Path, cache_dir: Path, tmp_path: Path, changes: dict[str, bool], key: str
) -> None:
    content = corpora.byte_tokenizer().to_str().replace("<|bos|>", "<|other|>")
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(UserError, match=rf"none of .* which corpus.{key}=true needs"):
        load(files(folder, tokenizer=str(tmp_path / "other.json"), **changes), cache_dir)


def test_a_tokenizer_that_changes_the_text_is_refused(
    folder: Path, cache_dir: Path, tmp_path: Path
) -> None:
    tokenizer = corpora.byte_tokenizer()
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.save(str(tmp_path / "nfc.json"))
    with pytest.raises(UserError, match=r"nfc.json changes the text of accents.txt \(\d+ bytes"):
        load(files(folder, tokenizer=str(tmp_path / "nfc.json")), cache_dir)


# The same tokens everywhere


def test_two_builds_have_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    here = load(files(folder), tmp_path / "one").corpus.fingerprint
    assert client(plain_files(folder), tmp_path / "two").stdout == here


def test_a_change_of_one_character_changes_the_fingerprint(folder: Path, cache_dir: Path) -> None:
    before = load(files(folder, tokenizer="bytes"), cache_dir).corpus.fingerprint
    (folder / "plain.txt").write_text(TEXTS["plain.txt"].replace("cat", "rat", 1))
    assert load(files(folder, tokenizer="bytes"), cache_dir).corpus.fingerprint != before


def test_a_corpus_is_built_once(folder: Path, cache_dir: Path) -> None:
    first = load(files(folder), cache_dir)
    second = load(files(folder), cache_dir)
    assert first.said
    assert not second.said
    assert first.corpus.fingerprint == second.corpus.fingerprint


@pytest.mark.parametrize("changes", [{"vocab_size": 301}, {"tokenizer": "bytes"}, {"packed": True}])
def test_what_changes_the_tokens_has_a_folder_of_its_own(
    folder: Path, cache_dir: Path, changes: dict[str, Any]
) -> None:
    load(files(folder), cache_dir)
    load(files(folder, **changes), cache_dir)
    assert len([path for path in cache_dir.iterdir() if path.is_dir()]) == 2


# Nothing half-built is trusted


@pytest.mark.parametrize("moment", ["reading", "training a BPE", "tokens of files"])
def test_a_build_that_was_killed_leaves_nothing_that_is_trusted(
    folder: Path, cache_dir: Path, tmp_path: Path, moment: str
) -> None:
    killed = client(plain_files(folder), cache_dir, deadly=moment)
    assert killed.returncode == -signal.SIGKILL
    (left,) = (path.name for path in cache_dir.iterdir() if path.is_dir())
    assert left.endswith(".building")
    again = load(files(folder), cache_dir).corpus
    assert again.fingerprint == load(files(folder), tmp_path / "other").corpus.fingerprint
    assert not list(cache_dir.glob("*.building"))


def test_what_a_dead_builder_of_another_corpus_left_is_removed(
    folder: Path, cache_dir: Path
) -> None:
    left = cache_dir / ".other-0123456789ab.building"
    left.mkdir(parents=True)
    load(files(folder), cache_dir)
    assert not left.exists()


def test_what_a_living_builder_of_another_corpus_writes_is_left_alone(
    folder: Path, cache_dir: Path
) -> None:
    written = cache_dir / ".other-0123456789ab.building"
    written.mkdir(parents=True)
    with filelock.FileLock(cache_dir / ".other-0123456789ab.lock"):
        load(files(folder), cache_dir)
    assert written.exists()


def test_the_second_of_two_processes_waits_and_says_so(folder: Path, cache_dir: Path) -> None:
    load(files(folder), cache_dir)
    built = cache_folder(cache_dir)
    shutil.rmtree(built)
    other = filelock.FileLock(cache_dir / f".{built.name}.lock")
    other.acquire()
    said: list[str] = []

    def say(message: str) -> None:
        said.append(message)
        other.release()

    corpora.load(files(folder), cache_dir=cache_dir, say=say)
    assert said[0] == f"waiting for another process that builds {built}"


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "harm", "reason"),
    [
        ("train.bin", truncate, "train.bin has"),
        ("validation.bin", truncate, "validation.bin has"),
        ("train.offsets.bin", truncate, "train.offsets.bin has"),
        ("train.bin", flip, "the tokens differ from their fingerprint"),
        ("validation.offsets.bin", flip, "the tokens differ from their fingerprint"),
        ("tokenizer.json", Path.unlink, "FileNotFoundError"),
        ("meta.json", Path.unlink, "FileNotFoundError"),
        ("meta.json", truncate, "JSONDecodeError"),
    ],
)
def test_a_damaged_cache_is_named_and_built_again(
    folder: Path, cache_dir: Path, name: str, harm: Any, reason: str
) -> None:
    before = load(files(folder), cache_dir).corpus.fingerprint
    harm(cache_folder(cache_dir) / name)
    again = load(files(folder), cache_dir)
    assert again.said[0].startswith(f"removing the damaged token cache {cache_folder(cache_dir)} (")
    assert reason in again.said[0]
    assert again.corpus.fingerprint == before
    assert corpora.damage(cache_folder(cache_dir)) is None


def test_a_mistake_in_a_document_leaves_nothing_behind(folder: Path, cache_dir: Path) -> None:
    for split in ("train", "validation"):
        (folder / split).mkdir()
        (folder / split / "a.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        load(files(folder), cache_dir)
    assert not [path for path in cache_dir.iterdir() if path.is_dir()]


def test_a_split_without_documents_is_an_error(folder: Path, cache_dir: Path) -> None:
    (folder / "train").mkdir()
    (folder / "train" / "a.txt").write_text("A")
    (folder / "validation").mkdir()
    (folder / "validation" / "a.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(UserError, match=r"corpus=files: the validation split has no documents"):
        load(files(folder), cache_dir)


# Room


class Usage(NamedTuple):
    free: int


def test_a_disk_without_room_is_named_before_anything_is_read(
    folder: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(path: Path) -> Usage:
        return Usage(free=1_000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(UserError) as caught:
        load(files(folder), cache_dir)
    n_bytes = sum(len(text.encode()) for text in TEXTS.values())
    needs = f"1,000 bytes free, but tokenising needs about {2 * n_bytes:,};"
    assert str(caught.value).startswith(f"runtime.cache: {cache_dir} has {needs}")


@pytest.mark.skipif(os.name != "posix", reason="file size limits of POSIX")
@pytest.mark.parametrize("file_bytes", [1_000, 6_000])
def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(
    folder: Path, cache_dir: Path, file_bytes: int
) -> None:
    stopped = client(plain_files(folder), cache_dir, file_bytes=file_bytes)
    assert stopped.returncode == 1
    assert stopped.stderr.startswith(
        f"UserError: runtime.cache: no room left while writing {cache_dir}"
    )
    assert not [path for path in cache_dir.iterdir() if path.is_dir()]


def test_a_cache_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"runtime.cache: cannot write .*plain.txt"):
        load(files(folder), folder / "plain.txt")


# Progress


def test_progress_is_said_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(corpora.time, "monotonic", lambda: now[0])
    said: list[str] = []
    progress = corpora.Progress(said.append, "tokenising", total_bytes=100_000_000)
    for _ in range(10):
        progress.advance(1_000_000)
        now[0] += 1
    assert said == [f"tokenising: {done}.0 of 100.0 MB" for done in (4, 7, 10)]
