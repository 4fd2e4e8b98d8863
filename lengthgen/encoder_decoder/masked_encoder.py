"""The masked language model: an encoder reads a row whose answer is masked, and fills it in.

As in BERT (Devlin et al. 2018, arXiv 1810.04805), with all of the answer masked and predicted at
once. The mask is the token that ends every prompt, so that the vocabulary is that of a decoder; the
prompt's own last token stands for the first token of the answer. Without positions, all masks of a
row are one token in one context: no answer of two different tokens can be right.

B rows, T tokens of a row, D width.
"""

from dataclasses import replace

import torch
from torch import Tensor

from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.data.windows import IGNORED
from lengthgen.encoder_decoder.model import EncoderDecoder, first_targets, through_encoder
from lengthgen.errors import UserError
from lengthgen.model.transformer import Transformer


class MaskedEncoder(Transformer):
    """A Transformer without a causal mask, which predicts all tokens of an answer at once."""

    arch = "encoder"

    @classmethod
    def check(cls, config: Config) -> None:
        EncoderDecoder.check(config)
        if not isinstance(config.corpus, TaskCorpus):
            raise UserError(
                f"model.arch=encoder: corpus {config.corpus.name} has no prompts for an encoder to "
                "read; give a task, such as task=copy, or model.arch=encoder_decoder"
            )
        if config.eval.decode:
            raise UserError(
                f"eval.decode={config.eval.decode}: model.arch=encoder writes all of an answer at "
                "once; drop it"
            )

    def answer_starts(self, targets_BT: Tensor) -> dict[str, Tensor]:
        """Returns where the answer of each row begins and where it ends, arguments of forward()."""
        places = torch.arange(1, targets_BT.shape[1] + 1, device=targets_BT.device)
        n_tokens_B = ((targets_BT != IGNORED) * places).amax(dim=1)
        starts = {"answer_B": first_targets(targets_BT), "n_tokens_B": n_tokens_B.clamp(min=1)}
        return {name: x_B.to(self.embedding.weight.device) for name, x_B in starts.items()}

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
        x_BTD = through_encoder(x_BTD, self.blocks, self.scheme, c)
        return self.norm(x_BTD[:, 0 if n_last is None else T - n_last :])
