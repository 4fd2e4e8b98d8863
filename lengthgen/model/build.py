"""Models of a configuration: their class, their scheme, and how their weights are drawn."""

import hashlib
import math

import torch
from torch import nn

from lengthgen.config.registry import contributed
from lengthgen.config.schema import Draft
from lengthgen.errors import UserError
from lengthgen.model.layer_state import StateTransformer
from lengthgen.model.recurrent import RecurrentTransformer
from lengthgen.model.transformer import Block, Transformer
from lengthgen.schemes import Design, Part, Scheme
from lengthgen.schemes.content.layer_state import LayerState
from lengthgen.schemes.relative.recurrence import Recurrence


def initialise(model: Transformer, generator: torch.Generator) -> None:
    """Draws all weights of the network: N(0, init_std^2); norms are one, biases zero.

      embedding, qkv, mlp_in, cross_q, cross_kv   init_std, as a head of its own
      attention_out, mlp_out, cross_out           init_std / sqrt(2 n_layers), as in GPT-2

    The parts' own parameters are drawn by their constructors and keep those values.
    """
    std = model.shape.init_std
    nn.init.normal_(model.embedding.weight, std=std, generator=generator)
    for block in (module for module in model.modules() if isinstance(module, Block)):
        matrices = {n: m for n, m in block.named_children() if isinstance(m, nn.Linear)}
        for name in sorted(matrices, key=lambda name: name.endswith("_out")):  # those last
            residual = math.sqrt(2 * model.shape.n_layers) if name.endswith("_out") else 1
            nn.init.normal_(matrices[name].weight, std=std / residual, generator=generator)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias") and not name.startswith("scheme."):
            nn.init.zeros_(parameter)
    if model.head is not None:
        nn.init.normal_(model.head.weight, std=std, generator=generator)


DECODERS: dict[type[Part], type[Transformer]] = {
    Recurrence: RecurrentTransformer,
    LayerState: StateTransformer,
}


def architecture(config: Draft, design: Design) -> type[Transformer]:
    """Returns the class of the configured model: a decoder, or what a subpackage adds.

    A few parts have a decoder of their own.
    """
    kinds: list[type[Transformer]] = [Transformer, *contributed("ARCHITECTURES")]
    plain = next(kind for kind in kinds if kind.arch == config.model.arch)
    return _decoder(design) if plain is Transformer else plain


def _decoder(design: Design) -> type[Transformer]:
    kinds = tuple(design.kinds.values())
    special = (model for part, model in DECODERS.items() if any(issubclass(k, part) for k in kinds))
    return next(special, Transformer)


def create(
    kind: type[Transformer], config: Draft, design: Design, *, vocab_size: int
) -> Transformer:
    """Returns a freshly initialised model on the CPU, a pure function of the configuration.

    vocab_size is that of the corpus; the architecture may add ids of its own. Network and parts
    draw from streams of their own, so that at one seed two schemes start from the same network, and
    no part from a copy of the network's numbers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("parts", config.seed))  # parts draw from the global generator
        model = kind(config, design, vocab_size=vocab_size)
    initialise(model, generator_of("network", config.seed))
    return model


def seed_of(*names: str | int) -> int:
    """Returns the seed of a named stream of random numbers; different names, unrelated streams."""
    digest = hashlib.sha256(repr(names).encode()).digest()
    return int.from_bytes(digest[:4])  # torch looks at no more than 32 bits


def generator_of(*names: str | int) -> torch.Generator:
    """Returns a named stream of random numbers on the CPU, from its beginning."""
    return torch.Generator().manual_seed(seed_of(*names))


def redesigned(model: Transformer, design: Design) -> Scheme:
    """Returns another scheme with the trained parameters of the model's own, for `model.scheme`.

    The variant's parameters must be among the trained ones: any other was refused before. Parts
    with the arguments of training keep their buffers too.
    """
    if _decoder(design) is not _decoder(model.design):
        raise UserError(
            "scheme.variants: a variant can neither add nor drop recurrence or a state carried "
            "from layer to layer; train a scheme with these parts instead"
        )
    scheme, before = design.build(), model.design.parts
    new = [f"parts.{name}." for name, held in design.parts.items() if held != before.get(name)]
    drawn = {name for name, _ in scheme.named_buffers() if any(part in name for part in new)}
    trained, fresh = model.scheme.state_dict(), scheme.state_dict()
    scheme.load_state_dict({name: (fresh if name in drawn else trained)[name] for name in fresh})
    return scheme.to(model.embedding.weight.device).train(model.training)
