"""A fault in a user's part is one line with part, hook and line, before anything is trained."""

from pathlib import Path

import pytest
from small import small_config

from lengthgen.errors import UserError
from lengthgen.model.trial import try_out
from lengthgen.pipeline import train_and_evaluate
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress

HEAD = """
import torch
from torch import Tensor
from lengthgen.schemes import AttentionContext, Part, Rotated

def helper(d: Tensor) -> Tensor:
    raise ZeroDivisionError("a bug")

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return helper(g)

class Mine(Part):
"""

FAULTS = {
    "def bias(self, c): return c.nothing": (
        r"scheme\.parts\.mine: bias raised AttributeError: .*'nothing' \(.*mine\.py, line 19\)"
    ),
    "def bias(self, c): return helper(c.distance())": (
        r"scheme\.parts\.mine: bias raised ZeroDivisionError: a bug \(.*mine\.py, line 7\)"
    ),
    "def embed(self, x, c): return Wrong.apply(x)": (
        r"embed of mine: ZeroDivisionError: a bug \(.*mine\.py, line 7\)"
    ),
    "def bias(self, c): return c.distance()[:, :-1]": (
        r"plugins: the model cannot use what is returned by bias of mine: RuntimeError: "
    ),
    "def qk(self, q, k, c): return None": r"returned by qk of mine: TypeError",
    "def weights(self, s, c): return s.softmax(-1).mT": r"by weights of mine: RuntimeError",
}


def overrides(path: Path, body: str) -> list[str]:
    path.write_text(f"{HEAD}    {body}\n")
    return [f"plugins=[{path}]", "scheme=nope", "+scheme.parts.mine={}"]


@pytest.mark.parametrize("body", FAULTS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_fault_of_a_hook_is_one_line(tmp_path: Path, body: str, precision: str) -> None:
    config = small_config(*overrides(tmp_path / "mine.py", body), f"train.precision={precision}")
    with pytest.raises(UserError, match=FAULTS[body]) as caught:
        try_out(config)
    assert "\n" not in str(caught.value)


def test_a_part_without_fault_passes(tmp_path: Path) -> None:
    requested = overrides(tmp_path / "mine.py", "def bias(self, c): return -c.distance()")
    try_out(small_config(*requested))
    try_out(small_config(*requested, "train.length=4"))


def test_a_fault_is_said_before_a_run_is_begun(tmp_path: Path) -> None:
    requested = overrides(tmp_path / "mine.py", "def bias(self, c): return c.nothing")
    config = small_config(*requested, f"runtime.root={tmp_path}/runs")
    with pytest.raises(UserError, match="bias raised AttributeError"):
        train_and_evaluate(config, ranks=ALONE, show=Progress(is_main=False))
    assert not config.run_dir.exists()


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        (
            [
                "scheme=rope",
                "+scheme.variants.mine={longrope:{factor:null,lambdas:[1,2]}}",
                "eval.variants=[mine]",
            ],
            r"longrope\.lambdas: 2 numbers",
        ),
        (
            ["scheme=rope", "+scheme.parts.p_rope={share:0.001}"],
            r"p_rope\.share=0\.001 .* keeps none",
        ),
    ],
)
def test_what_a_call_alone_can_tell_is_said_before_a_run_is_begun(
    tmp_path: Path, requested: list[str], message: str
) -> None:
    config = small_config(*requested, f"runtime.root={tmp_path}/runs")
    with pytest.raises(UserError, match=message):
        train_and_evaluate(config, ranks=ALONE, show=Progress(is_main=False))
    assert not config.run_dir.exists()
