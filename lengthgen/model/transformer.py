"""The Transformer: embedding, blocks, final norm, head.

B batch, T tokens, D width, H heads, K head width, Q queries, S keys, V vocabulary.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lengthgen.config.schema import Draft, Model, ModelDims
from lengthgen.model.attention import attend
from lengthgen.model.cross_entropy import sum_cross_entropy
from lengthgen.model.dropout import Dropout
from lengthgen.schemes import AttentionContext, Design, Scheme, Unfit

LOGIT_BYTES = 256 * 2**20  # fp32 logits held at a time when nothing is kept for a backward pass


class LayerCache(NamedTuple):
    """What a layer keeps of the tokens so far: all that later ones need of them."""

    x_BSD: Tensor  # normalised inputs, which parts may look at
    qkv_BSE: Tensor  # queries, keys and values side by side, before any hook


class RMSNorm(nn.RMSNorm):
    """In fp32, as its weight: torch has no fused kernel for both precisions, and warns of it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def norm_of(model: Model, width: int) -> nn.Module:
    """Returns a normalisation of the model's kind."""
    if model.norm == "rms":
        return RMSNorm(width, eps=model.norm_epsilon)
    return nn.LayerNorm(width, eps=model.norm_epsilon, bias="norm" in model.biases)


class Block(nn.Module):
    """Attention and a network of width d_ff, each added to the stream.

    model.norm_placement says whether its input, its output or both are normalised.
    """

    def __init__(self, config: Draft) -> None:
        super().__init__()
        self.model, self.shape = config.model, config.shape
        D, d_ff, K = self.model.d_model, self.model.d_ff, self.shape.d_head
        before, after = (self.model.norm_placement in (one, "both") for one in ("pre", "post"))
        self.attention_norm = self.norm(D, given=before)
        self.qkv = self.linear("qkv", D, sum(self.shape.qkv_widths))
        self.attention_out = self.linear("attention_out", self.shape.n_heads * K, D)
        self.mlp_norm = self.norm(D, given=before)
        self.mlp_in = self.linear("mlp", D, 2 * d_ff if self.model.is_gated else d_ff)
        self.mlp_out = self.linear("mlp", d_ff, D)
        self.norms_heads = self.model.qk_norm != "all_heads"
        widths = [K, K] if self.norms_heads else self.shape.qkv_widths[:2]
        self.q_norm, self.k_norm = (self.norm(n, given=bool(self.model.qk_norm)) for n in widths)
        self.attention_post_norm, self.mlp_post_norm = (self.norm(D, given=after) for _ in range(2))
        self.attention_dropout, self.mlp_dropout = (Dropout(self.model.dropout) for _ in range(2))

    def norm(self, width: int, *, given: bool) -> nn.Module:
        """Returns a normalisation, or what changes nothing in the place of one."""
        return norm_of(self.model, width) if given else nn.Identity()

    def linear(self, name: str, n_in: int, n_out: int) -> nn.Linear:
        """Returns a matrix, with a bias if model.biases names it."""
        return nn.Linear(n_in, n_out, bias=name in self.model.biases)

    def forward(self, x_BTD: Tensor, c: AttentionContext, n_last: int) -> Tensor:
        """Returns the outputs of the last n_last tokens; all tokens are keys."""
        return self.output(x_BTD[:, c.length - n_last :], self.project(x_BTD, c), c)

    def project(self, x_BTD: Tensor, c: AttentionContext) -> LayerCache:
        """Returns what the tokens are to later ones, and to themselves."""
        normed = self.attention_norm(x_BTD)
        return LayerCache(normed, self.qkv(normed))

    def output(self, x_BQD: Tensor, kept: LayerCache, c: AttentionContext) -> Tensor:
        """Returns the outputs of the last Q tokens of all that are kept, [B, Q, D]."""
        added_BQD = self.attention(x_BQD.shape[1], kept, c)
        if self.model.parallel_residual:
            return x_BQD + added_BQD + self.mlp(x_BQD)
        x_BQD = x_BQD + added_BQD
        return x_BQD + self.mlp(x_BQD)

    def attention(self, n_queries: int, kept: LayerCache, c: AttentionContext) -> Tensor:
        """Returns what attention adds to the last tokens of all that are kept, [B, Q, D]."""
        c = c.of_queries(kept.x_BSD, n_queries=n_queries)
        q, k, v = self.mixed(kept.qkv_BSE, c)
        return self.attention_added(self.attended(q[:, :, c.rows], k, v, c))

    def attention_added(self, attended_BQC: Tensor) -> Tensor:
        """Returns what attention adds, [B, Q, D], given the heads' values side by side."""
        return self.attention_dropout(self.attention_post_norm(self.attention_out(attended_BQC)))

    def mixed(self, qkv_BSE: Tensor, c: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
        """Returns all tokens' queries, keys and values after the parts' `projections`, by head."""
        with torch.autocast(qkv_BSE.device.type, enabled=False):
            for part in c.hooks.projections:
                qkv_BSE = part.projections(qkv_BSE, c)
        q, k, v = qkv_BSE.split(self.shape.qkv_widths, dim=-1)
        if self.norms_heads:
            q, k, v = map(self.heads, (q, k, v))
        q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        if not self.norms_heads:
            q, k, v = map(self.heads, (q, k, v))
        if (n := q.shape[1] // k.shape[1]) > 1:
            k, v = (x.repeat_interleave(n, dim=1) for x in (k, v))
        return q, k, v

    def attended(
        self, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: AttentionContext
    ) -> Tensor:
        """Returns the values that the queries attend to, of all heads side by side: [B, Q, HK]."""
        out_BHQK = self.through_outputs(attend(q_BHQK, k_BHSK, v_BHSK, c), v_BHSK, c)
        return out_BHQK.transpose(1, 2).flatten(2)

    def through_outputs(self, out_BHQK: Tensor, v_BHSK: Tensor, c: AttentionContext) -> Tensor:
        """Returns the outputs of attention after every part's `outputs`, in order."""
        with torch.autocast(out_BHQK.device.type, enabled=False):
            for part in c.hooks.outputs:
                changed, sizes = part.outputs(out_BHQK, v_BHSK, c), out_BHQK.shape
                if not isinstance(changed, Tensor) or changed.shape != sizes:  # pyright: ignore
                    raise Unfit(part, "outputs", changed, f"a tensor {[*sizes]}")
                out_BHQK = changed.to(out_BHQK.dtype)
        return out_BHQK

    def mlp(self, x_BTD: Tensor) -> Tensor:
        """Returns the block's network of x."""
        x_BTF = self.mlp_in(self.mlp_norm(x_BTD))
        x_BTF, *gated = x_BTF.chunk(2, dim=-1) if self.model.is_gated else (x_BTF,)
        match self.model.mlp:
            case "swiglu":
                x_BTF = F.silu(x_BTF)
            case "relu":
                x_BTF = x_BTF.relu()
            case kind:
                x_BTF = F.gelu(x_BTF, approximate="tanh" if kind.endswith("tanh") else "none")
        for up_BTF in gated:
            x_BTF = x_BTF * up_BTF
        return self.mlp_dropout(self.mlp_post_norm(self.mlp_out(x_BTF)))

    def heads(self, x_BTC: Tensor) -> Tensor:
        """Returns the heads' channels apart, [B, H, T, K]."""
        return x_BTC.unflatten(-1, (-1, self.shape.d_head)).transpose(1, 2)


class Transformer(nn.Module):
    """A causal language model under a positional scheme."""

    arch: ClassVar[str] = "decoder"  # the value of model.arch
    block_type: ClassVar[type[Block]] = Block
    continues_rows = False  # a row of a training batch goes on where that of the step before ended

    @classmethod
    def check(cls, config: Draft) -> None:
        """Raises UserError for keys that contradict the architecture."""

    def __init__(self, config: Draft, design: Design, *, vocab_size: int) -> None:
        """Builds the scheme of the design; the other sizes are those of the configuration."""
        super().__init__()
        self.shape, self.design, model = config.shape, design, config.model
        vocab_size = max(vocab_size, model.vocab_size or 0)
        self.checkpointing = config.runtime.activation_checkpointing
        self.embedding = nn.Embedding(vocab_size, model.d_model)
        self.embedding_scale = model.embedding_scale
        self.scheme = design.build()
        self.blocks = nn.ModuleList(self.block_type(config) for _ in range(model.n_layers))
        self.norm = norm_of(model, model.d_model)
        self.embedding_dropout = Dropout(model.dropout)
        self.embedding_norm = norm_of(model, model.d_model) if model.embedding_norm else None
        self.head = None if model.tied_head else nn.Linear(model.d_model, vocab_size, bias=False)

    @property
    def head_weight(self) -> Tensor:
        """The matrix of the head, [V, D]."""
        return (self.embedding if self.head is None else self.head).weight

    @contextmanager
    def under(self, scheme: Scheme) -> Generator[None]:
        """Lets another scheme act in place of the model's own."""
        own, self.scheme = self.scheme, scheme
        try:
            yield
        finally:
            self.scheme = own

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        n_last: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Returns the final hidden states of the last n_last tokens (all if None), [B, n_last, D].

        A block computes those that the next one reads; the last block only these. The generator is
        for parts that sample positions; one that samples refuses to do without.
        """
        x_BTD, c = self.embedded(tokens_BT, generator=generator)
        first, *others = self.read_by_blocks(c.length, n_last)
        x_BTD, c = x_BTD[:, c.length - first :], c.of_last(first)
        for i, n in enumerate(others):
            x_BTD = self.through_block(i, x_BTD, c, n_last=n)
            c = c.of_last(n) if i < len(self.blocks) - 1 else c
        return self.norm(x_BTD)

    def read_by_blocks(self, length: int, n_last: int | None) -> list[int]:
        """Returns how many of the last tokens each block reads, and the final norm.

        That is all, but where a window hides what is farther, if the scheme's other parts read
        nothing beside query and key.
        """
        n = [length if n_last is None else n_last]
        for layer in reversed(self.scheme.layers):
            reaches = [part.reach for part in layer.parts if part.reach]
            others = [part for part in layer.parts if not part.reach]
            reads_all = any(
                p.needs_whole_text or p.depends_on_length or p.needs_model for p in others
            )
            n.append(length if reads_all or not reaches else n[-1] + min(reaches) - 1)
        return [min(length, tokens) for tokens in n[::-1]]

    def embedded(
        self,
        tokens_BT: Tensor,
        *,
        generator: torch.Generator | None,
        of: tuple[ModelDims, Scheme, Dropout] | None = None,
    ) -> tuple[Tensor, AttentionContext]:
        """Returns the inputs of the first block, [B, T, D], and the context of the call.

        `of`: shape, scheme and dropout, if not the model's own but those of its encoder.
        """
        shape, scheme, dropout = of or (self.shape, self.scheme, self.embedding_dropout)
        x_BTD, table_VD = self.embedding(tokens_BT), self.embedding.weight
        if self.embedding_scale != 1:
            x_BTD, table_VD = x_BTD * self.embedding_scale, table_VD * self.embedding_scale
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)
        c = AttentionContext.of_call(
            shape,
            tokens_BT,
            x_BTD,
            training=self.training,
            generator=generator,
            embedding_VD=table_VD if self.embedding_norm is None else None,
        )
        with torch.autocast(tokens_BT.device.type, enabled=False):
            pos = scheme.positions(tokens_BT, c)
            c = replace(c, pos=pos, q_pos=pos, k_pos=pos)
            return dropout(scheme.embed(x_BTD, c)), self.extended(c)

    def extended(self, c: AttentionContext) -> AttentionContext:
        """Returns the context of a call with what the blocks read beside it: nothing here."""
        return c

    def through_block(self, i: int, x_BTD: Tensor, c: AttentionContext, *, n_last: int) -> Tensor:
        """Returns the outputs of block i for the last n_last tokens.

        With activation checkpointing its input alone is kept for the backward pass, which calls the
        block again. A part that samples there draws the same numbers.
        """
        block, c = self.blocks[i], replace(c, layer=i, hooks=self.scheme.layers[i])
        if not (self.checkpointing and torch.is_grad_enabled()):
            return block(x_BTD, c, n_last)
        generator = None if torch.compiler.is_compiling() else c.generator
        drawn_so_far = None if generator is None else generator.get_state()

        def call(x_BTD: Tensor) -> Tensor:
            if generator is not None and drawn_so_far is not None:
                generator.set_state(drawn_so_far)
            return block(x_BTD, c, n_last)

        return checkpoint(  # pyright: ignore[reportReturnType]
            call, x_BTD, use_reentrant=False, preserve_rng_state=False
        )

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
        return sum_cross_entropy(x_BTD.flatten(0, 1), self.head_weight, targets_BT.flatten())

    def argmax_tokens(self, x_BTD: Tensor) -> Tensor:
        """Returns the token with the largest logit at every position, [B, T] int64."""
        n = max(1, LOGIT_BYTES // (4 * self.embedding.num_embeddings))
        tokens = [self.logits(x_ND).argmax(dim=-1) for x_ND in x_BTD.flatten(0, 1).split(n)]
        return torch.cat(tokens).view(x_BTD.shape[:2])

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Returns logits over the vocabulary, [..., V] in fp32 (fp64 if the model is)."""
        logits = F.linear(x_BTD, self.head_weight)
        return logits.to(torch.promote_types(torch.float32, logits.dtype))
