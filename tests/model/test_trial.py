"""A fault in a user's part is one line with part, hook and line, before anything is trained."""

import re
from pathlib import Path

import pytest
import torch
from small import create, experiment_of, refusal, small_config, varied
from trained import train_and_evaluate

from lengthgen.config.schema import Config
from lengthgen.model.trial import try_out

HEAD = """
import torch
from torch import Tensor
from lengthgen.schemes import AttentionContext, DistanceBias, Part, Rotated

def helper(d: Tensor) -> Tensor:
    raise ZeroDivisionError("a bug")

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return helper(g)

class Poisoned(Wrong):
    @staticmethod
    def backward(ctx, g):
        return g * torch.nan

class Mine(Part):
"""

FAULTS = {  # of a hook | under a word
    "def bias(self, c): return helper(c.distance())": r" ZeroDivisionError: a bug \(.*, line 7\)$",
    "def embed(self, x, c): return Wrong.apply(x)": r" ZeroDivisionError: a bug \(.*, line 7\)$",
    "def bias(self): return None": r": Mine raised TypeError: Mine\.bias\(\) takes .*line 23\)$",
    "def bias(self, c): return torch.ones(4, 1, 1)": (
        r"Mine.bias returns torch.float32 \[4, 1, 1\]; return a tensor \[Q, S\], "
        r"\[H, Q, S\] or \[B, H, Q, S\] in .* here H = 4, Q = 8, S = 8 \(.*mine\.py, line 23\)$"
    ),
    "def bias(self, c): c.distance()": r"Mine\.bias returns None; return a tensor \[Q, S\], ",
    "def visible(self, c): return (c.distance() < 4).int()": r"ble returns torch.int32 \[8, 8\]",
    "def bias(self, c): return -c.exact_distance()": (
        r"returns torch.int64 \[8, 8\]; .* in c\.distance\(\)'s dtype, torch\.float32; here"
    ),
    "def relative_keys(self, c): return torch.ones(4, 3, 5)": (
        r"relative_keys returns torch.float32 \[4, 3, 5\]; return a tensor \[H, N, K\] or "
        r"\[1, N, K\]; here H = 4, K = 8 "
    ),
    "def embed(self, x, c): return Poisoned.apply(x)": r"gradient's norm nan before any update",
    "def qk(self, q, k, c): return q, k.roll(-1, 2)": r" depends on later tokens; ",
    "def embed(self, x, c): return x - x.mean(0) / 2": r"depends on the other texts of a batch; ",
    "def embed(self, x, c): self.register_buffer('b', x[0]); return x": (
        r"\.b: a hook registers it, so that no checkpoint could be read; register it in __init"
    ),
    "def embed(self, x, c): return x * torch.rand(())": r"outputs are random; .*c\.generator",
    "def embed(self, x, c): return x * torch.rand(()) | model.dropout=0.1": r"outputs are random",
    "def bias(self, c): return torch.eye(len(c.q_pos), len(c.k_pos))": r"together; .*c\.q_pos",
    "def bias(self, c): return -c.distance() / c.length": r"length of the call; .* depends_on",
    "def bias(self, c): return c.x_BTD[:, None, -len(c.q_pos):, :1] * c.distance()": (
        r": an output depends on later tokens; "
    ),
    "def bias(self, c): return c.distance() * c.x_BTD[:, None, None, :, 0]": r", line 24\); if the",
    "def embed(self, x, c): return x + torch.zeros(20, 1)[: x.shape[1]]": r"_reason states it$",
    "n = 0\n    def embed(self, x, c): self.n += 1; return x * self.n": r"two equal calls differ; ",
    "distance_only = True\n    def bias(self, c): return c.k_pos % 3 + 0 * c.distance()": (
        r"outputs differ in training and evaluation; distance_only"
    ),
    "def visible(self, c): return c.distance() < 0": r"before any update; visible must leave a key",
    "def qk(self, q, k, c): return None": r"Mine\.qk returns None; return Rotated\(q, k\) \(.*23\)",
    "def weights(self, s, c): return s.softmax(-1).mT": r"fit the model: Mine raised RuntimeErr",
    "def __init__(self, shape):\n        super().__init__(shape)\n"
    "        self.unused = torch.nn.Parameter(torch.ones(2))\n"
    "    def bias(self, c): return -c.distance()": r": the loss does not depend on one of its par",
    # [B, Q, S], and as many texts as heads
    "def weights(self, s, c): return s.softmax(-1).mean(1) | model.n_heads=2": r": does not fit",
}


def config_of(path: Path, body: str, *overrides: str) -> Config:
    path.write_text(f"{HEAD}    {body}\n")
    return small_config("scheme=nope", "+scheme.parts.mine={}", *overrides, plugins=[path])


def tried(config: Config) -> None:
    model = create(config, vocab_size=12)
    try_out(model, config, experiment_of(config).evaluated_variants)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_hook_is_one_line(tmp_path: Path, fault: str) -> None:
    body, *words = fault.split(" | ")
    words += ["train.precision=bf16", "eval.lengths=[16,200]"]
    config = config_of(tmp_path / "mine.py", body, *words)
    said = refusal(tried, config)
    assert re.search(rf"^scheme\.parts\.mine.*{FAULTS[fault]}", said)


BY_LENGTH = "-c.distance() / c.length\n    depends_on_length = True"


@pytest.mark.parametrize("length", [4, 16])
@pytest.mark.parametrize("body", ["(c.distance() == 0).float().log()", BY_LENGTH])
def test_a_part_without_fault_changes_no_model(tmp_path: Path, body: str, length: int) -> None:
    body = f"def bias(self, c): return {body}"
    config = config_of(tmp_path / "mine.py", body, f"train.length={length}", "eval.variants=[logn]")
    model = create(config, vocab_size=12)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    scheme = model.scheme
    try_out(model, config, experiment_of(config).evaluated_variants)
    assert model.scheme is scheme
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


LATE = {  # beyond 136 tokens, and what is said of it in evaluation
    "def embed(self, x, c): return x + torch.zeros(150, 1)[torch.arange(x.shape[1])]": "IndexError",
    "def bias(self, c): return c.distance().to([None, torch.half][c.length > 150])": "Mine",
}


@pytest.mark.parametrize("hook", LATE)
def test_a_fault_that_longer_texts_show_is_said_too(tmp_path: Path, cache: Path, hook: str) -> None:
    words = ["eval.max_context=200", "eval.lengths=[16,200]", "train.tokens=128"]
    words += [f"runtime.root={tmp_path}", f"runtime.cache={cache}"]
    config = config_of(tmp_path / "mine.py", hook, *words)
    said = refusal(train_and_evaluate, config)
    assert re.search(rf"^scheme\.parts\.mine: {LATE[hook]}.*; .*unsupported_reason states", said)


def test_a_fault_under_a_variant_is_one_line(tmp_path: Path) -> None:
    body = "def __init__(self, shape, *, k: int = 1): super().__init__(shape); self.k = k\n"
    body += "    def bias(self, c): return 1 / (self.k - 2) * c.distance()"
    for words in ("+scheme.parts.mine={}", "scheme=nope"):
        variant = ["+variants.two={mine:{k:2}}", "eval.variants=[two]"]
        (tmp_path / "mine.py").write_text(f"{HEAD}    {body}\n")
        config = small_config("scheme=nope", words, *variant, plugins=[tmp_path / "mine.py"])
        said = refusal(tried, config)
        assert said.startswith("scheme.parts.mine: ZeroDivisionError: ")


def test_random_numbers_of_a_buffer_are_the_same_under_a_variant(tmp_path: Path) -> None:
    body = "def __init__(self, shape):\n        super().__init__(shape)\n"
    body += "        self.register_buffer('drawn', torch.randn(200))\n"
    body += "    def bias(self, c): return self.drawn[c.distance().long()]"
    config = config_of(tmp_path / "mine.py", body, "eval.variants=[logn]")
    model = create(config, vocab_size=12)
    scheme = varied(model, config, "logn")
    for name, drawn in model.scheme.named_buffers():
        assert torch.equal(drawn, scheme.get_buffer(name))


BEFORE = {  # what a configuration has beside rope, and what is said of it before a run is begun
    "+variants.a={longrope:{factor:null,lambdas:[1,2]}} eval.variants=[a]": r"lambdas: 2 numbers",
    "+scheme.parts.abacus={rows:64,shift:5}": r"parts\.abacus: needs to know which characters",
    "+scheme.parts.p_rope={share:0.001}": r"p_rope\.share=0\.001 .* keeps none",
    "+scheme.parts.sinusoidal={base:99,layout:concat,scale:published} model.embedding_norm=true": (
        r"sinusoidal\.scale=published: .* give scale=1\.0"
    ),
    "+scheme.parts.mine={}": r"parts\.mine: AttributeError",
}


@pytest.mark.parametrize("words", BEFORE)
def test_what_a_call_alone_can_tell_is_said_before_a_run(tmp_path: Path, words: str) -> None:
    plugin, root = tmp_path / "mine.py", f"runtime.root={tmp_path}/runs"
    plugin.write_text(f"{HEAD}    def bias(self, c): return c.nothing\n")
    config = small_config("scheme=rope", *words.split(), root, plugins=[plugin])
    said = refusal(train_and_evaluate, config)
    assert re.search(BEFORE[words], said)
    assert not config.run_dir.exists()
