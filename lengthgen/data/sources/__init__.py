"""The documents of a corpus, read from the source that its configuration names."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lengthgen.config import registry as classes
from lengthgen.config import schema
from lengthgen.config.plugins import Plugin
from lengthgen.data.sources import files, hub, installed, paths, stdlib, synthetic
from lengthgen.data.sources.document import Document, Documents, Say, Source, name_hash
from lengthgen.tasks import source as examples

__all__ = ["Document", "Documents", "Say", "Source", "read", "registry", "source_key", "source_of"]

HELD_OUT = 20  # corpus.held_out=tuning: one training document in so many


def registry(plugins: Sequence[Plugin] = ()) -> dict[str, type[Source]]:
    """Returns the sources of `corpus.kind` by name: those of this directory and the plugins'.

    Raises UserError for a plugin that fails, and for two sources of one name.
    """
    return classes.registered(classes.modules_of(__name__, __path__), Source, plugins)


def source_of(corpus: schema.CustomCorpus) -> Source:
    """Builds the source of a corpus. Raises UserError for a mistake in kind or arguments."""
    known = registry(corpus.plugins)
    return classes.build(Source, known, corpus.kind, corpus.arguments, where="corpus")


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
        case schema.CustomCorpus():
            source = source_of(corpus)
            train, validation = (source.documents(held_out=held_out) for held_out in (False, True))
            return Documents(train=train, validation=validation, n_bytes=None)
        case schema.TaskCorpus():
            return examples.read(corpus)


def source_key(corpus: schema.Corpus) -> dict[str, Any]:
    """Returns what identifies the documents, as JSON: equal keys mean equal documents.

    The standard library is identified by its text; installed packages by their versions; files by
    path, size and time of change; the Hub by its names (a revision of null means whatever was
    newest when it was first read); sources of `corpus.kind` and tasks by their code and data.
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
        case schema.CustomCorpus():
            source = source_of(corpus)
            text = f"{classes.code_of(type(source))}\0{source.data_key()}"
            key["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        case schema.TaskCorpus():
            key["sha256"] = examples.source_sha256(corpus)
    return key
