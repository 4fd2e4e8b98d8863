"""lengthgen train: in this process, or in several under torchrun."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lengthgen.cli.printing import say_once
from lengthgen.cli.words import ConfigDir, Overrides, Plugin, positive
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.config.schema import Config, Runtime


def train(
    overrides: Overrides = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="N", help="Start N processes with torchrun.")
    ] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Train a scheme, then evaluate its curve. Run again: it resumes, or is done at once."""
    from lengthgen.config import schema

    built = schema.from_words(overrides or [], config_dir=config_dir, plugins=plugin or [])
    if gpus is not None:
        n_gpus = positive(gpus, "--gpus", "a number of processes, like --gpus 2")
        _check_gpus(n_gpus, built.runtime)
        _prepare(built)
        options = ["--config-dir", str(config_dir)] if config_dir else []
        for path in plugin or []:
            options += ["--plugin", str(path)]
        _torchrun(n_gpus, ["train", *(overrides or []), *options])

    from lengthgen import pipeline
    from lengthgen.report import collect
    from lengthgen.runs.distributed import Ranks

    run_dir = pipeline.train(built)
    if Ranks.from_env().is_main:
        print(collect.table([run_dir]))
        print(f"run: {run_dir}")


def _check_gpus(gpus: int, runtime: "Runtime") -> None:
    import torch

    from lengthgen.runs import devices
    from lengthgen.runs.distributed import ALONE

    if "RANK" in os.environ:
        raise UserError("--gpus: torchrun has started this process already; drop --gpus")
    devices.device_of(runtime, ALONE)  # refuses one that is not here
    device, there = runtime.device, torch.cuda.device_count()
    if (device == "cuda" or (device == "auto" and there)) and gpus > there:
        raise UserError(
            f"--gpus: {gpus} asked, {there} in this machine; give --gpus {max(there, 1)}, "
            "or runtime.device=cpu for processes on the CPU"
        )
    if device == "auto" and not there and not torch.backends.mps.is_available():
        say_once(f"--gpus: there is no GPU in this machine; {gpus} processes on the CPU")


def _prepare(built: "Config") -> None:
    """Builds the token cache, and checks lengths and plugins, before there are N processes."""
    from lengthgen.data import corpora
    from lengthgen.evaluation import plan
    from lengthgen.model.plugin_check import check_plugins
    from lengthgen.terminal import Progress

    with Progress(is_main=True) as show:
        corpus = corpora.load(built.corpus, cache_dir=built.runtime.cache_dir, say=show.say)
    plan.plan(built, corpus)
    check_plugins(built)


def _torchrun(gpus: int, arguments: Sequence[str]) -> NoReturn:
    """Starts this program once per GPU, waits for all of them, and exits."""
    from lengthgen.runs import devices, distributed

    # torchrun would set it to 1 with a banner.
    os.environ.setdefault("OMP_NUM_THREADS", str(devices.default_threads(gpus)))
    sys.stdout.flush()
    ended = distributed.launch(gpus, arguments)
    if ended.said is not None:
        say_once(ended.said)
    sys.exit(ended.exit_code)
