"""A scheme is one file and one YAML: of a user's own, written for former names, in the package."""

import importlib
import inspect
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from repository import ROOT
from small import SMALL

from lengthgen.config.schema import Config, from_overrides
from lengthgen.pipeline import train_and_evaluate
from lengthgen.runs import checkpoints
from lengthgen.runs.distributed import Ranks
from lengthgen.schemes import Part, registry
from lengthgen.terminal import Progress

ALONE = Ranks(rank=0, world_size=1, local_rank=0)
QUIET = Progress(is_main=False)

FILE = """
import torch
from torch import Tensor, nn
from lengthgen.schemes import AttentionContext, ModelDims, Part

class MyBias(Part):
    distance_only = True

    def __init__(self, shape: ModelDims, *, start: float) -> None:
        super().__init__(shape)
        self.r = nn.Parameter(torch.full((shape.n_heads, 1, 1), start))

    def unsupported_reason(self, length: int) -> str | None:
        return "my_bias ends at 32 tokens" if length > 32 else None

    def bias(self, c: AttentionContext) -> Tensor:
        return -self.r * torch.log1p(c.distance())

    def clamp_parameters(self) -> None:
        self.r.clamp_(min=0.4)
"""
YAML = """
name: my_bias
parts:
  my_bias: {start: 0.1}
"""


def configuration(folder: Path, text: str) -> Config:
    """Returns the configuration of a scheme that lies in a folder of the user's own."""
    plugin, scheme = folder / "my_bias.py", folder / "conf" / "scheme" / "my_bias.yaml"
    scheme.parent.mkdir(parents=True)
    plugin.write_text(text)
    scheme.write_text(YAML)
    words = [*SMALL, "scheme=my_bias", "train.tokens=512", f"runtime.root={folder}/runs"]
    return from_overrides(words, config_dir=folder / "conf", plugins=[plugin])


def test_a_file_and_a_yaml_are_a_scheme_that_trains_and_is_evaluated(tmp_path: Path) -> None:
    config = configuration(tmp_path, FILE)
    run_dir = train_and_evaluate(config, ranks=ALONE, show=QUIET)
    rows = [json.loads(line) for line in (run_dir / "eval.jsonl").read_text().splitlines()]
    skipped = {row["length"]: row.get("skipped") for row in rows}
    assert skipped == {16: None, 32: None, 64: "my_bias ends at 32 tokens"}
    assert all(math.isfinite(row["nats"]) and row["nats"] > 0 for row in rows if row["n_tokens"])
    found = checkpoints.newest(run_dir, run=config.run_id)
    assert found is not None
    r = found.weights["scheme.parts.my_bias.r"]
    assert r.shape == (4, 1, 1)
    assert (r >= torch.tensor(0.4)).all()  # begins at 0.1, and is clamped after every step


@pytest.mark.slow
def test_to_check_a_scheme_imports_no_compiler() -> None:
    code = """
import sys
from small import SMALL
from lengthgen.config.schema import from_overrides
from lengthgen.pipeline import validate
for name in ("abacus", "bam", "gated_delta", "grape_m", "kerple", "shaw"):
    validate(from_overrides([*SMALL, f"scheme={name}"], config_dir=None, plugins=[]))
    assert "torch._dynamo" not in sys.modules, name  # for seconds
"""
    support = ROOT / "tests" / "support"
    assert subprocess.run([sys.executable, "-c", code], cwd=support, check=False).returncode == 0


def test_every_part_in_a_file_of_the_package_is_registered_wherever_the_file_lies() -> None:
    found: set[type[Part]] = set()
    for path in (ROOT / "lengthgen" / "schemes").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        classes = vars(importlib.import_module(name)).values()
        found |= {one for one in classes if isinstance(one, type) and issubclass(one, Part)}
    assert {one for one in found - {Part} if not inspect.isabstract(one)} == set(
        registry().values()
    )
