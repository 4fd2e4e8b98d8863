"""Times evaluation of models that are no runs: by measure, and at the shape of SmolLM2-135M.

    python scripts/bench_context.py > context.md               # 2 CPU cores, about 15 minutes
    python scripts/bench_context.py --lengths 2048 --rounds 3

First, lengthgen.measure against a loop that calls the same model on the same windows and sums the
nats of their targets. Then the nats of the last 128 tokens of one window, random weights, by
lengthgen and by LlamaForCausalLM of transformers with SDPA, in fp32 and bf16. Seconds are those of
the process on its cores; calls take turns, and ratios are medians over rounds.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from bench_schemes import in_turn
from torch import Tensor

import lengthgen
from lengthgen.experiment import resolve

TARGETS = 128
SHAPE = {
    **{"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9},
    **{"num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152},
}
OURS = (
    *("model=llama_tiny", "model.d_model=576", "model.n_layers=30", "model.n_heads=9"),
    *("model.n_kv_heads=3", "model.d_ff=1536", "scheme=rope", "scheme.parts.rope.base=100000"),
)
SMALL = {**SHAPE, "hidden_size": 252, "num_hidden_layers": 4, "vocab_size": 4096}


def llama(shape: dict[str, int], longest: int) -> Any:
    others: dict[str, Any] = {"rope_theta": 100000.0, "tie_word_embeddings": True}
    config = transformers.LlamaConfig(**shape, max_position_embeddings=longest, **others)
    return transformers.LlamaForCausalLM(config).eval()


def measured(rounds: int) -> str:
    """Returns a table of measure over a plain loop."""
    model = llama(SMALL, 2048)
    documents = [*np.random.default_rng(0).integers(SMALL["vocab_size"], size=(8, 2400))]
    lines = ["| length | measure, s | loop, s | ratio |", "| --: | --: | --: | --: |"]
    for length in (512, 2048):
        windows = list[Tensor]()
        how: Any = {"lengths": length, "eval": {"endpoints": 8, "targets": 64}}

        def kept(tokens_BT: Tensor, windows: list[Tensor] = windows) -> Tensor:
            windows.append(tokens_BT.clone())
            return torch.zeros(*tokens_BT.shape, SMALL["vocab_size"])

        lengthgen.measure(kept, documents, **how)
        n_targets = 8 * 64 // sum(map(len, windows))

        @torch.inference_mode()
        def loop(windows: list[Tensor] = windows, n: int = n_targets) -> float:
            nats = 0.0
            for tokens_BT in windows:
                logits = model(tokens_BT).logits[:, -n:].float().flatten(0, 1)
                nats += float(F.cross_entropy(logits, tokens_BT[:, -n:].flatten(), reduction="sum"))
            return nats

        def ours(how: Any = how) -> object:
            return lengthgen.measure(model, documents, **how)

        one, other = in_turn([ours, loop], rounds, clock=time.process_time)
        ratio = median(a / b for a, b in zip(one, other, strict=True))
        lines.append(f"| {length:,} | {median(one):.2f} | {median(other):.2f} | {ratio:.3f} |")
    return "\n".join(lines)


def compared(lengths: Sequence[int], rounds: int) -> str:
    """Returns a table of tokens per second at SmolLM2's shape."""
    T = max(lengths)
    words = [*OURS, f"train.length={T}", f"train.batch_tokens={T}", "corpus=synthetic"]
    own = resolve(words).create(vocab_size=SHAPE["vocab_size"]).eval()
    theirs = llama(SHAPE, max(lengths))
    lines = ["| length | precision | lengthgen, tokens/s | transformers, tokens/s | ratio |"]
    lines.append("| --: | --- | --: | --: | --: |")
    for length in lengths:
        tokens_BT = torch.randint(SHAPE["vocab_size"], (1, length))
        targets_BT = tokens_BT[:, -TARGETS:]

        @torch.inference_mode()
        def ours(tokens_BT: Tensor = tokens_BT, targets_BT: Tensor = targets_BT) -> float:
            return float(own.token_nll(own(tokens_BT, n_last=TARGETS), targets_BT).sum())

        @torch.inference_mode()
        def peer(tokens_BT: Tensor = tokens_BT, targets_BT: Tensor = targets_BT) -> float:
            out = theirs(tokens_BT, use_cache=False, logits_to_keep=TARGETS)
            return float(F.cross_entropy(out.logits.float()[0], targets_BT[0], reduction="sum"))

        for name in ("fp32", "bf16"):
            with torch.autocast("cpu", torch.bfloat16) if name == "bf16" else nullcontext():
                seconds = in_turn([ours, peer], rounds, clock=time.process_time)
            ratio = median(b / a for a, b in zip(*seconds, strict=True))
            rates = (f"{length / median(of):,.0f}" for of in seconds)
            lines.append(f"| {length:,} | {name} | {' | '.join(rates)} | {ratio:.2f} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", default="2048,8192")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(measured(asked.rounds), "", sep="\n", flush=True)
    print(compared([int(n) for n in asked.lengths.split(",")], asked.rounds))


if __name__ == "__main__":
    main()
