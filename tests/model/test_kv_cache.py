"""The KV cache: what is kept of earlier tokens changes no logit."""

import pytest
from small import close, every_scheme, last_logits, small_model, some_tokens
from torch import Tensor

from lengthgen.errors import UserError
from lengthgen.model.kv_cache import Cache, forward_cached, why_uncached
from lengthgen.model.transformer import Block, Transformer

EVERY = pytest.mark.parametrize(("name", "variant"), every_scheme())
T = 16  # of the small models
PIECES = [T - 1, 1, 1, 15, 1]  # a prompt, then tokens, past 2 T


def cached(model: Transformer, tokens_BN: Tensor, cache: Cache | None = None) -> Cache:
    return forward_cached(model, tokens_BN, cache, seed=0, precision="fp32")


@EVERY
def test_new_tokens_alone_give_the_logits_of_all(name: str, variant: str | None) -> None:
    model = small_model(name, variant)
    tokens, cache, n = some_tokens(sum(PIECES)), None, 0
    why_not, seen, block = why_uncached(model.scheme), list[int](), model.blocks[0]
    assert isinstance(block, Block)
    block.qkv.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    assert why_not is None or why_not.endswith("every token reads the whole text again")
    for piece in PIECES:
        if model.scheme.unsupported_reason(n + piece):
            with pytest.raises(UserError, match=r"16 rows .*: nothing follows a text of 17 tokens"):
                cached(model, tokens[:, n : n + piece], cache)
            assert n == T
            return
        seen.clear()
        cache = cached(model, tokens[:, n : n + piece], cache)
        n += piece
        if n == T:
            assert seen == [n if why_not else 1]
        assert bool(cache.layers) == (why_not is None)
        # fp64 with logits of about 3: sums of a few hundred products in another order.
        close(cache.logits_BV, last_logits(model, tokens[:, :n]), atol=1e-12)
    assert n > 2 * T
