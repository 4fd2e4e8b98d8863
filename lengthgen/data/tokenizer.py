"""Byte-level tokenizers: a BPE trained on the corpus, bytes, a tokenizer.json or one of the Hub."""

import json
import os
import re
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from lengthgen.config import schema
from lengthgen.config.schema import TOKENIZERS
from lengthgen.data.sources import Source
from lengthgen.data.sources.hub import hub_or_cache
from lengthgen.errors import Say, UserError, suggestion
from lengthgen.files import not_fetched

BOS = "<|bos|>"
BLANK = "\u2581"  # what SentencePiece writes for one
BOS_NAMES = (BOS, "<s>", "<|begin_of_text|>", "<|endoftext|>")
PIECE = 200_000  # characters that a long document is cut into, and a few more
OWN_PIECE = 16_000  # with the BPE that is trained here, whose words are known: all cores share them
UNBROKEN = 1_000_000  # characters of a piece: the library takes 200 bytes for each
LARGEST_ID = 2**24  # what lists all ids would fill memory beyond
LONGEST_WORD = 1024  # in the training of a BPE, whose time grows with the square


def given_tokenizer(corpus: schema.Corpus, source: Source) -> tokenizers.Tokenizer | None:
    """Returns the tokenizer that the configuration names, or None for one that is to be trained."""
    if corpus.tokenizer == "bpe":
        return None
    if corpus.tokenizer == "bytes":
        return _byte_level(byte_characters())
    if corpus.tokenizer == "characters":
        if source.characters is None:
            raise UserError(
                "corpus.tokenizer: characters are those of a task; give bytes, bpe or a "
                "tokenizer.json"
            )
        return _byte_level([byte_characters()[ord(letter)] for letter in source.characters])
    tokenizer = read_tokenizer(_path_of(corpus.tokenizer))
    if find_bos(tokenizer) is None and (corpus.bos or corpus.packed):
        key = "packed" if corpus.packed else "bos"
        raise UserError(
            f"corpus.tokenizer: {corpus.tokenizer} has none of {', '.join(BOS_NAMES)}, which "
            f"corpus.{key}=true needs; set corpus.{key}=false or add one"
        )
    return tokenizer


def _path_of(name: str) -> Path:
    """Returns the path of a tokenizer.json, that of a repository of the Hub downloaded first."""
    if os.path.isabs(name):
        return Path(name, "tokenizer.json") if os.path.isdir(name) else Path(name)
    import huggingface_hub

    remedy = f"give a tokenizer.json; {suggestion(name, TOKENIZERS[:2])}"
    repo, _, revision = name.partition("@")
    with hub_or_cache(f"corpus.tokenizer: {name} is no file; it", remedy=remedy):
        file = "tokenizer.json"
        return Path(huggingface_hub.hf_hub_download(repo, file, revision=revision or None))


def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Reads a byte-level tokenizer.json, or a BPE of SentencePiece with a token for every byte.

    Special tokens in a text are encoded as plain text.
    """
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(path.read_bytes())
    except FileNotFoundError:
        wrong = f"does not exist; give a tokenizer.json; {suggestion(path.name, TOKENIZERS[:2])}"
    except OSError as error:
        wrong = f"cannot be read: {error.strerror}"
    except Exception as error:  # the library raises nothing narrower
        unread = f"is not a tokenizer.json of the tokenizers library: {error}"
        wrong = not_fetched(path) or unread
    else:
        if (n := max(tokenizer.get_vocab().values(), default=0)) > LARGEST_ID:
            raise UserError(f"corpus.tokenizer: {path} has an id of {n}, more than {LARGEST_ID}")
        if counts_bytes(tokenizer):
            return whole(tokenizer)
        wrong = (
            "is not byte-level, so that bytes of text per token are not known; use a byte-level "
            "BPE (such as GPT-2's), one with byte_fallback (Llama 2's), bpe or bytes"
        )
    raise UserError(f"corpus.tokenizer: {path} {wrong}")


def counts_bytes(tokenizer: tokenizers.Tokenizer) -> bool:
    """True if the bytes of text are known that each token stands for."""
    return '"type":"ByteLevel"' in tokenizer.to_str() or is_sentencepiece(tokenizer)


def whole(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Makes a tokenizer encode all of a text and nothing but the text."""
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None  # which would draw the tokens of a text
    return tokenizer


def _byte_level(tokens: Sequence[str]) -> tokenizers.Tokenizer:
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS])
    return whole(tokenizer)


def byte_characters() -> list[str]:
    """Returns the character that stands for each byte in a byte-level vocabulary (as in GPT-2).

    Printable bytes of Latin-1 stand for themselves, the others are the characters from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def train_tokenizer(texts: Iterable[str], *, vocab_size: int, say: Say) -> tokenizers.Tokenizer:
    """Trains a byte-level BPE of at most vocab_size ids, of which 0 is the bos token."""
    tokenizer = _byte_level([])
    words = tokenizer.pre_tokenizer
    cut = pre_tokenizers.FixedLength(LONGEST_WORD)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, cut])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS],
        initial_alphabet=byte_characters(),
        show_progress=False,
    )
    parts = _enough(part for text in texts for part in pieces(text))
    begun = time.monotonic()  # in a thread, so that a signal ends the program at once
    training = ThreadPoolExecutor(1).submit(tokenizer.train_from_iterator, parts, trainer)
    while wait([training], timeout=5).not_done:
        say(f"training a BPE: {time.monotonic() - begun:.0f} s")
    training.result()
    tokenizer.pre_tokenizer = words
    return whole(tokenizer)


def _enough(parts: Iterable[str]) -> Iterator[str]:
    """Yields pieces of texts, ten at most of those without blanks: a BPE holds each word."""
    n = 0
    for part in parts:
        n += len(part) == UNBROKEN
        if len(part) < UNBROKEN or n <= 10:
            yield part


def pieces(text: str, *, sentencepiece: bool = False, size: int = PIECE) -> Iterator[str]:
    """Cuts a long text where no word of GPT-2, Llama 3 or SentencePiece lies across.

    That is behind a letter before a blank or a full stop of Chinese, or between two lines; with
    SentencePiece before a blank. A text of other tokenizers without such a place is cut all the
    same, a word of UNBROKEN characters into two.
    """
    begin, ends = 0, re.compile(r"[^\W_](?=[ \r\n\u3002\uff0c])|\S\n(?=[^\s/])")
    longest, size = len(text) if sentencepiece else UNBROKEN, min(size, PIECE)
    ends = re.compile(r"\S(?= \S)") if sentencepiece else ends
    while begin < len(text):
        last = min(begin + longest, len(text))
        cut = ends.search(text, begin + size, last)
        end = cut.end() if cut else last
        yield text[begin:end]
        begin = end


def token_texts(tokenizer: tokenizers.Tokenizer) -> list[bytes]:
    """Returns the UTF-8 text that each id of a byte-level tokenizer stands for; special: none.

    With SentencePiece also the blank counts that it puts before a text.
    """
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    texts = [b""] * (max(vocab.values()) + 1)
    byte_of = {character: bytes([byte]) for byte, character in enumerate(byte_characters())}
    pieces_of_text = is_sentencepiece(tokenizer)
    for token, i in vocab.items():
        if i in added and added[i].special:
            continue
        if i not in added and not pieces_of_text:
            texts[i] = b"".join(byte_of.get(letter, letter.encode()) for letter in token)
        elif pieces_of_text:
            byte = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
            text = token.replace(BLANK, " ").encode()
            texts[i] = bytes.fromhex(byte[1]) if byte else text
        else:
            texts[i] = token.encode()
    return texts


def token_bytes(tokenizer: tokenizers.Tokenizer) -> NDArray[np.int64]:
    """Returns how many bytes of text each id of a byte-level tokenizer stands for."""
    return np.array([len(text) for text in token_texts(tokenizer)], dtype=np.int64)


def altered(text: str, ids: Iterable[int], texts: Sequence[bytes], *, blank: bool) -> str | None:
    """Says where ids stand for another text, but for a `blank` before it; None if they do not."""
    given, read = text.encode(), b"".join([texts[i] for i in ids])
    if read in (given, b" " * blank + given):
        return None
    pairs = enumerate(zip(given, read, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), min(len(given), len(read)))
    return f"{given[at : at + 20]!r} at byte {at} becomes {read[at : at + 20]!r}"


def normalised(text: str, tokenizer: tokenizers.Tokenizer | None) -> str:
    """Returns a text with its characters composed, if the tokenizer composes them (NFC)."""
    composes = tokenizer is not None and isinstance(tokenizer.normalizer, normalizers.NFC)
    return unicodedata.normalize("NFC", text) if composes else text  # whole: no piece splits one


def is_sentencepiece(tokenizer: tokenizers.Tokenizer) -> bool:
    """True for a BPE with a token for every byte that changes nothing of a text but its blanks."""
    plain: dict[str, Any] = json.loads(tokenizer.to_str())
    normalizer = plain["normalizer"] or {}
    steps = [step for step in normalizer.get("normalizers", [normalizer]) if step]
    marks = [step.get("content", step.get("prepend")) for step in steps]  # of Replace, Prepend
    return bool(plain["model"].get("byte_fallback")) and {*marks} <= {BLANK}


def prepends_blank(tokenizer: tokenizers.Tokenizer) -> bool:
    """True for a SentencePiece that puts a blank before a text."""
    first = tokenizer.encode("a", add_special_tokens=False).tokens[:1]  # none of some characters
    return "".join(first).startswith(BLANK)


def find_bos(tokenizer: tokenizers.Tokenizer) -> int | None:
    """Returns the id of the token that begins documents, if the tokenizer has one."""
    ids = (tokenizer.token_to_id(name) for name in BOS_NAMES)
    return next((i for i in (prepended(tokenizer), *ids) if i is not None), None)


def prepended(tokenizer: tokenizers.Tokenizer) -> int | None:
    """Returns the id of the token that the tokenizer itself puts before a text, if it does."""
    bare, whole = (tokenizer.encode("a", add_special_tokens=x).ids for x in (False, True))
    return whole[0] if whole[:1] != bare[:1] else None
