"""Byte-level tokenizers: a BPE trained on the corpus, bytes, or a given tokenizer.json."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from lengthgen.config import schema
from lengthgen.errors import UserError, suggestion
from lengthgen.files import read_bytes
from lengthgen.tasks import END, task_of

AlignmentIds = Callable[[Sequence[int]], list[int]]  # from a text's tokens to the id of each

BOS = "<|bos|>"
BOS_NAMES = (BOS, "<s>", "<|begin_of_text|>", "<|endoftext|>")


def tokenizer_key(corpus: schema.Corpus) -> list[Any]:
    """Returns what identifies the tokenizer, as JSON: equal keys give equal tokens of a text."""
    match corpus.tokenizer:
        case "bytes":
            return ["bytes"]
        case "characters":
            return ["characters", *_characters(corpus)]
        case "bpe":
            return ["bpe", corpus.vocab_size, tokenizers.__version__]
        case path:
            content = read_bytes(Path(path).expanduser())
            return ["file", hashlib.sha256(content).hexdigest(), tokenizers.__version__]


def given_tokenizer(corpus: schema.Corpus) -> tokenizers.Tokenizer | None:
    """Returns the tokenizer that the configuration names, or None for one that is to be trained."""
    if corpus.tokenizer == "bpe":
        return None
    if corpus.tokenizer == "bytes":
        return byte_tokenizer()
    if corpus.tokenizer == "characters":
        return _character_tokenizer(_characters(corpus))
    tokenizer = read_tokenizer(Path(corpus.tokenizer).expanduser())
    if find_bos(tokenizer) is None and (corpus.bos or corpus.packed):
        key = "packed" if corpus.packed else "bos"
        raise UserError(
            f"corpus.tokenizer: {corpus.tokenizer} has none of {', '.join(BOS_NAMES)}, which "
            f"corpus.{key}=true needs; set corpus.{key}=false or add one"
        )
    return tokenizer


def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Reads a byte-level tokenizer.json; special tokens in a text are encoded as plain text."""
    words = ("bpe", "bytes")
    if not path.exists():
        hint = suggestion(str(path), words)
        raise UserError(f"corpus.tokenizer: {path} does not exist; give a tokenizer.json; {hint}")
    try:
        content = read_bytes(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"corpus.tokenizer: cannot read {path}: {error}") from error
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing narrower
        raise UserError(
            f"corpus.tokenizer: {path} is not a tokenizer.json of the tokenizers library: {error}"
        ) from error
    _check_ids(tokenizer, path)  # first: to_str() counts up to the largest id
    if '"type":"ByteLevel"' not in tokenizer.to_str():
        raise UserError(
            f"corpus.tokenizer: {path} is not byte-level, so that bytes of text per token are not "
            "known; use a byte-level BPE (such as GPT-2's), bpe or bytes"
        )
    return _plain(tokenizer)


def _check_ids(tokenizer: tokenizers.Tokenizer, path: Path) -> None:
    """Raises UserError for two tokens of one id, and for more ids than an embedding can have."""
    token_of: dict[int, str] = {}
    for token, i in tokenizer.get_vocab(with_added_tokens=True).items():
        if token_of.setdefault(i, token) != token:
            raise UserError(
                f"corpus.tokenizer: {path} gives the id {i} to {token_of[i]!r} and to {token!r}; "
                "give each token an id of its own"
            )
    if max(token_of, default=0) >= schema.MOST_IDS:
        raise UserError(
            f"corpus.tokenizer: {path} has the id {max(token_of)}, and an embedding here at most "
            f"{schema.MOST_IDS} rows; number its tokens from 0"
        )


def _plain(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Makes a tokenizer encode all of a text and nothing but the text."""
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Returns the tokenizer whose ids 0-255 are bytes; 256 is the bos token."""
    return _without_merges(_byte_alphabet())


def _character_tokenizer(characters: Sequence[str]) -> tokenizers.Tokenizer:
    """Returns the tokenizer whose ids are these ASCII characters; the bos token follows."""
    alphabet = _byte_alphabet()
    return _without_merges([alphabet[ord(character)] for character in characters])


def _without_merges(tokens: Sequence[str]) -> tokenizers.Tokenizer:
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = _byte_level(tokenizers.models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens([BOS])
    return _plain(tokenizer)


def _characters(corpus: schema.Corpus) -> list[str]:
    """Returns the characters that a task's examples are made of, in the order of ASCII."""
    if not isinstance(corpus, schema.TaskCorpus):
        raise UserError(
            "corpus.tokenizer: characters are those of a task; give bytes, bpe or a tokenizer.json"
        )
    return sorted({*task_of(corpus).alphabet, END})


def alignment_ids(corpus: schema.Corpus) -> AlignmentIds | None:
    """Returns the alignment ids of tokens as a function of them; None for corpora without any.

    A leading bos token has id -1; elsewhere it counts as a character between.
    """
    if not isinstance(corpus, schema.TaskCorpus) or not task_of(corpus).has_alignment:
        return None
    rule, characters = task_of(corpus), _characters(corpus)
    bos = len(characters)

    def ids(tokens: Sequence[int]) -> list[int]:
        begins = int(tokens[0] >= bos)
        text = "".join(characters[token] if token < bos else END for token in tokens[begins:])
        return [-1] * begins + rule.alignment_ids(text)

    return ids


def train_tokenizer(texts: Iterator[str], *, vocab_size: int) -> tokenizers.Tokenizer:
    """Trains a byte-level BPE of at most vocab_size ids, of which 0 is the bos token."""
    tokenizer = _byte_level(tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS],
        initial_alphabet=_byte_alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return _plain(tokenizer)


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
    raws: Sequence[bytes], corpus: schema.Corpus, tokenizer: tokenizers.Tokenizer
) -> list[NDArray[Any]]:
    """Returns the token ids of UTF-8 texts."""
    if corpus.tokenizer == "bytes":  # what byte_tokenizer() would give, without its lists
        return [np.frombuffer(raw, dtype=np.uint8) for raw in raws]
    texts = [raw.decode() for raw in raws]
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
