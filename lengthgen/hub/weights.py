"""Weights of a folder in Hugging Face layout by our names, and ours by the names of a family."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, cat, equal, zeros

from lengthgen.errors import UserError, first_line
from lengthgen.files import read_bytes, sha256_of
from lengthgen.hub.families import Family
from lengthgen.model.transformer import Transformer

PREFIX = re.compile(r"^((model|transformer|gpt_neox)\.)?(decoder\.)?")
BUFFERS = re.compile(r"(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias)$")
MATRICES = ("qkv", "attention_out", "mlp_in", "mlp_out")


class Tensors:
    """The weights of a folder by their names without the model's prefix, and which were taken."""

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        names: set[str] = {"model.safetensors"}
        if index.exists():
            names = set(read_json(index).get("weight_map", {}).values())
        elif not (folder / "model.safetensors").exists():
            raise UserError(
                f"{folder} has no model.safetensors: another format may run code when it is read; "
                "write one with transformers: from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        self.folder, self.taken = folder, set[str]()
        self.files = [folder / name for name in sorted(names)]
        self.of: dict[str, tuple[Any, str]] = {}
        for path in self.files:
            if Path(path.name) != path.relative_to(folder) or not path.is_file():
                raise UserError(f"{index} names {path.name}, which is not there; download it")
            try:
                file: Any = safe_open(path, framework="pt")
                own: list[str] = file.keys()
                self.of |= {PREFIX.sub("", name): (file, name) for name in own}
            except (SafetensorError, OSError) as error:
                reason = f"{path} is damaged or cut short ({first_line(error)})"
                raise UserError(f"{reason}; download it again") from None

    def sha256(self) -> str:
        """Returns that of the files' own."""
        return hashlib.sha256("".join(map(sha256_of, self.files)).encode()).hexdigest()

    def take(self, name: str) -> Tensor:
        if name not in self.of:
            raise UserError(f"{self.folder} has no weight {name}")
        self.taken.add(name)
        file, full_name = self.of[name]
        return file.get_tensor(full_name).float()

    def refuse_left(self, family: Family, embedding_VD: Tensor) -> None:
        """Refuses what nothing has taken, but for tables that are computed here and a tied head."""
        head = f"{family.names['head']}.weight"
        left = {name for name in self.of.keys() - self.taken if not BUFFERS.search(name)}
        if head in left:
            left.remove(head)
            if not equal(self.take(head), embedding_VD):
                raise UserError(f"{self.folder}: {head} is not the embedding, to which it is tied")
        if left:
            raise UserError(
                f"{self.folder}: {min(left)} ({len(left)} in all) has no counterpart here, and "
                "without it this would be another model"
            )


def ours(
    model: Transformer, family: Family, tensors: Tensors, *, scale: float
) -> dict[str, Tensor]:
    """Returns the weights of a model in fp32. Raises UserError if one is missing.

    `scale` is that of the logits, which the final norm takes on.
    """
    weights: dict[str, Tensor] = {}
    for name, parameter in model.state_dict().items():
        names, module = _theirs(name, family)
        x = cat([tensors.take(theirs) for theirs in names])
        if _is_transposed(name, module, family):
            x = x.T
        if family.per_head and module == "qkv":
            heads = (model.shape.n_heads, 3, model.shape.d_head)
            x = x.unflatten(0, heads).transpose(0, 1).flatten(0, 2)
        if module == "table":
            x = x[family.first_row :]
        if name.startswith("norm."):
            x = x * scale
        if x.shape != parameter.shape:
            raise UserError(
                f"{tensors.folder}: {names[0]} has the shape {list(x.shape)}, and config.json "
                f"asks for {list(parameter.shape)}"
            )
        weights[name] = x.contiguous()
    return weights


def theirs(
    model: Transformer, family: Family, weights: dict[str, Tensor], *, scale: float
) -> dict[str, Tensor]:
    """Returns weights by the names of a family; biases that the run has not are zeros.

    `model` has the options of the family, whose names and shapes alone are read. Inverts `ours`.
    """
    written: dict[str, Tensor] = {}
    for name, parameter in model.state_dict().items():
        x = weights[name] if name in weights else zeros(parameter.shape)
        names, module = _theirs(name, family)
        if name.startswith("norm."):
            x = x / scale
        if module == "table":
            x = cat([zeros(family.first_row, x.shape[1]), x])
        if family.per_head and module == "qkv":
            heads = (3, model.shape.n_heads, model.shape.d_head)
            x = x.unflatten(0, heads).transpose(0, 1).flatten(0, 2)
        if _is_transposed(name, module, family):
            x = x.T
        widths = model.shape.qkv_widths if module == "qkv" else [len(x) // len(names)] * len(names)
        for full, part in zip(names, x.split(widths) if len(names) > 1 else [x], strict=True):
            prefix = "" if module == "head" else family.prefix
            written[prefix + full] = part.contiguous()
    return written


def _theirs(name: str, family: Family) -> tuple[list[str], str]:
    """Returns the names that stand side by side in one of our matrices, and its module."""
    if name.endswith(".table"):
        return [f"{family.names['table']}.weight"], "table"
    *_, block, module, what = ("", "", *name.split("."))
    prefix = f"{family.block}.{block}." if block else ""
    return [f"{prefix}{one}.{what}" for one in family.names[module].split()], module


def _is_transposed(name: str, module: str, family: Family) -> bool:
    return family.transposed and module in MATRICES and name.endswith(".weight")


def read_json(path: Path) -> dict[str, Any]:
    try:
        plain = json.loads(read_bytes(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from None
    if not isinstance(plain, dict):
        raise UserError(f"{path} holds no keys")
    return plain  # pyright: ignore[reportUnknownVariableType]
