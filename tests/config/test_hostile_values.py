"""Every key of the schema with values that nobody means: a configuration, or one line."""

import copy
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lengthgen import pipeline
from lengthgen.config import compose, schema
from lengthgen.config.schema import from_plain, to_plain
from lengthgen.errors import UserError

HOSTILE: list[object] = [
    *(0, -1, 0.5, 10**12, 1e12, 2**64, 10**400, 1e308, math.nan, math.inf, True, False, None),
    *("", "x" * 5000, "a\0b", "\ud800", ".."),
    *([], [1], [None], ["a", "a"], [[[]]], {}, {"a": 1}, {1: 2}),
]
CORPORA = {
    "synthetic": ["corpus=synthetic"],
    "files": ["corpus=files", "corpus.path=/nowhere"],
    "hub": ["corpus=wikitext103"],
    "task": ["task=addition"],
}


@cache
def composed(corpus: str) -> dict[str, Any]:
    words = [*CORPORA[corpus], "runtime.device=cpu", "train.precision=fp32"]
    plain = compose.compose(words, config_dir=None)
    return plain | {"variants": {"window": plain["variants"]["window"]}}


def keys(plain: dict[str, Any], before: str = "") -> Iterator[str]:
    """Yields the dotted key of every section and value."""
    for name, value in plain.items():
        yield before + name
        if isinstance(value, dict):
            yield from keys(value, f"{before}{name}.")


def with_value(plain: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    changed = copy.deepcopy(plain)
    section: Any = changed
    *sections, last = key.split(".")
    for name in sections:
        section = section[name]
    section[last] = value
    return changed


CASES = [("synthetic", key) for key in keys(composed("synthetic"))] + [
    (corpus, key)
    for corpus in ("files", "hub", "task")
    for key in keys({"corpus": composed(corpus)["corpus"]})
]


def error_of(plain: dict[str, Any], key: str) -> str:
    """Returns the error of a configuration, if there is one; else uses what it derives."""
    try:
        config = from_plain(plain)
    except UserError as error:
        return str(error)
    assert len(config.run_dir.name) < 256
    assert len(config.evaluation_id) == 8
    if not any(name in key for name in ("arguments", "parts", "variants")):
        assert from_plain(to_plain(config)) == config
    return ""


@pytest.mark.parametrize(("corpus", "key"), CASES)
def test_any_value_of_any_key_gives_a_configuration_or_one_line(corpus: str, key: str) -> None:
    for value in HOSTILE:
        error = error_of(with_value(composed(corpus), key, value), key)
        assert "\n" not in error
        assert len(error) < 1000


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=true", "seed: True is not a number"),
        ("train.lr=true", "train.lr: True is not a number"),
        ("eval.lengths=[true]", "eval.lengths.0: True is not a number"),
        ("variants=7", "variants: 7 is not a mapping"),
        ("variants=null", "variants: None is not a mapping"),
        ("+corpus.task=7", "corpus.task: unknown key"),
        ("runtime.root=''", "runtime.root: '' is empty"),
        ("runtime.cache=''", "runtime.cache: '' is empty"),
        ("runtime.threads=100000", "runtime.threads: 100000 should be less than or equal to 1024"),
        ("model.n_layers=100000", "model.n_layers: 100000 should be less than"),
        ("eval.endpoints=1e9", "eval.endpoints: 1000000000.0 should be less than"),
        ("train.tokens=1e300", "train.tokens: 1e+300 is too large"),
        ("eval.protocols=[tail,tail]", "names tail twice; name each once"),
        ("eval.variants=[ntk,ntk]", "names ntk twice; name each once"),
        ("eval.lengths=[512,512]", "names 512 twice; name each once"),
        ("scheme.layers=[[rope,rope]]", "names rope twice; name each once"),
        ("~corpus=7", "~corpus=7: Hydra cannot compose this: "),
        ("=1", "=1: Hydra cannot compose this: "),
        (f"seed={'9' * 5000}", "not readable as an override"),
        (f"eval.lengths={'[' * 300}{']' * 300}", "nested too deeply"),
        (f"{'x' * 5000}=1", "File name too long"),
    ],
)
def test_nonsense_on_the_command_line_is_one_line(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        schema.from_overrides([override], config_dir=None, plugins=[])
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["scheme=t5", "scheme.parts.t5.num_buckets=1e6"], "num_buckets: 1000000.0 should be less"),
        (
            ["scheme=dynamic_bias", "scheme.parts.dynamic_bias.depth=1e6"],
            "depth: 1000000.0 should be less",
        ),
        (["task=frequent_words", "task.arguments.exponent=1e9"], "exponent=1000000000 is"),
        (["task=passkey", "task.arguments.key_digits=1e9"], "key_digits=1000000000 is"),
        (["task=multiplication", "task.arguments.by=1e9"], "by=1000000000 is"),
    ],
)
def test_arguments_that_take_for_ever_are_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pipeline.validate(schema.from_overrides(overrides, config_dir=None, plugins=[]))


def test_the_buckets_of_any_distance_are_found_at_once() -> None:
    words = ["scheme=t5", "scheme.parts.t5.max_distance=1e12"]
    pipeline.validate(schema.from_overrides(words, config_dir=None, plugins=[]))


@pytest.mark.parametrize("key", ["train.length", "eval.reach"])
@pytest.mark.parametrize("value", ["abc", "0", "-5", "1.5", "null"])
def test_a_wrong_length_is_the_only_mistake(key: str, value: str) -> None:
    with pytest.raises(UserError) as caught:
        schema.from_overrides([f"{key}={value}"], config_dir=None, plugins=[])
    assert str(caught.value).startswith(f"{key}: ")
    assert "more)" not in str(caught.value)


def test_a_length_may_be_written_as_a_float() -> None:
    words = ["train.length=1e3", "train.batch_tokens=4e3", "eval.reach=4e3"]
    config = schema.from_overrides(words, config_dir=None, plugins=[])
    assert config.eval.lengths == [125, 250, 500, 1000, 2000, 4000]


def test_a_yaml_that_lists_itself_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "scheme/loop.yaml"
    path.parent.mkdir()
    path.write_text("defaults:\n  - loop\n  - _self_\nname: loop\nparts: {}\n")
    with pytest.raises(
        UserError, match=r"^scheme=loop: nested too deeply, or a YAML file lists itself"
    ):
        schema.from_overrides(["scheme=loop"], config_dir=tmp_path, plugins=[])
