"""The Transformer: embedding, pre-norm blocks, final norm, tied head.

B batch, T tokens, D width, H heads, K head width, Q queries, S keys, V vocabulary.
"""

from dataclasses import replace
from typing import ClassVar, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lengthgen.config.registry import contributed
from lengthgen.config.schema import Config, ModelDims, Parts
from lengthgen.model.attention import attend
from lengthgen.model.cross_entropy import sum_cross_entropy
from lengthgen.schemes import AttentionContext, LayerHooks, Scheme, build
from lengthgen.schemes.absolute.alignment import Aligned

Context = TypeVar("Context", bound=AttentionContext)
LOGIT_BYTES = 256 * 2**20  # fp32 logits held at a time when nothing is kept for a backward pass


class LayerCache(NamedTuple):
    """What a layer keeps of the tokens so far: all that later ones need of them."""

    x_BSD: Tensor  # normalised inputs, which parts may look at
    qkv_BSE: Tensor  # queries, keys and values side by side, E = 3 D, before any hook


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

    def forward(self, x_BTD: Tensor, layer: LayerHooks, c: AttentionContext, n_last: int) -> Tensor:
        """Returns the outputs of the last n_last tokens; all tokens are keys."""
        return self.output(x_BTD[:, c.length - n_last :], self.project(x_BTD, c), layer, c)

    def forward_cached(
        self, x_BQD: Tensor, cache: LayerCache | None, layer: LayerHooks, c: AttentionContext
    ) -> tuple[Tensor, LayerCache]:
        """Returns the outputs of Q tokens behind the cached ones, and the new cache."""
        kept = self.project(x_BQD, c)
        if cache is not None:
            kept = LayerCache(*(torch.cat(both, dim=1) for both in zip(cache, kept, strict=True)))
        return self.output(x_BQD, kept, layer, c), kept

    def project(self, x_BTD: Tensor, c: AttentionContext) -> LayerCache:
        """Returns what the tokens are to later ones, and to themselves."""
        normed = self.attention_norm(x_BTD)
        return LayerCache(normed, self.qkv(normed))

    def output(
        self, x_BQD: Tensor, kept: LayerCache, layer: LayerHooks, c: AttentionContext
    ) -> Tensor:
        """Returns the outputs of the last Q tokens of all that are kept, [B, Q, D]."""
        n = x_BQD.shape[1]
        c = of_queries(c, kept.x_BSD, n_queries=n)
        q, k, v = self.mixed(kept.qkv_BSE, layer, c)
        attended = self.attended(q[:, c.length - n :], k, v, layer, c)
        x_BQD = x_BQD + self.attention_out(attended)
        return x_BQD + self.mlp(x_BQD)

    def mixed(
        self, qkv_BSE: Tensor, layer: LayerHooks, c: AttentionContext
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values of all tokens after the parts' `projections`."""
        with torch.autocast(qkv_BSE.device.type, enabled=False):
            for part in layer.projections:
                qkv_BSE = part.projections(qkv_BSE, c)
        q, k, v = qkv_BSE.chunk(3, dim=-1)
        return q, k, v

    def attended(
        self, q_BQD: Tensor, k_BSD: Tensor, v_BSD: Tensor, layer: LayerHooks, c: AttentionContext
    ) -> Tensor:
        """Returns the values that the queries attend to, of all heads side by side: [B, Q, D]."""
        q, k, v = (self.heads(x) for x in (q_BQD, k_BSD, v_BSD))
        return attend(layer, q, k, v, c).transpose(1, 2).flatten(2)

    def mlp(self, x_BTD: Tensor) -> Tensor:
        """Returns the block's network of x."""
        return self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x_BTD))))

    def heads(self, x_BTD: Tensor) -> Tensor:
        """Returns the heads' channels apart, [B, H, T, D/H]."""
        return x_BTD.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def reading(self) -> list[nn.Linear]:
        """Returns the matrices that read the residual stream."""
        return [self.qkv, self.mlp_in]

    def writing(self) -> list[nn.Linear]:
        """Returns the matrices that write to the residual stream."""
        return [self.attention_out, self.mlp_out]


def of_queries(c: Context, x_BSD: Tensor, *, n_queries: int) -> Context:
    """Returns the context of a layer with these inputs, whose queries are the last tokens."""
    first = c.length - n_queries
    return replace(c, x_BTD=x_BSD, q_pos=c.pos[..., first:], rows=slice(first, c.length))


class Transformer(nn.Module):
    """A causal language model under a positional scheme. Its head shares the embedding's matrix."""

    arch: ClassVar[str] = "decoder"  # the value of model.arch
    block_type: ClassVar[type[Block]] = Block
    continues_rows = False  # a row of a training batch goes on where that of the step before ended

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError for keys that contradict the architecture."""

    def __init__(self, config: Config, *, vocab_size: int) -> None:
        super().__init__()
        self.shape = config.shape
        self.checkpointing = config.runtime.activation_checkpointing
        self.embedding = nn.Embedding(vocab_size, config.model.d_model)
        self.scheme = build_scheme(config, config.scheme.parts, where="scheme.parts")
        self.blocks = nn.ModuleList(self.block_type(config) for _ in range(config.model.n_layers))
        self.norm = nn.LayerNorm(config.model.d_model, bias=False)

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        n_last: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Returns the final hidden states of the last n_last tokens (all if None), [B, n_last, D].

        The last block computes only these; the blocks below need all tokens, as keys. The generator
        is for parts that sample positions; one that samples refuses to do without.
        """
        x_BTD, c = self.embedded(tokens_BT, generator=generator)
        for i in range(len(self.blocks)):
            n = c.length if n_last is None or i < len(self.blocks) - 1 else n_last
            x_BTD = self.through_block(i, x_BTD, c, n_last=n)
        return self.norm(x_BTD)

    def embedded(
        self,
        tokens_BT: Tensor,
        *,
        generator: torch.Generator | None,
        of: tuple[ModelDims, Scheme] | None = None,
    ) -> tuple[Tensor, AttentionContext]:
        """Returns the inputs of the first block, [B, T, D], and the context of the call.

        `of`: shape and scheme, if they are not the model's own but those of its encoder.
        """
        shape, scheme = of or (self.shape, self.scheme)
        x_BTD = self.embedding(tokens_BT)
        c = AttentionContext.of_call(
            shape,
            tokens_BT,
            x_BTD,
            training=self.training,
            generator=generator,
            embedding_VD=self.embedding.weight,
        )
        with torch.autocast(tokens_BT.device.type, enabled=False):
            pos = scheme.positions(tokens_BT, c)
            c = replace(c, pos=pos, q_pos=pos, k_pos=pos)
            return scheme.embed(x_BTD, c), c

    def through_block(self, i: int, x_BTD: Tensor, c: AttentionContext, *, n_last: int) -> Tensor:
        """Returns the outputs of block i for the last n_last tokens.

        With activation checkpointing its input alone is kept for the backward pass, which calls the
        block again. A part that samples there draws the same numbers.
        """
        block, layer, c = self.blocks[i], self.scheme.layers[i], replace(c, layer=i)
        if not (self.checkpointing and torch.is_grad_enabled()):
            return block(x_BTD, layer, c, n_last)
        generator = None if torch.compiler.is_compiling() else c.generator
        drawn_so_far = None if generator is None else generator.get_state()

        def call(x_BTD: Tensor) -> Tensor:
            if generator is not None and drawn_so_far is not None:
                generator.set_state(drawn_so_far)
            return block(x_BTD, layer, c, n_last)

        out = checkpoint(call, x_BTD, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(out, Tensor)
        return out

    def answer_starts(self, targets_BT: Tensor) -> dict[str, Tensor]:
        """Returns what forward() must know of the rows besides their tokens: nothing here."""
        return {}

    def carried(self) -> tuple[Tensor, ...]:
        """Returns what outlives a training step beside the weights, of all processes: nothing."""
        return ()

    def carry_on(self, carried: tuple[Tensor, ...]) -> None:
        """Takes what carried() returned, to resume a training."""

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


def build_scheme(config: Config, parts: Parts, *, where: str) -> Scheme:
    """Builds the scheme of these parts; for an encoder-decoder model, also that of its encoder.

    Raises UserError as `schemes.build` does, for parts below the dotted key `where`.
    """
    layers, plugins = config.scheme.layers, config.plugins
    scheme = build(parts, layers=layers, shape=config.shape, plugins=plugins, where=where)
    if (shape := config.encoder_shape) is not None:
        scheme.encoder = build(parts, layers=layers, shape=shape, plugins=plugins, where=where)
    for part in scheme.all:
        if isinstance(part, Aligned):
            known = (ids_of(config.corpus) for ids_of in contributed("ALIGNMENT_IDS"))
            part.alignment_ids = next((ids for ids in known if ids is not None), None)
    return scheme
