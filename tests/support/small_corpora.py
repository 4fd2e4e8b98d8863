"""Small corpora for tests: what they are made of, and what reading them gives."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from small import VOCAB

from lengthgen.config import schema
from lengthgen.config.drafts import drafted
from lengthgen.data import corpora, sources
from lengthgen.data.corpora import Split, TokenizedCorpus
from lengthgen.data.sources import Document
from lengthgen.experiment import Experiment

TEXTS = {
    "plain.txt": "the cat sat on the mat, and the mat was flat\n" * 30,
    "accents.txt": "na\u00efve caf\u00e9 \u4f60\u597d \U0001f600\u200d\U0001f600 e\u0301\n" * 20,
    "special.txt": "a <|bos|> b <|bos|><|endoftext|>\t\r\n  c\x00\x7f\xa0\xad\n" * 10,
    "longest.txt": "def attend(q, k, v):\n    return softmax(q @ k) @ v\n" * 40,
}


def files(path: Path | str | Sequence[Path], **changes: object) -> schema.Corpus:
    """Returns the configuration of a corpus of files."""
    plain: dict[str, Any] = {
        **{"name": "files", "source": "files", "validation_path": None, "text_column": "text"},
        **{"path": str(path) if isinstance(path, Path | str) else [str(each) for each in path]},
        **{"tokenizer": "bpe", "vocab_size": 300, "bos": True, "packed": False},
        **{"held_out": "validation", **changes},
    }
    return schema.Corpus.model_validate(plain)


def shipped(*words: str) -> schema.Corpus:
    """Returns the corpus of a configuration."""
    return drafted([*words, "train.precision=fp32"]).corpus


def synthetic(**changes: int) -> schema.Corpus:
    """Returns 20 documents of 400 words, each with four copies of 16 words."""
    sizes = {"documents": 20, "document_words": 400, "copy_words": 16, "copies": 4, "seed": 3}
    words = [f"corpus.{key}={value}" for key, value in {**sizes, **changes}.items()]
    return shipped("corpus=synthetic", *words)


def read_all(corpus: schema.Corpus) -> tuple[list[Document], list[Document]]:
    """Returns the documents of training and of validation."""
    source, corpus = sources.source_of(corpus)
    train = [*sources.documents(corpus, source, held_out=False)]
    return train, [*sources.documents(corpus, source, held_out=True)]


def names(documents: list[Document]) -> list[str]:
    return [document.name for document in documents]


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
    return Loaded(load_tokens(corpus, cache_dir=cache_dir, say=said.append), said)


def load_of(experiment: Experiment, cache_dir: Path) -> Loaded:
    """Returns the corpus of an experiment, whose source may be a plugin's."""
    said: list[str] = []
    corpus, source = experiment.config.corpus, experiment.source
    return Loaded(
        corpora.load_tokenized(corpus, source, cache_dir=cache_dir, say=said.append), said
    )


def load_tokens(
    corpus: schema.Corpus,
    *,
    cache_dir: Path,
    say: Callable[[str], None],
    fingerprint: str | None = None,
    with_training: bool = True,
) -> TokenizedCorpus:
    """Returns a corpus as `corpora.load_tokenized` does, from its configuration alone."""
    source, _ = sources.source_of(corpus)
    return corpora.load_tokenized(
        corpus,
        source,
        cache_dir=cache_dir,
        say=say,
        fingerprint=fingerprint,
        with_training=with_training,
    )


def given(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Returns a tokenizer.json with a change, in the cache that holds the one it is made of."""
    plain = json.loads(path.read_text())
    change(plain)
    changed = path.parent.parent / "given.json"
    changed.write_text(json.dumps(plain))
    return changed


def corpus_of(train: Split, validation: Split | None = None, **changes: Any) -> TokenizedCorpus:
    """Returns a corpus of these splits, of bytes without bos unless something else is given."""
    about: dict[str, Any] = {
        **{"name": "given", "vocab_size": 10_000, "bos_id": None, "packed": False, "meta": {}},
        **{"fingerprint": "0" * 64, "tokenizer_path": Path("none"), **changes},
    }
    n_bytes = np.full(about["vocab_size"], about.pop("bytes_per_token", 1))
    held_out = train if validation is None else validation
    return TokenizedCorpus(train=train, validation=held_out, token_bytes=n_bytes, **about)


def split_of(*documents: Sequence[int] | NDArray[np.integer]) -> Split:
    """Returns a split of documents of these tokens."""
    names = [f"document {i}" for i in range(len(documents))]
    return Split(
        tokens=np.concatenate(documents).astype(np.uint16),
        offsets=np.cumsum([0, *map(len, documents)]),
        names=names,
        groups=names,
    )


def random_corpus(n_documents: int, n_tokens: int) -> TokenizedCorpus:
    """Returns documents of so many random tokens below VOCAB, for training and for validation."""
    tokens = np.random.default_rng(0).integers(VOCAB, size=(n_documents, n_tokens))
    return corpus_of(split_of(*tokens), vocab_size=VOCAB)
