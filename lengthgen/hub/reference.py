"""What transformers makes of a folder, where it is installed: its keys, and logits to compare with.

Its code reads config.json and safetensors; none that a repository brings along is run.
"""

import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lengthgen.errors import Say, UserError, first_line
from lengthgen.hub.families import is_ignored
from lengthgen.model.transformer import Transformer

TOLERANCE = 1e-4  # of logits in fp32, of the largest one if it is above 1
COMPARED = 2**31  # parameters of a model that is held twice
PRODUCTS = 2**38  # of parameters and tokens: seconds of a CPU
LOGITS = 2**27  # of tokens and the vocabulary


class Reference(NamedTuple):
    """A configuration of transformers, what it makes of config.json, and what it has by default."""

    config: Any
    keys: dict[str, Any]
    usual: dict[str, Any]


def reference(plain: Mapping[str, Any], *, where: Path) -> Reference | None:
    """Returns config.json as the class of its model_type reads it; None without transformers.

    Raises UserError for what that class refuses.
    """
    try:
        import transformers

        if int(transformers.__version__.partition(".")[0]) < 5:  # which has no rope_parameters
            return None
    except ImportError:
        return None
    try:
        with _quiet():
            kind: Any = transformers.CONFIG_MAPPING[plain["model_type"]]
            usual = kind().to_dict()
            config = kind(**{k: v for k, v in plain.items() if k in usual or not is_ignored(k)})
            return Reference(config, config.to_dict(), usual)
    except Exception as error:  # of any type, for what the class does not foresee
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{where}/config.json: transformers cannot read it: {why}") from None


def compare_logits(
    model: Transformer,
    theirs: Reference,
    folder: Path,
    *,
    T: int,
    ends: bool,
    say: Say,
) -> None:
    """Says how much the logits of a model and those of transformers differ, on up to 2 T tokens.

    `ends`: transformers takes no text beyond T. Raises UserError above 1e-4 of the largest logit:
    both round, and SmolLM2-135M, whose logits reach 35, differs by 7e-4 at 2,043 tokens.
    """
    n_parameters = sum(p.numel() for p in model.parameters())
    longest = T if ends else 2 * T
    n = min(longest, PRODUCTS // n_parameters, LOGITS // model.embedding.num_embeddings)
    if n_parameters > COMPARED:
        say(f"not compared with transformers: more than {COMPARED:,} parameters")
        return
    import transformers

    difference, largest = 0.0, 1.0
    try:
        with _quiet(), torch.inference_mode():
            kind: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(theirs.config)]
            options: Any = {"config": theirs.config, "dtype": torch.float32}
            options |= {"use_safetensors": True, "local_files_only": True}
            other = kind.from_pretrained(folder, **options).eval()
            for length in sorted({max(1, min(n, T) // 2), n}):  # within T, and beyond
                shape, draws = (1, length), torch.Generator().manual_seed(length)
                tokens_BT = torch.randint(model.embedding.num_embeddings, shape, generator=draws)
                given = other(tokens_BT, use_cache=False).logits
                ours = model.logits(model(tokens_BT))
                apart = (given - ours).abs().nan_to_num(nan=torch.inf)
                difference = max(difference, float(apart.max()))
                largest = max(largest, float(given.abs().max()))
    except Exception as error:  # of any type
        why = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{folder}: transformers cannot compute it ({why})") from None
    if not difference <= (most := TOLERANCE * largest):
        raise UserError(
            f"{folder}: logits of {n} tokens differ by {difference:.2g} from those of "
            f"transformers {transformers.__version__}, more than {most:.1g}: config.json says "
            "what is not known here; nothing is imported"
        )
    bound = "" if n == longest else f", the bound for this size (2 T = {2 * T:,})"
    say(f"logits of {n:,} tokens equal those of transformers to {difference:.1g}{bound}")


@contextmanager
def _quiet() -> Generator[None]:
    """Lets transformers say nothing on the way, from now on."""
    from transformers.utils import logging

    logging.set_verbosity(50)  # critical
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
