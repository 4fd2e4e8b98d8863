"""Weights of a folder in Hugging Face layout by our names, and ours by the names of a family."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, cat, equal, zeros

from lengthgen.errors import UserError, first_line
from lengthgen.files import hash_of, not_fetched, read_bytes, sha256_of
from lengthgen.hub.families import Family
from lengthgen.model.transformer import Transformer

BUFFERS = re.compile(r"(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias)$")
CONVERT = (
    "write it with transformers: AutoModelForCausalLM.from_pretrained(NAME).save_pretrained(DIR), "
    "AutoTokenizer likewise, then lengthgen import DIR"
)
WHOLE = "download it again, or import the model that it was quantised from"
FLOATS = ("F64", "F32", "F16", "BF16")
Weights = dict[str, Tensor]


class Tensors:
    """The weights of a folder by their names without the family's prefix, and which were taken."""

    def __init__(self, folder: Path, family: Family) -> None:
        self.folder, self.family, self.taken = folder, family, set[str]()
        whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
        is_sharded = index.exists() and not whole.exists()  # as transformers looks for them
        self.files = _shards(index) if is_sharded else [whole]
        if (adapter := folder / "adapter_config.json").exists():
            names = f"{adapter.name} and {self.files[0].name}"
            raise UserError(f"{folder}: {names} are two models; merge the adapter into the weights")
        self.named: dict[str, tuple[Any, str]] = {}
        for path in self.files:
            if path.parent != folder or not path.is_file():
                reason = f"{folder} has no {path.name}"
                if is_sharded:
                    raise UserError(f"{reason}, which {index.name} names; download it again")
                raise UserError(f"{reason}: another format may run code when it is read; {CONVERT}")
            try:
                file: Any = safe_open(path, framework="pt")
                full_names: list[str] = file.keys()
                for name in full_names:
                    self._add(name, file)
            except (SafetensorError, OSError) as error:
                damaged = f"is damaged or cut short ({first_line(error)}); download it again"
                raise UserError(f"{path} {not_fetched(path) or damaged}") from None

    def _add(self, name: str, file: Any) -> None:
        """Names a tensor without the prefix, of which some files have a part alone."""
        short = name
        for part in self.family.prefix.split("."):
            short = short.removeprefix(f"{part}.")
        if short in self.named:
            both = f"{self.named[short][1]} and {name} are one weight"
            raise UserError(f"{self.folder}: {both}; download it again")
        self.named[short] = file, name

    @property
    def n_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def sha256(self) -> str:
        """Returns that of the files' own."""
        return hash_of("".join(map(sha256_of, self.files)))

    def take(self, name: str) -> Tensor:
        if name not in self.named:
            raise UserError(f"{self.folder} has no weight {name}; {WHOLE}")
        self.taken.add(name)
        file, full_name = self.named[name]
        if (kind := file.get_slice(full_name).get_dtype()) not in FLOATS:
            raise UserError(f"{self.folder}: {full_name} is of {kind}, not a float; {WHOLE}")
        if not (tensor := file.get_tensor(full_name).float()).isfinite().all():
            raise UserError(f"{self.folder}: {full_name} has numbers that are not finite")
        return tensor

    def refuse_left(self, embedding_VD: Tensor) -> None:
        """Refuses what nothing has taken, but for tables that are computed here and a tied head."""
        head = f"{self.family.names['head']}.weight"
        left = {name for name in self.named.keys() - self.taken if not BUFFERS.search(name)}
        if head in left and not equal(self.take(head), embedding_VD):
            raise UserError(
                f"{self.folder}: {head} is not the embedding, to which it is tied; if it is the "
                "head, give tie_word_embeddings=false in config.json"
            )
        if left := left - {head}:
            raise UserError(
                f"{self.folder}: {min(left)} ({len(left)} in all) has no counterpart here, and "
                "without it this would be another model"
            )


def _shards(index: Path) -> list[Path]:
    """Returns the files that an index names. Raises UserError for one that names none."""
    weight_map = read_json(index).get("weight_map")
    names = [*weight_map.values()] if isinstance(weight_map, dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{index}: weight_map names no files; download it again")
    return [index.parent / name for name in sorted({*names})]


def ours(
    model: Transformer, tensors: Tensors, *, scales: Mapping[str, float] | None = None
) -> Weights:
    """Returns the weights of a model in fp32. Raises UserError if one is missing.

    `scales` are factors of modules, and of the queries within qkv, which these weights take on.
    """
    family, weights, scales = tensors.family, Weights(), scales or {}
    for name, parameter in model.state_dict().items():
        names, module = _theirs(name, family)
        if module == "embedding" and model.head is None and names[0] not in tensors.named:
            names = [f"{family.names['head']}.weight"]  # of two names, the one safetensors keeps
        parts = {theirs: tensors.take(theirs) for theirs in names}
        try:
            x = cat([*parts.values()])
        except RuntimeError:  # of widths that differ
            x = zeros(0)
        if family.transposed and name.startswith("blocks.") and x.dim() == 2:
            x = x.T
        if family.grouped and module == "qkv" and len(x) == sum(model.shape.qkv_widths):
            n, H = model.shape.n_kv_heads, model.shape.n_heads
            heads = x.unflatten(0, (n, H // n + 2, model.shape.d_head))
            sorts = heads[:, :-2], heads[:, -2], heads[:, -1]
            x = cat([sort.reshape(-1, *x.shape[1:]) for sort in sorts])
        if module == "table":
            x = x[family.first_row :]
        if family.unit_offset and module.endswith("norm"):
            x = x + 1
        if module in scales:
            x = x * scales[module]
        if module == "qkv" and "q" in scales:
            n_queries = model.shape.qkv_widths[0]
            x = cat([x[:n_queries] * scales["q"], x[n_queries:]])
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
        if family.grouped and module == "qkv":  # each head has keys of its own
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
        plain = json.loads(read_bytes(path))
        if not isinstance(plain, dict):
            raise ValueError("it is no object")
        return plain
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from None
