"""Pretrained models of transformers: small ones of each family, with random weights, and ours."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small import SMALL, experiment_of
from torch import Tensor

from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, directory

transformers: Any = pytest.importorskip("transformers")

V, T = 320, 32
TEXT = [w for w in SMALL if w.startswith(("corpus", "eval", "runtime")) and "variants" not in w]
SIZE = {"hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3, "vocab_size": V}
LLAMA = {**SIZE, "intermediate_size": 56, "max_position_embeddings": T}
SHARED = {**LLAMA, "num_key_value_heads": 1}


def rope(kind: str, **arguments: Any) -> dict[str, Any]:
    return {**LLAMA, "rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **arguments}}


BAND = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
FACTORS = {"short_factor": [1, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.0, 2, 3, 4, 4, 4]}
WINDOW = {"use_sliding_window": True, "sliding_window": 9}
NEOX = {**LLAMA, "hidden_size": 48}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SHARED,
    "llama tied": {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "head_dim": 10},
    "llama linear": rope("linear", factor=2.0),
    "llama dynamic": rope("dynamic", factor=3.0),
    "llama yarn": rope("yarn", factor=4.0, original_max_position_embeddings=16),
    "llama llama3": rope("llama3", factor=4.0, **BAND),
    "llama longrope": rope("longrope", factor=4.0, **FACTORS, original_max_position_embeddings=16),
    "qwen2": SHARED,
    "qwen2 window": {**SHARED, **WINDOW, "max_window_layers": 1},
    "qwen3": {**SHARED, "head_dim": 10},
    "mistral": {**SHARED, "sliding_window": 9},
    "mistral without a window": {**SHARED, "sliding_window": None},
    "smollm3": {**SHARED, "num_hidden_layers": 5},
    "cohere2": {**SHARED, "num_hidden_layers": 5, "sliding_window": 9},
    "gpt_neox": NEOX,
    "gpt_neox tied": {**NEOX, "use_parallel_residual": False, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 36, "n_head": 3, "n_layer": 3, "n_positions": T, "vocab_size": V},
    "opt": {**SIZE, "ffn_dim": 56, "max_position_embeddings": T, "word_embed_proj_dim": 36},
    "bloom": {"hidden_size": 36, "n_head": 3, "n_layer": 3, "vocab_size": V, "seq_length": T},
    "bloom without a length": {"hidden_size": 36, "n_head": 3, "n_layer": 3, "vocab_size": V},
    "gemma3_text": {**SHARED, "head_dim": 10, "sliding_window": 9, "sliding_window_pattern": 2},
    "gemma3_text without full attention": {
        **{**SHARED, "head_dim": 10, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    },
    "phi3": SHARED,
    "olmo2": SHARED,
    "granite": {**SHARED, "attention_multiplier": 0.2, "embedding_multiplier": 3.0},
    "stablelm": {**SHARED, "hidden_size": 48},
    "stablelm parallel": {**SHARED, "hidden_size": 48, "use_parallel_residual": True},
    "falcon": SIZE,
    "falcon alibi": {**SIZE, "alibi": True, "multi_query": False, "parallel_attn": False},
    "falcon groups": {**SIZE, "new_decoder_architecture": True, "num_kv_heads": 1, "bias": True},
    "mpt": {"d_model": 36, "n_heads": 3, "n_layers": 3, "max_seq_len": T, "vocab_size": V},
}


def their_model(name: str, **changes: Any) -> Any:
    """Returns a model of MODELS of transformers whose every weight is random."""
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    options = {**MODELS[name], **ids, **changes}
    return random_model(transformers.AutoConfig.for_model(name.split()[0], **options))


def random_model(config: Any) -> Any:
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            is_matrix = parameter.dim() > 1
            parameter.copy_(torch.randn(parameter.shape, generator=draws) * 0.12 + (not is_matrix))
    return model


def our_model(run_dir: Path) -> Transformer:
    config = directory.load_config(run_dir)
    assert config.run_id == run_dir.name
    model = experiment_of(config).build(vocab_size=0)
    model.load_state_dict(checkpoints.final(config, run_dir).weights)
    return model.eval()


def logits(model: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        if isinstance(model, Transformer):
            return model.logits(model(tokens))
        return model(tokens, use_cache=False).logits


def some_tokens(length: int) -> Tensor:
    return torch.randint(V, (2, length), generator=torch.Generator().manual_seed(length))
