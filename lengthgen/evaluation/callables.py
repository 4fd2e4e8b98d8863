"""Any model under the protocols: a callable from token ids to logits, and documents of tokens.

B windows, T tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor, nn

from lengthgen.config.schema import Config
from lengthgen.data.corpora import Split, TokenizedCorpus
from lengthgen.data.token_cache import id_type
from lengthgen.data.tokenizer import token_bytes
from lengthgen.errors import UserError
from lengthgen.files import hash_of
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import Scheme

Logits = Callable[[Tensor], Any]  # token ids [B, T] to logits [B, T, V], or what holds `logits`


class Given(Transformer):
    """A model of which nothing is known but the logits that it gives; they are its states too."""

    def __init__(self, logits: Logits, config: Config, *, vocab_size: int) -> None:
        nn.Module.__init__(self)
        self.given, self.shape = [logits], config.shape  # in a list: a module is none of this one
        self.embedding = nn.Embedding(vocab_size, 1, device=config.runtime.device)
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
        logits_BTV = call(tokens_BT)
        logits_BTV = getattr(logits_BTV, "logits", logits_BTV)  # of transformers
        if tuple(logits_BTV.shape[:2]) != tuple(tokens_BT.shape):
            shapes = f"{[*logits_BTV.shape]} for token ids {[*tokens_BT.shape]}"
            raise UserError(f"measure: logits have the shape {shapes}; return [B, T, V]")
        return logits_BTV[:, -(n_last or tokens_BT.shape[1]) :].to(tokens_BT.device)

    def logits(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.to(torch.promote_types(torch.float32, x_BTD.dtype))


def corpus_of(
    documents: Sequence[Any], *, tokenizer: tokenizers.Tokenizer | None, bos_id: int | None
) -> TokenizedCorpus:
    """Returns documents, texts or sequences of token ids, as held-out ones.

    Raises UserError for texts without a tokenizer, and if there is no document.
    """
    if not len(documents):
        raise UserError("measure: documents is empty; give texts or sequences of token ids")
    if isinstance(documents[0], str):
        if tokenizer is None:
            raise UserError("measure: documents are texts; give tokenizer, or token ids instead")
        encoded = tokenizer.encode_batch([*documents], add_special_tokens=False)
        documents = [encoding.ids for encoding in encoded]
    ids = [np.asarray(document, dtype=np.int64) for document in documents]
    largest = max(int(document.max(initial=0)) for document in ids)
    n_bytes = np.zeros(0, np.int64) if tokenizer is None else token_bytes(tokenizer)
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
