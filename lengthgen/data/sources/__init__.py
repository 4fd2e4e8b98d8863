"""The documents of a corpus, read from the source that its configuration names."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lengthgen.config import schema
from lengthgen.data.sources import examples, files, hub, installed, paths, stdlib, synthetic
from lengthgen.data.sources.document import Document, Documents, Say, name_hash

__all__ = ["Document", "Documents", "Say", "read", "source_key"]

HELD_OUT = 20  # corpus.held_out=tuning: one training document in so many


def read(corpus: schema.Corpus, *, say: Say) -> Documents:
    """Opens the corpus; documents are read while the iterators are consumed.

    With corpus.held_out=tuning both splits come from the training documents, and those of
    validation are never read. Raises UserError, also from the iterators, with the key that is
    wrong.
    """
    found = _opened(corpus, say)
    if corpus.held_out == "validation":
        return found
    again = _opened(corpus, lambda message: None)  # each iterator reads the source for itself
    return replace(
        found,
        train=_for_tuning(found.train, held_out=False),
        validation=_for_tuning(again.train, held_out=True),
    )


def _for_tuning(train: Iterator[Document], *, held_out: bool) -> Iterator[Document]:
    """Yields the first training document and 1 in 20 of the others by hash, or all but those."""
    for i, document in enumerate(train):
        # Not the hash of the name alone: sources choose validation documents by it.
        chosen = i == 0 or name_hash(f"tuning {document.name}") % HELD_OUT == 0
        if chosen == held_out:
            yield document


def _opened(corpus: schema.Corpus, say: Say) -> Documents:
    match corpus:
        case schema.StdlibCorpus():
            return stdlib.read(say=say)
        case schema.PythonCorpus():
            return installed.read(say=say)
        case schema.FilesCorpus():
            return files.read(corpus, say=say)
        case schema.HubCorpus():
            return hub.read(corpus, say=say)
        case schema.SyntheticCorpus():
            return synthetic.read(corpus)
        case schema.TaskCorpus():
            return examples.read(corpus)


def source_key(corpus: schema.Corpus) -> dict[str, Any]:
    """Returns what identifies the documents, as JSON: equal keys mean equal documents.

    The standard library is identified by its text; installed packages by their versions; files by
    path, size and time of change; the Hub by its names (a revision of null means whatever was
    newest when it was first read).
    """
    key = corpus.model_dump(
        mode="json", exclude={"name", "tokenizer", "vocab_size", "bos", "packed", "streaming"}
    )
    match corpus:
        case schema.StdlibCorpus():
            key["sha256"] = stdlib.sha256()
        case schema.PythonCorpus():
            key["versions"] = installed.versions()
        case schema.FilesCorpus():
            found = (path for split in files.split_paths(corpus) for path in split)
            key["files"] = [paths.state(path, "corpus.path") for path in found]
        case schema.HubCorpus():
            if Path(corpus.repo).is_dir():
                found = paths.walk(Path(corpus.repo), "corpus.repo")
                key["files"] = [paths.state(path, "corpus.repo") for path in found]
        case schema.SyntheticCorpus():
            pass
        case schema.TaskCorpus():
            key["sha256"] = examples.source_sha256(corpus)
    return key
