"""A configuration round-trips, and its names are digests of what they name."""

import itertools
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from repository import ROOT
from small import FRESH, config_of, refusal, small_config, valid
from small_corpora import write

from lengthgen.config import compose, conf
from lengthgen.config.drafts import from_plain, from_stored
from lengthgen.config.overrides import TYPED, expand_grid, plain_values
from lengthgen.config.schema import Eval, Model, Runtime, SchemeSpec, Train, to_plain
from lengthgen.config.sections import flatten
from lengthgen.config.user import user_file
from lengthgen.errors import UserError
from lengthgen.experiment import of_run, resolve, resolved
from lengthgen.runs import directory

FILES = sorted((ROOT / "conf").glob("*/*.yaml"))
CHOICES = [
    *((file.parent.name, file.stem) for file in FILES if file.parent.name != conf.VARIANT),
    (conf.VARIANT, ",".join(conf.choices(conf.VARIANT, config_dir=None))),
]


def required(group: str, choice: str, folder: Path) -> list[str]:
    """Returns overrides for what a choice leaves open: paths of texts."""
    if group == conf.VARIANT:
        return []
    file = folder / "texts.txt"
    file.write_text("".join(f"IN:{' jump' * n} OUT:{' I_JUMP' * n}\n" for n in range(1, 49)))
    plain = conf.load_choice(group, choice)
    keys = {f"{group}.{key}": value for key, value in plain.items()}
    for key, value in plain.get("task", {}).get("arguments", {}).items():
        keys[f"task.arguments.{key}"] = value
    return [f"{key}='{file}'" for key, value in keys.items() if value == "???"]


@pytest.mark.parametrize(
    ("group", "choice"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each[0] == "task")) for each in CHOICES],
)
def test_every_choice_is_valid_round_trips_through_yaml_and_is_named_as_its_file(
    group: str, choice: str, tmp_path: Path
) -> None:
    for file in choice.split(","):  # several variants
        name = conf.load_choice(group, file).get("name", file)
        assert name in (file, None)  # a dataset of the Hub has its own
    chosen = f"{group}={choice}" if group != conf.VARIANT else f"eval.variants=[{choice}]"
    plain = compose.compose([chosen, FRESH, *required(group, choice, tmp_path)], config_dir=None)
    built = resolved(from_plain(plain))
    again = from_stored(yaml.safe_load(yaml.safe_dump(to_plain(built.config))))
    assert resolved(again) == built


def other(value: int | float) -> st.SearchStrategy[int | float]:
    """Returns other values of a yes or no, of a count, or of a number."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, int):
        return st.sampled_from([value + 1, 2 * value, 4 * value])
    return st.floats(0.5, 2).map(lambda factor: factor * value)


@given(scheme=st.sampled_from([*conf.choices("scheme", config_dir=None)]), data=st.data())
@settings(max_examples=12)
def test_a_run_folder_read_back_is_the_experiment_that_was_begun(
    scheme: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    words = [f"scheme={scheme}", BASE, f"runtime.root={tmp_path_factory.mktemp('runs')}"]
    flat = flatten(to_plain(small_config(f"scheme={scheme}")))
    numbers = {key: value for key, value in flat.items() if isinstance(value, int | float)}
    keys = [key for key in numbers if key.startswith(("train", "model", "eval", "seed"))]
    drawn = data.draw(st.lists(st.sampled_from(keys), max_size=2, unique=True))
    for key in [*drawn, *(key for key in numbers if key.startswith("scheme.parts."))]:
        words += [f"++{key}={data.draw(other(numbers[key]), label=key)}"]
    try:
        begun = resolve(words)
    except UserError:  # not all numbers go together
        assume(False)
        raise
    directory.write_config(begun.config, begun.run_dir)
    again = of_run(begun.run_dir)
    assert again == begun
    assert again.run_id == begun.run_id
    assert again.scheme.parts == begun.scheme.parts
    assert again.scheme.kinds == begun.scheme.kinds


def test_parts_in_another_order_are_another_run() -> None:
    """Each acts on what the one before it has made of queries and keys."""
    plain = compose.compose(["scheme=rope_conv"], config_dir=None)
    names: list[str] = []
    for order in (iter, reversed):
        parts = dict(order([*plain["scheme"]["parts"].items()]))
        assert len(parts) == 2
        draft = from_plain(plain | {"scheme": plain["scheme"] | {"parts": parts}})
        names.append(resolved(draft).run_id)
    assert names[0] != names[1]


SAME_WEIGHTS = [
    *("eval.lengths=[16]", "eval.variants=[ntk]", "eval.seed=7", "runtime.root=elsewhere"),
    *("runtime.device=cpu", "runtime.micro_batch=1", "train.checkpoint_every=7"),
    "train.keep_checkpoints=8",
    "+scheme.variants.mine={ntk:{factor:2.0}}",
    "train.scheme_lr_ratio=1.0",  # as the scheme's own
]
OTHER_WEIGHTS = [
    *("train.lr=1e-3", "train.precision=bf16", "model=small", "model.init_std=0.1"),
    *("corpus.documents=30", "corpus.held_out=tuning", "scheme.parts.rope.base=500000"),
    *("scheme.layers=[[rope],[]]", "train.scheme_lr_ratio=2.0", "model.norm=rms"),
    *("model.mlp=swiglu", "model.n_kv_heads=2", "model.tied_head=false", "model.mlp=gelu_tanh"),
    *("model.biases=[norm,qkv,attention_out,mlp]", "model.parallel_residual=true"),
    *("model.embedding_norm=true", "model.vocab_size=99", "model.d_head=6", "model.qk_norm=true"),
    *("model.norm_placement=post", "model.embedding_scale=2.0", "model.qk_norm=all_heads"),
]
BASE = "train.precision=fp32"


@pytest.mark.parametrize("word", SAME_WEIGHTS)
def test_what_cannot_change_the_weights_changes_no_name(word: str) -> None:
    changed, plain = small_config(word), small_config()
    assert (changed.run_id, changed.recipe) == (plain.run_id, plain.recipe)


def test_kept_steps_are_even_in_log_tokens() -> None:
    def kept(n: int) -> list[int]:
        words = ["train.batch_tokens=16", "train.tokens=16M", f"train.keep_checkpoints={n}"]
        return sorted(small_config(*words).train.kept_steps)

    assert kept(0) == []
    assert kept(4) == [62_500, 125_000, 250_000, 500_000]
    assert {*kept(4)} < {*kept(8)}
    gaps = [later / earlier for earlier, later in itertools.pairwise([*kept(8), 1_000_000])]
    assert gaps == pytest.approx([2**0.5] * 8, rel=1e-4)


@pytest.mark.parametrize("word", OTHER_WEIGHTS)
def test_what_changes_the_weights_changes_the_names(word: str) -> None:
    changed, plain = small_config(word), small_config()
    assert changed.run_id != plain.run_id
    assert changed.recipe != plain.recipe


def test_seeds_are_runs_of_one_recipe_and_an_evaluation_is_named_by_what_it_measures() -> None:
    words = ("seed=1", "seed=2", "eval.targets=32", "eval.variants=[ntk]")
    one, other, *evaluated = (config_of(BASE, word) for word in words)
    assert one.run_id != other.run_id
    assert one.recipe == other.recipe
    assert one.evaluation_id == other.evaluation_id
    assert len({config.evaluation_id for config in (one, *evaluated)}) == 3


@pytest.mark.parametrize(
    ("words", "lengths"),
    [
        (
            "train.length=1e3 train.batch_tokens=4e3 train.tokens=25e5 eval.max_context=2e3",
            [125, 250, 500, 1000, 2000],
        ),
        ("eval.lengths=[T,1.5T,1k,4K,640] train.tokens=2.5m", [512, 768, 1024, 4096, 640]),
        ("train.length=1k train.tokens=0.0025b eval.max_context=2k", [128, 256, 512, 1024, 2048]),
    ],
)
def test_lengths_are_powers_of_two_times_t_or_as_written(words: str, lengths: list[int]) -> None:
    config = config_of(*words.split())
    assert (config.eval.lengths, config.train.tokens) == (lengths, 2_500_000)


NUMBERS = ["1:30", "2024", "2024_01", "007", "12e4567", "1.50", ".5", "-3", "+3", "inf", "nan"]


@pytest.mark.parametrize("typed", NUMBERS)
def test_a_key_whose_type_is_text_keeps_what_looks_like_a_number(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"runtime.wandb_name={typed}", f"runtime.wandb_tags=[{typed},b, {typed}x]"]
    words += [f"corpus.path={typed}", f"corpus.validation_path=[{typed},b]"]
    words += [f"runtime.root={typed}"]
    config = valid(["corpus=files", *words])
    assert config.runtime.wandb_name == typed
    assert config.runtime.wandb_tags == [typed, "b", f"{typed}x"]
    assert config.runtime.root == Path(typed).absolute()
    swept = expand_grid([f"runtime.wandb_name={typed},b"], config_dir=None)
    assert [plain_values(point)["runtime.wandb_name"] for point in swept] == [typed, "b"]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    user_file().write_text(f"runtime: {{wandb_name: {typed}, wandb_tags: [{typed}, b]}}")
    runtime = compose.compose([], config_dir=None)["runtime"]
    assert (runtime["wandb_name"], runtime["wandb_tags"]) == (typed, [typed, "b"])
    monkeypatch.undo()
    assert config.corpus.arguments["path"] == str(Path(typed).absolute())
    assert str(Path(typed).absolute()) in config.corpus.arguments["validation_path"]
    hub = valid(["corpus=hub", "corpus.repo=a/b", f"corpus.revision={typed}"])
    assert hub.corpus.arguments["revision"] == typed
    with pytest.raises(UserError, match=f"{re.escape(typed)}: does not exist"):
        config_of(f"train.tuned={typed}")


@pytest.mark.parametrize("kind", [SchemeSpec, Model, Train, Eval, Runtime])
def test_the_keys_that_keep_words_are_those_of_texts(kind: type[Any]) -> None:
    section = kind.__name__.removesuffix("Spec").lower()
    for key in kind.model_fields:
        takes = TypeAdapter[Any](get_type_hints(kind, include_extras=True)[key])
        for text in ("a text", ["a text"]):
            with suppress(ValidationError):
                takes.validate_python(text)
                assert TYPED.fullmatch(f"{section}.{key}"), key


@pytest.mark.parametrize(("typed", "number"), [("1_0", 10), ("1e2", 100), ("007", 7), ("+9", 9)])
def test_a_key_whose_type_is_a_number_takes_every_spelling(typed: str, number: int) -> None:
    words = [f"corpus.documents={typed}", f"eval.lengths=[{typed}]", f"train.lr={typed}"]
    config = valid(["corpus=synthetic", *words, f"scheme.parts.rope.base={typed}"])
    assert config.corpus.arguments["documents"] == number
    assert (config.eval.lengths, config.train.lr) == ([number], number)
    assert config.scheme.parts["rope"]["base"] == number


@pytest.mark.parametrize("words", [[], ["corpus=files", "corpus.path=a"], ["runtime.cache=a"]])
def test_a_folder_whose_name_is_no_utf8_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    monkeypatch.chdir(os.fsdecode(folder))
    key = words[-1].partition("=")[0] if words else "runtime.root"
    said = refusal(config_of, *words, "runtime.root=/tmp/runs" if words else "runtime.root=runs")
    assert said.startswith(key.replace("corpus.path", "corpus"))
    assert "is no UTF-8; rename it" in said


@pytest.mark.parametrize("word", ["off", "false", "disabled"])
def test_tracking_is_turned_off_by_any_word_for_it(word: str) -> None:
    assert config_of(f"runtime.wandb={word}").runtime.wandb == "off"


def test_variants_that_are_named_are_part_of_the_configuration() -> None:
    named = config_of("eval.variants=[ntk+window]", "eval.reference_variants=[logn]").variants
    assert named == {v: conf.load_choice(conf.VARIANT, v) for v in ("ntk", "window", "logn")}
    own = config_of("+variants.ntk={pi:{factor:2}}", "eval.variants=[ntk]").variants["ntk"]
    assert own == {"pi": {"factor": 2}}


EQUAL = {
    "scheme=rope": [
        *("scheme.parts.rope.base=10000", "scheme.parts.rope.base=1e4"),
        "scheme.parts.rope.rotary_percentage=1",
    ],
    "scheme=alibi": ["+scheme.parts.alibi.sides=symmetric"],
    "corpus=files corpus.path=x": [
        *("corpus.path=x/", "corpus.path=./x", "corpus.path=[x]", "corpus.path=${oc.env:PWD}/x"),
        "corpus.validation_path=null",
    ],
    "corpus=files corpus.path=[x,y]": ["corpus.path=[y,./x,x]"],
    "corpus=wikitext103 corpus.repo=.": ["corpus.repo=${oc.env:PWD}"],
    "model.biases=[qkv,mlp]": ["model.biases=[mlp,qkv]", "model.n_kv_heads=${model.n_heads}"],
    "model.n_heads=8 model.d_model=64": ["model.d_head=8"],
    "task=copy": ["task.arguments.times=1", "task.arguments.times=1.0"],
}


@pytest.mark.parametrize("words", EQUAL)
def test_equal_configurations_are_one_run(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    given = config_of(BASE, *words.split())
    for same in EQUAL[words]:
        equal = config_of(BASE, *words.split(), same)
        assert equal.run_id == given.run_id, same
        assert equal.recipe == given.recipe, same
        assert equal.scheme.parts == given.scheme.parts, same


def test_every_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["corpus.path=[a,b/*.txt]", "corpus.validation_path=c", "corpus.tokenizer=t.json"]
    config = config_of(BASE, "corpus=files", *words, "runtime.root=r", "runtime.cache='~/d'")
    assert config.corpus.arguments["path"] == [f"{tmp_path}/a", f"{tmp_path}/b/*.txt"]
    assert config.corpus.arguments["validation_path"] == f"{tmp_path}/c"
    assert config.corpus.tokenizer == f"{tmp_path}/t.json"
    assert (config.runtime.root, config.runtime.cache) == (tmp_path / "r", Path.home() / "d")
    assert config_of(BASE, "scheme=nope").corpus.tokenizer == "bpe"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["scheme=rope", "~scheme.parts.rope"], "rope.without_rope"),
        (["scheme=rope", "+scheme.parts.logn={}"], "rope.with_logn"),
        (["scheme=rope", "scheme.parts.rope.base=500"], "rope"),
        (["scheme=rope", "scheme.name=mine", "+scheme.parts.logn={}"], "mine"),
    ],
)
def test_a_scheme_of_other_parts_has_another_name(words: list[str], name: str) -> None:
    config = config_of(*words)
    assert config.scheme.name == name
    assert config.run_id.startswith(f"{name}-tiny-")


def test_a_scheme_that_begins_with_another_has_its_own_name(tmp_path: Path) -> None:
    own = "defaults: [rope, _self_]\nname: my_rope\nparts: {window: {width: 1.0, sinks: 0}}\n"
    folder = write(tmp_path, {"scheme/my_rope.yaml": own})
    config = config_of("scheme=my_rope", config_dir=folder)
    assert config.scheme.name == "my_rope"
    assert {*config.scheme.parts} == {"rope", "window"}


def test_a_budget_of_steps_is_the_run_of_as_many_tokens(tmp_path: Path) -> None:
    steps, tokens = (config_of(word) for word in ("train.steps=7", f"train.tokens={7 * 4096}"))
    assert (steps.train.steps, steps.run_id) == (7, tokens.run_id)
    assert to_plain(from_plain(to_plain(steps))) == to_plain(tokens)
    (tmp_path / "study").mkdir()
    (tmp_path / "study/mine.yaml").write_text("# @package _global_\ntrain: {steps: 7}\n")
    for n, word in ((5, "train.tokens=20480"), (6, "train.steps=6"), (7, "seed=1")):
        assert config_of("study=mine", word, config_dir=tmp_path).train.steps == n
