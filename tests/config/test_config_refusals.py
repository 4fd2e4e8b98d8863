"""A mistake in a configuration is one line with key, value and remedy."""

import copy
import math
import shlex
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import small
from small_corpora import write

from lengthgen.config import compose, conf, drafts
from lengthgen.config.overrides import expand_grid, plain_values
from lengthgen.config.sections import flatten
from lengthgen.errors import UserError

COMMAND_LINE = {
    # Hydra
    "scheme=rpoe": "no such scheme; did you mean rope? (a custom scheme needs --config-dir)",
    "model=zzz": "model=zzz: no such model; known: alibi, base, ",
    "scheme=rope,alibi": "scheme=rope,alibi holds several values, and one run takes one; give len",
    "eval.lengths=512,1024": "(a list is written eval.lengths=[512,1024])",
    "train.lrr=1": "train.lrr: unknown key; did you mean train.lr?",
    "learning_rate=1": "learning_rate: unknown key; did you mean train.lr?",
    "train.epochs=1": "did you mean train.tokens?",
    "shceme=rope": "shceme: unknown key; did you mean scheme?",
    "plugins=[a.py]": "plugins: unknown key",
    "corpus.path=x": "corpus.path: the chosen corpus has no such key, but corpus=files has",
    "scheme.parts.rerope.w=2": "with a plus it adds one: +scheme.parts.rerope.w=VALUE",
    "scheme=rope scheme.parts={rope:{},pi:{factor:2}}": "it adds one: +scheme.parts.NAME={}",
    "scheme=rope scheme.parts.rope.bas=1": "did you mean scheme.parts.rope.base?",
    "corpus=files": "corpus.path: a value is required; give corpus.path=VALUE",
    "corpus=wikitxt103": "no such corpus; did you mean wikitext103?",
    "+seed=2": "Could not append to config. An item is already at 'seed'. Either remove + pre",
    "~nothing": "Could not delete from config. 'nothing' does not exist",
    "train.lr": "train.lr: not readable as an override; give KEY=VALUE",
    "eval.lengths[0]=5": "eval.lengths[0]=5: not readable as an override; give KEY=VALUE, such",
    "eval.lengths=16": "should be a valid list; give eval.lengths=[16]",
    "scheme.layers=[[rope],null]": "scheme.layers.1: None should be a valid list; write []",
    "scheme.layers=[rope]": "scheme.layers.0: 'rope' should be a valid list; write [rope]",
    "scheme=RoPE": "scheme=RoPE: no such scheme; did you mean rope?",
    "scheme=rotary": "scheme=rotary: no such scheme; did you mean rope?",
    "scheme=T5-bias": "did you mean t5?",
    "scheme=NTK-aware": "give eval.variants=[ntk]",
    "scheme=YaRN": "yarn is a variant of a trained scheme: give eval.variants=[yarn]",
    "train.tokens=${nothing}": "train.tokens: Interpolation key 'nothing' not found",
    "=1": "=1: Config group override must be a string",
    "task=copy corpus=synthetic": "corpus=synthetic: task=copy makes its own text; drop one",
    # Types and bounds
    "~eval": "eval: a value is required",
    "seed=true": "seed: True is not a number",
    "train.lr=fast": "train.lr: 'fast' should be a valid number",
    "train.lr=-1": "train.lr: -1 should be greater than 0",
    "train.lr=nan": "train.lr: nan should be a finite number",
    "train.tokens=2.5X": "train.tokens: '2.5X' should be a valid integer",
    "train.tokens=1e300": "train.tokens: ",
    "train.steps=5 train.tokens=5k": "train.steps and train.tokens are two budgets; drop one",
    "train.schedule=step": "train.schedule: 'step' should be 'cosine' or 'linear'",
    "eval.lengths=[512,512]": "eval.lengths: [512, 512] names a value twice; name each once",
    "eval.lengths=[T,0.3T]": "eval.lengths.1: '0.3T = 153.6 tokens' should be a valid integer",
    "variants=7": "variants: 7 should be a valid dictionary",
    "runtime.root=''": "runtime.root: ",
    "runtime.wandb=no": "runtime.wandb: ",
    "model.n_layers=100000": "model.n_layers: 100000 should be less than",
    "scheme.name=../x": "scheme.name: '../x' should match",
    # Keys that contradict each other
    "model.d_model=130 model.n_heads=4": "try model.d_model=128",
    "model.n_kv_heads=3": "model.n_heads=4 is not a multiple of model.n_kv_heads=3",
    "model.norm=rms model.biases=[norm]": "model.norm=rms has no bias",
    "model.biases=[head]": "model.biases.0: 'head'",
    "train.batch_tokens=1000": "train.batch_tokens=1000 is not a multiple of train.length=512",
    "eval.reference_variants=[ntkk]": "no variant 'ntkk'; did you mean ntk?",
    "train.tuned=none.yaml": "none.yaml: does not exist",
}


def refusal(*overrides: str, config_dir: Path | None = None) -> str:
    line = small.refusal(small.config_of, *overrides, config_dir=config_dir)
    assert len(line) < 2000
    return line


@pytest.mark.parametrize("words", COMMAND_LINE)
def test_a_mistake_on_the_command_line(words: str) -> None:
    assert COMMAND_LINE[words] in refusal(*words.split(" "))


OWN_PARTS = {  # the first key of the part that a scheme is named by
    name: key
    for name, file in conf.choices("scheme", config_dir=None).items()
    for key in reversed(conf.settings_of("scheme", file))
    if key.startswith(f"scheme.parts.{name}.")
}


@pytest.mark.parametrize("scheme", OWN_PARTS)
def test_a_key_that_a_scheme_lacks_is_answered_with_the_scheme_of_its_part(scheme: str) -> None:
    key = OWN_PARTS[scheme]
    assert f"but scheme={scheme} has" in refusal("scheme=nope", f"{key}=1")


def test_only_mistakes_are_counted() -> None:
    said = refusal("train.lr=abc", "eval.lengths=[T,2T,16T]")
    assert said.endswith("should be a valid number")
    assert refusal("train.lr=abc", "seed=x", "eval.lengths=[T,2T]").endswith(" (and 1 more)")


@pytest.mark.parametrize("value", ["o'b", "a(b", "~/x", "a;b", "a'b\"c", "caf\xe9,1", "it's $5"])
def test_what_is_offered_for_odd_text_gives_that_text(value: str) -> None:
    offered = refusal(f"corpus.path={value}").partition("; give ")[2]
    (word,) = shlex.split(offered)
    assert plain_values([word]) == {"corpus.path": value}


ODD = ["a\0b", "\ud800", "..", "x" * 5000, "1" * 5000, "[" * 300 + "]" * 300, "{a: &b [*b]}"]


@pytest.mark.parametrize("odd", ODD, ids=[str(i) for i in range(len(ODD))])
@pytest.mark.parametrize("key", ["seed", "scheme", "train.lr", "corpus.name", "runtime.wandb"])
def test_odd_text_for_a_key(key: str, odd: str) -> None:
    refusal(f"{key}={odd}")
    refusal(f"{odd}=1")


NONSENSE: list[object] = [-1, 10**30, math.inf, True, None, "", [], [None], {}, {"a": 1}]


@cache
def composed() -> dict[str, Any]:
    return compose.compose(["corpus=synthetic", "train.precision=fp32"], config_dir=None)


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
def test_nonsense_for_any_key_is_one_line_or_a_configuration(value: object) -> None:
    for key in flatten(composed()):
        *steps, last = key.split(".")
        plain = inner = copy.deepcopy(composed())
        for step in steps:
            inner = inner[step]
        inner[last] = value
        with suppress(UserError):  # whose message is one line
            drafts.from_plain(plain)


OWN = "# @package _global_\ndefaults:\n  - override /scheme: {}\n"
FILES = {  # of the user's own, as conf/scheme/mine.yaml
    b"- rope\n": "holds no KEY: VALUE lines",
    b"name: mine\nparts: [\n": "{path}: cannot be read as YAML: while parsing a flow node",
    b"name: a\nname: b\nparts: {}\n": "{path}: cannot be read as YAML: has the key name twice",
    b"name: \xff\n": "{path}: cannot be read as YAML: 'utf-8' codec can't decode byte 0xff",
    b"name: %s\n" % (b"9" * 5000): "conversion: value has 5000 digits",
    b"name: mine\n": "scheme.parts: a value is required",
    b"name: mine\npart: {my_bias: {}}\n": "scheme.part: unknown key; did you mean scheme.parts?",
    b"nam: mine\nparts: {}\n": "scheme.nam: unknown key; did you mean scheme.name?",
    b"name: mine\nparts: {}\nvariant: {}\n": "did you mean scheme.variants?",
    b"name: mine\nparts: [my_bias, rope]\n": "write parts: {{my_bias: {{}}, rope: {{}}}}",
    b"name: mine\nparts:\n  - my_bias: {start: 1}\n": "; write parts: {{my_bias: {{}}}}",
    b"name: mine\nparts: {my_bias: }\n": "scheme.parts.my_bias: None should be a valid dictionary; "
    "write my_bias: {{}}",
    b"defaults:\n  - mine\n  - _self_\nname: mine\nparts: {}\n": "lists itself",
}


@pytest.mark.parametrize("content", FILES, ids=[str(i) for i in range(len(FILES))])
@pytest.mark.parametrize("word", ["scheme=mine", "study=paper"])
def test_a_mistake_in_a_yaml_of_the_users_own(word: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "scheme" / "mine.yaml"
    path.parent.mkdir()
    path.write_bytes(content)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "paper.yaml").write_text(OWN.format("mine"))
    said = refusal(word, config_dir=tmp_path)
    assert FILES[content].format(path=path) in said
    assert "sys." not in said  # advice for programmers


def test_a_mistake_in_a_folder_of_the_users_own(tmp_path: Path) -> None:
    none = tmp_path / "none"
    where = f"(a custom scheme is {tmp_path}/scheme/NAME.yaml)"
    assert refusal("scheme=rpoe", config_dir=tmp_path).endswith(f"did you mean rope? {where}")
    assert refusal(config_dir=none).startswith(f"--config-dir: {none} is not a folder")
    (tmp_path / "scheme").mkdir()
    (tmp_path / "scheme" / "rope.yaml").write_text("name: rope\n")
    assert "scheme=rope exists already" in refusal("scheme=rope", config_dir=tmp_path)
    (tmp_path / "scheme" / "rope.yaml").unlink()
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "paper.yaml").write_text(OWN.format("rpoe"))
    assert "Could not find 'scheme/rpoe'" in refusal("study=paper", config_dir=tmp_path)
    for word in ("task=mine", "study=mine"):
        own = write(tmp_path, {f"{word.replace('=', '/')}.yaml": "train: {lr: 0.1}\n"})
        assert "mine.yaml: its first line must be # @package" in refusal(word, config_dir=own)
        own = write(tmp_path, {f"{word.replace('=', '/')}.yaml": OWN.format("rope") + "scheme:\n"})
        assert refusal(word, config_dir=own).startswith("scheme: None should be a valid")


def test_an_axis_without_points_and_a_value_with_a_sign() -> None:
    for override, said in {
        "train.lr=interval(0,1)": "an interval has no points; give a,b, or --search N",
        "seed=range(1,10,0)": "arg 3 must not be zero",
        "scheme=glob(z*)": "matches nothing",
    }.items():
        assert said in small.refusal(expand_grid, [override], config_dir=None)
    for sign in "+~":
        said = small.refusal(plain_values, [f"{sign}eval.seed=1"])
        assert "only KEY=VALUE is allowed here" in said
