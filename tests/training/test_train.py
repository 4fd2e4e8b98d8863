"""Training is a function of its configuration, however it is interrupted or divided."""

import json
import os
import shutil
import signal
import subprocess
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from faults import here
from forks import Forked
from small import SMALL, small_config
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from trained import QUIET, assert_same_bits, one_thread_each, rows_of, weights_of

from lengthgen import pipeline
from lengthgen.config.schema import Config, from_overrides
from lengthgen.data import corpora
from lengthgen.data.windows import train_batch, training_windows
from lengthgen.errors import Diverged, UserError
from lengthgen.model.build import create
from lengthgen.runs.distributed import ALONE
from lengthgen.training.optim import set_rates
from lengthgen.training.trainer import (
    State,
    batch_of,
    check_finite,
    fresh_state,
    launch_step,
    train_step,
)

CPU = torch.device("cpu")
STEPS = 120  # a kill comes before the last one, on a loaded machine too
LONG = [
    f"train.tokens={STEPS * 128}",
    "train.checkpoint_every=7",
    "runtime.log_every=4",
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token cache that all runs of this file share."""
    return tmp_path_factory.mktemp("cache")


def words(root: Path, cache: Path, *more: str) -> list[str]:
    return ["train", *SMALL, *LONG, f"runtime.root={root}", f"runtime.cache={cache}", *more]


def begin(root: Path, cache: Path, *more: str) -> Forked:
    """Starts `lengthgen train` as a user would, one thread per process."""
    command = ["-m", "lengthgen", *words(root, cache, *more)]
    return Forked(*command, env=one_thread_each(), stderr=subprocess.STDOUT)


def finish(process: Forked) -> str:
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    return said


def run_of(root: Path) -> Path:
    [log] = root.glob("*/train.jsonl")
    return log.parent


def step_reached(root: Path) -> int:
    logs = list(root.glob("*/train.jsonl"))
    lines = logs[0].read_text().split("\n")[:-1] if logs else []
    return json.loads(lines[-1])["train/step"] if lines else 0


def begin_two(root: Path, cache: Path, *more: str) -> list[Forked]:
    """Starts the two processes of a run."""
    return forks.ranks(2, "-m", "lengthgen", *words(root, cache, *more))


def kill_after(step: int, process: Forked, root: Path) -> None:
    """Kills with -9 once the log has reached a step."""
    while step_reached(root) < step:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode != 0


PLAIN = ("scheme=learned_absolute",)
RECURRENT = ("scheme=transformer_xl_recurrent",)  # has a memory that outlives the step
OF_SPANS = ("model.arch=encoder_decoder", "scheme=t5", "train.length=32")  # two spans in a row


def of_runs(*runs: tuple[str, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("overrides", runs, ids=" ".join, indirect=True, scope="session")


@pytest.fixture(scope="session")
def overrides(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The overrides of a kind of run."""
    return request.param


@pytest.fixture(scope="session")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, cache: Path, overrides: tuple[str, ...]
) -> Path:
    """The root of a run that nothing interrupted."""
    root = tmp_path_factory.mktemp("undisturbed")
    ran = here(*words(root, cache, *overrides))
    assert ran.code == 0, ran.err
    return root


@pytest.mark.slow
@of_runs(PLAIN, RECURRENT, OF_SPANS)
def test_a_run_killed_twice_ends_with_the_bits_of_an_undisturbed_one(
    tmp_path: Path, cache: Path, undisturbed: Path, overrides: tuple[str, ...]
) -> None:
    for step in (4, 24):  # before the first checkpoint, and between two
        process = begin(tmp_path, cache, *overrides)
        kill_after(step, process, tmp_path)
    assert step_reached(tmp_path) < STEPS
    said = finish(begin(tmp_path, cache, *overrides))
    assert "resuming after step" in said
    assert_same_bits(run_of(tmp_path), run_of(undisturbed))


@pytest.mark.slow
@of_runs(RECURRENT, OF_SPANS)
def test_two_processes_agree_with_one_and_with_themselves_after_a_kill(
    tmp_path: Path, cache: Path, undisturbed: Path, overrides: tuple[str, ...]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for process in begin_two(whole, cache, *overrides):
        finish(process)
    main, other = begin_two(killed, cache, *overrides)
    kill_after(16, other, killed)
    assert main.wait(timeout=120) != 0
    for process in begin_two(killed, cache, *overrides):
        finish(process)
    one, two = run_of(undisturbed), run_of(whole)
    assert_same_bits(run_of(killed), two)
    for name, weight in weights_of(two).items():
        # A slow cosine of Transformer-XL adds nearly the same to all logits of a query, which
        # softmax ignores: its column's gradient is rounding alone, and Adam makes steps of that.
        if not name.endswith("W_R"):
            torch.testing.assert_close(weights_of(one)[name], weight, rtol=0, atol=2e-5)
    for row, other in zip(*(rows_of(run / "train.jsonl") for run in (one, two)), strict=True):
        assert row["train/loss"] == pytest.approx(other["train/loss"], abs=1e-6)
    assert len(rows_of(one / "eval.jsonl")) == len(rows_of(two / "eval.jsonl")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_ends_a_run_with_a_checkpoint_and_the_same_command_continues(
    tmp_path: Path, cache: Path, kind: signal.Signals
) -> None:
    process = begin(tmp_path, cache)
    while step_reached(tmp_path) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(kind)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 128 + kind
    assert f"stopped by {kind.name} after step" in said
    assert "Traceback" not in said
    checkpoint = max(tmp_path.glob("*/checkpoints/step-*"))
    saved = int(checkpoint.name.removeprefix("step-"))
    assert step_reached(tmp_path) <= saved < step_reached(tmp_path) + 4


def in_process(root: Path, cache: Path, *more: str) -> Path:
    return pipeline.train(small_config(f"runtime.root={root}", f"runtime.cache={cache}", *more))


@pytest.mark.slow
def test_a_finished_run_is_done_at_once_and_computes_nothing_again(
    tmp_path: Path, cache: Path
) -> None:
    run_dir = in_process(tmp_path, cache)
    before = {path: path.stat().st_mtime_ns for path in run_dir.glob("*.jsonl")}
    assert in_process(tmp_path, cache) == run_dir
    assert {path: path.stat().st_mtime_ns for path in run_dir.glob("*.jsonl")} == before
    assert len(before) == 3


@pytest.mark.slow
def test_a_finished_run_is_not_opened_in_wandb_again(tmp_path: Path, cache: Path) -> None:
    # In processes of their own: wandb keeps global state and starts a service.
    offline = [one for one in SMALL if one != "runtime.wandb=off"]
    asked = [*offline, "runtime.wandb=offline", f"runtime.root={tmp_path}"]
    ran = [forks.run("-m", "lengthgen", "train", *asked, f"runtime.cache={cache}") for _ in "12"]
    assert [one.returncode for one in ran] == [0, 0]
    said = [one.stderr for one in ran]
    assert [one.count("W&B: offline") for one in said] == [1, 0]
    assert len(list(tmp_path.glob("*/wandb/offline-run-*"))) == 1


def test_a_corpus_that_changed_since_the_run_began_is_refused(tmp_path: Path, cache: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for i in range(4):
        (text / f"{i}.txt").write_text(f"{i} some words " * 60)
    asked = ["corpus=files", f"corpus.path={text}", "corpus.tokenizer=bytes"]
    arguments = [one for one in SMALL if not one.startswith("corpus")]
    asked += [*arguments, f"runtime.root={tmp_path}/runs"]
    config = from_overrides(asked, config_dir=None, plugins=[])
    pipeline.train(config)
    (text / "0.txt").write_text("something else " * 60)
    with pytest.raises(UserError, match="has changed since this run began"):
        pipeline.train(config)


def test_a_length_that_no_document_has_is_refused_before_training(
    tmp_path: Path, cache: Path
) -> None:
    with pytest.raises(UserError, match=r"eval\.lengths: no validation document .* longest has \d"):
        in_process(tmp_path, cache, "eval.lengths=[16,100000]")
    with pytest.raises(UserError, match=r"train\.length=\d+: the longest training document"):
        in_process(tmp_path, cache, "train.length=8192", "train.batch_tokens=8192")
    assert not list(tmp_path.glob("*/checkpoints"))


@pytest.fixture(scope="module")
def stepping(cache: Path) -> tuple[Config, Any]:
    config = small_config(f"runtime.cache={cache}")
    corpus = corpora.load(config.corpus, cache_dir=cache, say=QUIET.say)
    return config, training_windows(corpus, config.train.length)


def state_of(config: Config) -> State:
    return fresh_state(config, create(config, vocab_size=257), device=CPU)


def test_micro_batches_add_up_to_the_whole_batch(stepping: tuple[Config, Any]) -> None:
    config, windows = stepping
    ends: list[dict[str, Tensor]] = []
    for micro_batch in (1, 3, 8):
        runtime = config.runtime.model_copy(update={"micro_batch": micro_batch})
        divided = config.model_copy(update={"runtime": runtime})
        state = state_of(divided)
        result = train_step(state, windows, ranks=ALONE, forward=state.model)
        assert result.n_targets <= config.train.batch_tokens
        ends.append(state.model.state_dict())
    for other in ends[1:]:
        for name, weight in ends[0].items():
            torch.testing.assert_close(other[name], weight, rtol=0, atol=2e-6)


def test_training_lowers_the_loss_of_what_it_trains_on(stepping: tuple[Config, Any]) -> None:
    config, windows = stepping
    state = state_of(config)
    losses: list[float] = []
    for _ in range(8):
        state.step = 0  # the same batch at the same rate
        result = train_step(state, windows, ranks=ALONE, forward=state.model)
        losses.append(result.nats / result.n_targets)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("loss", r"the loss is nan in step 1 on rank 0; no update was made; correct the scheme"),
        (
            "gradient",
            r"gradient's norm is (inf|nan) in step 1; no update was made; correct the scheme",
        ),
    ],
)
def test_what_is_not_finite_stops_before_the_update(
    stepping: tuple[Config, Any], what: str, said: str
) -> None:
    config, windows = stepping
    state = state_of(config)
    embedding = state.model.embedding.weight
    if what == "loss":
        with torch.no_grad():
            embedding[:, 0] = torch.inf
    else:
        embedding.register_hook(torch.Tensor.log)  # of what is negative: nan
    before = kept(state)
    with pytest.raises(UserError, match=said):
        train_step(state, windows, ranks=ALONE, forward=state.model)
    for one, other in zip(kept(state), before, strict=False):
        assert torch.equal(one, other)
    assert state.step == 0


class Poisoned(torch.nn.Module):
    """Passes calls on to a model; what it returns in one of them is not finite."""

    def __init__(self, model: torch.nn.Module, call: int) -> None:
        super().__init__()
        self.model, self.left = model, call

    def forward(self, tokens_BT: Tensor, *, generator: torch.Generator) -> Tensor:
        self.left -= 1
        x_BTD = self.model(tokens_BT, generator=generator)
        return x_BTD * torch.nan if self.left == 0 else x_BTD


def kept(state: State) -> list[Tensor]:
    """Returns copies of weights, moments and numbers of steps."""
    moments = [x for one in state.optimizer.state.values() for x in one.values()]
    return [x.detach().clone() for x in (*state.model.state_dict().values(), *moments)]


def launch(state: State, stepping: tuple[Config, Any], forward: torch.nn.Module) -> Tensor:
    batch = batch_of(state, stepping[1], ranks=ALONE)
    return launch_step(state, batch, ranks=ALONE, forward=forward)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_steps_launched_after_one_that_is_not_finite_change_nothing(
    stepping: tuple[Config, Any], what: str
) -> None:
    state, good = state_of(stepping[0]), state_of(stepping[0])
    for _ in range(2):
        launch(good, stepping, good.model)
    forward = Poisoned(state.model, call=3 if what == "loss" else 0)
    for step in range(5):
        spoils = what == "gradient" and step == 2
        of_gradient = torch.Tensor.log if spoils else torch.Tensor.clone
        hook = state.model.embedding.weight.register_hook(of_gradient)
        launch(state, stepping, forward)
        hook.remove()
    for one, other in zip(kept(state), kept(good), strict=True):
        assert torch.equal(one, other)
    said = {
        "loss": r"the loss is nan in step 3 on rank 0; no update was made; lower train\.lr",
        "gradient": r"norm is nan in step 3; no update was made; lower train\.lr",
    }
    with pytest.raises(Diverged, match=said[what]):
        check_finite(state, ALONE)
    assert state.step == 2


def test_steps_that_are_checked_later_are_those_checked_one_by_one(
    stepping: tuple[Config, Any],
) -> None:
    config, windows = stepping
    launched, checked = state_of(config), state_of(config)
    nats = 0.0
    for _ in range(3):
        launch(launched, stepping, launched.model)
        nats += train_step(checked, windows, ranks=ALONE, forward=checked.model).nats
    check_finite(launched, ALONE)
    assert float(launched.nats) == nats
    for one, other in zip(kept(launched), kept(checked), strict=True):
        assert torch.equal(one, other)


class Unread(TorchDispatchMode):
    """Refuses what reads a tensor's numbers on the host, and so would wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        assert func not in (aten._local_scalar_dense.default, aten.nonzero.default), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("scheme", ["sinusoidal", "rope", "t5", "alibi", "nope", "kerple"])
def test_launching_a_step_reads_no_tensor(stepping: tuple[Config, Any], scheme: str) -> None:
    config = small_config(f"scheme={scheme}")
    state = state_of(config)
    batch = batch_of(state, stepping[1], ranks=ALONE)
    with Unread():
        launch_step(state, batch, ranks=ALONE, forward=state.model)
        launch_step(state, batch, ranks=ALONE, forward=state.model)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Unread():
        check_finite(state, ALONE)


@pytest.mark.parametrize("lost", ["all", "newest"])
def test_done_without_its_checkpoint_is_trained_again(
    tmp_path: Path, cache: Path, lost: str
) -> None:
    run_dir = in_process(tmp_path, cache)
    kept = sorted((run_dir / "checkpoints").iterdir())
    final = (kept[-1] / "model.safetensors").read_bytes()
    for path in kept if lost == "all" else kept[-1:]:
        (path / "trainer.pt").unlink()
    in_process(tmp_path, cache)
    assert (kept[-1] / "model.safetensors").read_bytes() == final


class Recorded(torch.nn.Module):
    """Passes calls on to a model and keeps the generator's first number of each."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.draws: list[float] = []

    def forward(self, tokens_BT: Tensor, *, generator: torch.Generator) -> Tensor:
        self.draws.append(float(torch.rand((), generator=generator)))
        return self.model(tokens_BT, generator=generator)


def test_every_micro_batch_of_a_step_has_one_draw_and_every_step_another(
    stepping: tuple[Config, Any],
) -> None:
    config, windows = stepping
    runtime = config.runtime.model_copy(update={"micro_batch": 2})
    config = config.model_copy(update={"runtime": runtime})
    state = state_of(config)
    forward = Recorded(state.model)
    for _ in range(2):
        train_step(state, windows, ranks=ALONE, forward=forward)
    assert len(forward.draws) == 8
    assert len(set(forward.draws[:4])) == len(set(forward.draws[4:])) == 1
    assert forward.draws[0] != forward.draws[-1]


@pytest.mark.parametrize(("scheme", "least"), [("sinusoidal", 0.6), ("learned_absolute", 0.3)])
def test_positions_stay_about_as_large_as_the_tokens_that_grow_beside_them(
    tmp_path: Path, cache: Path, scheme: str, least: float
) -> None:
    words = [f"scheme={scheme}", "model.init_std=0.02", "train.lr=4e-3", "train.tokens=12800"]
    log = in_process(tmp_path, cache, *words) / "train.jsonl"
    ratios = [row["train/positions_to_tokens"] for row in rows_of(log)]
    assert len(ratios) == 100
    assert least < min(ratios) <= max(ratios) < 1.2


def test_a_scheme_that_embeds_no_positions_has_no_ratio_to_tokens(
    tmp_path: Path, cache: Path
) -> None:
    run_dir = in_process(tmp_path, cache, "train.tokens=128", "eval.lengths=[16]")
    assert all("train/positions_to_tokens" not in row for row in rows_of(run_dir / "train.jsonl"))


def test_the_schemes_rate_survives_a_restart_bit_for_bit_even_from_two_groups(
    tmp_path: Path, cache: Path
) -> None:
    words = ["scheme=learned_absolute", "train.scheme_lr_ratio=16", "train.tokens=1280"]
    whole = in_process(tmp_path / "whole", cache, *words)
    run_dir = in_process(tmp_path / "cut", cache, *words)
    shutil.rmtree(run_dir / "checkpoints" / "step-00000010")
    (run_dir / "DONE").unlink()
    [at_7] = run_dir.glob("checkpoints/*")
    trainer = torch.load(at_7 / "trainer.pt", weights_only=True)
    decaying, own, rest = trainer["optimizer"]["param_groups"]  # older versions had two groups
    rest["params"] = own["params"] + rest["params"]
    trainer["optimizer"]["param_groups"] = [decaying, rest]
    torch.save(trainer, at_7 / "trainer.pt")
    sums = json.loads((at_7 / "sha256.json").read_text())
    sums["trainer.pt"] = sha256((at_7 / "trainer.pt").read_bytes()).hexdigest()
    (at_7 / "sha256.json").write_text(json.dumps(sums))
    assert_same_bits(in_process(tmp_path / "cut", cache, *words), whole)


def test_a_ratio_of_1_trains_as_adamw_in_two_groups_bit_for_bit(
    stepping: tuple[Config, Any],
) -> None:
    config, windows = small_config("scheme=kerple"), stepping[1]
    state, by_hand = state_of(config), state_of(config)
    named = dict(by_hand.model.named_parameters())
    decaying = [n for n, p in named.items() if p.dim() >= 2 and not n.startswith("scheme.")]
    decay, betas = config.train.weight_decay, (config.train.beta1, config.train.beta2)
    by_hand.optimizer = torch.optim.AdamW(
        [
            {"params": [named[n] for n in decaying], "weight_decay": decay, "of_scheme": False},
            {
                "params": [p for n, p in named.items() if n not in decaying],
                **{"weight_decay": 0.0, "of_scheme": False},
            },
        ],
        betas=betas,
        fused=True,
    )
    assert config.scheme_lr_ratio == 1
    for one in (state, by_hand):
        for _ in range(3):
            train_step(one, windows, ranks=ALONE, forward=one.model)
    for name, weight in by_hand.model.state_dict().items():
        assert torch.equal(state.model.state_dict()[name], weight), name


def test_a_step_is_one_clipped_update_of_adamw_at_the_steps_rate(
    stepping: tuple[Config, Any],
) -> None:
    config, windows = stepping
    config = config.model_copy(update={"train": config.train.model_copy(update={"clip": 1e-3})})
    state, by_hand = state_of(config), state_of(config)
    result = train_step(state, windows, ranks=ALONE, forward=state.model)
    batch = train_batch(windows, seed=config.seed, step=0, batch=config.train.batch)
    inputs, targets = (torch.from_numpy(part) for part in batch)
    model, optimizer = by_hand.model, by_hand.optimizer
    nats = model.token_nll(model(inputs), targets).sum()
    (nats / (targets != -100).sum()).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    for grad in grads:
        grad *= 1e-3 / norm
    set_rates(optimizer, 0, config)
    optimizer.step()
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-4)
    assert result.nats == pytest.approx(float(nats.detach()), rel=1e-6)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(state.model.state_dict()[name], weight, rtol=0, atol=1e-5)
