"""Parts that stretch RoPE past its trained length T by s, of whatever rotates."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from lengthgen.errors import UserError
from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.parameters import AtLeastOne, constant
from lengthgen.schemes.rotary.grape_m import GrapeM


class RopeScaling(Part, ABC):
    """Changes rotary frequencies by s, how many times a text is as long as trained ones.

    factor: s; null: L/T of each call, at least 1. original_max_position_embeddings: T; null:
    train.length. A run that begins with weights of another length (train.init_from) gives it.
    """

    bidirectional = True

    def __init__(
        self,
        shape: ModelDims,
        *,
        factor: AtLeastOne | None,
        original_max_position_embeddings: PositiveInt | None = None,
    ) -> None:
        super().__init__(shape)
        self.original_length = original_max_position_embeddings or shape.train_length
        self.factor = factor
        self.depends_on_length = factor is None

    @abstractmethod
    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor: ...

    def stretch(self, c: AttentionContext) -> float:
        """Returns s."""
        return self.times_trained(c) if self.factor is None else self.factor

    def times_trained(self, c: AttentionContext) -> float:
        """Returns how many times the call is as long as T, at least 1."""
        return max(1.0, c.length / self.original_length)

    def turns(self, omega_R: Tensor) -> Tensor:
        """Returns how many turns each pair makes within T."""
        return omega_R * (self.original_length / (2 * math.pi))


class Pi(RopeScaling):
    """Position interpolation: Chen et al. 2023, arXiv 2306.15595. Divides all angles by s.

    The paper fine-tunes at the new length; without that it is a reference for the others.
    trained_factor: s of the trained model, below which null does not go.
    """

    def __init__(
        self, shape: ModelDims, *, trained_factor: AtLeastOne = 1.0, **others: Any
    ) -> None:
        super().__init__(shape, **others)
        self.trained_factor = trained_factor

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        s = self.stretch(c)
        return omega_R / (max(s, self.trained_factor) if self.factor is None else s)


class Ntk(RopeScaling):
    """NTK-aware scaling: bloc97 2023, a post on r/LocalLLaMA; no paper of its own.

    The base becomes base s^(r/(r-2)), as in jquesnelle/yarn (LlamaNTKScaledRotaryEmbedding.py;
    s is `alpha`): angle m of r/2 is divided by s^(2m/(r-2)), whatever made the angles. A single
    pair (r = 2), for which the exponent has no value, keeps its angle.
    """

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        return omega_R * self.stretch(c) ** (-pair_numbers(omega_R) / max(len(omega_R) - 1, 1))


class DynamicNtk(Ntk):
    """NTK-aware scaling with s = f L/T - (f - 1) for L > T: emozilla 2023, r/LocalLLaMA.

    A function of L alone: ports that keep what they computed for the longest call so far
    (LlamaDynamicScaledRotaryEmbedding.py in jquesnelle/yarn) differ for a short text after a long
    one. HF transformers: rope_type `dynamic`. factor: f.
    """

    def __init__(self, shape: ModelDims, *, factor: AtLeastOne, **others: Any) -> None:
        super().__init__(shape, factor=factor, **others)
        self.growth, self.depends_on_length = factor, True

    def stretch(self, c: AttentionContext) -> float:
        return self.growth * self.times_trained(c) - (self.growth - 1)


class Llama3(RopeScaling):
    """Llama 3.1's scaling: Meta 2024; Megatron-LM, rotary_pos_embedding.py:92-125.

    A pair with high_freq_factor turns within T or more (4) keeps its angle; with low_freq_factor or
    fewer (1) it is divided by s, 8 in Llama 3.1; between them, linearly in the number of turns. HF
    transformers: rope_type `llama3`.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        low_freq_factor: PositiveFloat,
        high_freq_factor: PositiveFloat,
        **others: Any,
    ) -> None:
        super().__init__(shape, **others)
        self.low, self.high = low_freq_factor, high_freq_factor
        if self.low >= self.high:
            raise ValueError(f"low_freq_factor={self.low} must be below {high_freq_factor=}")

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        kept_R = ((self.turns(omega_R) - self.low) / (self.high - self.low)).clamp(0, 1)
        return omega_R * (kept_R + (1 - kept_R) / self.stretch(c))


class Yarn(RopeScaling):
    """YaRN: Peng et al. 2023, arXiv 2309.00071. Divides slow angles by s, and scales the logits.

    Angle m becomes omega_m (1 - ramp + ramp / s), ramp = (m - low) / (high - low) in [0, 1]. low
    and high are the pairs with beta_fast (32) and beta_slow (1) turns within T, rounded outwards:
    the released code (jquesnelle/yarn, LlamaYaRNScaledRotaryEmbedding.py) and HF transformers. The
    paper's ramp is linear in the number of turns. The number of the pair with n turns,
    r ln(T / (2 pi n)) / (2 ln base), is read off the two angles next to it, whatever made them.

    Logits are multiplied by mscale^2, mscale = 0.1 ln s + 1: all of them, as by the paper's 1/t.
    With partial rotation the released code and HF scale the rotated channels' part alone.
    """

    def __init__(
        self, shape: ModelDims, *, beta_fast: PositiveFloat, beta_slow: PositiveFloat, **others: Any
    ) -> None:
        super().__init__(shape, **others)
        if beta_slow >= beta_fast:
            raise ValueError(f"beta_slow={beta_slow} must be below beta_fast={beta_fast}")
        self.beta_fast, self.beta_slow = beta_fast, beta_slow

    def conflict(self, others: Mapping[str, Part]) -> str | None:
        if any(isinstance(part, GrapeM) for part in others.values()):
            return "takes angles for powers of a base, and those of grape_m are trained"
        return None

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        if len(omega_R) == 1:  # the fastest pair, which is never interpolated
            return omega_R
        low, high = self.bounds(omega_R)
        ramp_R = (pair_numbers(omega_R) - low) / (high - low).clamp(min=0.001)  # 0.001 as released
        ramp_R = ramp_R.clamp(0, 1)
        return omega_R * (1 - ramp_R + ramp_R / self.stretch(c))

    def bounds(self, omega_R: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the numbers of the last pair to keep and of the first one to divide by s."""
        low, high = (self.pair(omega_R, turns=n) for n in (self.beta_fast, self.beta_slow))
        return low.floor().clamp(min=0), high.ceil().clamp(max=2 * len(omega_R) - 1)

    def pair(self, omega_R: Tensor, *, turns: float) -> Tensor:
        """Returns the number of the pair with so many turns within T, between two or beyond all."""
        log_R, log_n = self.turns(omega_R).log(), math.log(turns)
        turning = log_R.isfinite().sum()  # pairs that stand still have no number of turns
        i_1 = torch.minimum((log_R >= log_n).sum(0, keepdim=True) - 1, turning - 2).clamp(min=0)
        above, below = log_R.gather(0, i_1), log_R.gather(0, i_1 + 1)
        return (i_1 + (above - log_n) / (above - below)).squeeze(0)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return Rotated(q_BHQK * (0.1 * math.log(self.stretch(c)) + 1) ** 2, k_BHSK)


class Longrope(RopeScaling):
    """LongRoPE: Ding et al. 2024, arXiv 2402.13753. Divides angle m by its lambda_m.

    The paper finds lambdas by an evolutionary search and fine-tunes; here they are the user's, one
    per rotated pair, the fastest first. At s = 1 RoPE stays as trained. As in the release
    (microsoft/LongRoPE, rope/longrope.py:62-75), cos and sin are multiplied by
    sqrt(1 + ln s / ln T): here q by its square, with partial rotation in all its channels. Left
    out: no interpolation for the first tokens, which is no function of the distance.
    short_lambdas: those of calls up to T, whatever s is: rope_type `longrope` of HF transformers.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        lambdas: list[PositiveFloat],
        short_lambdas: list[PositiveFloat] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(shape, **others)
        self.lambdas, self.short_lambdas = lambdas, short_lambdas
        self.depends_on_length |= short_lambdas is not None
        if self.original_length < 2:
            raise ValueError(
                f"train.length, or original_max_position_embeddings: {self.original_length} must "
                "be above 1, since mscale has ln T"
            )

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        short = self.short_lambdas
        lambdas = self.lambdas if short is None or c.length > self.original_length else short
        if len(lambdas) != len(omega_R):
            raise UserError(
                f"longrope.lambdas: {len(lambdas)} numbers for {len(omega_R)} rotated channel "
                "pairs; give one for each"
            )
        if self.stretch(c) == 1 and short is None:
            return omega_R
        return omega_R / constant(tuple(lambdas), omega_R.device, omega_R.dtype)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        mscale = math.sqrt(1 + math.log(self.stretch(c)) / math.log(self.original_length))
        return Rotated(q_BHQK * mscale**2, k_BHSK)


class Longrope2(Longrope):
    """LongRoPE2's first guess: Shang et al. 2025, arXiv 2502.20082, eq. 10, algorithms 1 and 2.

    Training within T teaches too little of the slow pairs' turns, so that angles from a critical
    pair d on, before the first whose turn exceeds T, are to be divided by s or more. Here by

      lambda_m = (excess s)^(m/d) for m < d        lambda_m = excess s for m >= d

    critical_turns: d is the first pair with at most so many turns within T. 1 is equation 7; the
    paper searches up to 10, and finds pairs 25 (Phi3-mini) and 30 (LLaMA3-8B), both with at most 3.
    excess: 1 to 2 in the paper. At s = 1 RoPE stays as trained.

    Deviation: the paper goes on to search d and every lambda_m with m >= d, and then trains; for
    lambdas that were searched elsewhere see `longrope`. It names no scale of the logits: it is
    LongRoPE's, as in microsoft/Phi-4-mini-instruct, whose factors have this form.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        factor: AtLeastOne | None,
        critical_turns: PositiveFloat,
        excess: AtLeastOne,
        original_max_position_embeddings: PositiveInt | None = None,
    ) -> None:
        T = original_max_position_embeddings
        super().__init__(shape, lambdas=[], factor=factor, original_max_position_embeddings=T)
        self.critical_turns, self.excess = critical_turns, excess

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        s = self.stretch(c)
        if s == 1:
            return omega_R
        fast_R = self.turns(omega_R) > self.critical_turns
        share_R = torch.where(fast_R, pair_numbers(omega_R) / fast_R.sum().clamp(min=1), 1)
        return omega_R * (self.excess * s) ** -share_R


def pair_numbers(omega_R: Tensor) -> Tensor:
    """Returns the number of each pair, from 0, in the angles' dtype."""
    return torch.arange(len(omega_R), device=omega_R.device, dtype=omega_R.dtype)
