"""The KV cache: a text continued by new tokens; earlier ones are kept, not computed again.

Every layer keeps what later tokens need of earlier ones: normalised inputs, keys and values. Keys
are kept as they are before `qk`, which acts on all of them for each token: what a part does to them
may depend on all keys of the call, as the scale of xpos does. That costs about as much as the sum
over keys itself, and no product of matrices. What is kept holds wherever a prefix alone gives what
it gives within a longer call. Elsewhere the whole text is read again for each token.

B texts of one length, N new tokens, S tokens, D width, V vocabulary.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lengthgen.data.windows import IGNORED
from lengthgen.errors import UserError
from lengthgen.model.build import generator_of
from lengthgen.model.transformer import Block, LayerCache, Transformer
from lengthgen.schemes import Scheme
from lengthgen.schemes.relative.recurrence import Recurrence


class Cache(NamedTuple):
    """Texts that a model has read, and what it keeps of them."""

    tokens_BS: Tensor
    logits_BV: Tensor  # of the token that comes next
    layers: tuple[LayerCache, ...]  # empty if nothing is kept
    starts: dict[str, Tensor]  # of answer_starts(): behind the first tokens that were read


def why_uncached(scheme: Scheme) -> str | None:
    """Returns why nothing can be kept of earlier tokens, or None if it can."""
    if scheme.depends_on_length:
        return "outputs depend on the length of the call: every token reads the whole text again"
    if any(isinstance(part, Recurrence) and part.n_remembered for part in scheme.all):
        return "a text is read in segments: every token reads the whole text again"
    return None


@torch.inference_mode()
def forward_cached(
    model: Transformer, new_BN: Tensor, cache: Cache | None, *, seed: int, precision: str
) -> Cache:
    """Returns the texts with new tokens behind them, and the logits of what comes next.

    They are those of a call with the whole text, to rounding: sums run over other blocks. Raises
    UserError where the scheme has no value at that length. A part that samples draws from the
    start of `seed`, as in every call of an evaluation. A model with an encoder keeps nothing.
    """
    if cache is None:
        tokens_BS, targets_BS = new_BN, torch.full_like(new_BN, IGNORED)
        targets_BS[:, -1] = 0
        starts = model.answer_starts(targets_BS)
    else:
        tokens_BS, starts = torch.cat([cache.tokens_BS, new_BN], dim=1), cache.starts
    reason = model.scheme.unsupported_reason(tokens_BS.shape[1])
    if reason:
        raise UserError(
            f"{reason}: nothing follows a text of {tokens_BS.shape[1]} tokens; begin with a "
            "shorter one, or ask for fewer tokens"
        )
    with torch.autocast(new_BN.device.type, torch.bfloat16, enabled=precision == "bf16"):
        if starts or why_uncached(model.scheme):
            generator = generator_of("evaluation", seed)
            logits = model.logits(model(tokens_BS, n_last=1, generator=generator, **starts)[:, 0])
            return Cache(tokens_BS, logits, (), starts)
        return _extended(model, tokens_BS, cache, seed=seed)


def _extended(model: Transformer, tokens_BS: Tensor, cache: Cache | None, *, seed: int) -> Cache:
    """Returns what is read when each layer has seen the tokens that are new."""
    done = 0 if cache is None else cache.tokens_BS.shape[1]
    x_BSD, c = model.embedded(tokens_BS, generator=generator_of("evaluation", seed))
    x_BND, layers = x_BSD[:, done:], list[LayerCache]()
    for i, (block, hooks) in enumerate(zip(model.blocks, model.scheme.layers, strict=True)):
        assert isinstance(block, Block)
        at = replace(c, layer=i, hooks=hooks)
        kept = block.project(x_BND, at)
        if cache is not None:
            both = zip(cache.layers[i], kept, strict=True)
            kept = LayerCache(*(torch.cat(pair, dim=1) for pair in both))
        x_BND = block.output(x_BND, kept, at)
        layers.append(kept)
    return Cache(tokens_BS, model.logits(model.norm(x_BND[:, -1])), tuple(layers), {})
