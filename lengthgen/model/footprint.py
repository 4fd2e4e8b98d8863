"""The least memory that a training takes, from its configuration.

B windows, T tokens, D width, F width of the network of a block, N layers.
"""

from torch import nn

from lengthgen.config.schema import Config

PARAMETER_BYTES = 16  # weight, gradient and two moments, in fp32
TOKEN_BYTES = 32  # of a global batch: input and target in int64, in rows and stacked


def batch_bytes(config: Config) -> int:
    """Returns the bytes of a global batch, which every process cuts from the corpus."""
    return TOKEN_BYTES * config.train.batch_tokens


def training_bytes(config: Config, model: nn.Module, *, windows: int) -> int:
    """Returns the bytes of a model's training and of what B windows keep for the backward pass.

    A block keeps its input, or 8 D + 2 F numbers of each token: those that its norms and matrices
    multiply. The matrices of attention and the logits are not counted.
    """
    D, F = config.model.d_model, config.model.d_ff
    kept = D if config.runtime.activation_checkpointing else 8 * D + 2 * F
    itemsize = 2 if config.train.precision == "bf16" else 4
    activations = windows * config.train.length * config.model.n_layers * kept * itemsize
    return PARAMETER_BYTES * sum(p.numel() for p in model.parameters()) + activations
