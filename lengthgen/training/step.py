"""One optimizer step: batch, loss, update. B windows, T tokens, D width."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from lengthgen.config.schema import Config
from lengthgen.data.objective import Objective
from lengthgen.data.windows import IGNORED, TrainingWindows, consecutive_batch, train_batch
from lengthgen.errors import Diverged
from lengthgen.model import kernels
from lengthgen.model.build import generator_of
from lengthgen.model.dropout import seed_dropout
from lengthgen.model.transformer import Transformer
from lengthgen.runs import devices
from lengthgen.runs.distributed import Ranks
from lengthgen.schemes.parameters import widest
from lengthgen.training.optim import optimizers_of, set_rates


class MicroBatch(NamedTuple):
    """Rows of the step's batch that go through the model together."""

    inputs_BT: Tensor
    targets_BT: Tensor
    rows_B: Tensor
    begins_B: Tensor  # bool: the row does not continue that of the step before


class Batch(NamedTuple):
    """This process's share of a step's global batch, on the device; n_targets is of all of it."""

    micro_batches: list[MicroBatch]
    n_targets: int


@dataclass
class TrainingState:
    """Everything that changes while training: `step` optimizer steps are done or launched."""

    config: Config
    objective: Objective
    step: int
    nats: Tensor  # a sum since the last row of train.jsonl, as is n_targets
    n_targets: int
    model: Transformer
    optimizers: list[torch.optim.Optimizer]
    # Of the first step that is not finite, else of the last one:
    last: Tensor  # its number, this process's nats, the gradient's norm, the nats of all processes

    @property
    def device(self) -> torch.device:
        return self.nats.device

    @property
    def is_last(self) -> bool:
        """True if no step is left."""
        return self.step >= self.config.train.steps


def fresh_state(
    config: Config, objective: Objective, model: Transformer, *, device: torch.device
) -> TrainingState:
    """Returns the state before the first step of a model that was just created."""
    nats, last = (torch.zeros(n, dtype=widest(device), device=device) for n in ((), 4))
    model = model.to(device).train()
    optimizers = optimizers_of(model, config.train)
    return TrainingState(config, objective, 0, nats, 0, model, optimizers, last)


def batch_of(state: TrainingState, windows: TrainingWindows, *, ranks: Ranks) -> Batch:
    """Returns this process's share of the windows of the state's next step."""
    config, n = state.config, state.config.train.batch
    if state.model.continues_rows:
        rows, begins = consecutive_batch(windows, seed=config.seed, step=state.step, batch=n)
    else:
        rows = train_batch(windows, seed=config.seed, step=state.step, batch=n)
        begins = np.ones(n, dtype=bool)
    vocab_size = windows.corpus.vocab_size
    rows = state.objective.batch(rows, vocab_size=vocab_size, step=state.step)
    mine = np.arange(ranks.rank, n, ranks.world_size)
    size = devices.micro_batch(config.runtime, state.device, config.train.length)
    share = [
        devices.to_device(torch.from_numpy(array), state.device)
        for array in (rows.inputs_BT[mine], rows.targets_BT[mine], mine, begins[mine])
    ]
    parts = zip(*(tensor.split(size) for tensor in share), strict=True)
    return Batch([MicroBatch(*part) for part in parts], int((rows.targets_BT != IGNORED).sum()))


class Loss(nn.Module):
    """The sum of nats of a micro-batch: the forward pass that DistributedDataParallel wraps."""

    def __init__(self, state: TrainingState) -> None:
        super().__init__()
        self.model = state.model
        self.device_type = state.device.type
        self.autocast = state.config.train.precision == "bf16"
        self.hidden = kernels.compiled(self.model) if compiles_steps(state) else self.model

    def forward(self, micro: MicroBatch, *, generator: torch.Generator) -> Tensor:
        """Returns a scalar."""
        seed_dropout(self.model, seed=generator.initial_seed(), rows_B=micro.rows_B)
        with torch.autocast(self.device_type, torch.bfloat16, enabled=self.autocast):
            of_rows = self.model.answer_starts(micro.targets_BT)
            if self.model.continues_rows:
                of_rows = {"rows_B": micro.rows_B, "begins_B": micro.begins_B}
            x_BTD = self.hidden(micro.inputs_BT, generator=generator, **of_rows)
            return self.model.sum_token_nll(x_BTD, micro.targets_BT)


def compiles_steps(state: TrainingState) -> bool:
    """True if steps are compiled: as devices.compiles, of decoders without memory."""
    is_plain = state.model.arch == "decoder" and not state.model.continues_rows
    return is_plain and devices.compiles(state.config.runtime, state.device)


def loss_function(state: TrainingState, *, ranks: Ranks) -> Loss | DDP:
    """Returns the loss of a micro-batch, whose gradients are averaged over several processes."""
    loss = Loss(state)
    unused = state.config.scheme.layers is not None  # a part may leave some
    return loss if ranks.world_size == 1 else DDP(loss, find_unused_parameters=unused)


def launch_step(state: TrainingState, batch: Batch, *, ranks: Ranks, loss: nn.Module) -> Tensor:
    """Launches one optimizer step, and returns the nats of its global batch.

    The loss is the sum of nats over all processes divided once by their number of targets. Nothing
    here waits for a GPU: what is not finite is found by check_finite(), before it is kept.
    """
    model = state.model
    nats, last = torch.zeros_like(state.nats), batch.micro_batches[-1]
    for micro in batch.micro_batches:
        # Gradients of all micro-batches are averaged together.
        with loss.no_sync() if isinstance(loss, DDP) and micro is not last else nullcontext():
            draws = generator_of("step", state.config.seed, state.step)  # the same in all of them
            sum_nats = loss(micro, generator=draws)
            # times world_size: DDP divides the sum of gradients by it
            (sum_nats * ranks.world_size / batch.n_targets).backward()
        nats += sum_nats.detach()
    total = ranks.sum(nats.clone())
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), state.config.train.clip)
    step = torch.full_like(nats, state.step + 1)
    this = torch.stack([step, nats, grad_norm.to(nats.dtype), total])
    state.last = torch.where(state.last.isfinite().all(), this, state.last)
    for optimizer in state.optimizers:
        set_rates(optimizer, state.step, state.config)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    model.scheme.clamp_parameters()
    state.step += 1
    state.nats = state.nats + total
    state.n_targets += batch.n_targets
    return total


def check_finite(state: TrainingState, ranks: Ranks) -> None:
    """Waits for the steps that were launched. Raises Diverged if one was not finite.

    The error names the first such step and rank. What was updated since is not to be kept.
    """
    step, nats, grad_norm, total = state.last.tolist()
    if math.isfinite(grad_norm + total):
        return
    # No rate has acted before the first step.
    cause = "lower train.lr" if step > 1 else "correct the scheme or lower model.init_std"
    remedy = f"{cause}, or use train.precision=fp32"
    for rank, of_rank in enumerate(ranks.gather(nats)):
        if not math.isfinite(of_rank):
            raise Diverged(f"the loss is {of_rank} in step {int(step)} on rank {rank}; {remedy}")
    raise Diverged(f"the gradient's norm is {grad_norm} in step {int(step)}; {remedy}")
