"""scripts/gpu_check.py on a CPU: it measures what it says, and finds what is wrong."""

import csv
import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import commands
import pytest
import torch
from repository import ROOT
from torch import Tensor

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts" / "gpu_check.py"
CPU = torch.device("cpu")


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


gpu_check = loaded()


def check(measure: Any, *, limit: float | None = 1.0) -> dict[str, str]:
    return gpu_check.Check("some", "case", measure, limit).row()


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The output of a quick run on the CPU, as a file and as it was printed."""
    out = tmp_path_factory.mktemp("checked") / "cpu.csv"
    return out, run("--schemes", "kerple,learned_absolute", "--out", str(out)).stdout


PROGRAM = f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    ran = commands.run("-c", PROGRAM, "--device", "cpu", "--quick", "--models", "tiny", *words)
    assert ran.returncode == 0, ran.stderr
    return ran


def test_every_check_of_every_scheme_asked_for_is_a_row(checked: tuple[Path, str]) -> None:
    rows = rows_of(checked[0])
    checks = {
        case: {row["check"] for row in rows if row["case"] == case}
        for case in ("kerple", "learned_absolute", "learned_absolute + clamp")
    }
    per_scheme = {"forward 32", "forward 128", "gradient", "gradient, checkpointed", "bf16"}
    assert checks == dict.fromkeys(checks, per_scheme)
    assert {row["check"] for row in rows} > {"group", "tokens/s", "kernel SDPA with a mask"}


def test_every_number_is_within_its_bound_or_says_why_there_is_none(
    checked: tuple[Path, str],
) -> None:
    for row in rows_of(checked[0]):
        if row["value"] and row["limit"]:
            assert float(row["value"]) <= float(row["limit"])
            assert row["verdict"] == "ok"
        elif row["value"]:
            assert float(row["value"]) > 0
        else:
            assert row["verdict"] == "n/a"
            assert row["note"]


def test_a_number_above_its_bound_or_without_a_value_fails() -> None:
    assert check(lambda: gpu_check.Result(0.5))["verdict"] == "ok"
    assert check(lambda: gpu_check.Result(1.5))["verdict"] == "FAIL"
    assert check(lambda: gpu_check.Result(float("nan")))["verdict"] == "FAIL"
    assert check(lambda: gpu_check.Result(1.5), limit=None)["verdict"] == ""
    assert check(lambda: gpu_check.Result(None, "no GPU"))["verdict"] == "n/a"


def test_a_check_that_raises_fails_with_its_reason() -> None:
    row = check(lambda: torch.zeros(2) @ torch.zeros(3))
    assert row["verdict"] == "FAIL"
    assert row["note"].startswith("RuntimeError: ")


def test_the_gradient_check_finds_a_trained_bias_whose_gradient_is_lost() -> None:
    of_fp64 = partial(gpu_check.gradients, ("kerple", None), 32, CPU)
    want, got = of_fp64(double=True)[1], of_fp64()[1]
    assert gpu_check.worst(got, want).value < gpu_check.GRADIENT
    key = "scheme.parts.kerple.r1"
    assert key in want
    got[key] = torch.zeros_like(got[key])
    found = gpu_check.worst(got, want)
    assert found.note == key
    assert found.value == pytest.approx(1, abs=1e-3)


def test_the_kernel_check_finds_a_kernel_that_rounds_the_bias() -> None:
    def rounding(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return gpu_check.exact(q, k, v, table.bfloat16().float())

    error = partial(gpu_check.kernel_error, T=40, width=16, dtype=torch.float32, device=CPU)
    assert error(lambda: gpu_check.exact).value < gpu_check.GRADIENT
    assert error(lambda: rounding).value > gpu_check.GRADIENT


def test_without_a_gpu_the_script_says_so() -> None:
    ran = commands.run("-c", PROGRAM, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: there is no GPU in this machine; --device cpu")
