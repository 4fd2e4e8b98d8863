"""Training is a function of its configuration, however it is interrupted or divided."""

import itertools
import json
import os
import shutil
import signal
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import here, ranks, run, train_words
from repository import TELLING
from small import SMALL, SMALL_TASK, close, create, experiment_of, plan_of, small_config, valid
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from trained import (
    QUIET,
    assert_same_bits,
    newest_checkpoint,
    rows_of,
    take_steps,
    train,
    train_and_evaluate,
    weights_of,
)

from lengthgen.config.schema import Config
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import TrainingWindows, train_batch
from lengthgen.errors import Diverged, Stopped, UserError
from lengthgen.evaluation.validation import validator
from lengthgen.experiment import resolve
from lengthgen.files import read_rows, write_rows
from lengthgen.model.dropout import Dropout, seed_dropout
from lengthgen.model.trial import try_out
from lengthgen.runs import devices, directory
from lengthgen.runs.distributed import ALONE, Ranks
from lengthgen.terminal import Progress
from lengthgen.training import trainer
from lengthgen.training.optim import lr_at
from lengthgen.training.step import (
    TrainingState,
    batch_of,
    check_finite,
    fresh_state,
    launch_step,
    loss_function,
)

CPU = torch.device("cpu")


def words(root: Path, cache: Path, *more: str) -> list[str]:
    return train_words(root, f"runtime.cache={cache}", *more)


def run_of(root: Path) -> Path:
    [log] = root.glob("*/train.jsonl")
    return log.parent


def test_a_stopped_run_ends_with_the_bits_of_an_unstopped_one(tmp_path: Path, cache: Path) -> None:
    undisturbed, stopped, steps = tmp_path / "undisturbed", tmp_path / "stopped", itertools.count(1)
    more = ["model.arch=encoder_decoder", "scheme=t5", "train.length=32"]  # two spans in a row
    more += ["train.tokens=2560", "train.checkpoint_every=7", "runtime.log_every=4"]
    more += ["train.keep_checkpoints=4", "train.optimizer=muon", "model.dropout=0.2"]
    assert here(*words(undisturbed, cache, *more)).code == 0

    def stop(*_: object) -> None:
        if next(steps) == 2 * 10:  # one of AdamW, one of Muon
            os.kill(os.getpid(), signal.SIGUSR2)

    with register_optimizer_step_post_hook(stop):
        ran = here(*words(stopped, cache, *more))
    assert (ran.code, "Traceback" in ran.err) == (128 + signal.SIGUSR2, False)
    assert "stopped by SIGUSR2 after step 10 of 20" in ran.err
    last = newest_checkpoint(run_of(stopped))
    assert last.name == "step-00000010"
    assert kept_weights(run_of(stopped))[last.name] == weights_in(last)
    assert "resuming after step 10" in here(*words(stopped, cache, *more)).err
    assert_same_bits(run_of(stopped), run_of(undisturbed))
    assert kept_weights(run_of(stopped)) == kept_weights(run_of(undisturbed))
    assert [*kept_weights(run_of(stopped))] == [f"step-{n:08d}" for n in (1, 2, 5, 10)]


def weights_in(checkpoint: Path) -> bytes:
    return (checkpoint / "model.safetensors").read_bytes()


def kept_weights(run_dir: Path) -> dict[str, bytes]:
    """Returns the weights that stay, by the names of their folders."""
    return {folder.name: weights_in(folder) for folder in sorted((run_dir / "kept").iterdir())}


TASK = """
import sys
from lengthgen.sweep import slurm
slurm.SECONDS_UNTIL_KILLED = 0  # else it waits for Slurm to end it
slurm.ArrayTask(tuple(sys.argv[1:]))()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "end", "kinds"),  # of what it gets, and of what it then ends by
    [
        (["-m", "lengthgen"], ["--gpus", "2"], [signal.SIGUSR2, signal.SIGTERM]),
        (["-m", "lengthgen"], ["--gpus", "2"], [signal.SIGINT, signal.SIGINT]),
        (["-c", TASK], [], [signal.SIGTERM, signal.SIGTERM]),
    ],
    ids=["torchrun", "torchrun, Ctrl-C", "a task of Slurm"],
)
def test_what_starts_a_run_passes_on_a_signal_that_it_alone_gets(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: list[str],
    end: list[str],
    kinds: list[signal.Signals],
) -> None:
    monkeypatch.setenv("TELL", f"kill -{int(kinds[0])} $(ps -o ppid= $PPID)")
    ran = run(*start, *words(tmp_path, cache, "--plugin", str(TELLING)), *end)
    assert (ran.code, ran.out, "Traceback" in ran.err) == (128 + kinds[1], "", False), ran
    assert ran.err.splitlines()[-1].startswith(f"stopped by {kinds[1].name} after step 5 of 8")
    state = json.loads((run_of(tmp_path) / "status.json").read_text())["state"]
    assert (state, newest_checkpoint(run_of(tmp_path)).name) == ("stopped", "step-00000005")


class Signalled(Progress):
    """Gets SIGTERM after the first step, and once more where the steps have ended."""

    has_begun = False

    def advance(self, amount: int, **fields: float | str) -> None:
        self.has_begun = True
        signal.raise_signal(signal.SIGTERM)

    def finish(self) -> None:
        if self.has_begun:
            signal.raise_signal(signal.SIGTERM)
        super().finish()


def test_the_reason_has_its_step_also_where_a_second_signal_follows(
    tmp_path: Path, cache: Path
) -> None:
    config = small_config(f"runtime.root={tmp_path}", f"runtime.cache={cache}")
    with pytest.raises(Stopped, match="stopped by SIGTERM after step 2 of 8"):
        train_and_evaluate(config, show=Signalled(is_main=False))


def test_a_row_is_of_the_steps_since_the_row_before(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = [r["train/loss"] for r in rows_of(in_process(tmp_path / "each", cache) / "train.jsonl")]
    clock = SimpleNamespace(perf_counter=partial(next, itertools.count()))  # 1 s between two calls
    monkeypatch.setattr(trainer, "time", clock)
    run_dir = in_process(tmp_path, cache, "runtime.log_every=3", "train.val_every=4")
    rows, train = read_rows(run_dir / "train.jsonl"), small_config().train
    own = directory.read_provenance(run_dir, run=run_dir.name)["training"]
    assert {r["training"] for r in rows} == {own}
    assert [r["train/tokens_per_s"] for r in rows] == [384, 384, 256]
    means = [sum(part) / len(part) for part in (each[:3], each[3:6], each[6:])]
    assert [r["train/loss"] for r in rows] == pytest.approx(means)
    assert [r["train/lr"] for r in rows] == [lr_at(n - 1, train) for n in (3, 6, 8)]
    assert [r["train/step"] for r in rows if "val/loss@16" in r] == [6, 8]


@pytest.mark.slow
def test_two_processes_compute_what_was_lost_bit_for_bit(tmp_path: Path, cache: Path) -> None:
    whole, again = tmp_path / "whole", tmp_path / "again"
    two = "scheme=transformer_xl_recurrent"
    assert ranks(2, *words(whole, cache, two)).code == 0
    shutil.copytree(whole, again)
    shutil.rmtree(newest_checkpoint(run_of(again)))
    assert "resuming after step 6" in ranks(2, *words(again, cache, two)).err
    assert_same_bits(run_of(again), run_of(whole))


def in_process(root: Path, cache: Path, *more: str) -> Path:
    return train(small_config(f"runtime.root={root}", f"runtime.cache={cache}", *more))


def test_dropout_drops_its_share_in_training_alone() -> None:
    model = create(small_config("model.dropout=0.3"), vocab_size=257)
    x_BTD = torch.ones(8, 16, 32)
    seed_dropout(model, seed=3, rows_B=torch.arange(8))
    once, again = (layer(x_BTD) for layer in (model.embedding_dropout, model.embedding_dropout))
    assert torch.equal(once, again)
    assert once.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert float(once.mean()) == pytest.approx(1, abs=0.05)
    seed_dropout(model, seed=4, rows_B=torch.arange(8))
    assert not torch.equal(model.embedding_dropout(x_BTD), once)
    assert torch.equal(model.eval().embedding_dropout(x_BTD), x_BTD)


@pytest.mark.parametrize(
    "asked", ["scheme=tape", "scheme=transformer_xl_recurrent", "model.arch=encoder_decoder"]
)
def test_every_dropout_acts_once_in_a_step(asked: str) -> None:
    config = valid([*(SMALL_TASK if "arch" in asked else SMALL), "model.dropout=0.3", asked])
    model, calls = create(config, vocab_size=257), Counter[nn.Module]()
    for layer in (m for m in model.modules() if isinstance(m, Dropout)):
        calls[layer] = 0
        layer.register_forward_pre_hook(lambda layer, _: calls.update([layer]))
    try_out(model, config, ())
    assert {*calls.values()} == {1}


def test_validation_changes_nothing_and_resumed_runs_have_it(
    tmp_path: Path, cache: Path, corpus: TokenizedCorpus
) -> None:
    config = small_config("train.val_every=3", f"runtime.root={tmp_path}", f"runtime.cache={cache}")
    run_dir, plain = train(config), in_process(tmp_path / "plain", cache)
    assert run_dir.name == plain.name
    rows = rows_of(run_dir / "train.jsonl")
    losses = {row["train/step"]: {k: row.pop(k) for k in [*row] if "val" in k} for row in rows}
    assert rows == rows_of(plain / "train.jsonl")
    for name, weight in weights_of(plain).items():
        assert torch.equal(weights_of(run_dir)[name], weight)
    assert [step for step in losses if losses[step]] == [3, 6, 8]
    assert losses[8].keys() == {"val/loss@16", "val/loss@64"}
    before = rows_of(run_dir / "train.jsonl")
    shutil.rmtree(newest_checkpoint(run_dir))
    train(config)
    assert rows_of(run_dir / "train.jsonl") == before
    model = create(config, vocab_size=corpus.vocab_size)
    model.load_state_dict(weights_of(run_dir))
    objective, planned = experiment_of(config).objective, plan_of(config, corpus)
    validate = validator(config, objective, planned, ranks=ALONE)
    assert validate is not None
    assert validate(model) == losses[8]
    assert 1 < losses[8]["val/loss@64"] < losses[3]["val/loss@64"]


def test_code_that_was_edited_is_named_before_training_goes_on(tmp_path: Path, cache: Path) -> None:
    assert here(*words(tmp_path, cache)).code == 0
    shutil.rmtree(newest_checkpoint(run_of(tmp_path)))
    run_dir = run_of(tmp_path)
    begun = directory.read_provenance(run_dir, run=run_dir.name)
    write_rows(run_dir / "env.json", [begun | {"code": {"rope": "0" * 12}}])
    edited, resumed = "code of scheme.parts.rope has changed", "resuming after step"
    said = " ".join(here(*words(tmp_path, cache)).err.split())
    assert 0 < said.index(edited) < said.index(resumed)


def test_a_run_that_a_machine_of_another_precision_began_is_named(
    tmp_path: Path, cache: Path
) -> None:
    chosen = devices.native_precision("cpu")
    other = {"bf16": "fp32", "fp32": "bf16"}[chosen]
    assert here(*words(tmp_path, cache, f"train.precision={other}")).code == 0
    named = f"{run_of(tmp_path).name} is in {other}; train.precision={other} continues it"
    _, *asked = words(tmp_path, cache, f"train.precision={chosen}")
    assert resolve(asked).begun_elsewhere is None  # it was not left to the machine
    for is_new in (True, False):
        ran = here(*words(tmp_path, cache, "train.precision=auto"))
        assert (named in " ".join(ran.err.split())) == is_new


@pytest.fixture(scope="module")
def stepping(corpus: TokenizedCorpus) -> tuple[Config, Any]:
    return small_config(), TrainingWindows(corpus, small_config().train.length)


def state_of(config: Config) -> TrainingState:
    experiment = experiment_of(config)
    model = experiment.create(vocab_size=257)
    return fresh_state(config, experiment.objective, model, device=CPU)


@pytest.mark.parametrize("words", [(), ("model.dropout=0.3",)])
def test_micro_batches_sum_to_a_batch(stepping: tuple[Config, Any], words: tuple[str, ...]) -> None:
    ends: list[dict[str, Tensor]] = []
    for micro_batch in (3, 8):
        state = state_of(small_config(*words, f"runtime.micro_batch={micro_batch}"))
        take_steps(state, stepping[1])
        ends.append(state.model.state_dict())
    torch.testing.assert_close(*ends, rtol=0, atol=2e-6)


def spoil(_module: nn.Module, _given: object, x_BTD: Tensor) -> Tensor:
    return x_BTD * torch.nan


@pytest.mark.parametrize(
    ("step", "what", "said"),
    [
        (0, "loss", r"loss is nan in step 1 on rank 0; correct the scheme"),
        (0, "gradient", r"norm is nan in step 1; correct the scheme"),
        (2, "loss", r"the loss is nan in step 3 on rank 0; lower train\.lr"),
        (2, "gradient", r"norm is nan in step 3; lower train\.lr"),
    ],
)
def test_the_first_step_that_is_not_finite_is_named_after_those_behind_it(
    stepping: tuple[Config, Any], step: int, what: str, said: str
) -> None:
    state = state_of(stepping[0])
    model, loss = state.model, loss_function(state, ranks=ALONE)
    for i in range(step + 3):
        with ExitStack() as hooks:
            if i == step and what == "loss":
                hooks.enter_context(model.register_forward_hook(spoil))
            elif i == step:  # the logarithm of what is negative
                hooks.enter_context(model.embedding.weight.register_hook(torch.Tensor.log))
            batch = batch_of(state, stepping[1], ranks=ALONE)
            launch_step(state, batch, ranks=ALONE, loss=loss)
    with pytest.raises(Diverged, match=said):
        check_finite(state, ALONE)


class Unread(TorchDispatchMode):
    """Refuses what reads a tensor's numbers on the host, and so would wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        assert func not in (aten._local_scalar_dense.default, aten.nonzero.default), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("scheme", ["sinusoidal", "rope", "kerple"])
def test_launching_a_step_reads_no_tensor(stepping: tuple[Config, Any], scheme: str) -> None:
    config = small_config(f"scheme={scheme}", "model.dropout=0.1", "train.optimizer=muon")
    state = state_of(config)
    batch = batch_of(state, stepping[1], ranks=ALONE)
    loss = loss_function(state, ranks=ALONE)
    with Unread():
        launch_step(state, batch, ranks=ALONE, loss=loss)
        launch_step(state, batch, ranks=ALONE, loss=loss)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Unread():
        float(state.nats)


def test_all_micro_batches_of_a_step_have_one_draw(stepping: tuple[Config, Any]) -> None:
    state = state_of(small_config("runtime.micro_batch=2"))
    draws: list[float] = []

    def draw(model: torch.nn.Module, given: object, named: dict[str, Any]) -> None:
        draws.append(float(torch.rand((), generator=named["generator"])))

    with state.model.register_forward_pre_hook(draw, with_kwargs=True):
        nats = take_steps(state, stepping[1], n=2)
    assert float(state.nats) == sum(nats)
    assert len(draws) == 8
    assert len(set(draws[:4])) == len(set(draws[4:])) == 1
    assert draws[0] != draws[-1]


def test_fewer_windows_than_processes_are_refused(tmp_path: Path, corpus: TokenizedCorpus) -> None:
    state = state_of(small_config("train.batch_tokens=32", f"runtime.root={tmp_path}"))
    three = Ranks(rank=0, world_size=3, local_rank=0)
    with pytest.raises(UserError, match=r"train\.batch_tokens=32: 2 windows of 16 .* 3 processes"):
        trainer.train(state, corpus, ranks=three, show=QUIET, log=print)


def test_steps_are_clipped_updates_of_adamw_at_their_rates(corpus: TokenizedCorpus) -> None:
    how = {"clip": 1e-5, "beta1": 0.8, "beta2": 0.7, "warmup_fraction": 0.5, "weight_decay": 0.3}
    config = small_config(*(f"train.{key}={value}" for key, value in how.items()))
    windows, state, model = TrainingWindows(corpus, 16), state_of(config), state_of(config).model
    matrices, rest = ([p for p in model.parameters() if (p.dim() == 2) == two] for two in (1, 0))
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": rest, "weight_decay": 0}]
    adamw = torch.optim.AdamW(groups, betas=(0.8, 0.7), eps=1e-8)  # which so small gradients show
    for step in range(2):
        [sum_nats] = take_steps(state, windows)
        batch = train_batch(windows, seed=config.seed, step=step, batch=config.train.batch)
        inputs, targets = (torch.from_numpy(part) for part in batch)
        nats = model.token_nll(model(inputs), targets).sum()
        adamw.zero_grad()
        (nats / (targets != -100).sum()).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-5)
        for group in adamw.param_groups:
            group["lr"] = config.train.lr * (step + 1) / 4  # of 8 steps half warm up
        adamw.step()
        assert float(state.last[2]) == pytest.approx(float(norm), rel=1e-4)
        assert sum_nats == pytest.approx(float(nats.detach()), rel=1e-6)
    for name, weight in model.state_dict().items():
        close(state.model.state_dict()[name], weight, atol=1e-6)
