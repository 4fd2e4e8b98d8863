"""Any model under the protocols: a callable from token ids to logits, and documents of tokens.

B windows, T tokens, V vocabulary.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor, nn

from lengthgen.config.schema import Config
from lengthgen.data.corpora import Split, TokenizedCorpus
from lengthgen.data.token_cache import id_type
from lengthgen.data.tokenizer import counts_bytes, token_bytes, whole
from lengthgen.errors import UserError
from lengthgen.files import hash_of
from lengthgen.model.transformer import Transformer
from lengthgen.runs import devices
from lengthgen.runs.distributed import ALONE
from lengthgen.schemes import Scheme

Logits = Callable[[Tensor], Any]  # token ids [B, T] to logits [B, T, V], or what holds `logits`


class Given(Transformer):
    """A model of which nothing is known but the logits that it gives; they are its states too."""

    def __init__(self, logits: Logits, config: Config, corpus: TokenizedCorpus) -> None:
        nn.Module.__init__(self)
        if getattr(logits, "training", False):
            raise UserError("measure: the model is in training mode; call its eval() first")
        self.given, self.shape = [logits], config.shape  # in a list: a module is none of this one
        self.largest = int(corpus.validation.tokens.max(initial=corpus.bos_id or 0))
        device = devices.device_of(config.runtime, ALONE)
        self.embedding = nn.Embedding(corpus.vocab_size, 1, device=device)
        self.scheme = Scheme({}, layers=None, n_layers=1)
        self.blocks = nn.ModuleList()

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        n_last: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Returns the logits after the last n_last tokens. Raises UserError for another shape."""
        (call,) = self.given
        B, T = tokens_BT.shape
        given = call(tokens_BT)
        given = getattr(given, "logits", given)  # of transformers
        shape = [*given.shape] if isinstance(given, Tensor | np.ndarray) else type(given).__name__
        if shape[:2] != [B, T] or len(shape) != 3 or int(shape[2]) <= self.largest:
            raise UserError(
                f"measure: logits are {shape} for token ids {[B, T]} of up to {self.largest}; "
                "return an array [B, T, V] with a logit for each id"
            )
        return torch.as_tensor(given)[:, -(n_last or T) :].to(tokens_BT.device)

    def logits(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.to(torch.promote_types(torch.float32, x_BTD.dtype))


def corpus_of(documents: Iterable[Any], *, tokenizer: Any, bos_id: int | None) -> TokenizedCorpus:
    """Returns documents, texts or sequences of token ids, as held-out ones.

    Raises UserError for texts without a tokenizer, and for what is no list of documents.
    """
    ids = [] if isinstance(documents, str) else [*documents]
    texts, n_bytes = [text for text in ids if isinstance(text, str)], np.zeros(0, np.int64)
    if tokenizer is not None:
        of_library = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of transformers
        tokenizer = whole(tokenizers.Tokenizer.from_str(of_library.to_str()))
        encoded = iter(tokenizer.encode_batch(texts, add_special_tokens=False))
        ids = [next(encoded).ids if isinstance(given, str) else given for given in ids]
        n_bytes = token_bytes(tokenizer) if counts_bytes(tokenizer) else n_bytes
    elif texts:
        raise UserError("measure: documents are texts; give tokenizer, or token ids instead")
    with suppress(TypeError, ValueError):
        ids = [np.asarray(given, dtype=np.int64) for given in ids]
    is_given = all(np.ndim(given) == 1 and np.min(given, initial=0) >= 0 for given in ids)
    if not is_given or not any(map(np.size, ids)):
        raise UserError("measure: documents: give texts, or lists of token ids without padding")
    largest = max(int(document.max(initial=0)) for document in ids)
    vocab_size = max(largest, bos_id or 0, len(n_bytes) - 1) + 1
    tokens = np.concatenate(ids).astype(id_type(vocab_size))
    names = [f"document {i}" for i in range(len(ids))]
    offsets = np.cumsum([0, *map(len, ids)])
    split = Split(tokens=tokens, offsets=offsets, names=names, groups=names)
    nothing = Split(tokens=tokens[:0], offsets=offsets[:1], names=[], groups=[])
    return TokenizedCorpus(
        name="documents",
        train=nothing,
        validation=split,
        vocab_size=vocab_size,
        bos_id=bos_id,
        packed=False,
        token_bytes=np.pad(n_bytes, (0, vocab_size - len(n_bytes))),
        fingerprint=hash_of(tokens.tobytes() + split.offsets.tobytes()),
        tokenizer_path=Path(),
        meta={},
    )
