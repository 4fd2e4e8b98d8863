"""Times lengthgen and other implementations of the same Transformer, side by side in one process.

    python scripts/bench_peers.py > peers.csv                  # tiny, T = 512, about 20 minutes
    python scripts/bench_peers.py --schemes rope --lengths 512 --rounds 3
    python scripts/bench_peers.py --device cuda --model small

Peers, all of lengthgen's width, depth, heads and vocabulary, with tied embeddings and no dropout:

x-transformers   Decoder with flash attention: rope, alibi, t5
HF NeoX, Llama   transformers, SDPA: rope (Llama's gated network has 2/3 of the width)
HF BLOOM         transformers: alibi
plain            fused qkv, SDPA; no positions or rotation: nope, rope
plain + mask     the same with its bias as an additive mask of SDPA, formed once per length (alibi)
                 or in every layer's call from its parameters (kerple, t5)
compiled         plain under torch.compile, with mask or rotation, up to its loss: training alone

train     one step: forward, mean cross entropy, backward, clipping, fused AdamW; random tokens
eval L    nats of the last 256 tokens of one window of L in fp32; peers form these logits alone, too

Every model takes a turn in each round, and the ratio is the median over rounds of the peer's
seconds over lengthgen's: above 1 lengthgen is faster. On a CPU these are seconds of its threads,
which other programs of the machine disturb less.
"""

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from bench_schemes import in_turn
from torch import Tensor, nn

from lengthgen.config.schema import Config
from lengthgen.experiment import resolve
from lengthgen.model.transformer import Transformer
from lengthgen.runs import devices
from lengthgen.runs.distributed import ALONE
from lengthgen.training.optim import optimizers_of

V, SCORED = 4096, 256


class Peer(nn.Module):
    """Another implementation: hidden states [B, T, D] of a window, and logits of some of them."""

    def __init__(
        self,
        model: nn.Module,
        hidden: Callable[[Tensor], Tensor],
        logits: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.model, self.hidden, self.logits = model, hidden, logits

    def mean_nats(self, tokens_BT: Tensor) -> Tensor:
        """Returns the mean cross entropy of a window with itself, a scalar in fp32."""
        logits = self.logits(self.hidden(tokens_BT)).float().flatten(0, 1)
        return F.cross_entropy(logits, tokens_BT.flatten())


class Compiled(Peer):
    """A peer whose forward pass, loss and backward pass are compiled together."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer.model, peer.hidden, peer.logits)
        self.mean_nats = torch.compile(super().mean_nats)


class Plain(nn.Module):
    """A GPT in 30 lines: what one writes without a library."""

    def __init__(self, config: Config, *, bias: nn.Module | None, rotary: bool) -> None:
        super().__init__()
        size, D = config.model, config.model.d_model
        self.heads = size.n_heads
        self.embedding = nn.Embedding(V, D)
        self.bias, half = bias, config.shape.d_head // 2
        self.omega = nn.Buffer(10_000.0 ** (-torch.arange(half) / half)) if rotary else None
        norm, linear = partial(nn.LayerNorm, D, bias=False), partial(nn.Linear, bias=False)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    norm(),
                    linear(D, 3 * D),
                    linear(D, D),
                    norm(),
                    linear(D, size.d_ff),
                    linear(size.d_ff, D),
                ]
            )
            for _ in range(size.n_layers)
        )
        self.norm = norm()

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x, T = self.embedding(tokens_BT), tokens_BT.shape[1]
        for block in self.blocks:
            norm, qkv, out, mlp_norm, mlp_in, mlp_out = block  # pyright: ignore
            q, k, v = qkv(norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            if self.omega is not None:
                theta = torch.arange(T, device=x.device)[:, None] * self.omega
                q, k = turned(q, theta), turned(k, theta)
            mask = None if self.bias is None else self.bias(T).to(q.dtype)
            attended = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
            x = x + out(attended.transpose(1, 2).flatten(2))
            x = x + mlp_out(F.gelu(mlp_in(mlp_norm(x))))
        return self.norm(x)

    def logits(self, x_BTD: Tensor) -> Tensor:
        return F.linear(x_BTD, self.embedding.weight)


def turned(x_BHTK: Tensor, theta_TR: Tensor) -> Tensor:
    """Returns both halves of the channels rotated against each other."""
    a, b = x_BHTK.float().chunk(2, dim=-1)
    cos, sin = theta_TR.cos(), theta_TR.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x_BHTK.dtype)


class Mask(nn.Module):
    """An additive causal mask [H, T, T] from a bias over (head, distance)."""

    def __init__(self, heads: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        shape = (32, heads) if kind == "t5" else (heads, 2)
        trained = torch.zeros(shape) if kind == "t5" else torch.ones(shape)
        self.weight = nn.Parameter(trained, requires_grad=kind != "alibi")
        self.slopes = nn.Buffer(2.0 ** (-8 * torch.arange(1, heads + 1) / heads))
        self.kept: Tensor | None = None

    def forward(self, T: int) -> Tensor:
        if self.kept is not None and self.kept.shape[-1] == T:
            return self.kept
        i = torch.arange(T, device=self.slopes.device)
        distance = (i[:, None] - i).clamp(min=0)
        if self.kind == "alibi":
            bias = -self.slopes[:, None, None] * distance
        elif self.kind == "kerple":
            p, a = self.weight.clamp(min=1e-2).T[..., None, None]
            bias = -p * torch.log1p(a * distance)
        else:
            log = 16 + (distance.clamp(min=1) / 16).log() / torch.log(torch.tensor(8.0)) * 16
            bucket = torch.where(distance < 16, distance, log.long().clamp(max=31))
            bias = self.weight[bucket].permute(2, 0, 1)
        bias = bias.masked_fill(i[:, None] < i, -torch.inf)
        self.kept = bias if self.kind == "alibi" else None
        return bias


def plain(config: Config, bias: nn.Module | None, rotary: bool = False) -> Peer:
    model = Plain(config, bias=bias, rotary=rotary)
    return Peer(model, model, model.logits)


def x_transformers(config: Config, longest: int, **positions: bool) -> Peer:
    from x_transformers import Decoder, TransformerWrapper

    size = config.model
    words: dict[str, Any] = {
        **{"dim": size.d_model, "depth": size.n_layers, "heads": size.n_heads},
        **{
            "attn_dim_head": config.shape.d_head,
            "ff_mult": size.d_ff // size.d_model,
            "ff_no_bias": True,
        },
        "attn_flash": "rel_pos_bias" not in positions,  # it takes one or the other
    }
    layers = Decoder(**words, **positions)
    about: dict[str, Any] = {"num_tokens": V, "max_seq_len": longest, "tie_embedding": True}
    model: Any = TransformerWrapper(attn_layers=layers, use_abs_pos_emb=not positions, **about)
    return Peer(model, partial(model, return_embeddings=True), model.to_logits)


def hugging_face(config: Config, longest: int, name: str) -> Peer:
    import transformers

    size = config.model
    words: dict[str, Any] = {  # BLOOM's; NeoX and Llama take the same under other names
        **{"vocab_size": V, "tie_word_embeddings": True, "hidden_size": size.d_model},
        **{"n_layer": size.n_layers, "n_head": size.n_heads},
    }
    if name != "BLOOM":
        words |= {
            "num_hidden_layers": words.pop("n_layer"),
            "num_attention_heads": words.pop("n_head"),
            "max_position_embeddings": longest,
            "intermediate_size": size.d_ff if name == "NeoX" else size.d_ff * 2 // 3,
        }
    kind = {"BLOOM": "bloom", "NeoX": "gpt_neox", "Llama": "llama"}[name]
    settings = transformers.AutoConfig.for_model(kind, **words)
    model: Any = transformers.AutoModelForCausalLM.from_config(settings)

    def hidden(tokens_BT: Tensor) -> Tensor:
        return model.base_model(tokens_BT, use_cache=False).last_hidden_state

    return Peer(model, hidden, model.get_output_embeddings())


def peers_of(scheme: str, config: Config, longest: int) -> Mapping[str, Callable[[], Peer]]:
    """Returns what builds each peer of a scheme."""
    x = partial(x_transformers, config, longest)
    hf = partial(hugging_face, config, longest)
    bias = Mask(config.model.n_heads, scheme)
    masked = {"plain + mask": partial(plain, config, bias)}
    peers = {
        "rope": {
            "x-transformers": partial(x, rotary_pos_emb=True),
            "HF NeoX": partial(hf, "NeoX"),
            "HF Llama": partial(hf, "Llama"),
            "plain": partial(plain, config, None, True),
        },
        "alibi": {
            "x-transformers": partial(x, alibi_pos_bias=True),
            "HF BLOOM": partial(hf, "BLOOM"),
            **masked,
        },
        "kerple": masked,
        "t5": {"x-transformers": partial(x, rel_pos_bias=True), **masked},
        "nope": {"plain": partial(plain, config, None)},
    }[scheme]
    *_, last = peers.values()
    return peers | {"compiled": lambda: Compiled(last())}


def trainer(model: Transformer | Peer, tokens_BT: Tensor, config: Config, bf16: bool) -> Any:
    """Returns a call that does one optimizer step."""
    parameters = [p for p in model.train().parameters() if p.requires_grad]
    if isinstance(model, Transformer):
        (optimizer,) = optimizers_of(model, config.train)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    device = tokens_BT.device
    size = devices.micro_batch(config.runtime, device, config.train.length)

    def step() -> float:
        for part in tokens_BT.split(size):
            with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
                if isinstance(model, Transformer):
                    nats = model.sum_token_nll(model(part), part) / tokens_BT.numel()
                else:
                    nats = model.mean_nats(part) * len(part) / len(tokens_BT)
            nats.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if isinstance(model, Transformer):
            model.scheme.clamp_parameters()
        return float(norm)

    return step


def scorer(model: Transformer | Peer, tokens_BT: Tensor) -> Any:
    """Returns a call that scores the last tokens of one window in fp32."""
    targets_BT = tokens_BT[:, -SCORED:]

    @torch.inference_mode()
    def score() -> float:
        model.eval()
        if isinstance(model, Transformer):
            x_BTD = model(tokens_BT, n_last=targets_BT.shape[1])
            return float(model.token_nll(x_BTD, targets_BT).sum())
        logits = model.logits(model.hidden(tokens_BT)[:, -SCORED:]).float()
        return float(F.cross_entropy(logits.flatten(0, 1), targets_BT.flatten(), reduction="sum"))

    return score


def rows_of(scheme: str, asked: argparse.Namespace) -> Iterator[list[str]]:
    """Yields a row for each thing that is timed and each peer."""
    words = [f"scheme={scheme}", f"model={asked.model}", f"runtime.device={asked.device}"]
    words += [f"runtime.threads={asked.threads}", "train=adamw"]
    experiment = resolve(words)
    config = experiment.config
    device = devices.device_of(config.runtime, ALONE)
    devices.prepare(config.runtime, device)
    lengths = [int(n) for n in asked.lengths.split(",")]
    longest = max(config.train.length, *lengths)
    ours = experiment.create(vocab_size=V).to(device)
    models: dict[str, Transformer | Peer] = {"lengthgen": ours}
    for name, build in peers_of(scheme, config, longest).items():
        models[name] = build().to(device)

    def timed(what: list[str], build: Any, *shape: int, rounds: int) -> Iterator[list[str]]:
        draws = torch.Generator().manual_seed(0)
        tokens_BT = torch.randint(V, shape, generator=draws).to(device)
        taken = {n: m for n, m in models.items() if what[0] == "train" or n != "compiled"}
        clock = time.process_time if device.type == "cpu" else time.perf_counter
        calls = [build(model, tokens_BT) for model in taken.values()]
        ours, *theirs = in_turn(calls, rounds, clock=clock)
        speed = f"{tokens_BT.numel() / median(ours):.0f}"
        for name, seconds in zip(list(taken)[1:], theirs, strict=True):
            ratio = median(a / b for a, b in zip(seconds, ours, strict=True))
            yield [scheme, *what, name, f"{ratio:.2f}", speed]

    for precision in ("bf16", "fp32"):
        step = partial(trainer, config=config, bf16=precision == "bf16")
        shape = (config.train.batch, config.train.length)
        yield from timed(["train", precision], step, *shape, rounds=asked.rounds)
    for n in lengths:
        few = max(1, asked.rounds * 2048 // max(2048, n))
        yield from timed([f"eval {n:,}", "fp32"], scorer, 1, n, rounds=few)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--schemes", default="rope,alibi,kerple,t5,nope")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--lengths", default="512,2048,4096,16384")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["scheme", "what", "precision", "peer", "ratio", "tokens_per_s"])
    for scheme in asked.schemes.split(","):
        for row in rows_of(scheme, asked):
            out.writerow(row)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
