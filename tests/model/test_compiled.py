"""What long runs on GPUs use, as far as a CPU shows it; test_gpu.py checks the kernels."""

import functools
from pathlib import Path

import pytest
import torch
from small import VOCAB, create, experiment_of, hidden, small_config
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from trained import take_steps, train_and_evaluate, weights_of

from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import TrainingWindows
from lengthgen.files import read_rows
from lengthgen.model import kernels
from lengthgen.schemes import AttentionContext, ModelDims, Part, Scheme
from lengthgen.training.step import fresh_state

CPU = torch.device("cpu")
GATES = "gated_attention={gate:headwise}"  # by which shaw is computed as on CUDA


@pytest.mark.filterwarnings("ignore")  # of FlexAttention, that it forms all logits here
def test_flex_attention_is_compiled_as_one_graph() -> None:
    def attention(table_HS: Tensor, *qkv: Tensor) -> Tensor:
        return kernels.flex(table_HS, *qkv, scale=0.25)

    given = torch.randn(2, 200), *torch.randn(3, 2, 2, 200, 16)
    with torch.no_grad():
        taken = kernels.compiled(attention, fullgraph=True, backend="eager")(*given)
        torch.testing.assert_close(taken, attention(*given))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.compile's own, which differ by version
@pytest.mark.parametrize("words", ["rope", "kerple", "fire", f"shaw +scheme.parts.{GATES}"])
def test_a_step_is_compiled_as_one_graph_and_has_the_gradients_of_the_eager_one(words: str) -> None:
    torch.compiler.reset()
    config = small_config(*f"scheme={words}".split(), "model.n_layers=1")
    model = create(config, vocab_size=VOCAB)
    graphs = CompileCounterWithBackend("aot_eager")
    tokens, found = torch.arange(32).view(2, 16), list[list[Tensor]]()
    for forward in (kernels.compiled(model, backend=graphs), model):
        nats = model.token_nll(forward(tokens, generator=torch.Generator()), tokens).sum()
        found.append([nats, *torch.autograd.grad(nats, list(model.parameters()))])
    assert graphs.frame_count == 1
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["rope_conv", "dape_v2_kerple", "randomized_rope", "tape"])
def test_activation_checkpointing_changes_no_bit(scheme: str, corpus: TokenizedCorpus) -> None:
    nats, weights = list[list[float]](), list[dict[str, Tensor]]()
    for recomputed in (False, True):
        words = ("runtime.micro_batch=3", f"runtime.activation_checkpointing={recomputed}")
        experiment = experiment_of(small_config(f"scheme={scheme}", *words))
        config, model = experiment.config, experiment.create(vocab_size=corpus.vocab_size)
        state = fresh_state(config, experiment.objective, model, device=CPU)
        nats.append(take_steps(state, TrainingWindows(corpus, config.train.length), n=2))
        weights.append(state.model.state_dict())
    assert nats[0] == nats[1]
    torch.testing.assert_close(*weights, rtol=0, atol=0)


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
    found, calls = list[list[Tensor]](), list[int]()
    for recomputed in (False, True):
        config = small_config(f"runtime.activation_checkpointing={recomputed}")
        model = create(config, vocab_size=VOCAB)
        part = Counting(config.shape)
        model.scheme = Scheme({"drawn": part}, layers=None, n_layers=config.model.n_layers)
        tokens = torch.arange(32).view(2, 16)
        nats = model.token_nll(hidden(model, tokens), tokens).sum()
        found.append(list(torch.autograd.grad(nats, list(model.parameters()))))
        calls.append(part.calls)
    assert calls == [2, 4]  # once in each layer, and once more where it is recomputed
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.compile's own, which differ by version
def test_bf16_compiled_checkpointed_and_accumulated_training_is_the_eager_one(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = CompileCounterWithBackend("eager")  # without g++, which takes two minutes
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=compiler))
    words = ["scheme=alibi", "model.n_layers=1", "train.precision=bf16", "train.tokens=256"]
    fast = ["compile=true", "activation_checkpointing=true", "micro_batch=4"]
    torch.compiler.reset()
    losses, names = list[list[float]](), list[set[str]]()
    for more in ([], fast):
        places = [f"root={tmp_path / str(len(more))}", f"cache={cache}"]
        config = small_config(*words, *(f"runtime.{word}" for word in [*more, *places]))
        run_dir = train_and_evaluate(config)
        losses.append([row["train/loss"] for row in read_rows(run_dir / "train.jsonl")])
        names.append({*weights_of(run_dir)})
        assert (compiler.frame_count > 0) == (more == fast)
    assert losses[1] == pytest.approx(losses[0], rel=2**-8)  # sums in another order are rounded
    assert names[1] == names[0]
