"""The Transformer: embedding, pre-norm blocks, final norm, tied head.

B batch, T tokens, D width, H heads, K head width, Q queries, V vocabulary, N layers, M remembered
tokens, S = M + T keys, E numbers of a state.
"""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lengthgen.config.schema import Config, Parts
from lengthgen.model.attention import attend
from lengthgen.model.cross_entropy import sum_cross_entropy
from lengthgen.schemes import AttentionContext, LayerHooks, ModelDims, Scheme, build
from lengthgen.tasks import AlignmentIds, alignment_ids

LOGIT_BYTES = 256 * 2**20  # fp32 logits held at a time when nothing is kept for a backward pass


class Memory(NamedTuple):
    """The inputs of every layer for the M tokens before a segment.

    The first left_padding_B[b] tokens of sequence b hold nothing: its text began later.
    """

    x_NBMD: Tensor
    left_padding_B: Tensor


class Segment(NamedTuple):
    """Final hidden states of a segment, and the memory for the next one."""

    x_BTD: Tensor
    memory: Memory


class LayerCache(NamedTuple):
    """What a layer keeps of the tokens so far: all that later ones need of them, before `qk`."""

    x_BSD: Tensor  # normalised inputs, which parts may look at
    k_BSD: Tensor
    v_BSD: Tensor
    state_BSE: Tensor


class BlockOutput(NamedTuple):
    """A block's outputs for Q tokens, and what a part carries of them to the next block."""

    x_BQD: Tensor
    state_BQE: Tensor


class Block(nn.Module):
    """Attention and a GELU network of width d_ff, each added to its normalised input's stream."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        D = config.model.d_model
        self.n_heads = config.model.n_heads
        self.attention_norm = nn.LayerNorm(D, bias=False)
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.attention_out = nn.Linear(D, D, bias=False)
        self.mlp_norm = nn.LayerNorm(D, bias=False)
        self.mlp_in = nn.Linear(D, config.model.d_ff, bias=False)
        self.mlp_out = nn.Linear(config.model.d_ff, D, bias=False)

    def forward(
        self,
        x_BTD: Tensor,
        remembered_BMD: Tensor,
        layer: LayerHooks,
        c: AttentionContext,
        n_last: int,
    ) -> BlockOutput:
        """Returns the outputs of the last n_last tokens.

        All tokens are keys, and so are the inputs of this layer that are remembered.
        """
        first = c.length - n_last
        x_BSD = torch.cat([remembered_BMD, x_BTD], dim=1) if remembered_BMD.shape[1] else x_BTD
        normed = self.attention_norm(x_BSD)
        q, k, v = self.qkv(normed).chunk(3, dim=-1)
        kept = LayerCache(normed, k, v, c.state_BSE)
        return self._out(x_BSD[:, first:], q[:, first:], kept, layer, c)

    def forward_cached(
        self, x_BQD: Tensor, cache: LayerCache | None, layer: LayerHooks, c: AttentionContext
    ) -> tuple[BlockOutput, LayerCache]:
        """Returns the outputs of Q tokens behind the cached ones, and the new cache.

        c.state_BSE is that of the Q tokens.
        """
        normed = self.attention_norm(x_BQD)
        q, k, v = self.qkv(normed).chunk(3, dim=-1)
        kept = LayerCache(normed, k, v, c.state_BSE)
        if cache is not None:
            kept = LayerCache(*(torch.cat(both, dim=1) for both in zip(cache, kept, strict=True)))
        return self._out(x_BQD, q, kept, layer, c), kept

    def _out(
        self, x_BQD: Tensor, q_BQD: Tensor, kept: LayerCache, layer: LayerHooks, c: AttentionContext
    ) -> BlockOutput:
        """Returns the outputs of the last Q tokens of all that are kept."""
        first, state_BSE = c.length - q_BQD.shape[1], kept.state_BSE
        rows = slice(first, c.length)
        c = replace(c, x_BTD=kept.x_BSD, state_BSE=state_BSE, q_pos=c.pos[..., first:], rows=rows)
        carrier = layer.next_state if c.layer < c.shape.n_layers - 1 else None
        if carrier is None:
            attended = self.attended(q_BQD, kept.k_BSD, kept.v_BSD, layer, c)
            x_BQD = self.through_mlp(x_BQD + self.attention_out(attended))
            return BlockOutput(x_BQD, state_BSE[:, first:])
        attended, mean_BQE = self._attended_with_state(q_BQD, kept, layer, c)
        x_BQD = x_BQD + self.attention_out(attended)
        added_BQD = self.mlp(x_BQD)
        with torch.autocast(x_BQD.device.type, enabled=False):
            state_BQE = carrier.next_state(mean_BQE, added_BQD, replace(c, acting=layer))
        return BlockOutput(x_BQD + added_BQD, state_BQE)

    def attended(
        self, q_BQD: Tensor, k_BSD: Tensor, v_BSD: Tensor, layer: LayerHooks, c: AttentionContext
    ) -> Tensor:
        """Returns the values that the queries attend to, of all heads side by side: [B, Q, D]."""
        q, k, v = (self._heads(x) for x in (q_BQD, k_BSD, v_BSD))
        return attend(layer, q, k, v, c).transpose(1, 2).flatten(2)

    def _attended_with_state(
        self, q_BQD: Tensor, kept: LayerCache, layer: LayerHooks, c: AttentionContext
    ) -> tuple[Tensor, Tensor]:
        """Returns what `attended` does, and the states by the same weights, [B, Q, E]."""
        states = (q_BQD, kept.k_BSD, kept.v_BSD, kept.state_BSE)
        q, k, v, state = (self._heads(x) for x in states)
        wide = torch.cat([v, state.to(v.dtype)], dim=-1)
        both = attend(layer, q, k, wide, c).transpose(1, 2)
        attended, mean = both.split([v.shape[-1], state.shape[-1]], dim=-1)
        return attended.flatten(2), mean.flatten(2)

    def through_mlp(self, x_BTD: Tensor) -> Tensor:
        """Returns x plus the block's network of it."""
        return x_BTD + self.mlp(x_BTD)

    def mlp(self, x_BTD: Tensor) -> Tensor:
        """Returns the block's network of x."""
        return self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x_BTD))))

    def reading(self) -> list[nn.Linear]:
        """Returns the matrices that read the residual stream."""
        return [self.qkv, self.mlp_in]

    def writing(self) -> list[nn.Linear]:
        """Returns the matrices that write to the residual stream."""
        return [self.attention_out, self.mlp_out]

    def _heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)


class Transformer(nn.Module):
    """A causal language model under a positional scheme. Its head shares the embedding's matrix."""

    arch: ClassVar[str] = "decoder"  # the value of model.arch

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError for keys that contradict the architecture."""

    def __init__(self, config: Config, *, vocab_size: int) -> None:
        super().__init__()
        self.shape = config.shape
        self.checkpointing = config.runtime.activation_checkpointing
        self.embedding = nn.Embedding(vocab_size, config.model.d_model)
        self.scheme = build_scheme(config, config.scheme.parts, where="scheme.parts")
        self.alignment_ids = alignment_ids(config.corpus) if self.scheme.reads_alignment else None
        # of Python lists, so compiled it would be compiled again for every text
        self._aligned = torch.compiler.disable(_aligned)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.model.n_layers))
        self.norm = nn.LayerNorm(config.model.d_model, bias=False)

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        n_last: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Returns the final hidden states of the last n_last tokens (all if None), [B, n_last, D].

        The generator is for parts that sample positions; one that samples refuses to do without.
        A scheme with memory reads the tokens in segments of the trained length.
        """
        length = tokens_BT.shape[1]
        n_last = length if n_last is None else n_last
        memory = self.empty_memory(len(tokens_BT), size=0)
        out: list[Tensor] = []
        size = self.shape.train_length if self.scheme.memory else length
        for first in range(0, length, size):
            piece = tokens_BT[:, first : first + size]
            left = length - first - piece.shape[1]
            n = min(piece.shape[1], max(0, n_last - left))
            x_BTD, memory = self.segment(piece, memory, n_last=n, generator=generator)
            out.append(x_BTD)
        return torch.cat(out, dim=1) if len(out) > 1 else out[0]

    def answer_starts(self, targets_BT: Tensor) -> dict[str, Tensor]:
        """Returns what forward() must know of the rows besides their tokens: nothing here."""
        return {}

    def segment(
        self,
        tokens_BT: Tensor,
        memory: Memory,
        *,
        n_last: int,
        generator: torch.Generator | None = None,
    ) -> Segment:
        """Returns the final hidden states of the last n_last tokens, and the memory behind them.

        The last block computes only these; the blocks below need all tokens, as keys.
        """
        M, T = memory.x_NBMD.shape[2], tokens_BT.shape[1]
        absent = memory.left_padding_B if M and memory.left_padding_B.any() else None
        x_BTD, c = self.embedded(
            tokens_BT, generator=generator, remembered=M, left_padding_B=absent
        )
        inputs: list[Tensor] = []
        state_BTE = c.state_BSE
        for i, (block, layer) in enumerate(zip(self.blocks, self.scheme.layers, strict=True)):
            if self.scheme.memory:
                inputs.append(x_BTD)
            n = n_last if i == len(self.blocks) - 1 else T
            here = replace(c, layer=i, state_BSE=state_BTE)
            if n and self.checkpointing and torch.is_grad_enabled():
                x_BTD, state_BTE = _recomputed(block, x_BTD, memory.x_NBMD[i], layer, here, n)
            elif n:
                x_BTD, state_BTE = block(x_BTD, memory.x_NBMD[i], layer, here, n)
        if self.scheme.memory:
            x_NBSD = torch.cat([memory.x_NBMD, torch.stack(inputs).detach()], dim=2)
            n = max(0, x_NBSD.shape[2] - self.scheme.memory)  # forgotten
            memory = Memory(x_NBSD[:, :, n:], (memory.left_padding_B - n).clamp(min=0))
        return Segment(self.norm(x_BTD if n_last else x_BTD[:, :0]), memory)

    def embedded(
        self,
        tokens_BT: Tensor,
        *,
        generator: torch.Generator | None,
        remembered: int,
        left_padding_B: Tensor | None = None,
    ) -> tuple[Tensor, AttentionContext]:
        """Returns the inputs of the first block, [B, T, D], and the context of the call."""
        x_BTD = self.embedding(tokens_BT)
        alignment = None
        if self.alignment_ids is not None:
            alignment = self._aligned(self.alignment_ids, tokens_BT)  # pyright: ignore[reportCallIssue]
        c = AttentionContext.of_call(
            self.shape,
            tokens_BT,
            x_BTD,
            training=self.training,
            generator=generator,
            remembered=remembered,
            alignment_BT=alignment,
            embedding_VD=self.embedding.weight,
        )
        with torch.autocast(tokens_BT.device.type, enabled=False):
            pos = self.scheme.positions(tokens_BT, c)
            c = replace(c, pos=pos, q_pos=pos, k_pos=pos, left_padding_B=left_padding_B)
            c = replace(c, state_BSE=self.scheme.initial_state(c))
            return self.scheme.embed(x_BTD, c), c

    @torch.no_grad()
    def position_token_rms_ratio(self, tokens_BT: Tensor, *, generator: torch.Generator) -> float:
        """Returns the RMS of the positions in the first block's inputs over that of the tokens.

        The positions are what the scheme makes of embeddings of 0.
        """
        x_BTD, c = self.embedded(tokens_BT, generator=generator, remembered=0)
        positions_BTD = self.scheme.embed(torch.zeros_like(x_BTD), c)
        return float(positions_BTD.norm() / (x_BTD - positions_BTD).norm())

    def empty_memory(self, batch: int, *, size: int) -> Memory:
        """Returns a memory of `size` tokens that hold nothing."""
        weight = self.embedding.weight
        return Memory(
            weight.new_zeros(len(self.blocks), batch, size, weight.shape[1]),
            torch.full((batch,), size, device=weight.device),
        )

    def token_nll(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Returns -log p(target) of every position, [B, T] fp32; 0 where the target is -100.

        Without gradients, logits are formed for a few thousand positions at a time, never [T, V].
        """
        x_ND, targets_N = x_BTD.flatten(0, 1), targets_BT.flatten()
        n = len(x_ND)
        if not torch.is_grad_enabled():
            n = max(1, LOGIT_BYTES // (4 * self.embedding.num_embeddings))
        nats = [
            F.cross_entropy(self.logits(x), targets, reduction="none")
            for x, targets in zip(x_ND.split(n), targets_N.split(n), strict=True)
        ]
        return torch.cat(nats).view_as(targets_BT)

    def sum_token_nll(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Returns the sum of `token_nll`, for training: no gradient of size [T, V] is kept."""
        return sum_cross_entropy(x_BTD.flatten(0, 1), self.embedding.weight, targets_BT.flatten())

    def argmax_tokens(self, x_BTD: Tensor) -> Tensor:
        """Returns the token with the largest logit at every position, [B, T] int64."""
        n = max(1, LOGIT_BYTES // (4 * self.embedding.num_embeddings))
        found = [self.logits(x_ND).argmax(dim=-1) for x_ND in x_BTD.flatten(0, 1).split(n)]
        return torch.cat(found).view(x_BTD.shape[:2])

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Returns logits over the vocabulary, [..., V] in fp32 (fp64 if the model is)."""
        logits = F.linear(x_BTD, self.embedding.weight)
        return logits.to(torch.promote_types(torch.float32, logits.dtype))


def _aligned(ids: AlignmentIds, tokens_BT: Tensor) -> Tensor:
    """Returns the alignment id of each token, [B, T] int64."""
    return torch.tensor([ids(row) for row in tokens_BT.tolist()], device=tokens_BT.device)


def _recomputed(
    block: nn.Module,
    x_BTD: Tensor,
    remembered_BMD: Tensor,
    layer: LayerHooks,
    c: AttentionContext,
    n_last: int,
) -> BlockOutput:
    """Returns what the block returns, and keeps its input alone for the backward pass.

    That pass calls the block again. A part that samples there draws the same numbers.
    """
    generator = None if torch.compiler.is_compiling() else c.generator
    drawn_so_far = None if generator is None else generator.get_state()

    def call(x_BTD: Tensor, remembered_BMD: Tensor) -> BlockOutput:
        if generator is not None and drawn_so_far is not None:
            generator.set_state(drawn_so_far)
        return block(x_BTD, remembered_BMD, layer, c, n_last)

    out = checkpoint(call, x_BTD, remembered_BMD, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(out, BlockOutput)
    return out


def build_scheme(config: Config, parts: Parts, *, where: str) -> Scheme:
    """Builds the scheme of these parts; for an encoder-decoder model, also that of its encoder.

    Raises UserError as `schemes.build` does, for parts below the dotted key `where`.
    """

    def of(shape: ModelDims) -> Scheme:
        layers, plugins = config.scheme.layers, config.plugins
        return build(parts, layers=layers, shape=shape, plugins=plugins, where=where)

    scheme = of(config.shape)
    if config.encoder_shape is not None:
        scheme.encoder = of(config.encoder_shape)
    return scheme
