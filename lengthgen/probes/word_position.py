"""Words and positions in the first layer's logits, for positions that are added to embeddings.

With x = w + p, q.k is a sum of four terms: word-word, word-position, position-word and
position-position (TUPE: Ke et al. 2021, arXiv 2006.15595). p is what the parts make of an embedding
of zeros, w the rest. LayerNorm is linear given the deviation of the sum, so that the four add up to
the logits exactly.

B windows, T tokens, D width, H heads, K head width, N blocks of tokens.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthgen.model.transformer import Block, Transformer
from lengthgen.probes.base import Probe, ProbeInputs, Row, Text, numbers
from lengthgen.probes.figures import Panel
from lengthgen.schemes import Scheme

TERMS = ("word_word", "word_position", "position_word", "position_position")
BLOCKS = 32  # a picture's rows and columns
HEADS = 4  # that have pictures; sizes are of all


class WordPosition(Probe):
    """How much of the first layer's logits is due to words, to positions, and to both together."""

    shown, columns = ("size",), HEADS

    @torch.no_grad()
    def rows(self, inputs: ProbeInputs) -> list[Row]:
        """Returns a row per term: mean size of its part of the logits [heads], and mean in blocks.

        Over causal pairs of windows of T tokens; a block without any has None.
        """
        length = inputs.train_length
        reason = without_terms(inputs.model.scheme) or inputs.unsupported_reason(length)
        if reason:
            return [{"skipped": reason}]
        causal = torch.ones(length, length, dtype=torch.float64).tril()
        counts_NN = in_blocks(causal)
        sizes, sums = torch.zeros(()), torch.zeros(())
        for text in inputs.windows(self.name, length):
            s_4HTT = terms(inputs, text).cpu().double()[:, 0] * causal
            sizes = sizes + s_4HTT.abs().sum((-1, -2)) / causal.sum()
            sums = sums + in_blocks(s_4HTT[:, :HEADS])
        n = len(inputs.endpoints)
        maps_4HNN = sums / n / counts_NN.clamp(min=1)
        hidden = (counts_NN == 0).tolist()
        return [
            {"term": term, "size": numbers(size / n), "map": [_without(m, hidden) for m in maps]}
            for term, size, maps in zip(TERMS, sizes, maps_4HNN, strict=True)
        ]

    def panels(self, rows: Sequence[Row]) -> Mapping[str, Panel]:
        return {f"{row['term']}, head {h}": m for row in rows for h, m in enumerate(row["map"])}


def without_terms(scheme: Scheme) -> str | None:
    """Returns why the first layer's logits have no such terms, or None."""
    if not any(part.overrides("embed") for part in scheme.all):
        return "no part adds positions to the embeddings"
    first = scheme.layers[0]
    if first.projections or first.qk or first.rotary or first.scores:
        return "a part changes queries, keys or logits of the first layer as well"
    return None


def terms(inputs: ProbeInputs, text: Text) -> Tensor:
    """Returns the four terms of q.k / sqrt(d_head), [4, B, H, T, T], rows are queries."""
    model = inputs.model
    x_BTD, c = model.embedded(text.inputs_BT, generator=inputs.draws("evaluation"))
    p_BTD = model.scheme.embed(torch.zeros_like(x_BTD), c)
    projected = [_projected(model, part_BTD, of=x_BTD) for part_BTD in (x_BTD - p_BTD, p_BTD)]
    pairs = [(q, k) for q, _ in projected for _, k in projected]
    return torch.stack([q @ k.transpose(-1, -2) for q, k in pairs]) * model.shape.d_head**-0.5


def _projected(model: Transformer, part_BTD: Tensor, *, of: Tensor) -> tuple[Tensor, Tensor]:
    """Returns queries and keys of an addend of the embeddings, [B, H, T, K] both."""
    block = model.blocks[0]
    assert isinstance(block, Block)
    norm, D = block.attention_norm, of.shape[-1]
    std_BT1 = (of.var(-1, keepdim=True, correction=0) + norm.eps).sqrt()
    normed_BTD = (part_BTD - part_BTD.mean(-1, keepdim=True)) / std_BT1 * norm.weight
    q, k = F.linear(normed_BTD, block.qkv.weight[: 2 * D]).chunk(2, dim=-1)
    q, k = (x.unflatten(-1, (model.shape.n_heads, -1)).transpose(1, 2) for x in (q, k))
    return q, k


def in_blocks(x: Tensor) -> Tensor:
    """Returns the sums over BLOCKS x BLOCKS pieces of the last two dimensions, or all entries."""
    n = x.shape[-1]
    of_block = torch.arange(n) * min(BLOCKS, n) // n
    rows = x.new_zeros(*x.shape[:-2], min(BLOCKS, n), n).index_add_(-2, of_block, x)
    return x.new_zeros(*rows.shape[:-1], min(BLOCKS, n)).index_add_(-1, of_block, rows)


def _without(map_NN: Tensor, hidden: list[list[bool]]) -> list[list[float | None]]:
    """Returns a map as rows hold it, None where no pair is causal."""
    return [
        [None if gone else x for x, gone in zip(*pair, strict=True)]
        for pair in zip(numbers(map_NN), hidden, strict=True)
    ]
