"""The documents of a corpus, read from the source that its configuration names."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from lengthgen.config import registry as classes
from lengthgen.config import schema
from lengthgen.data.sources.source import Document, Say, Source, name_hash
from lengthgen.errors import UserError, suggestion

__all__ = [
    "Document",
    "Say",
    "Source",
    "kind_of",
    "read",
    "registry",
    "source_key",
    "source_of",
]

HELD_OUT = 20  # corpus.held_out=tuning: one training document in so many


def registry(plugins: Sequence[str] = ()) -> dict[str, type[Source]]:
    """Returns the sources by name: those of this directory, of rooms beside the core, of plugins.

    Raises UserError for a plugin that fails, and for two sources of one name.
    """
    contributed: dict[str, type[Source]] = dict(classes.contributed("SOURCES"))
    return contributed | classes.registered(classes.modules_of(__name__, __path__), Source, plugins)


def kind_of(corpus: schema.Corpus) -> type[Source]:
    """Returns the class of a corpus's source. Raises UserError if there is none of that name."""
    known = registry(corpus.plugins)
    if corpus.source not in known:
        remedy = suggestion(corpus.source, known)
        raise UserError(f"corpus.source: no source {corpus.source!r}; {remedy}")
    return known[corpus.source]


def source_of(corpus: schema.Corpus) -> Source:
    """Builds the source of a corpus. Raises UserError for a mistake in its name or arguments."""
    return kind_of(corpus).of(corpus)


def read(corpus: schema.Corpus, source: Source, *, held_out: bool) -> Iterator[Document]:
    """Yields the documents of a split.

    With corpus.held_out=tuning both splits come from the training documents: 1 in 20 by hash, and
    the first one, validate. Those of validation are never read then.
    """
    if corpus.held_out == "validation":
        yield from source.documents(held_out=held_out)
        return
    for i, document in enumerate(source.documents(held_out=False)):
        # Not the hash of the name alone: sources choose validation documents by it.
        chosen = i == 0 or name_hash(f"tuning {document.name}") % HELD_OUT == 0
        if chosen == held_out:
            yield document


def source_key(corpus: schema.Corpus, source: Source) -> dict[str, Any]:
    """Returns what identifies the documents, as JSON: equal keys mean equal documents."""
    shared = {*schema.Corpus.model_fields} - {"source", "held_out"}
    code = classes.code_of(type(source))
    return {
        **corpus.model_dump(mode="json", exclude=shared),
        "code": hashlib.sha256(code.encode()).hexdigest(),
        "data": json.loads(json.dumps(source.data_key())),
    }
