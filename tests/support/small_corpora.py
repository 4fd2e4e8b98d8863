"""Small corpora for tests: what they are made of, and what reading them gives."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from repository import ROOT
from small import VOCAB

from lengthgen.config import schema
from lengthgen.data import corpora, sources
from lengthgen.data.corpora import Split, TokenizedCorpus
from lengthgen.data.sources import Document
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
from lengthgen.config import schema
from lengthgen.data import corpora
from lengthgen.errors import UserError

plain, cache_dir, deadly = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def say(message):
    if deadly and deadly in message:
        os.kill(os.getpid(), 9)

corpus = schema.Corpus.model_validate(plain)
try:
    sys.stdout.write(corpora.load(corpus, cache_dir=cache_dir, say=say).fingerprint)
except UserError as error:
    sys.exit(f"UserError: {error}")
"""


def plain_files(path: Path | str | Sequence[Path], **changes: object) -> dict[str, Any]:
    """Returns the plain configuration of a corpus of files."""
    plain: dict[str, Any] = {
        "name": "files",
        "source": "files",
        "path": str(path) if isinstance(path, Path | str) else [str(one) for one in path],
        "validation_path": None,
        "text_column": "text",
        "tokenizer": "bpe",
        "vocab_size": 300,
        "bos": True,
        "packed": False,
        "held_out": "validation",
    }
    return plain | changes


def files(path: Path | str | Sequence[Path], **changes: object) -> schema.Corpus:
    return schema.Corpus.model_validate(plain_files(path, **changes))


def stdlib(*, vocab_size: int) -> schema.Corpus:
    words = ["corpus=stdlib", f"corpus.vocab_size={vocab_size}", "train.precision=fp32"]
    return schema.from_overrides(words, config_dir=None, plugins=[]).corpus


def synthetic(**changes: int) -> schema.Corpus:
    """Returns 20 documents of 400 words, each with four copies of 16 words."""
    sizes = {"documents": 20, "document_tokens": 400, "copy_tokens": 16, "copies": 4, "seed": 3}
    words = [f"corpus.{key}={value}" for key, value in {**sizes, **changes}.items()]
    words += ["corpus=synthetic", "train.precision=fp32"]
    return schema.from_overrides(words, config_dir=None, plugins=[]).corpus


def read_all(corpus: schema.Corpus) -> tuple[list[Document], list[Document]]:
    """Returns the documents of training and of validation."""
    source = sources.source_of(corpus)
    return (
        list(sources.documents(corpus, source, held_out=False)),
        list(sources.documents(corpus, source, held_out=True)),
    )


def names(documents: list[Document]) -> list[str]:
    return [document.name for document in documents]


def error_of(corpus: schema.Corpus) -> str:
    with pytest.raises(UserError) as caught:
        read_all(corpus)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(folder: Path, contents: Mapping[str, str | bytes | dict[str, list[object]]]) -> Path:
    """Writes files by name: text, bytes, or the columns of a parquet file."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            pq.write_table(pa.table(content), folder / name)
        else:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


class Loaded(NamedTuple):
    corpus: TokenizedCorpus
    said: list[str]


def load(corpus: schema.Corpus, cache_dir: Path) -> Loaded:
    said: list[str] = []
    return Loaded(corpora.load(corpus, cache_dir=cache_dir, say=said.append), said)


def load_elsewhere(
    plain: dict[str, Any], cache_dir: Path, *, deadly: str = "", file_bytes: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Loads a corpus in another process, which dies at a message or may not write large files."""

    def limit() -> None:
        import resource

        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    return subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(plain), str(cache_dir), deadly],
        cwd=ROOT,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def random_corpus(n_documents: int, n_tokens: int) -> TokenizedCorpus:
    """Returns documents of so many random tokens below VOCAB, for training and for validation."""
    tokens = np.random.default_rng(0).integers(VOCAB, size=n_documents * n_tokens)
    split = Split(
        tokens=tokens.astype(np.uint16),
        offsets=np.arange(n_documents + 1) * n_tokens,
        names=[f"document {n}" for n in range(n_documents)],
    )
    return TokenizedCorpus(
        name="random",
        train=split,
        validation=split,
        vocab_size=VOCAB,
        bos_id=None,
        packed=False,
        token_bytes=np.ones(VOCAB, dtype=np.int64),
        fingerprint="random",
        tokenizer_path=Path(),
        meta={},
    )
