"""What long runs on GPUs use, as far as a CPU shows it; scripts/gpu_check.py checks the kernels."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small import VOCAB, small_config
from torch import Tensor
from trained import ALONE, QUIET, take_steps

from lengthgen.config.schema import Config
from lengthgen.data import corpora
from lengthgen.data.windows import TrainingWindows
from lengthgen.model import kernels
from lengthgen.model.build import create
from lengthgen.model.kernels import causal_blocks
from lengthgen.pipeline import train_and_evaluate
from lengthgen.runs import devices
from lengthgen.schemes import AttentionContext, ModelDims, Part, Scheme
from lengthgen.training.step import fresh_state

CPU = torch.device("cpu")


def test_the_blocks_of_flex_attention_are_made_once_per_length_compiled_or_not() -> None:
    def made(length: int) -> list[Any]:
        return [causal_blocks(length, CPU) for _ in range(2)]

    one, other = made(200)
    assert one is other
    assert made(300)[0] is not one

    def scaled(x: Tensor) -> Tensor:
        return x * causal_blocks(200, CPU).kv_num_blocks.sum()

    taken = kernels.compiled(scaled, fullgraph=True, backend="eager")
    x = torch.ones(2)
    assert torch.equal(taken(x), x * one.kv_num_blocks.sum())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.compile's own, which differ by version
@pytest.mark.parametrize("scheme", ["rope", "kerple"])
def test_a_step_is_compiled_as_one_graph(scheme: str) -> None:
    torch.compiler.reset()
    model = create(small_config(f"scheme={scheme}"), vocab_size=VOCAB)
    graphs = 0

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    forward = kernels.compiled(model, backend=count)
    out = forward(torch.zeros(2, 16, dtype=torch.long), generator=torch.Generator())
    assert torch.equal(out, model(torch.zeros(2, 16, dtype=torch.long)))
    assert graphs == 1


def stepped(
    config: Config, cache: Path, *, steps: int = 2
) -> tuple[list[float], dict[str, Tensor]]:
    """Returns the loss of each step in nats, and the weights after them."""
    corpus = corpora.load(config.corpus, cache_dir=cache, say=QUIET.say)
    windows = TrainingWindows(corpus, config.train.length)
    state = fresh_state(config, create(config, vocab_size=corpus.vocab_size), device=CPU)
    compiled = devices.compiles(config.runtime, CPU)
    nats = take_steps(state, windows, n=steps, compiled=compiled)
    return nats, state.model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", ["rope", "rope_conv", "dape_v2_kerple", "randomized_rope", "tape", "stick_breaking"]
)
def test_activation_checkpointing_changes_no_bit(scheme: str, cache: Path) -> None:
    requested = [f"scheme={scheme}", "runtime.micro_batch=3"]
    nats, weights = stepped(small_config(*requested), cache)
    recomputed = small_config(*requested, "runtime.activation_checkpointing=true")
    again, weights_again = stepped(recomputed, cache)
    assert again == nats
    for name, weight in weights.items():
        assert torch.equal(weights_again[name], weight), name


class Counting(Part):
    """Biases that are drawn in every call: attention is not a function of its input alone."""

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        self.calls = 0

    def bias(self, c: AttentionContext) -> Tensor:
        self.calls += 1
        assert c.generator is not None
        n = c.shape.n_heads, c.rows.stop - c.rows.start, c.cols.stop
        return torch.randn(n, generator=c.generator, dtype=c.dtype)


def test_a_part_that_samples_within_a_block_draws_the_same_when_it_is_recomputed() -> None:
    found: list[list[Tensor]] = []
    calls: list[int] = []
    for recomputed in (False, True):
        config = small_config(f"runtime.activation_checkpointing={recomputed}")
        model = create(config, vocab_size=VOCAB)
        part = Counting(config.shape)
        model.scheme = Scheme({"drawn": part}, layers=None, n_layers=config.model.n_layers)
        tokens = torch.arange(32).view(2, 16)
        nats = model.token_nll(
            model(tokens, generator=torch.Generator().manual_seed(3)), tokens
        ).sum()
        found.append(list(torch.autograd.grad(nats, list(model.parameters()))))
        calls.append(part.calls)
    assert calls == [2, 4]  # once in each layer, and once more where it is recomputed
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_with_activation_checkpointing_a_block_keeps_its_input_alone(cache: Path) -> None:
    def kept(*more: str) -> int:
        """Returns the numbers that the blocks keep for the backward pass."""
        model = create(
            small_config("train.length=64", "train.batch_tokens=64", *more), vocab_size=VOCAB
        )
        own = {parameter.data_ptr() for parameter in model.parameters()}
        sizes: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            if x.data_ptr() not in own:
                sizes[x.data_ptr()] = x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            out = model(torch.zeros(1, 64, dtype=torch.long))
        assert out.requires_grad
        return sum(sizes.values())

    assert kept("runtime.activation_checkpointing=true") < 0.5 * kept()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.compile's own, which differ by version
def test_bf16_compiled_checkpointed_and_accumulated_training_is_the_eager_one(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without g++, which takes two minutes.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    ways = {
        "eager": [],
        "fast": [
            "runtime.compile=true",
            "runtime.activation_checkpointing=true",
            "runtime.micro_batch=4",
        ],
    }
    requested = ["scheme=alibi", "model.n_layers=1", "train.precision=bf16", "train.tokens=256"]
    torch.compiler.reset()
    losses: list[list[float]] = []
    names: list[set[str]] = []
    for way, more in ways.items():
        places = [f"runtime.root={tmp_path / way}", f"runtime.cache={cache}"]
        run_dir = train_and_evaluate(
            small_config(*requested, *more, *places), ranks=ALONE, show=QUIET
        )
        rows = map(json.loads, (run_dir / "train.jsonl").read_text().splitlines())
        losses.append([row["train/loss"] for row in rows])
        [weights] = run_dir.glob("checkpoints/*/model.safetensors")
        names.append(set(load_file(weights)))
    assert losses[1] == pytest.approx(losses[0], rel=2**-8)  # sums in another order are rounded
    assert names[1] == names[0]
