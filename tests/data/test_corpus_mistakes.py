"""What is said of a mistake in a corpus: one line with its key, the place and a remedy."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import shlex
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from small import config_of, refusal
from small_corpora import TEXTS, files, given, load, read_all, shipped, synthetic, write

from lengthgen.data.sources.stdlib import library_files
from lengthgen.data.tokenizer import read_tokenizer, token_bytes
from lengthgen.errors import UserError

HELD = {"train/a.txt": "A", "validation/a.jsonl": '{"text": ""}\n'}
NO_GROUP = ":1 has no column 'by'; set corpus.group_column to one of: text, id"
UNKNOWN = "has no text in column 'text'; set corpus.text_column to one of: body"
NO_TRAIN = "corpus=files: the train split has no documents with text; give more, or longer ones"
UTF16 = "A text.".encode("utf-16")
BYTES: Any = pa.array([b"A", b"\xff"]).cast(pa.string(), safe=False)  # claims to be text
NO_UTF8 = {f"{i}.txt": b"A\xff" for i in range(5)}


def long_window(content: bytes) -> bytes:
    """A frame of zstd as of --long=31: one block as it is, in a window of 2 GB."""
    return b"\x28\xb5\x2f\xfd\0\xa8" + (len(content) << 3 | 1).to_bytes(3, "little") + content


def archive(content: bytes) -> bytes:
    with tarfile.open(fileobj=(out := io.BytesIO()), mode="w") as tar:
        (about := tarfile.TarInfo("a.txt")).size = len(content)
        tar.addfile(about, io.BytesIO(content))
    return out.getvalue()


# What lies in the folder {}, the path in it, changes of the corpus, and what is said.
FILES: list[tuple[dict[str, Any], str, dict[str, object], str]] = [
    ({"books/a.txt": "A", "zebra.txt": "A"}, "boks", {}, "{}/boks does not exist; did you mean bo"),
    ({"a.docx": "A"}, "", {}, "no documents in {}; expected files of .txt .md .py .jsonl"),
    ({"a.txt": "A", "b.zip": "AA"}, "", {}, "more data that is not read (1 .zip) than files of"),
    ({"a.txt": "A"}, "", {}, NO_TRAIN),  # too short to take validation text from
    ({"a.txt": "A.\n" * 99}, "", {"held_out": "tuning"}, "rates are tuned on two training doc"),
    ({"a.txt": b"A\xff"}, "", {}, "{}/a.txt is not UTF-8 at byte 1; convert it, for instance with"),
    ({**NO_UTF8, "a.txt": "A"}, "", {}, "5 of 6 files cannot be read: {}/0.txt is not UTF-8"),
    ({"a.txt": UTF16}, "", {}, "{}/a.txt is UTF-16; convert it: iconv -f utf-16 -t utf-8 OLD"),
    ({"a.txt": UTF16[2:]}, "", {}, "{}/a.txt is UTF-16 without its mark; convert it: iconv -f"),
    ({"a.txt": b"%PDF-1.5"}, "", {}, "{}/a.txt is binary whatever its name says; keep it out"),
    ({"a.parquet": b"version https://git-lfs.github.com"}, "", {}, "fetch the file with git lfs"),
    ({"a.txt.gz": gzip.compress(b"A" * 99)[:-9]}, "", {}, "{}/a.txt.gz is damaged ("),
    ({"b.jsonl": '{"text": "A"}\nno\n'}, "", {}, "{}/b.jsonl:2 is not JSON: Expecting value"),
    ({"b.jsonl": "[1]\n"}, "", {}, "{}/b.jsonl:1 is not a JSON object with a text column"),
    ({"b.jsonl": '{"text": "A"}\n{"body": "B", "id": 1}\n'}, "", {}, f"{{}}/b.jsonl:2 {UNKNOWN}"),
    ({"b.parquet": {"text": [1]}}, "", {}, "'text', which holds int64; it has no other"),
    ({"b.parquet": {"text": ["A"], "id": [1]}}, "", {"group_column": "by"}, NO_GROUP),
    ({"b.parquet": {"text": BYTES}}, "", {}, "{}/b.parquet:2 is not UTF-8; leave this row out"),
    ({"b.parquet": "PAR1 and no more"}, "", {}, "{}/b.parquet:1 is damaged (Parquet magic"),
    ({"b.csv": 'text,id\n"open,1\n'}, "", {}, "b.csv row 1 is damaged (unexpected end of data)"),
    ({"b.csv": "text,id\nA, B,1\n"}, "", {}, "b.csv row 1 has more fields than the header; quote"),
    ({"b.csv": "text;id\nA, B;1\n"}, "", {}, "separate fields by commas, not ; or tabs"),
    ({"b.csv": f"{'A' * 400},B\n"}, "", {}, f" {'A' * 200}...; is its first line a header?"),
    ({"b.json": '{\n"data": [{"text": "A"}]}'}, "", {}, "'text'; nor in data (list); give each"),
    ({"train/a.txt": "A", "test/a.txt": "A", "val/a.md": "A"}, "", {}, "has train, val, test, wh"),
    ({"train/a.txt": "A", "eval/a.txt": "A"}, "", {}, "'corpus.validation_path={}/*eval*'"),
    ({"b-train-0.jsonl": "", "b-test-0.jsonl": ""}, "", {}, "'corpus.path={}/*train*' 'corpus.val"),
    ({"Train/a.txt": "A", "Validation/a.txt": "A"}, "", {}, "corpus.validation_path={}/*Validati"),
    ({"b/train/a.txt": "A", "b/validation/a.txt": "A"}, "*", {}, "has train, validation, which"),
    ({"a.txt": "A"}, "", {"validation_path": "{}/b"}, "corpus.validation_path: {}/b does not exis"),
    ({"a.txt": "A"}, "", {"validation_path": "{}"}, "give corpus.path={} alone to split them"),
    (HELD, "", {}, NO_TRAIN.replace("train", "validation")),
    ({"a.txt": "A", "b.jsonl": '{"text": "\\ud800"}'}, "", {}, "b.jsonl:1 is no text that UTF-8"),
    ({"b.jsonl": long_window(b'{"text": "A"}')}, "", {}, "is zstd with a window above 128 MB"),
    ({"b.txt": gzip.compress(archive(b"A"))}, "", {}, "is an archive of tar; unpack it"),
    ({"b.jsonl": b"PK\3\4\x14\0"}, "", {}, "is an archive of zip; unpack it"),
    (
        {"_delta_log/x": "", "a=1/b=2/c=3/0.parquet": {"text": ["A"]}},
        "",
        {},
        "a table of Delta, wh",
    ),
    (
        {"_spark_metadata/0": "", "0.parquet": {"text": ["A"]}},
        "",
        {},
        "a table of Spark, whose log",
    ),
    ({"b.csv": "A", "b.csv.gz": b""}, "", {}, "{}/b.csv and b.csv.gz are of several writes"),
    ({"b.csv": "text\nA\n", "b.parquet": {"text": ["A"]}}, "", {}, "{}/b.csv and b.parquet are of"),
    (TEXTS, "", {"tokenizer": "bite"}, "corpus.tokenizer: bite is no file; it is not cached here"),
    (TEXTS, "", {"tokenizer": "{}/bite"}, "/bite does not exist; give a tokenizer.json; did you m"),
    (TEXTS, "", {"tokenizer": "{}"}, "corpus.tokenizer: {}/tokenizer.json does not exist"),
    (TEXTS, "", {"tokenizer": "{}/plain.txt"}, "plain.txt is not a tokenizer.json of the tokenize"),
    (TEXTS, "", {"tokenizer": "characters"}, "corpus.tokenizer: characters are those of a task"),
]


@pytest.mark.parametrize(("there", "path", "changes", "fragment"), FILES)
def test_a_mistake_in_a_corpus_of_files_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: dict[str, Any],
    path: str,
    changes: dict[str, object],
    fragment: str,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")  # no network
    folder = write(tmp_path / "texts", there)
    folder.mkdir(exist_ok=True)
    changes = {key: str(value).replace("{}", str(folder)) for key, value in changes.items()}
    said = refusal(load, files(folder / path, **changes), tmp_path / "cache")
    assert fragment.replace("{}", str(folder)) in said
    assert said.startswith("corpus")


ROW = '{"text": "A", "id": 1, "text": "B"}'
TWO: dict[str, bytes] = {
    "b.csv": b"text,id,text\nA,1,B\n",
    "b.jsonl": ROW.encode(),
    "b.parquet": b"",
}


@pytest.mark.parametrize("name", TWO)
def test_two_columns_of_one_name_are_refused_where_read(tmp_path: Path, name: str) -> None:
    table = pa.Table.from_arrays([pa.array([x]) for x in ("A", "1", "B")], ["text", "id", "text"])
    path = write(tmp_path / "texts", {name: TWO[name]}) / name
    if name.endswith("parquet"):
        pq.write_table(table, path)
    said = refusal(read_all, files(path))
    assert str(path) in said
    assert "has two columns called 'text'" in said
    if name == "b.csv":  # a column that nobody reads may be there twice
        assert [d.text for part in read_all(files(path, text_column="id")) for d in part]


NAMES = [" text", "a,b", "it's", 'say "a"', "2024", "1e5", "na\u00efve", "a b", "$x", "a=b", "[a]"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_column_that_is_advised_can_be_given(tmp_path: Path, name: str, kind: str) -> None:
    path, texts = tmp_path / f"b.{kind}", ["A line.\n" * 9, "B line.\n" * 9]
    if kind == "parquet":
        pq.write_table(pa.table({"id": [1, 2], name: texts}), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"id": 1, name: t}) + "\n" for t in texts))
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["id", name], *([1, text] for text in texts)])
    if kind == "csv" and name == " text":  # a blank behind a comma is none of the name
        assert len([d for part in read_all(files(path)) for d in part]) == 2
    else:
        said = refusal(read_all, files(path, text_column="no"))
        advised = said.partition("text_column to one of: ")[2].removesuffix("; is its first line")
        advised = advised.partition("; is its first line a header?")[0]
        (word,) = shlex.split(advised) if kind != "csv" else shlex.split(advised)[1:]
        given = config_of("corpus=files", f"corpus.path={path}", f"corpus.text_column={word}")
        assert len([d for part in read_all(given.corpus) for d in part]) == 2


ODD = {
    "b.jsonl": '{"id": ' + "9" * 5000 + ', "text": "A, b"}\n{"text": "C"}\n',
    "b.csv": 'id, text\n1, "A, b"\n2, "C"\n',
    "macintosh.csv": 'text\r"A, b"\rC\r',
    "nested.jsonl": '{"text": "A, b", "of": {"text": 1, "text": 2}}\n{"text": "C"}',
}


@pytest.mark.parametrize("name", ODD)
def test_rows_are_read_as_other_programs_write_them(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, {name: ODD[name]})
    assert sorted(d.text for part in read_all(files(path)) for d in part) == ["A, b", "C"]


def lz4(content: bytes, codec: str = "lz4") -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as file:
        file.write(content)
    return out.getvalue().to_pybytes()


def zstd(content: bytes) -> bytes:
    return lz4(content, "zstd")


SKIPPED = b"\x50\x2a\x4d\x18\4\0\0\0size"  # as pzstd begins
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "b.jsonl.gzip": lambda content: gzip.compress(content[:9]) + gzip.compress(content[9:]),
    "c.jsonl.gz": lambda content: gzip.compress(gzip.compress(content)),
    "b.jsonl.zstd": lambda content: SKIPPED + zstd(content[:9]) + SKIPPED + zstd(content[9:]),
    "b.jsonl.bz2": bz2.compress,
    "xz.jsonl": lzma.compress,
    "lz4.jsonl": lz4,
    "b.jsonl.GZ": gzip.compress,
}


@pytest.mark.parametrize("name", PACKED)
def test_compressed_files_are_read_and_cut_ones_are_damaged(tmp_path: Path, name: str) -> None:
    texts = [f"Text {i}.\n" * 9 for i in range(200)]
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path = write(tmp_path, {name: PACKED[name](content)}) / name
    assert {d.text for part in read_all(files(tmp_path)) for d in part} == {*texts}
    whole = path.read_bytes()
    for harmed in (whole[:-9], whole + b"?" + whole[1:], whole + whole[:-9], whole + b"behind it"):
        path.write_bytes(harmed)
        assert " is damaged (" in refusal(read_all, files(tmp_path))


def test_a_page_of_parquet_that_differs_from_its_checksum_is_refused(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"text": ["A", "unaltered", "z"]}),
        tmp_path / "b.parquet",
        compression="none",
        write_page_checksum=True,
        use_dictionary=False,
    )
    path = tmp_path / "b.parquet"
    path.write_bytes(path.read_bytes().replace(b"unaltered", b"UNaltered", 1))
    assert "CRC checksum verification failed" in refusal(read_all, files(path))


def test_of_a_folder_that_was_written_twice_the_last_write_is_read(tmp_path: Path) -> None:
    def saved(n: int, word: str) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"text": [f"{word} {i}.\n" * 9 for i in range(n)]})

    def words(path: Path | str) -> set[str]:
        return {d.text.split()[0] for part in read_all(files(path)) for d in part}

    one, both = tmp_path / "one", tmp_path / "both"
    saved(40, "old").save_to_disk(one, num_shards=4)
    saved(40, "new").save_to_disk(one, num_shards=2)
    saved(40, "other").save_to_disk(one / "below/it")
    for path in (one, f"{one}/*.arrow", f"{one}/**/*.arrow"):
        assert words(path) == {"new"}
        assert sum(map(len, read_all(files(path)))) == 40
    splits = {"train": saved(40, "old"), "validation": saved(9, "old"), "more": saved(9, "old")}
    datasets.DatasetDict(**splits).save_to_disk(both)
    datasets.DatasetDict({"train": saved(40, "new")}).save_to_disk(both)
    assert words(both) == {"new"}
    assert words(one / "below/it") == {"other"}
    splits.pop("more")
    datasets.DatasetDict(**splits).save_to_disk(tmp_path / "partly")
    shutil.rmtree(tmp_path / "partly/validation")
    assert "lacks the split validation" in refusal(read_all, files(tmp_path / "partly"))
    saved(40, "alone").save_to_disk(both)
    assert "state.json and dataset_dict.json are two writes" in refusal(read_all, files(both))
    (shard, *_) = one.glob("*.arrow")
    shard.rename(tmp_path / shard.name)
    assert f"({shard.name} is not there)" in refusal(read_all, files(one))
    (one / "state.json").write_text("{")
    assert "of the last write is not known" in refusal(read_all, files(one))


def test_what_metadata_of_parquet_lists_is_read_and_mixed_shards_are_refused(
    tmp_path: Path,
) -> None:
    listed, schema = list[Any](), pa.schema({"text": pa.string()})
    for name, word in (("old-0.parquet", "old"), ("new-0.parquet", "new")):
        table = pa.table({"text": [f"{word} {i}.\n" * 9 for i in range(40)]}, schema=schema)
        pq.write_table(table, tmp_path / name, metadata_collector=listed)
        listed[-1].set_file_path(name)
    pq.write_metadata(schema, tmp_path / "_metadata", metadata_collector=listed[1:])
    assert {d.text[:3] for part in read_all(files(tmp_path)) for d in part} == {"new"}
    for two in (("0-of-2.txt", "2-of-3.txt"), ("0-of-2-1a.txt", "0-of-2-2b.txt")):
        shards = {f"train-{name}": "A.\n" * 9 for name in two}
        folder = write(tmp_path / f"shards {two}", shards)
        assert f"{folder}/train-{two[0]} and train-{two[1]} are" in refusal(read_all, files(folder))
        assert sum(map(len, read_all(files(f"{folder}/train-{two[1]}")))) == 2
    said = load(files(f"{folder}/*1a.txt", tokenizer="bytes"), tmp_path / "cache").said
    assert said[0].endswith("; 1 of the 2 shards train-*-of-2 are there")


def sentencepiece(tokenizer: dict[str, Any]) -> None:
    """A BPE as Llama 2's, whose tokens are bytes or pieces of text with marks for blanks."""
    blank, read = "\u2581", tokenizers.normalizers
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *blank, *"abe"]
    vocab = {piece: i for i, piece in enumerate([*pieces, f"{blank}a"])}
    how: dict[str, Any] = {"merges": [(blank, "a")], "unk_token": "<unk>", "byte_fallback": True}
    given = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, **how))
    given.normalizer = read.Sequence([read.Prepend(blank), read.Replace(" ", blank)])
    given.add_special_tokens(["<unk>", "<s>"])
    tokenizer.clear()
    tokenizer |= json.loads(given.to_str())


def lower_case(tokenizer: dict[str, Any]) -> None:
    sentencepiece(tokenizer)
    tokenizer["normalizer"]["normalizers"].append({"type": "Lowercase"})


def words(tokenizer: dict[str, Any]) -> None:
    model = tokenizers.models.WordLevel(vocab={"<s>": 0, "a": 1}, unk_token="<s>")
    tokenizer |= json.loads(tokenizers.Tokenizer(model).to_str())


def other_bos(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"][0]["content"] = "<|other|>"


def prefixed(tokenizer: dict[str, Any]) -> None:
    tokenizer["pre_tokenizer"]["add_prefix_space"] = True


def rewritten(letters: Callable[[], Any]) -> Callable[[dict[str, Any]], None]:
    """A byte-level tokenizer with a normalizer before its own steps."""

    def change(tokenizer: dict[str, Any]) -> None:
        given = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
        given.normalizer = letters()
        tokenizer |= json.loads(given.to_str())

    return change


def apart(tokenizer: dict[str, Any]) -> None:
    """Cuts at blanks, which it drops, and puts one before each word."""
    split = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer["pre_tokenizer"] = json.loads(
        tokenizers.pre_tokenizers.Sequence(
            [split, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)]
        ).__getstate__()
    )


def unknown(tokenizer: dict[str, Any]) -> None:
    """Has no token for e, and writes ? in its place."""
    vocab = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {k: i for k, i in vocab.items() if k != "e"}
    tokenizer["model"]["unk_token"] = "?"


ALTER: Any = tokenizers.normalizers
BECOMES = r"given.json changes the text of \S+ \(b.* at byte \d+ becomes b"
LETTERS = " The cat 17\nsat, ab\n" * 40


@pytest.mark.parametrize(
    ("change", "changes", "message"),
    [
        (other_bos, {}, "none of .* which corpus.bos=true needs; set corpus.bos=false or add"),
        (other_bos, {"packed": True, "bos": False}, "none of .* which corpus.packed=true needs"),
        (prefixed, {}, BECOMES),
        (rewritten(ALTER.Lowercase), {}, BECOMES),
        (rewritten(lambda: ALTER.Replace("ab", "ba")), {}, BECOMES),
        (apart, {}, BECOMES),
        (unknown, {}, BECOMES),
        (words, {}, "given.json is not byte-level"),
        (lower_case, {}, "given.json is not byte-level"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(
    folder: Path, cache_dir: Path, change: Any, changes: dict[str, bool], message: str
) -> None:
    write(folder, {"plain.txt": LETTERS})
    path = load(files(folder, tokenizer="bytes"), cache_dir).corpus.tokenizer_path
    with pytest.raises(UserError, match=message):
        load(files(folder, tokenizer=str(given(path, change)), **changes), cache_dir)


def test_tokens_of_sentencepiece_stand_for_all_bytes(
    folder: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthgen.data.tokenizer.PIECE", 40)  # in pieces, the tokens are the same
    write(folder, {"blanks.txt": " a b  ab   a\n a e b" * 40})
    corpus = load(files(folder, tokenizer="bytes"), cache_dir).corpus
    path = given(corpus.tokenizer_path, sentencepiece)
    other = load(files(folder, tokenizer=str(path)), cache_dir).corpus
    at, text = other.train.names.index("blanks.txt"), (folder / "blanks.txt").read_text()
    assert other.train.document(at).tolist() == read_tokenizer(path).encode(text).ids
    monkeypatch.setattr("lengthgen.data.token_cache.UNBROKEN", 40)
    write(folder, {"dna.txt": "ab" * 500})
    said = refusal(load, files(folder, tokenizer=str(path)), cache_dir)
    assert "dna.txt has 400 characters without a blank" in said
    assert other.bos_id == 1
    for i, n_bytes in enumerate(corpus.train.lengths.tolist()):
        assert other.token_bytes[other.train.document(i)].sum() == n_bytes + 1
    assert len({*other.train.tokens.tolist()} & {*range(2, 258)}) > 10  # bytes of what has no piece


def test_added_tokens_of_blanks_stand_for_as_many_bytes() -> None:
    plain: dict[str, Any] = {}
    sentencepiece(plain)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(plain))
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    tokenizer.add_tokens(["\u2581\u2581"])
    ids = tokenizer.encode("a b  c    a").ids
    assert token_bytes(tokenizer)[ids].tolist() == [1, 1, 1, 2, 1, 2, 2, 1]


def test_bytes_are_those_of_the_text_that_nfc_composes_also_where_it_is_cut(
    folder: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthgen.data.tokenizer.UNBROKEN", 110)
    (folder / "cut.txt").write_text(" e\u0301" + "e\u0301" * 499)  # of which 110 letters end in e
    corpus = load(files(folder, tokenizer="bytes"), cache_dir).corpus
    nfc = given(corpus.tokenizer_path, lambda plain: plain.update(normalizer={"type": "NFC"}))
    other = load(files(folder, tokenizer=str(nfc)), cache_dir).corpus
    n_bytes = [[c.meta[s]["bytes"] for s in ("train", "validation")] for c in (corpus, other)]
    assert n_bytes[1] == [len(split.tokens) for split in (other.train, other.validation)]
    assert sum(n_bytes[0]) - sum(n_bytes[1]) == 500 + TEXTS["accents.txt"].count("e\u0301")


def test_no_path_copies_without_room_and_no_library_are_errors(tmp_path: Path) -> None:
    assert refusal(read_all, files([])).startswith("corpus.path: an empty list")
    assert "'' should have at least 1 character" in refusal(read_all, files(""))
    said = refusal(read_all, synthetic(copy_words=51))
    assert "copy_words=51 is too long for copies=4 in document_words=400; at most 50 fit" in said
    assert "; use a Python that ships" in refusal(library_files, tmp_path)


def test_a_folder_is_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path, {"my/texts/a.txt": "A"}))
    said = refusal(shipped, "corpus=my/texts")
    assert "for files here, give corpus=files corpus.path=my/texts" in said


def test_a_cache_that_cannot_be_used_is_one_line(
    folder: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "runtime.cache: cannot use " in refusal(load, files(folder), folder / "plain.txt")

    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("filelock.FileLock._acquire", refuse)
    said = refusal(load, files(folder), cache_dir)
    assert "it has no locks); make room, or set runtime.cache=FOL" in said


@pytest.mark.parametrize("name", ["a.txt", "a.parquet"])
def test_nothing_but_files_is_read_and_all_else_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    for link in ("b.txt", "c.txt", "d.zip"):
        (tmp_path / "links" / link).symlink_to("nowhere")
    said = refusal(read_all, files(write(tmp_path / "links", {"a.txt": "A"})))
    first = tmp_path / "links/b.txt"
    assert said.startswith(f"corpus.path: 2 of 3 files cannot be read: {first} cannot be read")
    folder = write(tmp_path / "texts", {"b.txt": "B"})
    os.mkfifo(folder / name)
    (folder / f"z{name}").symlink_to("/dev/zero")
    for corpus in (files(folder), files(folder / name), files(folder / f"z{name}")):
        assert "not a regular file" in refusal(read_all, corpus)
