"""Overrides become one plain dict, and every mistake in them one line."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen.config import compose
from lengthgen.errors import UserError

UNSET = {"tuned": None, "init_from": None}  # keys of train that its YAML leaves out


def composed(*overrides: str, config_dir: Path | None = None) -> dict[str, object]:
    return compose.compose(overrides, config_dir=config_dir)


def message(overrides: Sequence[str], config_dir: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        compose.compose(overrides, config_dir=config_dir)
    text = str(caught.value)
    assert "\n" not in text
    return text


def quoted(text: str) -> str:
    """Returns a text as a quoted value of an override."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", escaped) + "'"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_reading_a_configuration_needs_no_torch_and_little_of_the_package() -> None:
    code = (
        "import sys; from lengthgen.config import schema;"
        "schema.from_overrides(['train.precision=fp32'], config_dir=None, plugins=[]);"
        "print(*{*sys.modules})"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    imported = set(ran.stdout.split())
    assert imported & {"torch", "numpy", "wandb", "datasets", "matplotlib"} == set()
    rooms = {".".join(name.split(".")[:2]) for name in imported if name.startswith("lengthgen.")}
    assert rooms == {"lengthgen.config", "lengthgen.errors", "lengthgen.files"}


def test_the_result_is_plain_and_holds_no_trace_of_hydra() -> None:
    plain = composed()
    assert set(plain) == {
        "seed",
        "variants",
        "plugins",
        "runtime",
        "scheme",
        "model",
        "corpus",
        "train",
        "eval",
    }
    assert {type(section) for section in plain.values()} == {int, list, dict}


def test_a_group_a_value_and_a_part_of_a_scheme_are_set_from_the_command_line() -> None:
    plain = composed("model=small", "train.lr=1e-4", "scheme.parts.rope.base=500000")
    small = compose.load("model", "small", config_dir=None)
    assert plain["model"] == small | {"arch": "decoder"}
    train = compose.load("train", "default", config_dir=None)
    assert plain["train"] == train | {"lr": 1e-4, **UNSET}
    rope = compose.load("scheme", "rope", config_dir=None)["parts"]["rope"]
    parts = {"rope": rope | {"base": 500000}}
    assert plain["scheme"] == {"name": "rope", "parts": parts, "layers": None, "lr_ratio": 1.0}


def test_no_composition_changes_those_after_it() -> None:
    words = ("scheme=t5", "task=copy", "seed=7", "train.tokens=${seed}")
    before, of_groups = composed(*words), composed(*words[:2])
    composed(*words[:2], "seed=9", "scheme.parts.t5.num_buckets=8", "eval.lengths=[8,16]")
    assert composed(*words) == before
    assert composed(*words[:2]) == of_groups


@pytest.mark.parametrize("experiment", ["null", *compose.choices("experiment", config_dir=None)])
def test_values_on_what_was_kept_of_the_groups_are_those_that_hydra_sets(
    experiment: str, tmp_path: Path
) -> None:
    words = [f"experiment={experiment}", "scheme=p_rope", "seed=7", "train.tokens=${seed}"]
    words += ["eval.lengths=[4,2048]", "scheme.layers=[[rope],[]]", "runtime.root='a b, c'"]
    afresh = composed(*words, config_dir=tmp_path)  # a user's folder may change: nothing is kept
    assert composed(*words) == afresh
    assert composed(*words) == afresh


def test_a_part_is_added_with_a_plus() -> None:
    scheme = composed("scheme=nope", "+scheme.parts.alibi={}")["scheme"]
    assert scheme == {"name": "nope", "parts": {"alibi": {}}, "layers": None, "lr_ratio": 1.0}


def test_layers_are_set_without_a_plus_and_a_schemes_own_are_kept(tmp_path: Path) -> None:
    def layers(*overrides: str) -> object:
        scheme = composed(*overrides, config_dir=tmp_path)["scheme"]
        assert isinstance(scheme, dict)
        return scheme["layers"]

    write(tmp_path / "scheme/mine.yaml", "name: mine\nparts: {rope: {}}\nlayers: [[rope], []]\n")
    assert layers("scheme=rope") is None
    assert layers("scheme=rope", "scheme.layers=[[rope],[]]") == [["rope"], []]
    assert layers("scheme=mine") == [["rope"], []]


def test_an_unknown_key_with_a_plus_is_left_for_the_schema_to_refuse() -> None:
    assert composed("+typo=1")["typo"] == 1


def test_interpolations_are_resolved() -> None:
    assert composed("seed=7", "train.tokens=${seed}")["train"] == {
        **compose.load("train", "default", config_dir=None),
        "tokens": 7,
        **UNSET,
    }


def test_a_deleted_section_is_absent() -> None:
    assert "eval" not in composed("~eval")


def test_no_experiment_may_be_said_aloud() -> None:
    assert composed("experiment=null") == composed()


def test_a_quoted_path_may_hold_spaces_commas_and_parentheses() -> None:
    corpus = composed("corpus=files", "corpus.path='/a, b (c)/*.txt'")["corpus"]
    assert isinstance(corpus, dict)
    assert corpus["path"] == "/a, b (c)/*.txt"


MISTAKES = {
    "scheme=rpoe": "scheme=rpoe: no such scheme; did you mean rope?",
    "model=zzz": "model=zzz: no such model; known: alibi, base, medium, small, tiny",
    "experiment=any": "experiment=any: no such experiment; known: addition_formats, ",
    "scheme=null": "scheme=null: no such scheme; ",
    "scheme=[rope,alibi]": "scheme=[rope,alibi]: scheme takes one choice; write a YAML",
    "scheme=rope,alibi": "scheme=rope,alibi holds several values, and one run takes one; run it",
    "seed=range(1,4)": "seed=range(1,4) holds several values",
    "scheme=glob(*)": "scheme=glob(*) holds several values",
    "eval.lengths=512,1024": "(a list is written eval.lengths=[512,1024])",
    "train.lrr=1": "train.lrr: unknown key; did you mean train.lr?",
    "lr=1": "lr: unknown key; did you mean train.lr?",
    "shceme=rope": "shceme: unknown key; did you mean scheme?",
    "foo=1": "foo: unknown key; Tab completes the known ones",
    "seed.x=1": "seed.x: unknown key; did you mean seed?",
    "corpus.path=x": "corpus.path: the chosen corpus has no such key, but corpus=files has",
    "corpus=files": "corpus.path: a value is required; give corpus.path=VALUE",
    "+model=small": "+model=small: model is chosen already; drop the +",
    "+seed=2": "Could not append to config. An item is already at 'seed'; drop the +",
    "~nothing": "Could not delete from config. 'nothing' does not exist",
    "train.lr": "train.lr: not readable as an override; give KEY=VALUE",
    "corpus.path=a(b": "quote special characters, as in \"corpus.path='a(b'\"",
    "scheme@other=rope": "scheme@other=rope: packages are not allowed on the command line",
    "hydra.run.dir=x": "hydra.run.dir=x: Hydra's own settings have no effect here",
    "train.tokens=${nothing}": "train.tokens: Interpolation key 'nothing' not found",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_is_one_line_with_key_and_remedy(override: str) -> None:
    assert MISTAKES[override] in message([override])


def test_a_misspelt_key_is_named_before_the_value_that_is_missing_for_it() -> None:
    assert "did you mean corpus.path?" in message(["corpus=files", "corpus.pth=x"])


def test_a_folder_of_the_users_own_adds_choices(tmp_path: Path) -> None:
    folder = tmp_path / "it's, mine"
    write(folder / "scheme/mine.yaml", "# Mine.\nname: mine\nparts: {}\n")
    mine = {"name": "mine", "parts": {}, "layers": None, "lr_ratio": 1.0}
    assert composed("scheme=mine", config_dir=folder)["scheme"] == mine
    assert "mine" in compose.choices("scheme", config_dir=folder)
    assert compose.describe("scheme", "mine", config_dir=folder) == "Mine."
    assert "scheme=mine" in compose.completions("scheme=m", config_dir=folder)


def test_a_claim_is_its_own_paragraph_and_no_part_of_the_description(tmp_path: Path) -> None:
    text = "# Mine.\n# A 2020.\n#\n# Note.\n#\n# Claim: it holds\n# at 2T.\nname: mine\nparts: {}\n"
    write(tmp_path / "scheme/mine.yaml", text)
    assert compose.describe("scheme", "mine", config_dir=tmp_path) == "Mine. A 2020."
    assert compose.claim("mine", config_dir=tmp_path) == "it holds at 2T."
    assert compose.claim("grape_a", config_dir=None) == ""


@pytest.mark.parametrize("scheme", compose.choices("scheme", config_dir=None))
def test_a_shipped_scheme_names_its_paper(scheme: str) -> None:
    described = compose.describe("scheme", scheme, config_dir=None)
    assert re.search(r"arXiv \d{4}\.\d{5}", described)
    assert "Claim:" not in described


def test_an_experiment_of_the_users_own_overlays_groups_and_values(tmp_path: Path) -> None:
    text = (
        "# @package _global_\n# Why.\n#\n# More.\n"
        "defaults:\n  - override /scheme: alibi\n  - _self_\nseed: 5\n"
    )
    write(tmp_path / "experiment/paper.yaml", text)
    plain = composed("experiment=paper", config_dir=tmp_path)
    alibi = compose.load("scheme", "alibi", config_dir=None)
    assert plain["scheme"] == {"layers": None, "lr_ratio": 1.0} | alibi
    assert plain["seed"] == 5
    assert compose.describe("experiment", "paper", config_dir=tmp_path) == "Why."


def test_a_shipped_folder_may_be_given_as_the_users_own() -> None:
    assert composed(config_dir=compose.conf_dir()) == composed()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    said = message(["scheme=rope"], tmp_path / "none")
    assert said == f"--config-dir: {tmp_path}/none is not a folder; give a folder of groups"


EXPERIMENT = "# @package _global_\ndefaults:\n  - override /scheme: {}\n"


@pytest.mark.parametrize(
    ("override", "content", "said"),
    [
        ("scheme=rope", b"name: rope\n", "{path}: scheme=rope exists already"),
        ("scheme=mine", b"- rope\n", "{path}: holds no KEY: VALUE lines"),
        ("scheme=mine", b"name: mine\nparts: [\n", "{path}:3: not valid YAML: "),
        ("experiment=paper", b"name: mine\nparts: [\n", "{path}:3: not valid YAML: "),
        ("scheme=mine", b"name: \xff\n", "{path}: not UTF-8; save it as UTF-8"),
        ("experiment=paper", b"name: \xff\n", "{path}: not UTF-8; save it as UTF-8"),
    ],
)
def test_a_file_of_the_users_own_that_cannot_be_used_is_named(
    tmp_path: Path, override: str, content: bytes, said: str
) -> None:
    path = write(tmp_path / f"scheme/{'rope' if override == 'scheme=rope' else 'mine'}.yaml", "")
    path.write_bytes(content)
    write(tmp_path / "experiment/paper.yaml", EXPERIMENT.format("mine"))
    assert message([override], tmp_path).startswith(said.format(path=path))


def test_a_choice_that_an_experiment_lacks_is_named_with_the_experiment(tmp_path: Path) -> None:
    write(tmp_path / "experiment/paper.yaml", EXPERIMENT.format("rpoe"))
    assert "Could not find 'scheme/rpoe'" in message(["experiment=paper"], tmp_path)


def test_values_are_parsed_without_composing() -> None:
    parsed = compose.values(["eval.lengths=[512,1024]", "runtime.root='a b'", "runtime.cache=null"])
    assert parsed == {"eval.lengths": [512, 1024], "runtime.root": "a b", "runtime.cache": None}


def test_values_refuse_signs() -> None:
    with pytest.raises(UserError, match=r"^\+eval.seed=1: only KEY=VALUE is allowed here"):
        compose.values(["+eval.seed=1"])


PLAIN = st.text("abcXYZ019_-./ +*", min_size=1).map(str.strip).filter(bool)
VALUES = st.recursive(
    st.one_of(
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        PLAIN.map(lambda text: f"{text}x"),
        st.text("ab ,:=[]{}()'\\").map(quoted),
        PLAIN.map(lambda key: f"${{{re.sub('[^a-z]', '', key) or 'seed'}}}"),
    ),
    lambda values: st.lists(values, max_size=3).map(lambda v: f"[{','.join(map(str, v))}]"),
    max_leaves=4,
).map(str)


@settings(deadline=None, max_examples=100)
@given(st.lists(VALUES, min_size=2, max_size=4))
def test_each_point_of_a_sweep_holds_its_value_as_typed(typed: list[str]) -> None:
    grid = compose.expand([f"x={','.join(typed)}"], config_dir=None)
    assert grid == [[f"x={value}"] for value in typed]
    for value, point in zip(typed, grid, strict=True):
        assert compose.values(point) == compose.values([f"x={value}"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.lr=interval(0,1)", "an interval has no points"),
        ("seed=range(1,10,0)", "a range without an end"),
        ("seed=range(1,inf)", "a range without an end"),
        ("seed=shuffle(range(1e9))", "a grid of more than 10,000 points; give fewer values"),
        ("scheme=glob(z*)", "matches nothing"),
    ],
)
def test_an_axis_without_points_is_refused(override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        compose.expand([override], config_dir=None)


@pytest.mark.parametrize(
    ("incomplete", "offered"),
    [
        ("sch", ["scheme.", "scheme="]),
        ("scheme=rop", ["scheme=rope"]),
        ("experiment=al", [f"experiment=alibi_figure1{end}" for end in ("", "_1024", "_laptop")]),
        ("experiment.", []),
        ("train.le", ["train.length=", "train.length=512"]),
        ("eval.lengths=", ["eval.lengths=null"]),
        ("scheme.parts.rope.b", ["scheme.parts.rope.base=", "scheme.parts.rope.base=10000.0"]),
        ("corpus.pat", ["corpus.path="]),
        ("+scheme=al", ["+scheme=alibi", "+scheme=alibi_learned"]),
        ("nothing", []),
        ("nothing=", []),
        ("task.se", ["task.seed=", "task.seed=0"]),
    ],
)
def test_completion_offers_groups_choices_keys_and_defaults(
    incomplete: str, offered: list[str]
) -> None:
    assert compose.completions(incomplete, config_dir=None) == offered


def test_every_word_that_completion_offers_for_a_section_composes() -> None:
    for word in compose.completions("train.", config_dir=None):
        (offered,) = compose.completions(word, config_dir=None)
        composed(offered)


@pytest.mark.slow
def test_every_key_is_reached_by_completion_a_level_at_a_time() -> None:
    level, reached = [""], set[str]()
    while level:
        offered = {
            word for prefix in level for word in compose.completions(prefix, config_dir=None)
        }
        reached |= {word.removesuffix("=") for word in offered if word.endswith("=")}
        level = [word for word in offered if word.endswith(".")]
    assert {"scheme", "seed", "train.lr", "corpus.text_column", "runtime.wandb"} <= reached
    assert "scheme.parts.learned_absolute.beyond" in {key.split("=")[0] for key in reached}
