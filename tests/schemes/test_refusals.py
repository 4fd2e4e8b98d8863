"""What a part or a scheme cannot honour is one line with the key, the value and the remedy."""

import pytest
from small import small_config

from lengthgen.errors import UserError

REFUSED = [  # overrides, and what the message says
    # Rotations
    ("scheme.parts.rope.rotary_percentage=0.4", r"rotary_percentage=0\.4 .* even number"),
    (
        "scheme.parts.rope.rotary_percentage=2",
        r"rotary_percentage: 2 should be less than or equal to 1",
    ),
    ("scheme.parts.rope.base=1", r"base: 1.* should be greater than 1"),
    ("scheme.parts.rope.base=x", r"scheme\.parts\.rope\.base: 'x' is not a number"),
    ("+scheme.parts.rope.bse=3", r"scheme\.parts\.rope\.bse: unknown key; did you mean"),
    ("model.d_model=36 model.n_heads=4", r"an even number .* needed; try model\.d_model=40"),
    ("scheme=p_rope scheme.parts.p_rope.share=0", r"share: 0 should be greater than 0"),
    (
        "scheme=p_rope scheme.parts.p_rope.share=1.5",
        r"share: 1\.5 should be less than or equal to 1",
    ),
    ("scheme=hope train.length=4 eval.targets=4", r"train\.length=4 is shorter .* at least 7"),
    ("scheme=xpos scheme.parts.xpos.base=1", r"base: 1.* should be greater than 1"),
    ("scheme=xpos scheme.parts.xpos.scale_base=0", r"scale_base: 0.* should be greater than 0"),
    ("scheme=xpos scheme.parts.xpos.gamma=-0.4", r"gamma: -0\.4.* should be greater than 0"),
    ("scheme=xpos model.d_model=20", r"head width of 5 leaves 5 rotated channels"),
    ("scheme=pope scheme.parts.pope.base=0.5", r"base: 0\.5.* should be greater than 1"),
    # Scalings of rotations
    ("+variants.mine={pi:{factor:0.5}}", r"factor: 0\.5.* should be greater than or equal to 1"),
    ("+variants.mine={ntk:{factor:0.0}}", r"factor: 0.* should be greater than or equal to 1"),
    (
        "+variants.mine={dynamic_ntk:{factor:0.9}}",
        r"factor: 0\.9.* should be greater than or equal to 1",
    ),
    ("+variants.mine={yarn:{factor:-1.0}}", r"factor: -1.* should be greater than or equal to 1"),
    ("+variants.mine={yarn:{beta_fast:1.0}}", r"beta_slow=1\.0 must be below beta_fast=1\.0"),
    ("+variants.mine={yarn:{beta_slow:0.0}}", r"beta_slow: 0.* should be greater than 0"),
    (
        "+variants.mine={llama3:{factor:0.1}}",
        r"factor: 0\.1.* should be greater than or equal to 1",
    ),
    ("+variants.mine={llama3:{low_freq_factor:5.0}}", r"low_freq_factor=5\.0 .* high_freq_factor"),
    (
        "+scheme.parts.longrope={factor:0.5,lambdas:[1.0]}",
        r"longrope\.factor: 0\.5 should be greater",
    ),
    (
        "+scheme.parts.longrope={factor:null,lambdas:[1.0,0.0]}",
        r"longrope\.lambdas\.1: 0\.0 should be greater",
    ),
    (
        "+scheme.parts.longrope={factor:null,lambdas:[1.0]} train.length=1 eval.lengths=[8]",
        r"train\.length, or original_max_position_embeddings: 1 must be above 1, since mscale "
        "has ln T$",
    ),
    (
        "+variants.mine={longrope2:{factor:0.5}}",
        r"factor: 0\.5.* should be greater than or equal to 1",
    ),
    (
        "+variants.mine={longrope2:{critical_turns:0}}",
        r"critical_turns: 0.* should be greater than 0",
    ),
    (
        "+variants.mine={longrope2:{excess:0.9}}",
        r"excess: 0\.9.* should be greater than or equal to 1",
    ),
    (
        "eval.variants=[longrope2] train.length=1 eval.lengths=[8]",
        r"train\.length, or original_max_position_embeddings: 1 must be above 1, since mscale "
        "has ln T$",
    ),
    # Remaps and windows
    ("+scheme.parts={rerope:{window:0}}", r"window: 0.* should be greater than 0"),
    (
        "+scheme.parts={leaky_rerope:{window:-1,slowdown:16}}",
        r"window: -1.* should be greater than 0",
    ),
    (
        "+scheme.parts={leaky_rerope:{window:1,slowdown:0.5}}",
        r"slowdown: 0.5.* should be greater than or equal to 1",
    ),
    (
        "+scheme.parts={selfextend:{neighbours:0.0,group:2}}",
        r"neighbours: 0.* should be greater than 0",
    ),
    (
        "+scheme.parts={selfextend:{neighbours:0.5,group:0}}",
        r"group: 0.* should be greater than 0",
    ),
    ("+scheme.parts={dual_chunk:{chunk:0,local:1}}", r"chunk: 0.* should be greater than 0"),
    (
        "+scheme.parts={dual_chunk:{chunk:0.25,local:0.25}}",
        r"local=0.25 must be below chunk=0.25: at train.length=16 they are 4 and 4 tokens",
    ),
    ("+scheme.parts={streaming_llm:{width:0.25,sinks:4}}", r"sinks=4 must be below the width"),
    ("eval.variants=[rerope+selfextend]", r"rerope and selfextend both define scores"),
    ("eval.variants=[streaming_llm+dual_chunk]", r"streaming_llm and dual_chunk both define"),
    ("+variants.mine={bca:{window:0.0}}", r"window: 0.* should be greater than 0"),
    (
        "scheme=nope +scheme.parts={window:{width:0,sinks:0}}",
        r"width: 0.* should be greater than 0",
    ),
    ("scheme=nope +scheme.parts={window:{width:0.5,sinks:8}}", r"sinks=8 must be .* is 8 tokens"),
    (
        "scheme=nope +scheme.parts={window:{width:0.5,sinks:-1}}",
        r"sinks: -1.* should be greater than or equal to 0",
    ),
    ("scheme=rnope_swa eval.variants=[window]", r"sets window, .* in some layers of .* rnope_swa"),
    # Absolute positions
    ("scheme=sinusoidal scheme.parts.sinusoidal.base=0", r"base: 0 should be greater than 1"),
    ("scheme=sinusoidal model.d_model=33 model.n_heads=3", r"must be even; .*\.d_model=36"),
    (
        "scheme=sinusoidal scheme.parts.sinusoidal.layout=concat_t2t model.d_model=2 "
        "model.n_heads=1",
        r"concat_t2t needs a model\.d_model of at least 4",
    ),
    (
        "scheme=sinusoidal scheme.parts.sinusoidal.scale=foo",
        r"^scheme\.parts\.sinusoidal\.scale: 'foo' is not one of 'published' or 'match' and is "
        r"not a number$",
    ),
    (
        "scheme=learned_absolute +scheme.parts.randomized={maximum:4.0,evaluation:random}",
        r"randomized gives out positions up to 63, and learned_absolute has 16 rows",
    ),
    (
        "scheme=xpos train.length=4096 train.batch_tokens=4096 "
        "+scheme.parts.randomized={maximum:32.0,evaluation:random}",
        r"randomized gives out positions up to 131071, and xpos has factors past the range",
    ),
    (
        "scheme=randomized_rope scheme.parts.randomized.maximum=0.5",
        r"maximum: 0\.5 should be greater",
    ),
    # Biases
    (
        "scheme=t5 scheme.parts.t5.num_buckets=1",
        r"num_buckets: 1.* should be greater than or equal to 2",
    ),
    ("scheme=t5 scheme.parts.t5.max_distance=16", r"t5: max_distance=16 must be above num_buck"),
    (
        "scheme=sandwich scheme.parts.sandwich.width=3",
        r"sandwich\.width: 3 should be a multiple of 2",
    ),
    (
        "scheme=sandwich scheme.parts.sandwich.width=0",
        r"sandwich\.width: 0 should be greater than 0",
    ),
    ("scheme=dynamic_bias scheme.parts.dynamic_bias.width=0.01", r"width=0\.01 of d_model=32 must"),
    (
        "scheme=dynamic_bias scheme.parts.dynamic_bias.depth=0",
        r"depth: 0.* should be greater than or equal to 1",
    ),
    ("scheme=dynamic_bias scheme.parts.dynamic_bias.distance=sqrt", r"_bias\.distance: 'sqrt'"),
    ("scheme=fire scheme.parts.fire.width=0", r"width: 0.* should be greater than 0"),
    ("scheme=fire scheme.parts.fire.c=0", r"c: 0.* should be greater than 0"),
    ("scheme=fire scheme.parts.fire.threshold=-1", r"threshold: -1.* should be greater than 0"),
    ("scheme=alibi scheme.parts.alibi.beyond=clamp", r"alibi\.beyond: 'clamp'"),
    ("scheme=fope scheme.parts.fope.base=1", r"base: 1.* should be greater than 1"),
    ("scheme=fope scheme.parts.fope.gain=-1", r"gain: -1 should be greater than or equal to 0"),
    ("scheme=fope train.length=4 eval.targets=4", r"train\.length=4 is shorter .* at least 7"),
    ("scheme=grape_m scheme.parts.grape_m.base=1", r"base: 1.* should be greater than 1"),
    ("scheme=path_attention eval.variants=[yarn]", r"nothing here rotates them"),
    # Content, relative positions, temperatures
    ("scheme=shaw scheme.parts.shaw.clip=0", r"clip: 0.* should be greater than 0"),
    (
        "scheme=cope scheme.parts.cope.n_positions=1",
        r"n_positions: 1.* should be greater than or equal to 2",
    ),
    (
        "scheme=dape_kerple scheme.parts.dape.width=0",
        r"width: 0.* should be greater than 0",
    ),
    ("scheme=dape_v2_kerple scheme.parts.dape_v2.kernel=4", r"kernel=4 must be odd"),
    (
        "scheme=deberta scheme.parts.deberta.clip=0",
        r"clip: 0.* should be greater than 0",
    ),
    (
        "scheme=asentmax scheme.parts.asentmax.delta=-1",
        r"delta: -1 should be greater than or equal to 0",
    ),
    (
        "scheme=asentmax scheme.parts.asentmax.gamma_range=0",
        r"gamma_range: 0.* should be greater than 0",
    ),
    (
        "scheme=selective_rope scheme.parts.selective_rope.rank=0",
        r"rank: 0.* should be greater than 0",
    ),
    (
        "scheme=path_attention scheme.parts.path_attention.kernel=0",
        r"kernel: 0.* should be greater than 0",
    ),
    ("scheme=tape scheme.parts.tape.base=1", r"base: 1.* should be greater than 1"),
    (
        "scheme=tape scheme.parts.tape.hidden_per_head=0",
        r"hidden_per_head: 0.* should be greater than 0",
    ),
    ("scheme=tape model.d_model=20", r"head width of 5 must be even; try model\.d_model=24"),
    ("scheme=tape model.n_layers=1", r"set model\.n_layers=2, or scheme=rope"),
    ("scheme=tape eval.variants=[yarn]", r"nothing here rotates them"),
    (
        "scheme=tape +scheme.parts.recurrence={mem_len:1.0}",
        r"recurrence reads a text in segments, and remembers nothing .* tape",
    ),
    (
        "scheme=tape +scheme.parts.gated_attention={gate:headwise}",
        r"tape carries a state, .* gated_attention changes \(values\)",
    ),
    (
        "scheme=tape +scheme.parts.shaw={clip:4,share_layers:false}",
        r"tape carries a state, .* shaw changes \(relative_values\)",
    ),
    ("scheme=gated_attention scheme.parts.gated_attention.gate=x", r"elementwise"),
    ("scheme=grape_a scheme.parts.grape_a.gates=x", r"query_and_key"),
    (
        "scheme=alibi +scheme.parts.gated_delta={}",
        r"alibi adds a bias .* gated_delta has none",
    ),
    (
        "scheme=t5 +scheme.parts.linear_attention={base:null}",
        r"t5 adds a bias to logits, and linear_attention has none",
    ),
    ("scheme=asentmax +scheme.parts.recurrence={mem_len:1.0}", r"in segments, and asentmax"),
    ("+scheme.parts.logn={} train.length=1", r"train\.length=1 must be above 1: log-n divides"),
    ("+scheme.parts.temperature={coefficient:0}", r"coefficient: 0.* should be greater than 0"),
    ("+scheme.parts.llama4_temperature={scale:0,floor:1}", r"scale: 0.* should be greater than 0"),
    ("+scheme.parts.llama4_temperature={scale:1,floor:0}", r"floor: 0.* should be greater than 0"),
    (
        "scheme=transformer_xl scheme.parts.recurrence.mem_len=-1",
        r"mem_len: -1 should be greater than",
    ),
    ("scheme=transformer_xl scheme.parts.recurrence.mem_len=0.01", r"less than a token"),
    (
        "scheme=transformer_xl scheme.parts.transformer_xl.base=1",
        r"base: 1 should be greater than 1",
    ),
    ("scheme=transformer_xl model.d_model=33 model.n_heads=3", r"model\.d_model=33 must be even"),
    ("scheme=sinusoidal +scheme.parts.recurrence={mem_len:1.0}", r"in segments, and sinusoidal"),
    ("scheme=transformer_xl_recurrent eval.variants=[logn]", r"in segments, and logn needs to"),
    ("scheme=transformer_xl_recurrent eval.variants=[temperature]", r"segments, and temperature"),
    ("scheme=transformer_xl_recurrent eval.variants=[window]", r"in segments, and window needs"),
    # Schemes
    ("+scheme.parts.ropee={}", r"scheme\.parts\.ropee: no such part; did you mean rope\?"),
    ("+scheme.parts.qqqq={}", r"no such part; known: abacus, .*, sinusoidal"),
    ("scheme.layers=[[rop]]", r"scheme\.layers: rop is not a part .* did you mean rope\?"),
    ("scheme.layers=[]", r"scheme\.layers: an empty list"),
    ("model.d_model=130 model.n_heads=4", r"not divisible by .* try model\.d_model=128"),
    *(
        (f"scheme={scheme} eval.variants=[{name}]", rf"{name} acts on rotated .* nothing here rot")
        for scheme in ("nope", "alibi")
        for name in (
            *("pi", "ntk", "dynamic_ntk", "yarn", "llama3"),
            *("rerope", "leaky_rerope", "selfextend", "dual_chunk", "streaming_llm"),
        )
    ),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_cannot_be_honoured_is_refused_in_one_line(words: str, message: str) -> None:
    overrides = words.split()
    if "+variants.mine={" in words:  # merged into the shipped variant of that name
        variant = words.partition("mine={")[2].partition(":")[0]
        overrides.append(f"eval.variants=[{variant}+mine]")
    with pytest.raises(UserError, match=message) as caught:
        small_config(*overrides)
    assert "\n" not in str(caught.value)
