"""The KV cache: what is kept of earlier tokens changes no logit."""

import pytest
import torch
from small import close, every_scheme, small_model, some_tokens
from torch import Tensor, nn

from lengthgen.errors import UserError
from lengthgen.model.build import seed_of
from lengthgen.model.kv_cache import Cache, forward_cached, why_uncached
from lengthgen.model.transformer import Block, Transformer

EVERY = pytest.mark.parametrize(("name", "variant"), every_scheme())
T = 16  # of the small models
PIECES = [T - 2, 1, 1, 1, 15, *[1] * 4]  # a prompt, then tokens; 36 tokens, past 2 T


def cached(
    model: Transformer, tokens_BN: Tensor, cache: Cache | None = None, *, precision: str = "fp32"
) -> Cache:
    return forward_cached(model, tokens_BN, cache, seed=0, precision=precision)


def logits_of_all(model: Transformer, tokens_BS: Tensor) -> Tensor:
    """Returns the logits after the last token, from a call with the whole text."""
    draws = torch.Generator().manual_seed(seed_of("evaluation", 0))
    with torch.no_grad():
        return model.logits(model(tokens_BS, n_last=1, generator=draws)[:, 0])


def rows_seen(model: Transformer) -> list[int]:
    """Returns a list to which every call of the first block adds how many tokens it projects."""
    seen: list[int] = []
    block = model.blocks[0]
    assert isinstance(block, Block)

    def count(_: nn.Module, inputs: tuple[Tensor], __: Tensor) -> None:
        seen.append(inputs[0].shape[1])

    block.qkv.register_forward_hook(count)
    return seen


@EVERY
def test_new_tokens_alone_are_read_unless_the_scheme_says_why_not_and_give_the_logits_of_all(
    name: str, variant: str | None
) -> None:
    model = small_model(name, variant)
    tokens, cache, n = some_tokens(sum(PIECES)), None, 0
    why_not, seen = why_uncached(model.scheme), rows_seen(model)
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
        if T - 2 < n <= T:
            assert seen == [n if why_not else 1]
        assert bool(cache.layers) == (why_not is None)
        # fp64 with logits of about 3: sums of a few hundred products in another order.
        close(cache.logits_BV, logits_of_all(model, tokens[:, :n]), atol=1e-12)
    assert n > 2 * T


@pytest.mark.parametrize("name", ["rope", "fox", "cope", "transformer_xl_recurrent"])
def test_one_beginning_can_be_continued_twice(name: str) -> None:
    model, tokens, others = small_model(name), some_tokens(2 * T), some_tokens(2 * T, seed=1)
    prompt = cached(model, tokens[:, : T - 2])
    for more in (tokens[:, T - 2 :], others[:, T - 2 :], tokens[:, T - 2 :]):
        cache = prompt
        for n in range(more.shape[1]):
            cache = cached(model, more[:, n : n + 1], cache)
        whole = torch.cat([tokens[:, : T - 2], more], dim=1)
        close(cache.logits_BV, logits_of_all(model, whole), atol=1e-12)


@pytest.mark.parametrize(("precision", "atol"), [("fp32", 2e-5), ("bf16", 0.1)])
@pytest.mark.parametrize("name", ["rope", "xpos", "stick_breaking", "shaw"])
def test_lower_precision_differs_by_its_rounding(name: str, precision: str, atol: float) -> None:
    # Logits of about 3: 2^-24 or 2^-8 of that, some ten roundings in a row.
    model = small_model(name, dtype=torch.float32)
    tokens, cache = some_tokens(3 * T), None
    for n in range(3 * T):
        cache = cached(model, tokens[:, n : n + 1], cache, precision=precision)
    assert cache is not None
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        want = logits_of_all(model, tokens)
    assert cache.logits_BV.dtype == torch.float32
    close(cache.logits_BV, want, atol=atol)
