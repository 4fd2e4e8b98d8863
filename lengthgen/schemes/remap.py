"""Rotary logits at remapped positions, from branches that each hold for some pairs of tokens.

A rotary part's logit is a function of q_pos - k_pos. A map of distances that is no such difference
is a few of them side by side: each branch has coordinates of its own, all its logits are one matrix
product, and a pair keeps the logit of its branch. Biases are of the true distances. Lengths are
given in multiples of T. Where releases also have a log-n factor, here that is the part `logn`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, through_qk
from lengthgen.schemes.mask import Window
from lengthgen.schemes.parameters import AtLeastOne, tokens


class Branch(NamedTuple):
    """Coordinates of queries and keys, and the pairs that they hold for."""

    q_pos: Tensor  # [Q] or [B, Q], int64 or, where fractional, c.dtype
    k_pos: Tensor  # [S] or [B, S]
    used: Tensor  # bool [Q, S], or [B, 1, Q, S] if sequences differ


class Remap(Part, ABC):
    """Computes the logits of rotary parts at the coordinates of branches."""

    remaps = True
    takes_relative_keys = False

    @abstractmethod
    def branches(self, c: AttentionContext) -> list[Branch]:
        """Returns the branches of the block; each pair that a query may see is in one of them."""

    def rotated(
        self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext, seen: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, slice]]:
        """Yields the block's branches, of the pairs that are seen; none without a pair.

        Of each: its queries, its keys from the first to the last in use, `used`, and which keys.
        """
        for branch in self.branches(c):
            used = branch.used if seen is None else branch.used & seen
            kept = used.flatten(0, -2).any(0).nonzero()
            if len(kept):
                keys = slice(int(kept[0]), int(kept[-1]) + 1)
                at = replace(c, q_pos=branch.q_pos, k_pos=branch.k_pos[..., keys])
                q, k = through_qk(c.hooks.rotary, q_BHQK, k_BHSK[:, :, keys], at)
                yield q, k, used[..., keys], keys

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        """Returns the block's logits in c.dtype, biases included; 0 for a pair that none uses."""
        s_BHQS = q_BHQK.new_zeros(*q_BHQK.shape[:3], k_BHSK.shape[2], dtype=c.dtype)
        for q, k, used, keys in self.rotated(q_BHQK, k_BHSK, c):
            of_branch = (q * c.shape.d_head**-0.5 @ k.mT).to(c.dtype)
            s_BHQS[..., keys] = torch.where(used, of_branch, s_BHQS[..., keys])
        return c.biased(s_BHQS)


def from_first(c: AttentionContext) -> tuple[Tensor, Tensor]:
    """Returns the coordinates counted from the first key: blind to a constant added to all."""
    first = c.k_pos[..., :1]
    return c.q_pos - first, c.k_pos - first


class Rerope(Remap):
    """ReRoPE: Su 2023, github.com/bojone/rerope, no paper. Distances min(i - j, w).

    window: w; the release ran 512 and 1024 at T = 4096.
    """

    def __init__(self, shape: ModelDims, *, window: PositiveFloat) -> None:
        super().__init__(shape)
        self.window = tokens(window, shape)

    def branches(self, c: AttentionContext) -> list[Branch]:
        far = c.distance() >= self.window
        constant = torch.full_like(c.q_pos, self.window), torch.zeros_like(c.k_pos)
        return [Branch(c.q_pos, c.k_pos, ~far), Branch(*constant, far)]


class LeakyRerope(Rerope):
    """Leaky ReRoPE: Su 2023, github.com/bojone/rerope (leaky_rerope_patch.py), no paper.

    Beyond w (`window`), distances grow kappa (`slowdown`, 16) times slower: w + (i - j - w) / kappa
    stays inside the trained ones up to a length of w + (T - w) kappa.
    """

    def __init__(self, shape: ModelDims, *, window: PositiveFloat, slowdown: AtLeastOne) -> None:
        super().__init__(shape, window=window)
        self.slowdown = slowdown

    def branches(self, c: AttentionContext) -> list[Branch]:
        far = c.distance() >= self.window
        slow_q, slow_k = (pos.to(c.dtype) / self.slowdown for pos in (c.q_pos, c.k_pos))
        shift = self.window * (1 - 1 / self.slowdown)
        return [Branch(c.q_pos, c.k_pos, ~far), Branch(slow_q + shift, slow_k, far)]


class Selfextend(Remap):
    """SelfExtend: Jin et al. 2024, arXiv 2401.01325. Far keys by the distance between groups.

    Keys nearer than W (`neighbours`; 1024 of 4096 tokens in the release) have their own distance,
    others floor(i/G) - floor(j/G) + W - floor(W/G), G = `group` (8). They stay inside the trained
    ones up to a length of about W + (T - W) G. The later release shifts by the fractional W - W/G;
    the integer of the first gives only positions that were trained.
    """

    def __init__(self, shape: ModelDims, *, neighbours: PositiveFloat, group: PositiveInt) -> None:
        super().__init__(shape)
        self.neighbours = tokens(neighbours, shape)
        self.group = group

    def branches(self, c: AttentionContext) -> list[Branch]:
        far = c.distance() >= self.neighbours
        q_pos, k_pos = from_first(c)
        shift = self.neighbours - self.neighbours // self.group
        grouped = Branch(q_pos // self.group + shift, k_pos // self.group, far)
        return [Branch(c.q_pos, c.k_pos, ~far), grouped]


class DualChunk(Remap):
    """DCA, dual chunk attention: An et al. 2024, arXiv 2402.17463.

    Tokens are cut into chunks of n = s - w positions, numbered 0 ... n-1 in each. A query stands at
    i mod n for keys of its own chunk, at min(i mod n + n, s) for those of the one before, so that
    distances up to w are exact, and at s for older ones: no distance exceeds s. chunk: s, 3/4 in
    the release; local: w, 1/8. The release (ChunkLlama) multiplies cos and sin by a factor that its
    own comment says the paper does not use: left out.
    """

    def __init__(self, shape: ModelDims, *, chunk: PositiveFloat, local: PositiveFloat) -> None:
        super().__init__(shape)
        self.chunk = tokens(chunk, shape)
        self.local = tokens(local, shape)
        if self.local >= self.chunk:
            raise ValueError(
                f"local={local} must be below chunk={chunk}: at train.length={shape.train_length} "
                f"they are {self.local} and {self.chunk} tokens"
            )

    def branches(self, c: AttentionContext) -> list[Branch]:
        size = self.chunk - self.local
        q_pos, k_pos = from_first(c)
        behind = replace(c, q_pos=q_pos // size, k_pos=k_pos // size).distance()  # in chunks
        q_pos, k_pos = q_pos % size, k_pos % size
        return [
            Branch(q_pos, k_pos, behind == 0),
            Branch((q_pos + size).clamp(max=self.chunk), k_pos, behind == 1),
            Branch(torch.full_like(q_pos, self.chunk), k_pos, behind >= 2),
        ]


class StreamingLlm(Remap, Window):
    """StreamingLLM: Xiao et al. 2023, arXiv 2309.17453. `window`, and positions within the cache.

    Of the `width` keys that a query sees, sinks are numbered 0 ... sinks-1 (4 in the paper), recent
    ones follow, and the query is the last: sink j has the distance min(i, width - 1) - j. The
    release counts recent keys without the query's own. In a layer that does not rotate it is
    `window` alone.
    """

    def branches(self, c: AttentionContext) -> list[Branch]:
        j = torch.arange(c.cols.stop, device=c.k_pos.device)
        sink = (j < self.sinks).expand(c.q_pos.shape[-1], -1)
        q_pos, k_pos = from_first(c)
        of_sinks = Branch(q_pos.clamp(max=self.width - 1), k_pos, sink)
        return [Branch(c.q_pos, c.k_pos, ~sink), of_sinks]
