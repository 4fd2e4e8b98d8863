"""Byte-level tokenizers: a BPE trained on the corpus, bytes, or a given tokenizer.json."""

import hashlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from lengthgen.config import schema
from lengthgen.data.sources import Say, Source
from lengthgen.errors import UserError, suggestion

BOS = "<|bos|>"
PIECE = 200_000  # characters that a long document is cut into, and a few more
LONGEST_WORD = 1024  # in the training of a BPE, whose time grows with the square
BOS_NAMES = (BOS, "<s>", "<|begin_of_text|>", "<|endoftext|>")


def tokenizer_key(corpus: schema.Corpus, source: Source) -> list[Any]:
    """Returns what identifies the tokenizer, as JSON: equal keys give equal tokens of a text."""
    match corpus.tokenizer:
        case "bytes":
            return ["bytes"]
        case "characters":
            return ["characters", source.alphabet]
        case "bpe":
            return ["bpe", corpus.vocab_size, tokenizers.__version__]
        case path:
            content = _content(Path(path).expanduser())
            return ["file", hashlib.sha256(content).hexdigest(), tokenizers.__version__]


def given_tokenizer(corpus: schema.Corpus, source: Source) -> tokenizers.Tokenizer | None:
    """Returns the tokenizer that the configuration names, or None for one that is to be trained."""
    if corpus.tokenizer == "bpe":
        return None
    if corpus.tokenizer == "bytes":
        return _without_merges(_byte_alphabet())
    if corpus.tokenizer == "characters":
        if source.alphabet is None:
            raise UserError(
                "corpus.tokenizer: characters are those of a task; give bytes, bpe or a "
                "tokenizer.json"
            )
        alphabet = _byte_alphabet()
        return _without_merges([alphabet[ord(character)] for character in source.alphabet])
    path = Path(corpus.tokenizer).expanduser()
    tokenizer = parse_tokenizer(_content(path), path)
    if find_bos(tokenizer) is None and (corpus.bos or corpus.packed):
        key = "packed" if corpus.packed else "bos"
        raise UserError(
            f"corpus.tokenizer: {corpus.tokenizer} has none of {', '.join(BOS_NAMES)}, which "
            f"corpus.{key}=true needs; set corpus.{key}=false or add one"
        )
    return tokenizer


def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Reads a byte-level tokenizer.json; special tokens in a text are encoded as plain text."""
    return parse_tokenizer(path.read_bytes(), path)


def parse_tokenizer(content: bytes, path: Path) -> tokenizers.Tokenizer:
    """Returns the byte-level tokenizer of a tokenizer.json, which was read from `path`."""
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises nothing narrower
        raise UserError(
            f"corpus.tokenizer: {path} is not a tokenizer.json of the tokenizers library: {error}"
        ) from error
    if '"type":"ByteLevel"' not in tokenizer.to_str():
        raise UserError(
            f"corpus.tokenizer: {path} is not byte-level, so that bytes of text per token are not "
            "known; use a byte-level BPE (such as GPT-2's), bpe or bytes"
        )
    return _plain(tokenizer)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        hint = suggestion(str(path), ("bpe", "bytes"))
        raise UserError(
            f"corpus.tokenizer: {path} does not exist; give a tokenizer.json; {hint}"
        ) from None
    except OSError as error:
        raise UserError(f"corpus.tokenizer: cannot read {path}: {error.strerror}") from error


def _plain(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Makes a tokenizer encode all of a text and nothing but the text."""
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _without_merges(tokens: Sequence[str]) -> tokenizers.Tokenizer:
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = _byte_level(tokenizers.models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens([BOS])
    return _plain(tokenizer)


def train_tokenizer(
    texts: Iterator[str], *, vocab_size: int, say: Say | None = None
) -> tokenizers.Tokenizer:
    """Trains a byte-level BPE of at most vocab_size ids, of which 0 is the bos token.

    A thread does it, so that a signal ends the program at once.
    """
    tokenizer = _byte_level(tokenizers.models.BPE())
    words = tokenizer.pre_tokenizer
    cut = tokenizers.pre_tokenizers.FixedLength(LONGEST_WORD)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([words, cut])
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS],
        initial_alphabet=_byte_alphabet(),
        show_progress=False,
    )
    errors: list[BaseException] = []

    def train() -> None:
        try:
            tokenizer.train_from_iterator(texts, trainer=trainer)
        except BaseException as error:
            errors.append(error)

    thread, begun = threading.Thread(target=train, daemon=True), time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(timeout=5)
        if thread.is_alive() and say is not None:
            say(f"training a BPE: {time.monotonic() - begun:.0f} s")
    if errors:
        raise errors[0]
    tokenizer.pre_tokenizer = words
    return _plain(tokenizer)


def pieces(text: str) -> Iterator[str]:
    """Cuts a long text where a space follows a word, so that it is encoded as in one piece.

    Byte-level tokenizers as trained here never join what stands on both sides of such a place.
    """
    begin = 0
    while begin < len(text):
        cut = re.compile(r"\w(?=\s)").search(text, begin + PIECE)
        end = cut.end() if cut else len(text)
        yield text[begin:end]
        begin = end


def _byte_level(model: tokenizers.models.BPE) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def _byte_alphabet() -> list[str]:
    """Returns the character that stands for each byte in a byte-level vocabulary (as in GPT-2).

    Printable bytes of Latin-1 stand for themselves, the others are the characters from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def token_bytes(tokenizer: tokenizers.Tokenizer) -> NDArray[np.int64]:
    """Returns how many bytes of UTF-8 text each id of a byte-level tokenizer stands for."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    n_bytes = np.zeros(max(vocab.values()) + 1, dtype=np.int64)
    for token, i in vocab.items():
        if i not in added:
            n_bytes[i] = len(token)  # one character of the byte-level alphabet per byte
        elif not added[i].special:
            n_bytes[i] = len(token.encode())
    return n_bytes


def find_bos(tokenizer: tokenizers.Tokenizer) -> int | None:
    """Returns the id of the token that begins documents, if the tokenizer has one."""
    ids = (tokenizer.token_to_id(name) for name in BOS_NAMES)
    return next((i for i in ids if i is not None), None)


def encode(
    texts: Sequence[str], corpus: schema.Corpus, tokenizer: tokenizers.Tokenizer
) -> list[NDArray[Any]]:
    """Returns the token ids of texts."""
    if corpus.tokenizer == "bytes":  # what byte_tokenizer() would give, without its lists
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
