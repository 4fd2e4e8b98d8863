"""Overrides become one plain dict: groups, values, sweeps, completion, folders of one's own."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpora import write

from lengthgen.config import compose, conf
from lengthgen.config.overrides import completions, expand_grid, overrides_of, plain_values


def composed(*overrides: str, config_dir: Path | None = None) -> dict[str, object]:
    return compose.compose(overrides, config_dir=config_dir)


def section(name: str, *overrides: str, config_dir: Path | None = None) -> dict[str, object]:
    plain = composed(*overrides, config_dir=config_dir)[name]
    assert isinstance(plain, dict)
    return plain


def test_a_group_a_value_and_a_part_of_a_scheme_are_set_from_the_command_line() -> None:
    words = ["model=small", "train.lr=1e-4", "scheme.parts.rope.base=500000", "eval.seed=${seed}"]
    small = conf.load_choice("model", "small")
    assert section("model", *words) == section("model") | small
    assert section("train", *words) == section("train") | {"lr": 1e-4}
    rope = conf.load_choice("scheme", "rope")["parts"]["rope"] | {"base": 500000}
    assert section("scheme", *words)["parts"] == {"rope": rope}
    assert section("eval", "seed=7", *words)["seed"] == 7
    path = section("corpus", "corpus=files", "corpus.path='/a, b (c)/*.txt'")["path"]
    assert path == "/a, b (c)/*.txt"


def test_a_folder_of_the_users_own_adds_choices_and_studies(tmp_path: Path) -> None:
    mine = "# Mine.\nname: mine\nparts: {}\n"
    text = "# @package _global_\n# Why.\ndefaults: [override /scheme: alibi, _self_]\nseed: 5\n"
    files = {"scheme/mine.yaml": mine, "study/paper.yaml": text}
    folder = write(tmp_path / "it's, mine", files)
    assert section("scheme", "scheme=mine", config_dir=folder)["name"] == "mine"
    assert "mine" in conf.choices("scheme", config_dir=folder)
    assert conf.describe(conf.choices("scheme", config_dir=folder)["mine"]) == "Mine."
    assert "scheme=mine" in completions("scheme=m", config_dir=folder)
    assert section("scheme", "study=paper", config_dir=folder)["name"] == "alibi"
    assert composed("study=paper", config_dir=folder)["seed"] == 5
    assert composed(config_dir=conf.conf_dir()) == composed()


SCHEMES = conf.choices("scheme", config_dir=None)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_shipped_scheme_names_its_paper_or_its_code(scheme: str) -> None:
    assert re.search(r"arXiv \d{4}\.\d{5}|github\.com/\w+", conf.describe(SCHEMES[scheme]))


def test_values_are_parsed_without_composing_and_nested_values_become_overrides() -> None:
    words = ["eval.lengths=[512,1024]", "runtime.root='a b'", "runtime.cache=null"]
    parsed = {"eval.lengths": [512, 1024], "runtime.root": "a b", "runtime.cache": None}
    assert plain_values(words) == parsed
    for lengths in ([512, 1024], range(512, 1025, 512), np.array([512, 1024])):
        nested = {"eval": {"lengths": lengths}, "runtime": {"root": "a b", "cache": None}}
        assert plain_values(overrides_of(nested)) == parsed


TEXTS = ["2024", "1e3", "null", "True", "inf", "a,b", "", "a b", "x/y.z", "caf\xe9", "/\u6587"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_stays_one_as_an_override(text: str) -> None:
    assert plain_values(overrides_of({"key": text})) == {"key": text}
    assert plain_values(overrides_of({"key": Path(text or "x")})) == {"key": text or "x"}
    assert plain_values(overrides_of({"key": (text, 5)})) == {"key": [text, 5]}


def test_letters_beyond_ascii_need_no_quotes() -> None:
    root = "/home/m\xfcller/my \u6587"
    assert compose.compose([f"runtime.root={root}"], config_dir=None)["runtime"]["root"] == root


TYPED = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"[a-z]{1,5}x", fullmatch=True),
    st.lists(st.integers(), max_size=3).map(lambda ns: f"[{','.join(map(str, ns))}]"),
    st.text("ab ,:=()").map(lambda text: f"'{text}'"),
)


@given(st.lists(TYPED, min_size=2, max_size=4))
def test_the_points_of_a_sweep_hold_its_values_in_their_order(typed: list[str]) -> None:
    grid = expand_grid([f"x={','.join(typed)}", "y=1"], config_dir=None)
    points = [plain_values(point) for point in grid]
    assert points == [plain_values([f"x={value}", "y=1"]) for value in typed]


def test_globs_are_points() -> None:
    shipped = conf.choices("scheme", config_dir=None)
    globbed = expand_grid(["scheme=glob(*rope*,exclude=p_*)"], config_dir=None)
    assert globbed == [[f"scheme={s}"] for s in shipped if "rope" in s and not s.startswith("p_")]


@pytest.mark.parametrize(
    ("incomplete", "offered"),
    [
        ("sch", ["scheme.", "scheme="]),
        ("scheme=rope_c", ["scheme=rope_conv"]),
        ("train.le", ["train.length=512"]),
        ("scheme.parts.rope.b", ["scheme.parts.rope.base=10000.0"]),
        ("corpus.pat", ["corpus.path="]),
        ("scheme=nope,xp", ["scheme=nope,xpos"]),
        ("nothing=", []),
    ],
)
def test_completion_offers_groups_choices_and_keys(incomplete: str, offered: list[str]) -> None:
    assert completions(incomplete, config_dir=None) == offered


@pytest.mark.parametrize("of", ["train", "model", "eval", "runtime"])
def test_the_values_that_completion_offers_are_the_defaults(of: str) -> None:
    words = completions(f"{of}.", config_dir=None)
    assert len(words) > 10
    assert section(of, *words) == section(of)
