"""Sources of documents: what one is, how it is found by name, and the splits of a corpus."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lengthgen.config import registry as classes
from lengthgen.config import schema
from lengthgen.config.plugins import Plugin
from lengthgen.config.sections import arguments
from lengthgen.files import hash_of

HELD_OUT = 20  # corpus.held_out=tuning: one training document in so many
GROUPS_HELD_OUT = 4  # one group in so many, of those that have one


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text and its name, which is unique in its split and the same on every machine.

    Documents of one group, such as those of a project or an author, are not independent samples.
    """

    name: str
    text: str
    group: str = ""  # if empty, the document is a group of its own
    prompt_bytes: int = 0  # of an example: leading bytes that are not predicted
    length: int = 0  # of an example, in the unit of its task


class Source(ABC):
    """Documents by rule. The keyword-only arguments are keys in YAML; ValueError refuses some."""

    tokenizer_every = 1  # a BPE is trained on one in so many training documents
    characters: str | None = None  # of all texts, in ASCII, for corpus.tokenizer=characters

    alignment_ids: schema.AlignmentIds | None = None

    @classmethod
    def of(cls, corpus: schema.Corpus, plugins: Sequence[Plugin]) -> tuple[Self, schema.Corpus]:
        """Builds the source of a corpus, and types the arguments of the latter, with defaults.

        Raises UserError for arguments that do not fit.
        """
        held = arguments(cls, corpus.arguments, where="corpus")
        return classes.construct(cls, held, where="corpus"), corpus.model_copy(update=held)

    def check(self) -> None:  # noqa: B027
        """Raises UserError for what can be seen at once not to be readable."""

    @abstractmethod
    def read(self, *, held_out: bool) -> Iterator[Document]:
        """Yields the documents of validation if held_out, else those of training."""

    def data_key(self) -> Any:
        """Returns, as JSON, what identifies the documents in addition to code and arguments."""
        return ""

    def description(self) -> str:
        """Returns what is said before the documents are read."""
        return "reading documents"


def source_classes(plugins: Sequence[Plugin] = ()) -> dict[str, type[Source]]:
    """Returns the sources by name: of this directory, of subpackages beside the core, of plugins.

    Raises UserError for a plugin that fails, and for two sources of one name.
    """
    contributed: dict[str, type[Source]] = dict(classes.contributed("SOURCES"))
    return contributed | classes.registered(classes.modules_of(__name__, __path__), Source, plugins)


def source_of(
    corpus: schema.Corpus, plugins: Sequence[Plugin] = ()
) -> tuple[Source, schema.Corpus]:
    """Returns the source of a corpus, and the corpus with its arguments in their types.

    Raises UserError for a mistake in name or arguments.
    """
    known, key = source_classes(plugins), "corpus.source"
    kind = classes.class_named(corpus.source, known, plugins, what="source", where=key)
    return kind.of(corpus, plugins)


def documents(corpus: schema.Corpus, source: Source, *, held_out: bool) -> Iterator[Document]:
    """Yields the documents of a split. Raises UserError for any error of a source, with its line.

    With corpus.held_out=tuning both splits come from the training documents: 1 in 20 by hash, and
    the first one, validate. Of documents with a group, 1 in 4 groups and the first one do, so that
    none is in both splits. Those of validation are never read then.
    """
    is_tuning = corpus.held_out == "tuning"
    with classes.errors_of(type(source), where="corpus.source"):
        read = source.read(held_out=held_out and not is_tuning)
        first = ""
        for document in (d for d in read if not is_tuning or d.text):
            if is_tuning:  # not the hash of the name alone: sources choose validation by it
                group = document.group or document.name
                every = GROUPS_HELD_OUT if document.group else HELD_OUT
                first = first or group
                chosen = group == first or name_hash(f"tuning {group}") % every == 0
                if chosen != held_out:
                    continue
            yield document


def name_hash(name: str) -> int:
    """Returns a number that decides a document's split, the same on every machine."""
    return int(hash_of(name), 16)
