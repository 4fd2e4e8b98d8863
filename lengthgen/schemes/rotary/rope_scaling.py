"""What the parts that stretch RoPE past its trained length share: s, and the scale of the logits.

B batch, H heads, Q queries, S keys, K head width.
"""

from torch import Tensor

from lengthgen.schemes.base import AttentionContext, Rotated


def checked(factor: float | None) -> float | None:
    """Returns the factor. Raises ValueError if it is below 1, the trained length itself."""
    if factor is not None and factor < 1:
        raise ValueError(f"factor={factor} must be at least 1, or null for L/T of every call")
    return factor


def stretch(factor: float | None, c: AttentionContext) -> float:
    """Returns s: the fixed factor, or how many times the call is as long as the trained length."""
    return max(1.0, c.length / c.shape.train_length) if factor is None else factor


def sharpened(mscale: float, q_BHQK: Tensor, k_BHSK: Tensor) -> Rotated:
    """Returns q times mscale^2, and k: their product as if cos and sin were mscale times larger."""
    return Rotated(q_BHQK * mscale**2, k_BHSK)
