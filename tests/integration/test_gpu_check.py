# pyright: reportOptionalOperand=false
"""scripts/gpu_check.py on a CPU: it measures what it says, and finds what is wrong."""

import csv
from functools import partial
from pathlib import Path
from typing import Any

import gpu_check
import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def check(measure: Any, *, limit: float | None = 1.0) -> dict[str, str]:
    return gpu_check.Check("some", "case", measure, limit).row()


def test_every_check_of_every_scheme_asked_for_is_a_row_within_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--device", "cpu", "--quick", "--models", "tiny", "--schemes", "kerple"]
    monkeypatch.setattr("sys.argv", ["gpu_check", *words, "--out", f"{tmp_path}/cpu.csv"])
    with pytest.raises(SystemExit, match="0"):
        gpu_check.main()
    with (tmp_path / "cpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    per_scheme = {"forward 32", "forward 128", "gradient", "gradient, checkpointed", "bf16"}
    assert {row["check"] for row in rows if row["case"] == "kerple"} == per_scheme
    assert {row["check"] for row in rows} > {"group", "tokens/s", "kernel SDPA with a mask"}
    for row in rows:
        assert row["value"] or (row["verdict"] == "n/a" and row["note"])
        if row["value"] and row["limit"]:
            assert float(row["value"]) <= float(row["limit"])
            assert row["verdict"] == "ok"


def test_a_number_above_its_bound_or_without_a_value_fails() -> None:
    assert check(lambda: gpu_check.Result(0.5))["verdict"] == "ok"
    assert check(lambda: gpu_check.Result(1.5))["verdict"] == "FAIL"
    assert check(lambda: gpu_check.Result(float("nan")))["verdict"] == "FAIL"
    assert check(lambda: gpu_check.Result(1.5), limit=None)["verdict"] == ""
    assert check(lambda: gpu_check.Result(None, "no GPU"))["verdict"] == "n/a"
    raised = check(lambda: torch.zeros(2) @ torch.zeros(3))
    assert raised["verdict"] == "FAIL"
    assert raised["note"].startswith("RuntimeError: ")


def test_the_gradient_check_finds_a_trained_bias_whose_gradient_is_lost() -> None:
    of_fp64 = partial(gpu_check.gradients, ("kerple", None), 32, CPU)
    want, got = of_fp64(double=True)[1], of_fp64()[1]
    assert gpu_check.worst(got, want).value < gpu_check.GRADIENT
    key = "scheme.parts.kerple.r1"
    assert key in want
    got[key] = torch.zeros_like(got[key])
    lost = gpu_check.worst(got, want)
    assert lost.note == key
    assert lost.value == pytest.approx(1, abs=1e-3)


def test_the_kernel_check_finds_a_kernel_that_rounds_the_bias() -> None:
    def rounding(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return gpu_check.exact(q, k, v, table.bfloat16().float())

    error = partial(gpu_check.kernel_error, T=40, width=16, dtype=torch.float32, device=CPU)
    assert error(gpu_check.exact).value < gpu_check.GRADIENT
    assert error(rounding).value > gpu_check.GRADIENT
