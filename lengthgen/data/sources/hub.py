"""Documents of a dataset on the Hugging Face Hub, or of a local folder laid out as one."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from lengthgen.config.overrides import shell_words
from lengthgen.config.schema import Positive
from lengthgen.data.formats import COLUMNAR, column_text, group_of, suffix_of
from lengthgen.data.sources import Document, Source, files
from lengthgen.errors import UserError, first_line

PATIENCE = 5.0  # in which the Hub answers, or is out of reach


@dataclass(kw_only=True)
class Hub(Source):
    """Splits of a dataset; without a validation split, the first training documents validate.

    A revision of None means whatever was newest when it was first read.
    """

    repo: str
    subset: str | None = None
    revision: str | None = None
    train_split: str = "train"
    validation_split: str | None = "validation"
    text_column: str = "text"
    group_column: str | None = None
    streaming: bool = False
    documents: Positive | None = None
    validation_documents: Positive | None = None

    def __post_init__(self) -> None:
        if self.validation_split == self.train_split:
            raise ValueError(
                f"validation_split: {self.train_split} is the training split; give null to "
                "validate on its first documents"
            )
        if self.validation_split is None and self.validation_documents is None:
            raise ValueError(
                "validation_documents: a number is required if validation_split is null: "
                "the first so many documents of the training split are validation"
            )

    def data_key(self) -> str:
        """Returns the state of a local folder; the Hub is identified by its names alone."""
        folder = Path(self.repo)
        return files.states(files.walk(folder, "corpus.repo")) if folder.is_dir() else ""

    def description(self) -> str:
        return f"reading {self.repo}, which has the splits {', '.join(self.rows)}"

    def read(self, *, held_out: bool) -> Iterator[Document]:
        n_validation = self.validation_documents
        if held_out:
            return islice(self._documents(self.validation_split or self.train_split), n_validation)
        first = 0 if self.validation_split else n_validation or 0
        last = None if self.documents is None else first + self.documents
        return islice(self._documents(self.train_split), first, last)

    def _documents(self, split: str) -> Iterator[Document]:
        """Yields the documents of a split, named by row counted from 1."""
        rows, number = iter(self.rows[split]), 0
        while (row := self._loaded(next, rows, None)) is not None:
            number += 1
            try:
                text = column_text(row, self.text_column)
                group = group_of(row, self.group_column)
            except ValueError as error:
                raise UserError(f"corpus.repo: row {number} of {self.repo} {error}") from None
            if text:
                yield Document(name=f"{split}:{number}", text=text, group=group)

    @cached_property
    def rows(self) -> dict[str, Any]:
        """The rows of each split. Raises UserError for what cannot be loaded, or lacks a split."""
        import datasets

        found = files.walk(self.repo, "corpus.repo") if Path(self.repo).is_dir() else []
        data = [file for file in found if suffix_of(file) in COLUMNAR]
        is_saved = any(file.name in ("state.json", "dataset_dict.json") for file in found)
        if is_saved or files.current(data, "corpus.repo") != data:  # the library reads them all
            given = shell_words({"corpus.path": self.repo})
            raise UserError(
                f"corpus.repo: {self.repo} is of save_to_disk, or of two writes, of which the "
                f"earlier would be read too; give corpus=files {given}"
            )
        about: dict[str, Any] = {"revision": self.revision, "streaming": self.streaming}
        hub = hub_or_cache(
            f"corpus.repo: {self.repo}", remedy="use corpus=stdlib, which needs none"
        )
        with nullcontext() if Path(self.repo).is_dir() else hub:
            rows = self._loaded(datasets.load_dataset, self.repo, self.subset, **about)
        for key in ("train_split", "validation_split"):
            split = getattr(self, key)
            if split is not None and split not in rows:
                raise UserError(
                    f"corpus.{key}: {self.repo} has no split {split}, but {', '.join(rows)}; give "
                    "one of them, or corpus.validation_split=null corpus.validation_documents=1000 "
                    "to hold out the first of training"
                )
        return rows

    def _loaded(self, call: Callable[..., Any], *given: Any, **about: Any) -> Any:
        """Returns what a call into the library gives. Raises UserError for its errors."""
        try:
            return call(*given, **about)
        except Exception as error:  # which HTTP library raises depends on versions
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            remedy = "check the names and corpus.subset, run `hf auth login` if it needs one"
            if "scripts are no longer supported" in str(cause):
                remedy = (
                    "try corpus.revision=refs/convert/parquet, which the Hub makes of such data"
                )
            raise UserError(
                f"corpus.repo: cannot read {self.repo} (corpus.subset={self.subset}, revision "
                f"{self.revision or 'newest'}): {str(cause)[:600]}; {remedy}"
            ) from error


@contextmanager
def hub_or_cache(what: str, *, remedy: str) -> Generator[None]:
    """Lets the libraries of the Hub use what they have cached, where it does not answer.

    They would ask again for half a minute. Raises UserError for their errors.
    """
    import datasets.config
    from huggingface_hub import constants, get_session

    libraries: list[Any] = [constants, datasets.config]
    why = ""
    was_offline = [library.HF_HUB_OFFLINE for library in libraries]
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception as error:  # of the HTTP library
        why = first_line(error)
    try:
        for library, offline in zip(libraries, was_offline, strict=True):
            library.HF_HUB_OFFLINE = offline or bool(why)
        yield
    except Exception as error:  # of the library and of what it fetches with
        if not why and isinstance(error, UserError):
            raise
        reason = f"is not cached here, and {constants.ENDPOINT} does not answer ({why[:200]})"
        first = "check the network"
        if not why:
            reason = f"cannot be read from the Hub ({str(error)[:600]})"
            first = "check its name, run `hf auth login` if it needs one"
        raise UserError(f"{what} {reason}; {first}, or {remedy}") from error
    finally:
        for library, offline in zip(libraries, was_offline, strict=True):
            library.HF_HUB_OFFLINE = offline
