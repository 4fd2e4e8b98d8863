"""Models with an encoder: the encoder-decoder, and the masked language model.

As in T5 (Raffel et al. 2020, arXiv 1910.10683, section 2.1) an encoder reads the prompt of a row,
and a decoder writes the answer, from the prompt's last token on. Each has positions from 0 on and
its own parameters in the scheme's parts; both share the embedding with the head. Cross-attention
stands between a decoder block's attention and network, and has no positions.

As in BERT (Devlin et al. 2018, arXiv 1810.04805) the masked language model fills in masks, here all
of an answer at once. The mask is the token that ends every prompt. Without positions all masks of a
row are one token in one context: no answer of two different tokens can be right.

B rows, T tokens of a row, S of the longest prompt, Q of the longest answer, D width.
"""

import json
from dataclasses import replace

import torch
from torch import Tensor, nn

from lengthgen.config.schema import Draft, TaskCorpus
from lengthgen.data.windows import IGNORED
from lengthgen.encoder_decoder.spans import n_sentinels
from lengthgen.errors import UserError
from lengthgen.model.dropout import Dropout
from lengthgen.model.transformer import Block, Transformer, norm_of
from lengthgen.schemes import AttentionContext, Design, Scheme


class CrossBlock(Block):
    """A block that also attends to what an encoder returns."""

    def __init__(self, config: Draft) -> None:
        super().__init__(config)
        D, E = config.model.d_model, config.shape.qkv_widths[0]
        self.cross_norm = norm_of(config.model, D)
        self.cross_q = self.linear("qkv", D, E)
        self.cross_kv = self.linear("qkv", D, 2 * E)
        self.cross_out = self.linear("attention_out", E, D)
        self.cross_dropout = Dropout(config.model.dropout)

    def decode(
        self,
        x_BQD: Tensor,
        encoded_BSD: Tensor,
        c: AttentionContext,
        of_encoder: AttentionContext,
    ) -> Tensor:
        """Returns the outputs of the decoder's tokens, [B, Q, D]."""
        x_BQD = x_BQD + self.attention(x_BQD.shape[1], self.project(x_BQD, c), c)
        kv = self.cross_kv(encoded_BSD).chunk(2, dim=-1)
        q, k, v = map(self.heads, (self.cross_q(self.cross_norm(x_BQD)), *kv))
        out_BQD = self.cross_out(self.attended(q, k, v, of_encoder))
        x_BQD = x_BQD + self.cross_dropout(out_BQD)
        return x_BQD + self.mlp(x_BQD)


class EncoderDecoder(Transformer):
    """A Transformer whose rows are a prompt, read by an encoder, and an answer, by the decoder."""

    arch = "encoder_decoder"
    block_type = CrossBlock

    @classmethod
    def check(cls, config: Draft) -> None:
        for key in ("compile", "activation_checkpointing"):
            if getattr(config.runtime, key):
                reason = f"model.arch={config.model.arch} lacks it"
                raise UserError(f"runtime.{key}=true: {reason}; drop it")
        for key in ("parallel_residual", "qk_norm", "n_kv_heads", "norm_placement"):
            value = getattr(config.model, key)
            if value not in (False, None, "pre") and config.model.arch == EncoderDecoder.arch:
                given = f"model.{key}={json.dumps(value)}"
                raise UserError(f"{given}: model.arch=encoder_decoder lacks it; drop it")

    def __init__(self, config: Draft, design: Design, *, vocab_size: int) -> None:
        if not isinstance(config.corpus, TaskCorpus):
            vocab_size += n_sentinels(config.train.length)
        super().__init__(config, design, vocab_size=vocab_size)
        assert config.encoder_shape is not None, "model.arch=decoder has no encoder"
        self.encoder_shape = config.encoder_shape
        self.encoder_blocks = nn.ModuleList(Block(config) for _ in self.blocks)
        self.encoder_norm = norm_of(config.model, config.model.d_model)
        self.encoder_dropout = Dropout(config.model.dropout)

    def answer_starts(self, targets_BT: Tensor) -> dict[str, Tensor]:
        """Returns the first target of each row that is not ignored, the argument of forward()."""
        first_B = (targets_BT != IGNORED).byte().argmax(dim=1)
        return {"answer_B": first_B.to(self.embedding.weight.device)}

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        tokens_BT: Tensor,
        *,
        answer_B: Tensor,
        n_last: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Returns the final hidden states of the last n_last tokens (all if None), [B, n_last, D].

        Row b is a prompt up to token answer_B[b], which the encoder reads, and from that token on
        what the decoder reads. The states of the tokens before it are the decoder's first one.
        """
        T, D = tokens_BT.shape[1], self.shape.d_model
        prompts_BS = tokens_BT[:, : int(answer_B.max()) + 1]
        encoded_BSD, of_encoder = self.encode(prompts_BS, answer_B + 1, generator=generator)
        n_answers = T - int(answer_B.min())
        place_BQ = answer_B[:, None] + torch.arange(n_answers, device=tokens_BT.device)
        answers_BQ = tokens_BT.gather(1, place_BQ.clamp(max=T - 1))
        x_BQD, c = self.embedded(answers_BQ, generator=generator)
        for i, (block, hooks) in enumerate(zip(self.blocks, self.scheme.layers, strict=True)):
            assert isinstance(block, CrossBlock)
            x_BQD = block.decode(x_BQD, encoded_BSD, replace(c, layer=i, hooks=hooks), of_encoder)
        first = 0 if n_last is None else T - n_last
        place_BT = torch.arange(first, T, device=tokens_BT.device) - answer_B[:, None]
        return self.norm(x_BQD).gather(1, place_BT.clamp(min=0)[..., None].expand(-1, -1, D))

    def encode(
        self, tokens_BS: Tensor, n_keys_B: Tensor, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, AttentionContext]:
        """Returns the encoder's outputs, [B, S, D], and the context with which to attend to them.

        The first n_keys_B[b] tokens of row b are its prompt; no output depends on the others.
        """
        scheme = self.scheme.encoder
        assert scheme is not None, "a scheme without its encoder's parts"
        of = self.encoder_shape, scheme, self.encoder_dropout
        x_BSD, c = self.embedded(tokens_BS, generator=generator, of=of)
        c = replace(c, key_padding_BS=c.pos >= n_keys_B[:, None])
        return self.encoder_norm(_through_encoder(x_BSD, self.encoder_blocks, scheme, c)), c


class MaskedEncoder(Transformer):
    """A Transformer without a causal mask, which predicts all tokens of an answer at once."""

    arch = "encoder"

    @classmethod
    def check(cls, config: Draft) -> None:
        EncoderDecoder.check(config)
        if not isinstance(config.corpus, TaskCorpus):
            name = config.corpus.name
            reason = f"model.arch=encoder: corpus {name} has no prompts for an encoder to read"
            raise UserError(f"{reason}; give a task, or model.arch=encoder_decoder")
        if n := config.eval.decode:
            raise UserError(f"eval.decode={n}: model.arch=encoder writes all of an answer at once")

    def answer_starts(self, targets_BT: Tensor) -> dict[str, Tensor]:
        """Returns where the answer of each row begins and where it ends, arguments of forward()."""
        is_target_BT = (targets_BT != IGNORED).byte().to(self.embedding.weight.device)
        n_behind_B = is_target_BT.flip(1).argmax(dim=1)
        n_tokens_B = targets_BT.shape[1] - n_behind_B
        return {"answer_B": is_target_BT.argmax(dim=1), "n_tokens_B": n_tokens_B}

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        tokens_BT: Tensor,
        *,
        answer_B: Tensor,
        n_tokens_B: Tensor,
        n_last: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Returns the final hidden states of the last n_last tokens (all if None), [B, n_last, D].

        The tokens of row b after answer_B[b] are not read: they are masked. It has n_tokens_B[b]
        tokens; no output of it depends on what follows.
        """
        T = tokens_BT.shape[1]
        masked = torch.arange(T, device=tokens_BT.device) > answer_B[:, None]
        mask_B1 = tokens_BT.gather(1, answer_B[:, None])
        x_BTD, c = self.embedded(torch.where(masked, mask_B1, tokens_BT), generator=generator)
        c = replace(c, key_padding_BS=torch.arange(T, device=c.pos.device) >= n_tokens_B[:, None])
        x_BTD = _through_encoder(x_BTD, self.blocks, self.scheme, c)
        return self.norm(x_BTD[:, 0 if n_last is None else T - n_last :])


def _through_encoder(
    x_BSD: Tensor, blocks: nn.ModuleList, scheme: Scheme, c: AttentionContext
) -> Tensor:
    """Returns the outputs of blocks whose queries see all keys, [B, S, D]."""
    for i, (block, hooks) in enumerate(zip(blocks, scheme.layers, strict=True)):
        x_BSD = block(x_BSD, replace(c, layer=i, hooks=hooks), c.length)
    return x_BSD
