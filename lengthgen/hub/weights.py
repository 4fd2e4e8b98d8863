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

BUFFERS = re.compile(r"(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias)$")
CONVERT = (
    "write it with transformers: AutoModelForCausalLM.from_pretrained(NAME).save_pretrained(DIR), "
    "AutoTokenizer likewise, then lengthgen import DIR"
)
Weights = dict[str, Tensor]


class Tensors:
    """The weights of a folder by their names without the family's prefix, and which were taken."""

    def __init__(self, folder: Path, family: Family) -> None:
        self.folder, self.family, self.taken = folder, family, set[str]()
        index, names = folder / "model.safetensors.index.json", ["model.safetensors"]
        if index.exists():
            names = sorted({*read_json(index).get("weight_map", {}).values()})
        self.files = [folder / name for name in names]
        self.named: dict[str, tuple[Any, str]] = {}
        for path in self.files:
            if path.parent != folder or not path.is_file():
                reason = f"{folder} has no {path.name}"
                if index.exists():
                    raise UserError(f"{reason}, which {index.name} names; download it again")
                raise UserError(f"{reason}: another format may run code when it is read; {CONVERT}")
            try:
                file: Any = safe_open(path, framework="pt")
                full_names: list[str] = file.keys()
                self.named |= {self._short(name): (file, name) for name in full_names}
            except (SafetensorError, OSError) as error:
                reason = f"{path} is damaged or cut short ({first_line(error)})"
                raise UserError(f"{reason}; download it again") from None

    def _short(self, name: str) -> str:
        """Returns a name without the prefix, of which some files have a part alone."""
        for part in self.family.prefix.split("."):
            name = name.removeprefix(f"{part}.")
        return name

    def sha256(self) -> str:
        """Returns that of the files' own."""
        return hashlib.sha256("".join(map(sha256_of, self.files)).encode()).hexdigest()

    def take(self, name: str) -> Tensor:
        if name not in self.named:
            raise UserError(f"{self.folder} has no weight {name}")
        self.taken.add(name)
        file, full_name = self.named[name]
        return file.get_tensor(full_name).float()

    def refuse_left(self, embedding_VD: Tensor) -> None:
        """Refuses what nothing has taken, but for tables that are computed here and a tied head."""
        head = f"{self.family.names['head']}.weight"
        left = {name for name in self.named.keys() - self.taken if not BUFFERS.search(name)}
        if head in left and not equal(self.take(head), embedding_VD):
            raise UserError(f"{self.folder}: {head} is not the embedding, to which it is tied")
        if left := left - {head}:
            raise UserError(
                f"{self.folder}: {min(left)} ({len(left)} in all) has no counterpart here, and "
                "without it this would be another model"
            )


def ours(model: Transformer, tensors: Tensors, *, scale: float = 1.0) -> Weights:
    """Returns the weights of a model in fp32. Raises UserError if one is missing.

    `scale` is that of the logits, which the final norm takes on.
    """
    family, weights = tensors.family, Weights()
    for name, parameter in model.state_dict().items():
        names, module = _theirs(name, family)
        parts = {theirs: tensors.take(theirs) for theirs in names}
        x = cat([*parts.values()])
        if family.transposed and name.startswith("blocks.") and x.dim() == 2:
            x = x.T
        if family.per_head and module == "qkv":
            heads = (model.shape.n_heads, 3, model.shape.d_head)
            x = x.unflatten(0, heads).transpose(0, 1).flatten(0, 2)
        if module == "table":
            x = x[family.first_row :]
        if name.startswith("norm."):
            x = x * scale
        if x.shape != parameter.shape:
            shapes = ", ".join(f"{theirs} {list(part.shape)}" for theirs, part in parts.items())
            raise UserError(
                f"{tensors.folder}: {shapes} {'gives' if len(parts) == 1 else 'give'} "
                f"{list(x.shape)}, and config.json asks for {list(parameter.shape)}"
            )
        weights[name] = x.contiguous()
    return weights


def theirs(model: Transformer, family: Family, weights: Weights) -> Weights:
    """Returns weights by the names of a family; biases that the run has not are zeros.

    `model` has the options of the family, whose names and shapes alone are read. Inverts `ours`.
    """
    written = Weights()
    for name, parameter in model.state_dict().items():
        x = weights[name] if name in weights else zeros(parameter.shape)
        names, module = _theirs(name, family)
        if family.per_head and module == "qkv":
            heads = (3, model.shape.n_heads, model.shape.d_head)
            x = x.unflatten(0, heads).transpose(0, 1).flatten(0, 2)
        if family.transposed and name.startswith("blocks.") and x.dim() == 2:
            x = x.T
        widths = model.shape.qkv_widths if module == "qkv" else [len(x) // len(names)] * len(names)
        prefix = "" if module == "head" else family.prefix
        for full, part in zip(names, x.split(widths) if len(names) > 1 else [x], strict=True):
            written[prefix + full] = part.contiguous()
    return written


def _theirs(name: str, family: Family) -> tuple[list[str], str]:
    """Returns the names that stand side by side in one of our matrices, and its module."""
    if name.endswith(".table"):
        return [f"{family.names['table']}.weight"], "table"
    *_, block, module, what = ("", "", *name.split("."))
    prefix = f"{family.block}.{block}." if block else ""
    return [f"{prefix}{theirs}.{what}" for theirs in family.names[module].split()], module


def read_json(path: Path) -> dict[str, Any]:
    """Returns the keys of a JSON file. Raises UserError if it has none."""
    try:
        return dict(json.loads(read_bytes(path)))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from None
