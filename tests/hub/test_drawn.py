"""Drawn configurations of each family: the logits of transformers, or one line."""

import json
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from pretrained import MODELS, TEXT, V, logits, our_model, random_model, some_tokens

from lengthgen.errors import UserError
from lengthgen.hub import imported
from lengthgen.runs import directory

pytestmark = pytest.mark.slow
transformers: Any = pytest.importorskip("transformers")

N = 3  # layers
FAMILIES: dict[str, list[dict[str, Any]]] = {}
for name, keys in MODELS.items():
    if "without a length" in name:
        continue
    layers = {"num_hidden_layers": N} if "num_hidden_layers" in keys else {}
    FAMILIES.setdefault(name.split()[0], []).append({**keys, **layers})
for keys in FAMILIES["falcon"]:
    keys["max_position_embeddings"] = 64  # else 2048
ROWS = {"pad_token_id": None, "vocab_size": V}
ENDS = ("gpt2", "opt", "mpt")  # at T
BAND = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
FACTORS = {"short_factor": [1.1] * 6, "long_factor": [2.0, 3, 4, 5, 6, 6]}
SLIDING, FULL = "sliding_attention", "full_attention"
ROPES: list[Any] = [
    None,
    {"rope_type": "default", "rope_theta": 300.0},
    {"rope_type": "default", "factor": 2.0},
    {"type": "linear", "factor": 2.0},
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0, "partial_rotary_factor": 0.5},
    {"rope_type": "dynamic", "factor": 3.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7},
    {"rope_type": "llama3", "factor": 4.0, **BAND},
    {"rope_type": "longrope", "factor": 4.0, **FACTORS, "original_max_position_embeddings": 16},
    {"type": "su", **FACTORS},
    {FULL: {"rope_type": "linear", "factor": 2.0}, SLIDING: {"rope_type": "default"}},
    {FULL: {"rope_theta": 900.0}, SLIDING: {"rope_type": "linear", "factor": 2.0}},
]
BOOL = [False, True, None]
ACTS = ["gelu", "silu", "relu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu"]
POOL: dict[str, list[Any]] = {  # of all families, for all of them
    **{"rope_scaling": ROPES, "rope_parameters": ROPES, "rope_theta": [300.0, 10000, None]},
    **{"rotary_emb_base": [300.0], "rotary_pct": [0.5, 1.0], "partial_rotary_factor": [0.5, 1, 0]},
    **{"rope_local_base_freq": [300.0], "original_max_position_embeddings": [16, 64, None]},
    **{"head_dim": [8, 12, 16, None], "num_key_value_heads": [1, 3, None], "num_kv_heads": [1, 3]},
    **{"sliding_window": [9, 4096, None, 0], "use_sliding_window": BOOL, "max_window_layers": [1]},
    **{"layer_types": [[SLIDING, FULL, SLIDING], [FULL] * N, None, [FULL]]},
    **{"sliding_window_pattern": [2, 3, 0], "_sliding_window_pattern": [2]},
    **{"no_rope_layers": [[1, 0, 1], [0, 0, 0], None], "no_rope_layer_interval": [2]},
    **{"is_causal": BOOL, "use_bidirectional_attention": BOOL, "is_decoder": BOOL},
    **{"is_encoder_decoder": [False], "add_cross_attention": [False], "attention_chunk_size": [8]},
    **{"attention_bias": BOOL, "mlp_bias": BOOL, "bias": BOOL, "use_qkv_bias": BOOL},
    **{"enable_bias": BOOL, "no_bias": BOOL, "lm_head_bias": BOOL, "qk_layernorm": BOOL},
    **{"tie_word_embeddings": BOOL, "use_parallel_residual": BOOL, "parallel_attn": BOOL},
    **{"multi_query": BOOL, "new_decoder_architecture": BOOL, "alibi": BOOL},
    **{"num_ln_in_parallel_attn": [1, 2, None], "do_layer_norm_before": BOOL},
    **{"hidden_act": ACTS, "activation_function": ACTS, "hidden_activation": ACTS},
    **{"activation": ACTS, "rms_norm_eps": [1e-2], "layer_norm_eps": [1e-2]},
    **{"layer_norm_epsilon": [1e-2, None], "norm_epsilon": [1e-2], "logit_scale": [0.5, None, 0]},
    **{"logits_scaling": [2.0], "embedding_multiplier": [3.0], "residual_multiplier": [0.5]},
    **{"attention_multiplier": [0.5], "query_pre_attn_scalar": [100, 400], "clip_qkv": [1.0, None]},
    **{"final_logit_softcapping": [3.0, None], "attn_logit_softcapping": [3.0, None]},
    **{"scale_attn_weights": BOOL, "scale_attn_by_inverse_layer_idx": BOOL},
    **{"reorder_and_upcast_attn": BOOL, "n_inner": [40, None], "ffn_hidden_size": [40, None]},
    **{"word_embed_proj_dim": [36, 24, None], "_remove_final_layer_norm": BOOL},
    **{"layer_norm_elementwise_affine": BOOL, "apply_residual_connection_post_layernorm": BOOL},
    **{"expansion_ratio": [2, 4], "slow_but_exact": BOOL, "pretraining_tp": [2]},
    "attn_config": [
        {"alibi": False},
        {"clip_qkv": 0.5},
        {"softmax_scale": 0.5},
        {"softmax_scale": 0},
        {"alibi_bias_max": 4, "attn_type": "multihead_attention"},
        {"qk_ln": True, "prefix_lm": True},
        {"attn_pdrop": 0, "attn_uses_sequence_id": False},
        None,
    ],
    **{"max_position_embeddings": [16, 64], "attention_dropout": [0.5], "use_cache": [False]},
    **{"rope_interleaved": BOOL, "use_mrope": BOOL, "quantization_config": [None], "n_embed": [36]},
    **{"order_of_interleaved_layers": ["local_attn_first", "global_attn_first"]},
    **{"layer_switch": [2, 4], "pad_token_id": [3], "init_std": [1.0], "unheard_of": [None, 0, 1]},
}


def drawn(kind: str, draws: random.Random) -> dict[str, Any]:
    """Returns a config.json with one to three keys drawn, those of the family most often."""
    base = draws.choice(FAMILIES[kind])
    known = {*transformers.CONFIG_MAPPING[kind]().to_dict(), "rope_scaling", "rope_theta"}
    own = [key for key in POOL if key in known]
    plain: dict[str, Any] = {**base, **ROWS, "model_type": kind}
    for _ in range(draws.choice([1, 2, 2, 3])):
        key = draws.choice(own if draws.random() < 0.7 else [*POOL])
        plain[key] = draws.choice(POOL[key])
    return json.loads(json.dumps(plain))


def save(plain: dict[str, Any], folder: Path) -> Any:
    """Writes a folder of this config.json with random weights; returns the model, None if none."""
    given = {key: value for key, value in plain.items() if key != "model_type"}
    try:
        warnings.simplefilter("ignore")  # until the end of the test
        config = transformers.CONFIG_MAPPING[plain["model_type"]](**json.loads(json.dumps(given)))
        model = random_model(config)
    except Exception as error:
        print(plain, type(error).__name__, error)
        return None
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(plain))
    return model


def differs(
    plain: dict[str, Any], folder: Path, *, without: pytest.MonkeyPatch | None = None
) -> str | None:
    """Returns why the import of a folder was refused, None if it has the logits of the model.

    Raises AssertionError if it has others. `without`: hides transformers from the import.
    """
    theirs = save(plain, folder)
    if theirs is None:
        return "transformers refuses it"
    how: Any = {"name": "drawn", "length": None, "say": list[str]().append}
    how["overrides"] = [*TEXT, f"runtime.root={folder.parent}"]
    try:
        if without is not None:
            without.setitem(sys.modules, "transformers", None)
        run_dir = imported.import_model(str(folder), **how)
    except UserError as error:
        return str(error)
    finally:
        if without is not None:
            without.undo()
    theirs, ours = theirs.double(), our_model(run_dir).double()  # rounding aside
    T = directory.load_config(run_dir).train.length
    for length in (7, T, T if plain["model_type"] in ENDS else 2 * T):
        want = logits(theirs, some_tokens(length))
        difference = float((logits(ours, some_tokens(length)) - want).abs().max())
        assert difference <= 1e-5 * max(1, float(want.std())), (plain, length, difference)
    return None


@pytest.fixture
def folders(tmp_path: Path, tokenizer: tokenizers.Tokenizer) -> Iterator[Path]:
    """Folders to save into, which have a tokenizer."""

    def made() -> Iterator[Path]:
        for i in range(1000):
            folder = tmp_path / f"{i}/theirs"
            folder.mkdir(parents=True)
            tokenizer.save(str(folder / "tokenizer.json"))
            yield folder

    return made()


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_drawn_configuration_has_the_logits_of_transformers_or_is_one_line(
    kind: str, folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = random.Random(kind)
    for plain in FAMILIES[kind]:
        assert differs({**plain, **ROWS, "model_type": kind}, next(folders)) is None
    for without in [None] * 6 + [monkeypatch] * 4:
        differs(drawn(kind, draws), next(folders), without=without)
