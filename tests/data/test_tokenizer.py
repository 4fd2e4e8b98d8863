"""Tokenizers: trained, of bytes, or given; and which are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from small_corpora import TEXTS, files, load

from lengthgen.data.tokenizer import byte_tokenizer, read_tokenizer
from lengthgen.errors import UserError


def test_the_saved_byte_tokenizer_encodes_as_the_cache_does(folder: Path, cache_dir: Path) -> None:
    loaded = load(files(folder, tokenizer="bytes"), cache_dir).corpus
    saved = read_tokenizer(loaded.tokenizer_path)
    for name, text in TEXTS.items():
        assert saved.encode(text).ids == list(text.encode()), name


def test_a_small_corpus_has_fewer_tokens_than_were_asked_for(folder: Path, cache_dir: Path) -> None:
    loaded = load(files(folder, vocab_size=50_000), cache_dir).corpus
    saved = tokenizers.Tokenizer.from_file(str(loaded.tokenizer_path))
    assert loaded.vocab_size == saved.get_vocab_size() == len(loaded.token_bytes) < 2_000


def test_a_trained_vocabulary_has_the_size_asked_for(folder: Path, cache_dir: Path) -> None:
    loaded = load(files(folder, vocab_size=290), cache_dir).corpus
    assert loaded.vocab_size == 290


# A tokenizer.json of one's own


def test_a_given_tokenizer_encodes_as_the_one_it_was_saved_from(
    folder: Path, cache_dir: Path
) -> None:
    trained = load(files(folder), cache_dir).corpus
    given = load(files(folder, tokenizer=str(trained.tokenizer_path)), cache_dir).corpus
    assert given.fingerprint == trained.fingerprint


@pytest.mark.slow
def test_ids_beyond_16_bits_are_kept(folder: Path, cache_dir: Path, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"<{i}>" for i in range(70_000)])
    (folder / "rare.txt").write_text("<69999> " * 500)
    tokenizer.save(str(tmp_path / "large.json"))
    loaded = load(files(folder, tokenizer=str(tmp_path / "large.json")), cache_dir).corpus
    assert loaded.train.tokens.dtype == np.uint32
    assert 257 + 69_999 in loaded.train.tokens


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bite", r"corpus.tokenizer: bite does not exist; .* mean bytes\?"),
        ("{}", r"corpus.tokenizer: cannot read .*/texts: .*directory"),
        ("{}/plain.txt", r"plain.txt is not a tokenizer.json of the tokenizers"),
        ("{}/words.json", r"words.json is not byte-level"),
    ],
)
def test_what_is_no_byte_level_tokenizer_is_refused(
    folder: Path, cache_dir: Path, name: str, message: str
) -> None:
    model = tokenizers.models.WordLevel(vocab={"<s>": 0, "a": 1}, unk_token="<s>")
    tokenizers.Tokenizer(model).save(str(folder / "words.json"))
    with pytest.raises(UserError, match=message):
        load(files(folder, tokenizer=name.format(folder)), cache_dir)


@pytest.mark.parametrize(
    ("changes", "key"), [({}, "bos"), ({"packed": True, "bos": False}, "packed")]
)
def test_a_tokenizer_without_bos_is_refused_where_one_is_needed(
    folder: Path, cache_dir: Path, tmp_path: Path, changes: dict[str, bool], key: str
) -> None:
    content = byte_tokenizer().to_str().replace("<|bos|>", "<|other|>")
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(UserError, match=rf"none of .* which corpus.{key}=true needs"):
        load(files(folder, tokenizer=str(tmp_path / "other.json"), **changes), cache_dir)


def test_a_tokenizer_that_changes_the_text_is_refused(
    folder: Path, cache_dir: Path, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.save(str(tmp_path / "nfc.json"))
    with pytest.raises(UserError, match=r"nfc.json changes the text of accents.txt \(\d+ bytes"):
        load(files(folder, tokenizer=str(tmp_path / "nfc.json")), cache_dir)


@pytest.mark.parametrize(
    ("a", "message"),
    [
        (ord("b"), r"gives the id 98 to '[ab]' and to '[ab]'; give each token an id of its own"),
        (2**31, r"has the id 2147483648, and an embedding here at most 1048576 rows"),
        (2**32, r"is not a tokenizer.json of the tokenizers library: .*expected u32"),
    ],
)
def test_ids_that_no_embedding_has_rows_for_are_refused(
    tmp_path: Path, a: int, message: str
) -> None:
    plain = json.loads(byte_tokenizer().to_str())
    plain["model"]["vocab"]["a"] = a
    (tmp_path / "ids.json").write_text(json.dumps(plain))
    with pytest.raises(UserError, match=message):
        read_tokenizer(tmp_path / "ids.json")
