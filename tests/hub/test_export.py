"""An exported model: loaded by the lines that its card shows, it is the run's own, to the bit."""

import json
import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from commands import Shell, here
from parts import SLOPE
from small import close, experiment_of, refusal, small_config
from small_corpora import load_tokens
from trained import QUIET, open_run, train_and_evaluate

from lengthgen.config.drafts import drafted
from lengthgen.config.schema import Config, to_plain
from lengthgen.data.tokenizer import read_tokenizer
from lengthgen.errors import UserError
from lengthgen.experiment import of_run
from lengthgen.hub.card import to_share
from lengthgen.hub.exported import load_exported
from lengthgen.hub.folder import export
from lengthgen.model.build import generator_of
from lengthgen.runs import checkpoints, status
from lengthgen.runs.directory import load_config

pytestmark = pytest.mark.slow
transformers: Any = pytest.importorskip("transformers")
MODULES = "transformers.dynamic_module_utils.HF_MODULES_CACHE"  # where code that is loaded goes

TEXT = "def main():"  # what the card's lines encode
LLAMA = ["model.norm=rms", "model.mlp=swiglu", "model.n_kv_heads=2"]
YARN = "+scheme.parts.yarn={factor: 4.0, beta_fast: 32.0, beta_slow: 1.0}"
OWN = "lengthgen"
CHOSEN = {  # the family that fits, or the layout of lengthgen itself
    "rotary": ("gpt_neox", ["scheme=rope"]),
    "without bos": ("gpt_neox", ["scheme=rope", "corpus.bos=false", "model.tied_head=false"]),
    "rotary, Llama": ("llama", ["scheme=rope", YARN, *LLAMA]),
    "stretched": ("gpt_neox", ["scheme=rope", "+scheme.parts.dynamic_ntk={factor: 2.0}"]),
    "nope": ("gpt_neox", ["scheme=nope", "model.biases=[mlp]"]),
    "nope, Llama": ("smollm3", ["scheme=nope", *LLAMA]),
    "alibi": ("mpt", ["scheme=alibi", "model.d_ff=128", "model.n_heads=1"]),
    "sinusoidal": (OWN, ["scheme=sinusoidal", "model.mlp=relu"]),
    "clamped": (OWN, ["scheme=learned_absolute", "scheme.parts.learned_absolute.beyond=clamp"]),
    "learned": ("gpt2", ["scheme=learned_absolute", "model.biases=[norm,qkv]"]),
    "bpe": (OWN, ["scheme=alibi", "corpus.tokenizer=bpe", "corpus.vocab_size=300"]),
    "sampled": (OWN, ["scheme=randomized_rope", "eval.seed=3"]),
    "constants": (OWN, ["scheme=fope"]),
    "in some layers": (OWN, ["scheme=rnope_swa"]),
    "plugin": (OWN, ["scheme=nope", "+scheme.parts.slope={}"]),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Config]:
    """The configurations of trained runs under one root."""
    root = tmp_path_factory.mktemp("trained")
    (root / "mine.py").write_text(SLOPE.format(slope=0.25))
    found: dict[str, Config] = {}
    for name, (_, overrides) in CHOSEN.items():
        files = [root / "mine.py"] if name == "plugin" else []
        shorter = ["train.tokens=256", "eval.lengths=[16]"]  # of all but one the weights will do
        size = [] if name == "rotary" else shorter
        found[name] = small_config(f"runtime.root={root}/runs", *overrides, *size, plugins=files)
        train_and_evaluate(found[name])
    return found


def exported(config: Config, folder: Path) -> Path:
    kept = [config.run_dir / f"plugins/{digest}.py" for digest in config.plugins]
    read = of_run(config.run_dir, plugins=kept)
    return export(read, config.run_dir, folder, license=None, say=QUIET.say)


@pytest.fixture
def run(trained: dict[str, Config], tmp_path: Path) -> Config:
    """A run of one's own to change."""
    config = trained["rotary"]
    root = tmp_path / "runs"
    shutil.copytree(config.run_dir, root / config.run_id)
    runtime = config.runtime.model_copy(update={"root": root})
    return config.model_copy(update={"runtime": runtime})


def test_nothing_is_copied_that_a_link_beside_the_plugins_points_to(
    trained: dict[str, Config], tmp_path: Path
) -> None:
    config, secret = trained["plugin"], tmp_path / "secret.py"
    root = shutil.copytree(config.run_dir.parent, tmp_path / "runs")
    secret.write_text("secret")
    (kept,) = (root / config.run_id / "plugins").iterdir()
    kept.with_name("other.py").symlink_to(secret)
    kept.unlink()
    kept.symlink_to(secret)
    given = experiment_of(config)
    folder = export(given, root / config.run_id, tmp_path / "model", license=None, say=QUIET.say)
    (copied,) = (folder / "plugins").iterdir()
    assert copied.read_text() == SLOPE.format(slope=0.25)


def test_a_killed_export_is_cleared_by_the_next_one_and_that_of_a_living_process_is_not(
    run: Config, tmp_path: Path
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f".model.{ended.pid}", f".model.{os.getppid()}", f".other.{ended.pid}"):
        (tmp_path / name).mkdir()
    exported(run, tmp_path / "model")
    left = {path.name for path in tmp_path.glob(".*")}
    assert left == {f".model.{os.getppid()}", f".other.{ended.pid}"}


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text()


@pytest.mark.parametrize("name", CHOSEN)
def test_the_lines_of_the_card_give_the_tokens_of_training_and_the_runs_own_logits(
    name: str, trained: dict[str, Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, (kind, _) = trained[name], CHOSEN[name]
    folder = exported(config, tmp_path / "run" / "model")
    shutil.move(folder, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MODULES, str(tmp_path))
    plain = json.loads(Path("model/config.json").read_text())
    assert plain["model_type"] == kind
    if name == "stretched":  # transformers would warn of it
        assert "original_max_position_embeddings" not in plain["rope_parameters"]
    opened = open_run(config, config.run_dir)
    torch.set_num_threads(1)  # how sums are divided rounds them
    model, corpus = opened.model.requires_grad_(False), opened.plan.corpus
    tokenizer = read_tokenizer(corpus.tokenizer_path)
    front = [] if corpus.bos_id is None else [corpus.bos_id]
    tokens = torch.tensor([front + tokenizer.encode(TEXT, add_special_tokens=False).ids])
    want = model.logits(model(tokens, generator=generator_of("evaluation", config.eval.seed)))
    assert want.std() > 0.1
    ids = corpus.train.document(0)[:20].tolist()
    text = tokenizer.decode(ids)
    *theirs, ours = re.findall(r"```python\n(.*?)```", card_of(Path("model")), re.DOTALL)
    assert len(theirs) == (name != "plugin")
    if name == "plugin":  # whose code runs if the caller names it, as the lines do
        (code,) = Path("model/plugins").iterdir()
        assert code.read_text() == SLOPE.format(slope=0.25)
        with pytest.raises(UserError, match=f"a plugin is needed; .* --plugin {code}"):
            load_exported(Path("model"))
    own = names_of(ours)
    assert torch.equal(own["logits"], want)
    assert own["tokenizer"].encode(text).ids == front + ids
    assert own["tokenizer"].decode(front + ids) == text
    tokens = torch.randint(200, (2, 16 if kind == "gpt2" else 64))
    model = own["model"].double()  # rounding aside; transformers computes angles in fp32
    longer = model.logits(model(tokens, generator=generator_of("evaluation", config.eval.seed)))
    for lines in theirs:  # not of a plugin
        assert ("trust_remote_code" in lines) == (kind == OWN)
        names = names_of(lines)
        close(names["logits"].detach(), want, atol=1e-5)
        assert names["tokenizer"](text)["input_ids"] == front + ids
        special = names["tokenizer"].bos_token_id, names["tokenizer"].eos_token_id
        assert special == (corpus.bos_id, corpus.bos_id)
        close(names["model"].double()(tokens).logits.detach(), longer, atol=1e-5)


def names_of(lines: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(lines, names)
    return names


def test_the_own_layout_generates_and_refuses_what_would_move_positions(
    trained: dict[str, Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULES, str(tmp_path / "modules"))
    folder = exported(trained["bpe"], tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    ids = torch.arange(6).view(2, 3)
    longer = model.generate(ids, max_new_tokens=9, do_sample=False, eos_token_id=None)
    assert (longer[:, :3] == ids).all()
    out = model(longer, labels=longer)
    assert torch.equal(out.logits[:, 2:-1].argmax(-1), longer[:, 3:])
    assert out.loss > 0
    with pytest.raises(ValueError, match="pad on the right"):
        model(ids, attention_mask=torch.tensor([[0, 1, 1], [1, 1, 1]]))
    padded = torch.tensor([[1, 1, 0], [1, 1, 1]])
    for kind in (torch.int64, torch.bool, torch.uint8):
        model(ids, attention_mask=padded.to(kind))
    with pytest.raises(ValueError, match="generate from one text a call"):
        model.generate(ids, attention_mask=padded, max_new_tokens=1)


def about_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())["lengthgen"]


def test_the_card_says_what_was_trained_and_no_machine(run: Config, tmp_path: Path) -> None:
    folder = exported(run, tmp_path / "model")
    card, about = card_of(folder), about_of(folder)
    assert about["config"].keys() == {"seed", "scheme", "variants", "model", "corpus", "train"}
    assert str(run.runtime.root) not in card + json.dumps(about)
    corpus = load_tokens(run.corpus, cache_dir=run.runtime.cache_dir, say=QUIET.say)
    assert re.search(r"\| rope +\| +1 \|( *\d+\.\d+ \|)+", card)
    assert f"# {run.run_id}\n" in card
    about_card: Any = huggingface_hub.ModelCard(card).data
    results = about_card.eval_results
    assert results
    (table,) = re.findall(r"\| rope +\| +1 \|((?: *\d+\.\d+ \|)+)", card)
    shown = [float(cell) for cell in re.findall(r"\d+\.\d+", table)]
    assert {round(result.metric_value, 2) for result in results} >= {*shown[: len(results)]}
    assert {result.dataset_name for result in results} == {"synthetic"}
    assert "trained at length T = 16 with the positional scheme `rope`" in card
    assert f"corpus `synthetic` (fingerprint `{corpus.fingerprint[:12]}`)" in card
    assert "1,024 tokens in windows of 16, seed 1" in card
    newest = checkpoints.newest(run.run_dir, run=run.run_id)
    assert newest is not None
    n_parameters = sum(tensor.numel() for tensor in newest.weights.values())
    assert f"model of {n_parameters:,} parameters" in card
    assert "unfinished" not in card
    training = card.partition("## Training")[2].partition("## Results")[0]
    settings = yaml.safe_load(textwrap.dedent(training.partition(".\n\n")[2]))
    want = {"name": "rope", "parts": run.scheme.parts, "layers": None, "lr_ratio": 1.0}
    assert settings["scheme"] == want
    assert settings["train"] == run.train.model_dump()


def test_what_is_shared_of_a_configuration_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    corpus = f"corpus.path=[{tmp_path}/a,{tmp_path}/b] corpus.tokenizer={tmp_path}/t.json".split()
    base = f"train.init_from={tmp_path}/base"
    shared = to_share(to_plain(drafted(["corpus=files", "corpus.name=mine", *corpus, base])))
    shown = {key: shared[key] for key in ("scheme", "model", "corpus", "train")}
    assert str(tmp_path) not in json.dumps(shown)
    assert (shared["corpus"]["path"], shared["train"]["init_from"]) == (["a", "b"], "base")


@pytest.mark.parametrize("name", ["alibi", "nope, Llama"])
def test_an_export_is_imported_with_its_scheme_and_trained_length_and_its_card_says_so(
    name: str, trained: dict[str, Config], tmp_path: Path
) -> None:
    config = trained[name]
    folder = exported(config, tmp_path / "model")
    ends = re.search(r"It takes texts of up to ([\d,]+) tokens", card_of(folder))
    assert (ends and ends[1]) == ("512" if name == "alibi" else None)  # 32 T of MPT
    ran = here("import", str(folder), "corpus=stdlib", f"runtime.root={tmp_path / 'runs'}")
    again = load_config(Path(ran.out.strip()))
    assert (again.scheme.name, again.train.length) == (config.scheme.name, config.train.length)
    assert here("export", ran.out.strip(), str(tmp_path / "again")).code == 0
    card = card_of(tmp_path / "again")
    assert "Imported from `model`; lengthgen has not trained it." in card
    assert str(tmp_path) not in card


def test_the_command_finds_a_run_by_name_and_says_that_it_is_unfinished(
    run: Config, tmp_path: Path, shell: Shell
) -> None:
    shutil.rmtree(status.checkpoint_folders(run.run_dir)[-1])
    (run.run_dir / "DONE").unlink()
    ran = shell.run("export", "rope", "model", "--license", "apache-2.0")
    assert (ran.code, ran.out) == (0, f"{tmp_path}/model\n")
    assert f"{run.run_id} is unfinished: this is step 6 of 8" in ran.err
    card = card_of(tmp_path / "model")
    said = yaml.safe_load(card.split("---\n", 2)[1])
    assert (said["library_name"], said["license"]) == ("transformers", "apache-2.0")
    assert "rope" in said["tags"]
    assert "It is unfinished: step 6 of 8." in card
    assert "Not measured." in card  # the rows are of the last checkpoint


def test_an_empty_folder_is_taken_and_a_file_is_no_folder(run: Config, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    folder = exported(run, tmp_path / "model")
    with pytest.raises(UserError, match=r"README.md/x: cannot be written \(Not a directory\)"):
        exported(run, folder / "README.md/x")


def changed(path: Path, **change: Any) -> None:
    path.write_text(json.dumps({"lengthgen": {**about_of(path.parent), **change}}))


DAMAGED: list[tuple[str, Callable[[Path], object], str]] = [
    ("config.json", Path.unlink, "model is no exported model: it has no config.json; "),
    ("tokenizer.json", Path.unlink, "model is no exported model: it has no tokenizer.json; "),
    ("config.json", partial(changed, format=2), "config.json: lengthgen.format: 2 should be 1"),
    ("config.json", partial(changed, _target_="x"), "config.json: lengthgen._target_: unknown key"),
]


@pytest.fixture(scope="module")
def good(trained: dict[str, Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = exported(trained["rotary"], tmp_path_factory.mktemp("good") / "model")
    load_exported(folder)
    return folder


@pytest.mark.parametrize(("name", "harm", "message"), DAMAGED)
def test_a_folder_that_is_no_export_or_was_changed_is_refused_in_one_line(
    name: str, harm: Callable[[Path], object], message: str, good: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    harm(folder / name)
    assert message in refusal(load_exported, folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rope"], "export: give a run and the folder to write, as in: lengthgen export RUN DIR"),
        (["alibi", "model"], "alibi: no such run in runs; known: rope"),
        (["rope", "runs"], "/runs is there already; give a new or empty folder"),
        (["rope", "model", "train.lr=1"], "train.lr=1: no run here has this value; "),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(
    words: list[str], message: str, run: Config, tmp_path: Path, shell: Shell
) -> None:
    assert message in shell.refused("export", *words)
    assert not (tmp_path / "model").exists()


def test_an_export_is_pushed_as_it_was_written_or_a_line_says_why_not(
    run: Config, tmp_path: Path, hub: dict[str, bytes], shell: Shell
) -> None:
    folder, words = tmp_path / "model", ["export", str(run.run_dir), str(tmp_path / "model")]
    ran = shell.run(*words, "--push", "me/model")
    assert ran.out.endswith("/me/model\n"), ran
    assert hub == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert b'from_pretrained("me/model"' in hub["README.md"]
    assert b"# hf download me/model --local-dir model\n" in hub["README.md"]
    shutil.rmtree(folder)
    ran = shell.run(*words, "--push", "other/model")
    assert ran.error.startswith("--push: other/model cannot be written (403"), ran
    assert (folder / "config.json").exists()
