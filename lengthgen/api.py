"""The Python API: what the commands do, for scripts and notebooks.

Examples:
    >>> import lengthgen
    >>> run = lengthgen.train(scheme="alibi", train={"tokens": 1_000_000})
    >>> lengthgen.evaluate(run, lengths=[512, 2048, 16384])
    >>> curves = lengthgen.read_results("runs")
    >>> model, tokenizer = lengthgen.load(run)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import tokenizers

from lengthgen import generation, pipeline
from lengthgen.analysis import curves
from lengthgen.config import compose, schema
from lengthgen.errors import UserError
from lengthgen.evaluation import evaluator
from lengthgen.model.transformer import Transformer
from lengthgen.report import run_records
from lengthgen.runs import devices, directory
from lengthgen.runs.distributed import Ranks
from lengthgen.terminal import Progress

Run = str | Path  # a run directory, or below runtime.root a run id or its unique beginning
COLUMNS = [field.name for field in fields(curves.Point) if field.name != "rows"]


def train(
    *overrides: str,
    config_dir: str | Path | None = None,
    plugins: str | Path | Sequence[str | Path] = (),
    **values: Any,
) -> Path:
    """Trains a scheme and evaluates its curve as `lengthgen train`; returns the run directory.

    A run that was interrupted resumes; a finished one is returned at once.

    Args:
        overrides: As typed on the command line, such as "train.lr=2e-3".
        config_dir: Folder with groups of your own.
        plugins: Python files with parts of your own, or one, whose code this call allows to run.
        values: The same as nested values: scheme="rope", seed=2, train={"tokens": 1_000_000}.

    Raises:
        UserError: A value cannot be used; the message names it and the remedy.
    """
    for word in overrides:
        if not isinstance(word, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(
                f'train: {word!r} is not an override; give text such as "scheme=rope", and a list '
                "of them as train(*words)"
            )
    files = [Path(plugin) for plugin in _listed(plugins)]
    combined = [*overrides, *compose.overrides_of(values)]
    folder = None if config_dir is None else Path(config_dir)
    config = schema.from_overrides(combined, config_dir=folder, plugins=files)
    return pipeline.train(pipeline.validate(config))


def evaluate(
    run: Run,
    *,
    lengths: int | Sequence[int] | None = None,
    protocols: str | Sequence[str] | None = None,
    variants: str | Sequence[str] | None = None,
    **values: Any,
) -> pd.DataFrame:
    """Evaluates a run, and returns its curve; only missing cells are computed.

    Args:
        run: A run directory, or the id of a run in runtime.root.
        lengths: Lengths in tokens, such as [512, 2048, 16384] or 512.
        protocols: Such as ["tail", "swap"] or "tail"; `lengthgen list protocols` shows them.
        variants: Training-free variants, such as ["ntk", "yarn"] or "ntk".
        values: eval and runtime as nested values, such as eval={"targets": 64}.

    Returns:
        As `read_results`, of this run and of what was requested.
    """
    requested = {"lengths": lengths, "protocols": protocols, "variants": variants}
    changes = {
        f"eval.{key}": _listed(value) for key, value in requested.items() if value is not None
    }
    changes |= compose.values(compose.overrides_of(values)) if values else {}
    schema.check_changes(changes, ("eval", "runtime"))
    config, run_dir = _opened(run, changes)
    ranks = Ranks.from_env()
    device = devices.device_of(config.runtime, ranks)
    with ranks.connected(device.type), Progress(is_main=ranks.is_main) as show:
        return _frame(evaluator.evaluate(config, run_dir, ranks=ranks, show=show))


def read_results(runs: Run | Sequence[Run] = "runs") -> pd.DataFrame:
    """Returns what was evaluated, without computing anything.

    Args:
        runs: A folder of runs, of which those are read that a report shows, or a run, or a list of
            runs. In a folder, a run that cannot be read is named on stderr and left out.

    Returns:
        A row for each run, protocol, variant and length: loss in nats per token, ppl,
        bits_per_byte (NaN where skipped), and what identifies the cell.

    Raises:
        UserError: There is no such folder or run, or nothing in it is evaluated.
    """
    if isinstance(runs, str | Path):
        folder = Path(runs)
        if folder.is_dir() and not (folder / "config.yaml").exists():
            return _results_below(folder)
        try:
            runs = [_directory(runs, {})]
        except UserError as error:
            raise UserError(f"no folder {runs}, and {error}") from None
    return _frame(run_records.evaluated([_directory(run, {}) for run in _listed(runs)]))


def _results_below(root: Path) -> pd.DataFrame:
    with Progress(is_main=True) as show:
        found = run_records.reportable(directory.run_dirs(root), say=show.say)
        if not found:
            raise UserError(
                f"{root}: no run here is evaluated; lengthgen train scheme=rope makes one"
            )
        return run_records.use_readable(
            found, lambda paths: _frame(run_records.evaluated(paths)), say=show.say
        )


def load(run: Run, *, variant: str | None = None) -> tuple[Transformer, tokenizers.Tokenizer]:
    """Returns the model of a run's newest checkpoint, in evaluation mode, and its tokenizer.

    model.logits(model(tokens)) of tokens [B, T] are logits [B, T, vocabulary].

    Args:
        run: A run directory, or the id of a run in the folder runs.
        variant: A training-free variant of the scheme, such as "ntk".
    """
    config, run_dir = _opened(run, {})
    with Progress(is_main=True) as show:
        trained = generation.open_trained(config, run_dir, variant=variant, show=show)
    return trained.model, trained.tokenizer


def _listed(values: Any) -> list[Any]:
    """Returns what was given in place of a list: its values, or a single one."""
    several = isinstance(values, Iterable) and not isinstance(values, str)
    return [*values] if several else [values]


def _opened(run: Run, changes: dict[str, Any]) -> tuple[schema.Config, Path]:
    run_dir = _directory(run, changes)
    (config,) = pipeline.configs_of([run_dir], changes)
    return config, run_dir


def _directory(run: Run, changes: Mapping[str, Any]) -> Path:
    return directory.find(str(run), compose.root_of(changes))


def _frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    points = [[getattr(point, name) for name in COLUMNS] for point in curves.curve(rows)]
    return pd.DataFrame(points, columns=COLUMNS)
