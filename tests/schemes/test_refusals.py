"""What a part or a scheme cannot honour is one line with the key, the value and the remedy."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from small import dims, refusal, small_config, smaller, valid

from lengthgen.config.conf import choices, load_choice
from lengthgen.errors import UserError
from lengthgen.schemes import Design, ModelDims

SHIPPED: dict[str, dict[str, Any]] = {}  # the arguments of every part in the package's YAML files
for group in ("variant", "scheme"):
    for shipped in choices(group, config_dir=None):
        read = load_choice(group, shipped)
        SHIPPED.update(read["parts"] if group == "scheme" else read)

RECURRENT = "recurrence: {mem_len: 1}"
REFUSED = {  # parts with the arguments that differ, dimensions, and a part of the message
    # Arguments: their types and bounds, then what constructors refuse
    "rope: {base: 1}": r"scheme\.parts\.rope\.base: 1.* should be greater than 1",
    "rope: {base: x}": r"scheme\.parts\.rope\.base: 'x' should be a valid number",
    "rope: {bse: 3}": r"scheme\.parts\.rope\.bse: unknown key; did you mean",
    "rope, yarn: {factor: -1}": r"yarn\.factor: -1 should be greater than or equal to 1",
    "sinusoidal: {scale: foo}": r"should be 'published', 'match' or 'learned' and should be a",
    "rope: {rotary_percentage: 0.4}": r"rotary_percentage=0\.4 .* even number",
    "rope | d_head=9": r"an even number .* needed; try model\.d_model=40",
    "hope, rope | train_length=4": r"train\.length=4 is shorter .* at least 7",
    "fope | train_length=4": r"train\.length=4 is shorter .* at least 7",
    "xpos | d_head=5": r"head width of 5 leaves 5 rotated channels",
    "tape | d_head=5": r"head width of 5 must be even; try model\.d_model=24",
    "rope | d_head=7 d_model=32": r"is needed; try model\.d_head=8",
    "selective_rope | n_heads=3 d_model=32": r"32 channels into 3 heads; try model\.d_model=24",
    "tape | n_layers=1": r"set model\.n_layers=2, or scheme=rope",
    "sinusoidal | d_head=11 n_heads=3": r"must be even; try model\.d_model=36",
    "transformer_xl | d_head=11 n_heads=3": r"model\.d_model=33 must be even",
    "sinusoidal: {layout: concat_t2t} | d_head=2 n_heads=1": r"a model\.d_model of at least 4",
    "rope, yarn: {beta_fast: 1}": r"beta_slow=1\.0 must be below beta_fast=1\.0",
    "rope, llama3: {low_freq_factor: 5}": r"low_freq_factor=5\.0 .* high_freq_factor=4\.0",
    "rope, longrope2 | train_length=1": r"1 must be above 1, since mscale",
    "rope, dual_chunk: {chunk: 0.25, local: 0.25}": r"local=0.25 must be .* are 4 and 4 tokens",
    "rope, streaming_llm: {width: 0.25}": r"sinks=4 must be below the width, which is 4 tokens",
    "window: {width: 0.5, sinks: 8}": r"sinks=8 must be .* is 8 tokens",
    "t5: {max_distance: 16}": r"t5: max_distance=16 must be above num_buckets",
    "dynamic_bias: {width: 0.01}": r"width=0\.01 .* give 0\.03125 or more",
    "kerple, dape_v2: {kernel: 4}": r"kernel=4 must be odd",
    "abacus: {rows: 100}": r"must be more than T \+ shift \(16 \+ 99",
    "recurrence: {mem_len: 0.01}": r"less than a token",
    # Parts that do not go together
    "rope, rerope, selfextend": r"rerope and selfextend both define scores",
    "learned_absolute, randomized": r"positions up to 511, and learned_absolute has 16 rows",
    "alibi, gated_delta": r"alibi adds a bias .* gated_delta has none",
    "gated_delta, temperature": r"temperature scales logits, and gated_delta has none",
    "shaw, path_attention": r"shaw adds to keys by distance, and path_attention has none",
    "rope, transformer_xl, rerope": r"transformer_xl adds to keys .* rerope has none",
    "rope, selective_rope, rerope": r"selective_rope turns .* no map of positions changes",
    "rope, tape, rerope": r"tape turns queries and keys by the text",
    "xpos, shaw": r"xpos has factors .* cancel in q\.k alone, and shaw .* with scheme\.layers$",
    "xpos, rope": r"xpos has factors .* alone, and rope reads or turns",
    "pope, cope": r"pope makes q and k twice as wide, and cope",
    "path_attention, yarn": r"yarn acts on rotated .* nothing here rotates",
    "tape, yarn": r"nothing here rotates them",
    "tape, gated_attention": r"attention changes \(values",
    "tape, shaw": r"shaw changes \(relative_val",
    "dape": r"dape has inputs=scores_and_bias, and no part beside it has a bias",
    "kerple, dape: {inputs: scores}": r"inputs=scores, and a part beside it has a bias",
    "grape_m, yarn": r"powers of a base, and those of grape_m are trained",
    f"rope, transformer_xl, {RECURRENT}": r"in segments, and transformer_xl needs all of it",
    f"tape, {RECURRENT}": r"reads a text in segments, and remembers nothing .* tape",
    # Schemes
    "ropee": r"scheme\.parts\.ropee: no part .ropee.; did you mean rope\? \(a custom part",
    "qqqq": r"no part .qqqq.; known: abacus, .*, sinusoidal",
}
NOT_IN_SEGMENTS = "asentmax linear_attention path_attention selective_rope short_conv sinusoidal"
for name in [*NOT_IN_SEGMENTS.split(), "logn", "temperature"]:
    REFUSED[f"{name}, {RECURRENT}"] = f"in segments, and {name} needs all of it, or places in it"


def built(parts: dict[str, dict[str, Any]], shape: ModelDims) -> None:
    Design(shape=shape).with_parts(parts).build()


@pytest.mark.parametrize("asked", REFUSED)
def test_parts_that_cannot_be_honoured_are_refused_in_one_line(asked: str) -> None:
    names, _, sizes = asked.partition(" | ")
    changed = {word.split("=")[0]: int(word.split("=")[1]) for word in sizes.split()}
    shape = dims(**{"n_heads": 4, "n_layers": 2, "train_length": 16, **changed})
    parts = {
        name: {**SHIPPED.get(name, {}), **(arguments or {})}
        for name, arguments in yaml.safe_load(f"{{{names}}}").items()
    }
    assert re.search(REFUSED[asked], refusal(built, parts, shape))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("scheme=rnope_swa eval.variants=[window]", r"window, .* in some layers .*; drop window"),
        ("scheme=alibi eval.variants=[ntk]", r"ntk: ntk acts on .*; leave this variant out$"),
        ("scheme=transformer_xl_recurrent eval.variants=[logn]", r"in segments, and logn needs"),
        ("scheme.layers=[[rop]]", r"scheme\.layers: rop is not a part .* did you mean rope\?"),
        ("scheme.layers=[]", r"scheme\.layers: an empty list"),
        ("+variants.mine={kerple:{share_layers:true}} eval.variants=[mine]",
         r"eval\.variants\.mine: a variant is training-free, .* the parameter parts\.kerple\.r1;"),
        ("train.tokens=0", r"train\.tokens=0: nothing would be trained"),
        ("scheme=rope +scheme.parts.yarn={factor:2,beta_fast:32,beta_slow:1} "
         "scheme.layers=[[rope],[yarn]]", r"parts: yarn acts in none of \d+ layers; name it"),
    ],
)  # fmt: skip
def test_a_scheme_that_cannot_be_honoured_is_refused(words: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        valid(smaller(*words.split()))


@pytest.mark.parametrize(
    ("words", "n_missing"),
    [
        ("scheme=rope +scheme.parts.window={}", 2),
        ("scheme=rope ~scheme.parts.rope.base", 1),
        ("corpus=synthetic ~corpus.alphabet", 1),
        ("task=copy ~task.arguments.alphabet", 1),
    ],
)
def test_giving_what_is_said_to_be_missing_is_enough(words: str, n_missing: int) -> None:
    given = words.split()
    offered = refusal(valid, given).partition(": a value is required; give ")[2].split()
    assert len(offered) == n_missing
    valid([*given, *(word.replace("VALUE", "4") for word in offered)])


def test_parts_that_never_meet_in_a_layer_go_together() -> None:
    shaw = "+scheme.parts.shaw={clip: 4, share_layers: false}"
    config = small_config("scheme=xpos", shaw, "scheme.layers=[[xpos],[shaw]]")
    assert [*config.scheme.parts] == ["xpos", "shaw"]


PLUGINS = {  # files of the user's own, all parts of which are asked for, and a part of the message
    "class Mine(Part):\n    def __init__(self, shape):\n        super().__init__(shape)\n"
    "        self.bias = torch.nn.Parameter(torch.zeros(2))\n    def qk(self, q, k, c): ...\n": (
        r"parts\.mine: Mine raised AttributeError: self\.bias would hide .*mine.py, line 7\)$"
    ),
    "class Mine(Part):\n    def __init__(self, shape): ...\n    def bias(self, c): ...\n": (
        r"parts\.mine: Mine raised TypeError: .* super\(\)\.__init__\(shape\) .*mine.py, line 4\)$"
    ),
    "class Mine(Part):\n    def __init__(self, shape, *, n: 'Number'): ...\n": (
        r"Mine\.__init__: name 'Number' is not defined .*mine.py"
    ),
    "class Mine(Part):\n    def __init__(self, shape, *, x: torch.Tensor = None): ...\n": (
        r"Mine\.__init__: Unable to generate .*mine.py\); arguments are text, numbers"
    ),
    "class Mine(Part):\n    def __init__(self, shape, n: int): ...\n": (
        r"Mine\.__init__: write \(self, shape, \*, n\): arguments are keyword-only \(.*mine\.py\)$"
    ),
    "class Mine(Part):\n    def __init__(self, *, rate=1.0): ...\n": (
        r"Mine\.__init__: write \(self, shape, \*, rate\): arguments"
    ),
    "class Mine(Part):\n    def __init__(self): ...\n": r"__init__: write \(self, shape\): arg",
    "class Mine(DistanceBias):\n    def bias_art(self, d_N, c): ...\n": (
        r"parts\.mine: Mine raised TypeError: .* abstract .*bias_at.*mine\.py, line 4\)$"
    ),
    "class Mine(Part):\n    def bais(self, c): ...\n": r"its class Mine overrides no hook.* bias,",
    "import nowhere\n": "cannot be imported: ModuleNotFoundError",
    "class Values(Part): ...\n": r"scheme\.parts\.values: a part cannot have this name",
    "class First(Part): ...\n# class Second\n": r"second: no part .second.; [^(]*$",
    "class Rope(Part): ...\n": r"part rope is defined twice, in .*rope\.py and in .*mine",
}


@pytest.mark.parametrize("text", PLUGINS)
def test_a_file_with_a_part_that_cannot_be_used_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"import torch\nfrom lengthgen.schemes import *\n\n{text}")
    parts = ", ".join(f"{name.lower()}: {{}}" for name in re.findall(r"class (\w+)", text))
    words = "scheme=nope", f"+scheme.parts={{{parts}}}"
    assert re.search(PLUGINS[text], refusal(small_config, *words, plugins=[tmp_path / "mine.py"]))
