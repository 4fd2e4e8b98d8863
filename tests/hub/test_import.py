"""Imported models: the logits of transformers, and runs like any other."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from commands import here
from hub_stub import with_hub
from pretrained import MODELS, TEXT, T, V, logits, our_model, rope, some_tokens, their_model
from safetensors.torch import load_file, save_file, save_model
from small import close, experiment_of, refusal, varied
from small_corpora import load_tokens, write
from torch import Tensor
from trained import rows_of

from lengthgen.config import conf
from lengthgen.files import POINTER
from lengthgen.hub import imported
from lengthgen.hub.exported import load_exported
from lengthgen.hub.families import Read, read_config
from lengthgen.hub.folder import export
from lengthgen.hub.reference import reference
from lengthgen.model.kv_cache import forward_cached, why_uncached
from lengthgen.runs import directory

transformers: Any = pytest.importorskip("transformers")


@pytest.fixture
def save(tmp_path: Path, tokenizer: tokenizers.Tokenizer) -> Callable[..., Path]:
    """Writes a model of transformers with a tokenizer into a folder of its own."""

    def write(model: Any, **how: Any) -> Path:
        folder = tmp_path / "theirs"
        model.save_pretrained(folder, **how)
        tokenizer.save(str(folder / "tokenizer.json"))
        return folder

    return write


def run_of(folder: Path, *words: str, length: int | None = None) -> Path:
    root = f"runtime.root={folder.parent / 'runs'}"
    how: Any = {"name": None, "length": length, "say": print}
    return imported.import_model(str(folder), overrides=[*TEXT, root, *words], **how)


# Of each family, and of each option that makes another of them: what is exported again.
ROUND = ["llama tied", "gpt_neox tied", "gpt2", "bloom", "bloom without a length", "mpt"]


@pytest.mark.parametrize("name", MODELS)
def test_an_imported_model_has_the_logits_of_its_family_decodes_them_and_goes_back_to_it(
    name: str, save: Callable[..., Path], tmp_path: Path
) -> None:
    theirs = their_model(name)
    run_dir = run_of(save(theirs), length=T if "without a length" in name else None)
    ours = our_model(run_dir)
    lengths = [1, 7, T] if name in ("gpt2", "opt", "mpt") else [1, 7, T, 4 * T]
    # MPT of transformers ends at T, and dynamic scaling there remembers the longest call.
    wanted = {length: logits(theirs, some_tokens(length)) for length in lengths}
    for length, want in wanted.items():
        close(logits(ours, some_tokens(length)), want, atol=1e-5)
    assert (ours.scheme.unsupported_reason(T + 1) is None) == (name not in ("gpt2", "opt"))
    tokens, cache = some_tokens(T), None
    for n in range(T):
        cache = forward_cached(ours, tokens[:, n : n + 1], cache, seed=0, precision="fp32")
    assert cache is not None
    assert bool(cache.layers) == (why_uncached(ours.scheme) is None)
    close(cache.logits_BV, wanted[T][:, -1], atol=1e-5)
    if name in ROUND:
        config = directory.load_config(run_dir)
        folder = export(experiment_of(config), run_dir, tmp_path / "again", license=None, say=print)
        again = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        assert type(again) is type(theirs)
        close(logits(again, some_tokens(T)), wanted[T], atol=1e-6)
        close(logits(load_exported(folder)[0], some_tokens(T)), wanted[T], atol=1e-5)


def test_interpolation_of_an_interpolated_model_scales_again(save: Callable[..., Path]) -> None:
    theirs = their_model("llama linear")
    twice = their_model("llama linear", **rope("linear", factor=4.0))
    run_dir = run_of(save(theirs))
    ours, config = our_model(run_dir), directory.load_config(run_dir)
    ours.scheme = varied(ours, config, "pi")
    for model, length in ((theirs, 7), (theirs, T), (twice, 2 * T)):
        close(logits(ours, some_tokens(length)), logits(model, some_tokens(length)), atol=1e-5)


def shards_in_bf16(save: Callable[..., Path]) -> Path:
    folder = save(their_model("llama").bfloat16(), max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def one_file_beside_shards(save: Callable[..., Path]) -> Path:
    folder, theirs = save(their_model("llama"), max_shard_size="20KB"), their_model("llama")
    theirs.state_dict()["model.norm.weight"].mul_(2)
    save_file({k: v.contiguous() for k, v in theirs.state_dict().items()}, folder / MODEL)
    (folder / "pytorch_model.bin").write_bytes(b"")
    return folder


def tied_under_one_name(save: Callable[..., Path]) -> Path:
    theirs = their_model("llama tied")
    folder = save(theirs)
    save_model(theirs, str(folder / MODEL), metadata={"format": "pt"})
    assert "model.embed_tokens.weight" not in load_file(folder / MODEL)
    return folder


def keys_twice(save: Callable[..., Path]) -> Path:
    folder = save(their_model("llama linear"))
    default = {"rope_type": "default", "rope_theta": 500.0}
    config(rope_parameters=default, rope_scaling={"type": "linear", "factor": 4.0})(folder)
    return folder


def keys_of_before(save: Callable[..., Path]) -> Path:
    folder = save(their_model("llama yarn"))
    new = json.loads((folder / "config.json").read_text())["rope_parameters"]
    base, scaling = new.pop("rope_theta"), {"type": new.pop("rope_type"), **new}
    config(rope_parameters=None, rope_theta=base, rope_scaling=scaling)(folder)
    return folder


def layers_of_before(save: Callable[..., Path]) -> Path:
    folder = save(their_model("qwen2 window"))
    config(layer_types=None)(folder)  # the class makes them of max_window_layers
    return folder


@pytest.mark.parametrize(
    "laid",
    [
        *(shards_in_bf16, one_file_beside_shards, tied_under_one_name),
        *(keys_twice, keys_of_before, layers_of_before),
    ],
)
def test_a_folder_is_the_model_that_transformers_takes_it_for(
    laid: Callable[..., Path], save: Callable[..., Path]
) -> None:
    folder = laid(save)
    read = transformers.AutoModelForCausalLM.from_pretrained
    theirs, ours = read(folder, dtype=torch.float32).eval(), our_model(run_of(folder))
    for tokens in map(some_tokens, (T, 2 * T)):
        close(logits(ours, tokens), logits(theirs, tokens), atol=1e-5)


def test_rows_beyond_the_ids_and_a_bos_token_are_kept(save: Callable[..., Path]) -> None:
    folder = save(their_model("gpt2", vocab_size=V + 16, n_layer=1))
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    run_dir = run_of(folder)
    config = directory.load_config(run_dir)
    corpus = load_tokens(config.corpus, cache_dir=config.runtime.cache_dir, say=print)
    assert (corpus.vocab_size, corpus.bos_id) == (tokenizer.get_vocab_size(), 0)
    assert our_model(run_dir).embedding.num_embeddings == V + 16 > corpus.vocab_size


def test_only_validation_text_is_read_for_an_imported_model_unless_overlaps_are_asked_for(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    text = {"train/a.txt": b"not UTF-8: \xff", "validation/a.txt": b"the quick brown fox " * 99}
    corpus = ["corpus=files", f"corpus.path={write(tmp_path / 'texts', text)}"]
    sizes = [word for word in TEXT if not word.startswith("corpus")]
    root = f"runtime.root={tmp_path / 'runs'}"
    run_dir = here("import", str(save(their_model("llama"))), *corpus, *sizes, root).out.strip()
    ran = here("eval", *words(Path(run_dir)))
    assert ran.code == 0, ran
    assert {row["length"] for row in rows_of(Path(run_dir) / "eval.jsonl")} == {16, 32, 64}
    assert "is not UTF-8" in here("eval", *words(Path(run_dir)), "eval.deduplicate=true").error
    error = here("eval", *words(Path(run_dir)), "--lengths=9999").error
    assert "corpus files has validation documents of up to" in error
    assert "or import with corpus.packed=true" in error
    long = [*corpus, *sizes, "eval.lengths=[9999]", f"runtime.root={tmp_path / 'long'}"]
    run_dir = Path(here("import", str(tmp_path / "theirs"), *long).out.strip())
    assert here("generate", *words(run_dir), "--prompt=the", "--tokens=2").out.startswith("the")


def test_the_window_of_a_model_itself_has_no_reference(save: Callable[..., Path]) -> None:
    config = directory.load_config(run_of(save(their_model("mistral"))))
    assert "window" in config.scheme.parts
    assert config.eval.reference_variants == []


def words(run_dir: Path, *more: str) -> list[str]:
    return [str(run_dir), "runtime.threads=1", *more]


@pytest.mark.slow
def test_an_imported_model_is_evaluated_reported_probed_continued_exported_and_trained_further(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    folder = save(their_model("llama", bos_token_id=1, eos_token_id=[3, 4], pad_token_id=2))
    root = f"runtime.root={tmp_path / 'runs'}"
    ran = here("import", str(folder), "--name=theirs v1", *TEXT, root)
    assert ran.code == 0, ran
    run_dir = Path(ran.out.strip())
    assert run_dir.name.startswith("theirs_v1-synthetic-s1-")
    again = here("import", str(folder), "--name=theirs v1", *TEXT, root)
    assert (again.out, "stay" in again.err) == (ran.out, False)
    again = here("import", str(folder), "--name=theirs v1", *TEXT, root, "eval.targets=4")
    assert "its eval.* and runtime.* stay, give others to lengthgen eval" in again.err
    shown = here("show", root).out.splitlines()
    (line,) = [line for line in shown if line.startswith("lengthgen ")]
    assert line.startswith(f"lengthgen import {folder} --name=theirs_v1 --length={T} corpus=")
    assert here(*shlex.split(line)[1:], root).out == ran.out
    (listed,) = json.loads(here("list", "runs", root, "--json").out)
    assert (listed["run"], listed["state"]) == (run_dir.name, "done")
    assert "theirs_v1 + ntk" in here("eval", *words(run_dir), "--variants=ntk").out
    rows = rows_of(run_dir / "eval.jsonl")
    assert {row["length"] for row in rows} == {16, 32, 64}
    assert {row["trained_in"] for row in rows} == {None}  # not known of an imported model
    assert "theirs_v1" in here("report", str(run_dir), f"--out={tmp_path / 'report'}").out
    assert here("probe", *words(run_dir), "--probes=attention").code == 0
    continued = here("generate", *words(run_dir), "--prompt=the fox", "--tokens=4")
    assert continued.out.startswith("the fox")
    assert here("export", *words(run_dir), str(tmp_path / "export")).code == 0
    ours = logits(load_exported(tmp_path / "export")[0], some_tokens(T))
    assert torch.equal(ours, logits(our_model(run_dir), some_tokens(T)))
    further = ["train.tokens=64", "train.length=16", "train.batch_tokens=32", "eval.lengths=[16]"]
    further.append("eval.precision=fp32")  # an import has that of this machine
    config_dir = f"--config-dir={run_dir / 'conf'}"
    ran = here("train", config_dir, *TEXT, "study=theirs_v1", root, *further)
    given = conf.read_yaml(run_dir / "conf/study/theirs_v1.yaml")["train"]
    assert (given["lr"], given["batch_tokens"]) == (1e-4, 4096)
    begins = "begins with the weights of " + run_dir.name
    assert begins in ran.err, ran
    assert here("train", f"--from={run_dir}", *further, root).out == ran.out  # the same run
    ran = here("train", f"train.init_from={run_dir}", *TEXT, root)
    assert f"; give {config_dir.replace('=', ' ')} study=theirs_v1" in ran.error
    moved = (tmp_path / "runs").rename(tmp_path / "moved") / run_dir.name
    assert here("eval", *words(moved), "--lengths=24").code == 0


def config(**changes: Any) -> Callable[[Path], Any]:
    """Returns what gives config.json other values."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def weights(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], Any]:
    def changed(folder: Path) -> None:
        tensors = load_file(folder / MODEL)
        change(tensors)
        save_file(tensors, folder / MODEL)

    return changed


MODEL = "model.safetensors"
INDEX = json.dumps({"weight_map": {"lm_head.weight": "model-2.safetensors"}})
AXIAL, MORE = {"rope_type": "axial"}, {"rope_theta": 9.0, "mrope_section": [2]}
GATE = {"model.gate": torch.ones(2)}
HEAD, KEYS = "lm_head.weight", "model.layers.0.self_attn.k_proj.weight"


def transposed(w: dict[str, Tensor]) -> None:
    w[KEYS] = w[KEYS].T.contiguous()


def scalar(w: dict[str, Tensor]) -> None:
    w["model.norm.weight"] = torch.tensor(1.0)


def quantised(w: dict[str, Tensor]) -> None:
    w[f"{HEAD}_scale"] = w[HEAD].abs().amax(1, keepdim=True)
    w[HEAD] = (w[HEAD] / w[f"{HEAD}_scale"]).to(torch.float8_e4m3fn)


def written(name: str, text: str | bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(
        text if isinstance(text, bytes) else text.encode()
    )


def sharded(index: str) -> Callable[[Path], Any]:
    """Returns what makes model.safetensors a shard that this index names, or does not."""

    def change(folder: Path) -> None:
        (folder / MODEL).rename(folder / "model-1.safetensors")
        (folder / f"{MODEL}.index.json").write_text(index)

    return change


def far_id(folder: Path) -> None:
    path = folder / "tokenizer.json"
    plain = json.loads(path.read_text())
    plain["model"]["vocab"]["far"] = 2**31 - 1
    path.write_text(json.dumps(plain))


BAD: list[tuple[Callable[[Path], Any], str]] = [
    (lambda f: (f / "config.json").unlink(), "is no folder with a config.json"),
    (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
    (lambda f: os.truncate(f / MODEL, 9_000), "model.safetensors is damaged or cut short"),
    (sharded(INDEX), "has no model-2.safetensors, which"),
    (sharded('{"weight_map": {"a": "../model.safetensors"}}'), "has no model.safetensors, which"),
    (written("adapter_config.json", "{}"), "adapter_config.json and model.safetensors are two mod"),
    (written("config.json", "[" * 9999), "config.json cannot be read"),
    (config(num_hidden_layers=10**12), "num_hidden_layers=1000000000000 is above 1024"),
    (config(vocab_size=2**20), "config.json asks for 37,754,784 numbers"),
    (config(max_position_embeddings=0), "max_position_embeddings=0 is no trained length"),
    (config(rope_parameters={"rope_theta": {}}), "does not fit model_type=llama"),
    (config(is_causal=False), "is_causal=False has no counterpart"),
    (config(transformers_weights="other.safetensors"), "transformers_weights='other.safetensors"),
    (config(unheard_of=None), "unheard_of=None has no counterpart"),
    (config(layer_types=["full_attention"] * 3), "layer_types=["),
    (far_id, "tokenizer.json has an id of 2147483647, more than 16777216"),
    (weights(lambda w: w[HEAD].fill_(torch.nan)), "lm_head.weight has numbers that are not finite"),
    (weights(lambda w: w.update({HEAD: w[HEAD].char()})), "lm_head.weight is of I8, not a float"),
    (
        weights(lambda w: w.update({"norm.weight": w["model.norm.weight"].clone()})),
        "norm.weight are one weight",
    ),
    (lambda f: (f / MODEL).rename(f / "pytorch_model.bin"), "has no model.safetensors: another fo"),
    (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer.json"),
    (config(vocab_size=99), "ids and the embedding 99 rows"),
    (config(model_type="mamba"), "no model_type='mamba' here"),
    (config(final_logit_softcapping=30.0), "final_logit_softcapping=30.0"),
    (config(hidden_act="relu2"), "hidden_act='relu2'"),
    (config(rope_parameters=AXIAL), "rope_type='axial' has no counterpart"),
    (config(rope_parameters=MORE), "mrope_section=[2] has no counterpart"),
    (config(num_hidden_layers="3"), "expected int, got str"),
    (config(intermediate_size=60), "[56, 36] give [112, 36], and config.json asks for [120, 36]"),
    (weights(lambda w: w.pop("model.norm.weight")), "has no weight norm.weight; download it again"),
    (weights(transposed), "k_proj.weight [36, 12], layers.0.self_attn.v_proj.weight [12, 36] give"),
    (weights(scalar), "norm.weight [] gives [0], and config.json asks for [36]"),
    (weights(quantised), "lm_head.weight is of F8_E4M3, not a float; download it again, or import"),
    (written(MODEL, POINTER), "model.safetensors is a pointer of Git LFS; fetch the file"),
    (written("tokenizer.json", POINTER), "tokenizer.json is a pointer of Git LFS; fetch the file"),
    (weights(lambda w: w.update(GATE)), "gate (1 in all) has no counterpart"),
    (config(tie_word_embeddings=True), "if it is the head, give tie_word_embeddings=false"),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, tokenizer: tokenizers.Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("good")
    their_model("llama").save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(("damage", "message"), BAD)
def test_what_is_missing_damaged_or_another_model_is_one_line_and_leaves_nothing(
    damage: Callable[[Path], Any], message: str, good: Path, tmp_path: Path
) -> None:
    shutil.copytree(good, tmp_path / "theirs")
    damage(tmp_path / "theirs")
    ran = here("import", str(tmp_path / "theirs"), *TEXT, f"runtime.root={tmp_path / 'runs'}")
    assert message in ran.error
    assert not (tmp_path / "runs").exists()


def test_a_model_is_named_by_its_folder_whatever_that_is_called(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shutil.copytree(good, tmp_path / ".theirs v1.0"))
    assert "/_theirs_v1.0-" in here("import", ".", *TEXT, f"runtime.root={tmp_path}").out
    ran = here("import", ".", "--name=1e5", *TEXT, f"runtime.root={tmp_path}")
    assert "/_1e5-" in ran.out  # since study=1e5 is no word
    monkeypatch.chdir(Path.cwd().rename(tmp_path / "\u6a21\u578b 7B"))
    ran = here("import", ".", *TEXT, f"runtime.root={tmp_path}")
    assert "\u6a21\u578b cannot stand in the name of a run; give --name" in ran.error


PUBLISHED: dict[str, dict[str, Any]] = {  # keys of models on the Hub that change nothing
    "bloom": {"offset_alibi": 100, "skip_bias_add": True, "slow_but_exact": False},
    "mpt": {"init_config": {"init_gain": 0}, "tokenizer_name": "EleutherAI/gpt-neox-20b"},
    "llama": {"is_llama_config": True, "rope_interleaved": False, "use_mrope": False},
    "gpt2": {"n_ctx": 1024, "n_special": 0, "task_specific_params": {"text": {}}},
    "falcon": {"apply_residual_connection_post_layernorm": False, "ff_factor": 4},
    "cohere2": {
        **{"cache_implementation": "hybrid", "layer_switch": 4, "rotary_pct": 1.0},
        **{"order_of_interleaved_layers": "local_attn_first", "use_gated_activation": True},
        **{"position_embedding_type": "rope_gptj", "use_embedding_sharing": True},
        **{"use_parallel_block": True, "use_parallel_embedding": True, "sliding_window": 9},
    },
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_keys_of_published_models_that_change_nothing_are_passed_over(kind: str) -> None:
    plain = {**MODELS[kind], "model_type": kind}

    def ours(plain: dict[str, Any]) -> Read:
        theirs = reference(plain, where=Path())
        assert theirs is not None
        return read_config(theirs.keys, T, where=Path(), usual=theirs.usual)

    assert ours({**plain, **PUBLISHED[kind]}) == ours(plain)
    if kind == "cohere2":
        other = {**plain, "order_of_interleaved_layers": "global_attn_first"}
        assert "order_of_interleaved_layers='global" in refusal(ours, other)


def nan(x: torch.Tensor) -> torch.Tensor:
    return x * torch.nan


@pytest.mark.parametrize("other", [torch.clone, nan])
def test_weights_that_compute_something_else_in_transformers_are_refused(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, other: Any
) -> None:
    folder = save(their_model("llama"))
    monkeypatch.setattr(transformers.models.llama.modeling_llama, "rotate_half", other)
    assert "differ by" in refusal(run_of, folder)
    assert not (folder.parent / "runs").exists()


def test_without_transformers_a_line_says_so_and_what_only_it_can_settle_is_refused(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = their_model("llama linear")
    folder, said = save(theirs), list[str]()
    monkeypatch.setitem(sys.modules, "transformers", None)
    how: Any = {"name": None, "length": None, "say": said.append}
    words = [*TEXT, f"runtime.root={folder.parent / 'runs'}"]
    run_dir = imported.import_model(str(folder), overrides=words, **how)
    assert said[0].endswith("pip install 'lengthgen[transformers]'")
    close(logits(our_model(run_dir), some_tokens(T)), logits(theirs, some_tokens(T)), atol=1e-5)
    config(rope_theta=7.0)(folder)
    assert "rope_theta at the top and below: 7.0 and 500.0" in refusal(run_of, folder)


@pytest.mark.parametrize(
    ("path", "message"),
    [("bookz", "bookz does not exist; did you mean books?"), ("books", "text_column to one of: t")],
)
def test_a_corpus_that_cannot_be_read_is_one_line_and_leaves_nothing(
    path: str, message: str, good: Path, tmp_path: Path
) -> None:
    write(tmp_path / "books", {"a.txt": b"text", "b.jsonl": b'{"t": "text"}'})
    corpus = ["corpus=files", f"corpus.path={tmp_path / path}", f"runtime.root={tmp_path / 'runs'}"]
    assert message in here("import", str(good), *corpus).error
    assert not (tmp_path / "runs").exists()


def test_a_trained_length_that_is_wrong_or_missing_is_one_line(save: Callable[..., Path]) -> None:
    said = refusal(run_of, save(their_model("gpt2")), length=16)
    assert said.endswith("--length=16: this model has 32 learned positions; drop it")
    said = refusal(run_of, save(their_model("bloom without a length")))
    assert said.endswith("config.json names no trained length; give --length")


@pytest.mark.slow
def test_a_name_of_the_hub_is_a_run_and_again_from_the_cache_where_it_does_not_answer(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    words = ["corpus=synthetic", f"runtime.root={tmp_path}/runs"]
    known, unknown = (["import", name, *words] for name in ("o/model", "o/none"))
    folders = {"o/model": save(their_model("llama"))}
    online, no_model, cached = with_hub(tmp_path / "cache", folders, [known, unknown], [known])
    assert online.out == cached.out != ""
    assert "o/none is no folder; it cannot be read from the Hub" in no_model.error
    assert "Repository Not Found" in no_model.error


def test_wrong_arguments_are_one_line() -> None:
    assert "give one folder or name" in here("import").error
    assert "takes corpus, eval.* and runtime.* alone" in here("import", "x", "seed=2").error
    assert "that of the model; drop it" in here("import", "x", "corpus.tokenizer=gpt2").error
    assert "is no folder with a config.json" in here("import", "nowhere").error
