"""The precision of training where none is requested, by what the processor multiplies natively."""

from typing import Literal


def native(device: str) -> Literal["bf16", "fp32"]:
    """Returns bf16 where `device` (auto, cpu, cuda or mps) multiplies it natively, else fp32.

    A CUDA device does from compute capability 8.0 on; one that is not in this machine is taken to.
    """
    import torch  # not above: most of what reads a configuration needs no torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        absent = not torch.cuda.is_available()
        takes = absent or torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        takes = device == "cpu" and cpu_multiplies_bf16()
    return "bf16" if takes else "fp32"


def cpu_multiplies_bf16() -> bool:
    """Returns whether the processor has AVX512-bf16, as those with AMX have too.

    Others widen bf16 to fp32 before they multiply, or have no kernel but a plain loop.
    """
    import torch

    return torch.cpu._is_avx512_bf16_supported()  # pyright: ignore[reportPrivateUsage]
