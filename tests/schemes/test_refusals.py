"""What a part or a scheme cannot honour is one line with the key, the value and the remedy."""

from pathlib import Path

import pytest
from small import small_config

from lengthgen.errors import UserError

RECURRENT = "+scheme.parts.recurrence={mem_len:1.0}"
REFUSED = {  # overrides, and a part of what the message says
    # Arguments of parts: their types and bounds, then what their constructors refuse
    "scheme.parts.rope.base=1": r"scheme\.parts\.rope\.base: 1.* should be greater than 1",
    "scheme.parts.rope.base=x": r"scheme\.parts\.rope\.base: 'x' should be a valid number",
    "+scheme.parts.rope.bse=3": r"scheme\.parts\.rope\.bse: unknown key; did you mean",
    "eval.variants=[yarn+mine] +variants.mine={yarn:{factor:-1.0}}": r"factor: -1.* greater than",
    "scheme.parts.rope.rotary_percentage=0.4": r"rotary_percentage=0\.4 .* even number",
    "model.d_model=36 model.n_heads=4": r"an even number .* needed; try model\.d_model=40",
    "model.d_model=130 model.n_heads=4": r"not divisible by .* try model\.d_model=128",
    "scheme=hope train.length=4 eval.targets=4": r"train\.length=4 is shorter .* at least 7",
    "scheme=fope train.length=4 eval.targets=4": r"train\.length=4 is shorter .* at least 7",
    "scheme=xpos model.d_model=20": r"head width of 5 leaves 5 rotated channels",
    "scheme=tape model.d_model=20": r"head width of 5 must be even; try model\.d_model=24",
    "scheme=tape model.n_layers=1": r"set model\.n_layers=2, or scheme=rope",
    "scheme=sinusoidal model.d_model=33 model.n_heads=3": r"must be even; .*\.d_model=36",
    "scheme=transformer_xl model.d_model=33 model.n_heads=3": r"model\.d_model=33 must be even",
    "scheme=sinusoidal scheme.parts.sinusoidal.layout=concat_t2t model.d_model=2 model.n_heads=1": (
        r"concat_t2t needs a model\.d_model of at least 4"
    ),
    "scheme=sinusoidal scheme.parts.sinusoidal.scale=foo": (
        r"scale: 'foo' should be 'published' or 'match' and should be a valid number, "
    ),
    "eval.variants=[yarn+mine] +variants.mine={yarn:{beta_fast:1.0}}": r"beta_slow=1\.0 must",
    "eval.variants=[llama3+mine] +variants.mine={llama3:{low_freq_factor:5}}": r"high_freq_factor",
    "eval.variants=[longrope2] train.length=1 eval.lengths=[8]": r"1 must be above 1, since mscale",
    "+scheme.parts={dual_chunk:{chunk:0.25,local:0.25}}": (
        r"local=0.25 must be below chunk=0.25: at train.length=16 they are 4 and 4 tokens"
    ),
    "+scheme.parts={streaming_llm:{width:0.25,sinks:4}}": r"sinks=4 must be below the width",
    "scheme=nope +scheme.parts={window:{width:0.5,sinks:8}}": r"sinks=8 must be .* is 8 tokens",
    "scheme=t5 scheme.parts.t5.max_distance=16": r"t5: max_distance=16 must be above num_buckets",
    "scheme=dynamic_bias scheme.parts.dynamic_bias.width=0.01": r"width=0\.01 of d_model=32 must",
    "scheme=dape_v2_kerple scheme.parts.dape_v2.kernel=4": r"kernel=4 must be odd",
    "scheme=abacus scheme.parts.abacus.rows=100": r"must be more than T \+ shift \(16 \+ 99",
    "scheme=transformer_xl scheme.parts.recurrence.mem_len=0.01": r"less than a token",
    "+scheme.parts.logn={} train.length=1": r"train\.length=1 must be above 1: log-n divides",
    # Parts that do not go together
    "eval.variants=[rerope+selfextend]": r"rerope and selfextend both define scores",
    "scheme=rnope_swa eval.variants=[window]": r"sets window, .* in some layers of .* rnope_swa",
    "scheme=learned_absolute +scheme.parts.randomized={maximum:4.0,evaluation:random}": (
        r"randomized gives out positions up to 63, and learned_absolute has 16 rows"
    ),
    "scheme=alibi +scheme.parts.gated_delta={}": r"alibi adds a bias .* gated_delta has none",
    "scheme=path_attention eval.variants=[yarn]": r"yarn acts on rotated .* nothing here rotates",
    "scheme=nope eval.variants=[rerope]": r"rerope acts on rotated .* nothing here rotates them",
    "scheme=tape eval.variants=[yarn]": r"nothing here rotates them",
    f"scheme=tape {RECURRENT}": r"reads a text in segments, and remembers nothing .* tape",
    "scheme=tape +scheme.parts.gated_attention={gate:headwise}": r"attention changes \(values",
    "scheme=tape +scheme.parts.shaw={clip:4,share_layers:false}": r"shaw changes \(relative_val",
    f"scheme=asentmax {RECURRENT}": r"in segments, and asentmax needs all of it",
    f"scheme=linear_attention {RECURRENT}": r"in segments, and linear_attention needs",
    f"scheme=dape_v2_kerple {RECURRENT}": r"in segments, and dape_v2 needs",
    f"scheme=path_attention {RECURRENT}": r"in segments, and path_attention needs",
    f"scheme=selective_rope {RECURRENT}": r"in segments, and selective_rope needs",
    f"scheme=nope_conv {RECURRENT}": r"in segments, and short_conv needs",
    f"scheme=sinusoidal {RECURRENT}": r"in segments, and sinusoidal needs",
    "scheme=transformer_xl_recurrent eval.variants=[logn]": r"in segments, and logn needs",
    "scheme=transformer_xl_recurrent eval.variants=[temperature]": r"segments, and temperature",
    "+scheme.parts.dape={width:8,inputs:scores_and_bias}": r"dape has .* no part beside it has a",
    "scheme=dape_kerple scheme.parts.dape.inputs=scores": r"inputs=scores, and a part beside it",
    "scheme=grape_m eval.variants=[yarn]": r"powers of a base, and those of grape_m are trained",
    # Schemes
    "+scheme.parts.ropee={}": r"scheme\.parts\.ropee: no such part; did you mean rope\?",
    "+scheme.parts.qqqq={}": r"no such part; known: abacus, .*, sinusoidal",
    "scheme.layers=[[rop]]": r"scheme\.layers: rop is not a part .* did you mean rope\?",
    "scheme.layers=[]": r"scheme\.layers: an empty list",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_honoured_is_refused_in_one_line(words: str) -> None:
    with pytest.raises(UserError, match=REFUSED[words]) as caught:
        small_config(*words.split())
    assert "\n" not in str(caught.value)


IMPORTS = "import torch\nfrom lengthgen.schemes import Part\n\n"
PLUGINS = {  # a file of the user's own, the parts that are asked for, and a part of the message
    "two owners of a hook": (
        "class First(Part):\n    def weights(self, s_BHQS, c): ...\nclass Second(First): ...\n",
        "{first: {}, second: {}}",
        r"first and second both define weights",
    ),
    "a parameter named like a hook": (
        "class Shadowed(Part):\n"
        "    def __init__(self, shape):\n"
        "        super().__init__(shape)\n"
        "        self.bias = torch.nn.Parameter(torch.zeros(2))\n"
        "    def qk(self, q, k, c): ...\n",
        "{shadowed: {}}",
        r"parts\.shadowed: Shadowed raised AttributeError: self\.bias .*mine.py, line 7\)$",
    ),
    "an error in the constructor": (
        "class Mine(Part):\n    def __init__(self, shape):\n        1 / 0\n",
        "{mine: {}}",
        r"parts\.mine: Mine raised ZeroDivisionError: .*mine.py, line 6\)$",
    ),
    "no hook": (
        "class Mine(Part):\n    def bais(self, c): ...\n",
        "{mine: {}}",
        r"parts\.mine: its class Mine overrides no hook.* bias,",
    ),
    "a method of its container": (
        "class Values(Part): ...\n",
        "{values: {}}",
        r"scheme\.parts\.values: a part cannot have this name",
    ),
    "a shipped name": (
        "class Rope(Part): ...\n",
        "{}",
        r"part rope is defined twice, in .*rope\.py and in .*mine",
    ),
}


@pytest.mark.parametrize("name", PLUGINS)
def test_a_file_with_a_part_that_cannot_be_used_is_refused(name: str, tmp_path: Path) -> None:
    text, parts, message = PLUGINS[name]
    (tmp_path / "mine.py").write_text(IMPORTS + text)
    with pytest.raises(UserError, match=message):
        small_config("scheme=nope", f"+scheme.parts={parts}", plugins=[tmp_path / "mine.py"])
