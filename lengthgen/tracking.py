"""The W&B run that shows a run: its rows of training, and its curve; the only wandb."""

import logging
import math
import os
import secrets
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lengthgen.config.schema import Config, to_plain
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.files import read_rows
from lengthgen.runs import status

if TYPE_CHECKING:
    import pandas as pd
    import wandb

SECONDS = 20.0  # that W&B is waited for: once at the start, once at the end
Say = Callable[[str], None]
Row = Mapping[str, Any]


def push(config: Config, run_dir: Path, *, again: bool, say: Say) -> None:
    """Shows W&B what it lacks of a run; all of it, as a fresh W&B run, if `again`.

    Raises UserError, before W&B is opened, if nothing is evaluated or a process trains the run.
    """
    if config.runtime.wandb == "off":
        raise UserError("runtime.wandb=off: so nothing can be pushed; drop it")
    with status.run_lock(run_dir, "train"):
        wandb_id = f"{config.run_id}-{secrets.token_hex(2)}" if again else config.run_id
        with Tracker(config, run_dir, say=say, wandb_id=wandb_id) as tracker:
            tracker.results()


class Tracker:
    """Shows a run in W&B, on the main rank: rows of train.jsonl by step, then what was evaluated.

    When it opens it sends the rows that the W&B run lacks. Nothing that W&B does or fails to do is
    raised, nor waited for longer than SECONDS. Before it is opened, it shows nothing.
    """

    def __init__(
        self, config: Config, run_dir: Path, *, say: Say, wandb_id: str | None = None
    ) -> None:
        self._config = config
        self._run_dir = run_dir.absolute()
        self._say = say
        self._id = wandb_id or config.run_id
        self._warnings: list[str] = []
        self._run: wandb.Run | None = None

    def __enter__(self) -> Self:
        self._hooks = (sys.exit, sys.excepthook, logging.raiseExceptions)
        # On a full disk every line of wandb's own log would become a traceback on the terminal.
        logging.raiseExceptions = False
        self._attempt(self._open)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._attempt(lambda: self._close(exit_code=0 if kind is None else 1))
        # wandb replaces the first two when it starts and never puts them back.
        sys.exit, sys.excepthook, logging.raiseExceptions = self._hooks

    def train(self, row: Row) -> None:
        """Shows a row of train.jsonl, unless the W&B run has it."""
        if self._run is not None:
            self._attempt(lambda: self._log_train(row))

    def results(self) -> None:
        """Shows what is evaluated: eval/ppl over eval/T_valid, and the summary."""
        if self._run is not None:
            self._attempt(self._log_results)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Runs what concerns W&B alone; its failure ends the view, never the training."""
        try:
            action()
        except (Exception, SystemExit) as error:  # wandb.teardown may call sys.exit
            reason = _shortened(str(error) or type(error).__name__)
            self._say(f"W&B: {reason}; it shows no more of this run, {self._run_dir} has all")
            self._run = None

    def _open(self) -> None:
        import wandb
        from wandb.errors import AuthenticationError

        mode = self._settings(None).mode  # for auto WANDB_MODE, or that of the folder
        if mode == "disabled" or os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1"):
            self._say("W&B: disabled, by WANDB_MODE, WANDB_DISABLED or `wandb disabled`")
            return
        refusal = ""
        if mode == "online":
            try:
                if not wandb.login(prompt=False, verify=False):
                    raise AuthenticationError("no API key (`wandb login` stores one)")
                self._run = self._init("online")
                self._say(f"W&B: {self._run.url}")
            except Exception as error:
                refusal = f"{_shortened(str(error))}; "
                wandb.teardown()
        if self._run is None:
            self._run = self._init("offline")
            folder = self._run.settings.sync_dir
            self._say(f"W&B: {refusal}offline, to upload: wandb sync {folder}")
        self._run.define_metric("train/*", step_metric="train/step")
        for row in read_rows(self._run_dir / "train.jsonl", run=self._config.run_id):
            self._log_train(row)

    def _settings(self, mode: Any) -> "wandb.Settings":
        """Returns wandb's settings for a mode; without one, for that of runtime.wandb."""
        import wandb
        from wandb.errors import term

        asked = self._config.runtime.wandb
        mode = mode or (asked if asked != "auto" else None)
        settings = wandb.Settings(
            silent=True,
            console="off",
            init_timeout=SECONDS,
            finish_timeout=SECONDS,
            finish_timeout_raises=True,
            **({"mode": mode} if mode else {}),
        )
        term.termsetup(settings, _Terminal(self._warnings))
        return wandb.setup(settings).settings

    def _init(self, mode: str) -> "wandb.Run":
        """Opens the W&B run. WANDB_PROJECT and the like say what no key of runtime does."""
        import wandb

        self._settings(mode)
        keys = {"project": "lengthgen", "entity": None}
        usual = {"run_group": self._config.scheme.name, "job_type": "train", "name": self._id}
        chosen: dict[str, Any] = {}
        for key, value in {**keys, **usual, "dir": str(self._run_dir)}.items():
            outer = os.environ.get(f"WANDB_{key.upper()}")
            own = getattr(self._config.runtime, f"wandb_{key}", None)
            if own and outer and own != outer:
                self._say(f"W&B: runtime.wandb_{key}={own}, not WANDB_{key.upper()}={outer}")
            if own or not outer:
                chosen[key.removeprefix("run_")] = own or value
        config = to_plain(self._config)
        return wandb.init(mode=mode, id=self._id, resume="allow", config=config, **chosen)  # pyright: ignore[reportArgumentType]

    def _close(self, *, exit_code: int) -> None:
        import wandb

        try:
            if self._run is not None:
                with suppress(TimeoutError):  # it is among the warnings too
                    self._run.finish(exit_code=exit_code)
                if self._run.settings.mode == "online" and self._warnings:
                    first, folder = self._warnings[0], self._run.settings.sync_dir
                    self._say(f"W&B: {_shortened(first)}; to upload the rest: wandb sync {folder}")
        finally:
            wandb.teardown()

    def _log_train(self, row: Row) -> None:
        assert self._run is not None
        step = int(row["train/step"])  # W&B's own steps, too: a resumed run knows its next one
        if step >= self._run.starting_step:
            shown = {key: value for key, value in row.items() if key.startswith("train/")}
            self._run.log(shown, step=step, commit=True)

    def _log_results(self) -> None:
        """Shows the points of the curves that the summary lacks, or holds with another value."""
        from lengthgen.report.load import load
        from lengthgen.report.report import sections

        assert self._run is not None
        rows = load([self._run_dir], say=self._say)
        points = _curve(rows)
        for section in sections(rows):
            points |= _accuracies(section.data)
        known: dict[str, Any] = dict(self._run.summary)
        for (prefix, length), values in points.items():
            summary = {f"{prefix}/{key}@{length}": value for key, value in values.items()}
            if all(known.get(key) == value for key, value in summary.items()):
                continue
            row = {f"{prefix}/{k}": x for k, x in values.items() if not isinstance(x, str)}
            self._run.define_metric(f"{prefix}/T_valid")
            for key in row:  # by name, since the glob eval/* would add the axis to the row
                self._run.define_metric(key, step_metric=f"{prefix}/T_valid")
            self._run.log({f"{prefix}/T_valid": length, **row})
            self._run.summary.update(summary)


Points = dict[tuple[str, int], dict[str, Any]]  # numbers and verdict by prefix and length


def _curve(rows: "pd.DataFrame") -> Points:
    """Returns the points of a run's curves on text.

    Prefixes are eval, and eval/PROTOCOL/VARIANT of what is not of the headline, as trained.
    """
    from lengthgen.report.statistics import findings

    points: Points = {}
    text = rows.loc[rows["unit"].isna()]
    for row in findings(text).to_dict("records") if len(text) else ():
        names = [name for name in (row["protocol"], row["variant"]) if isinstance(name, str)]
        prefix = "eval" if names == [HEADLINE] else "/".join(["eval", *names])
        value, low, high = (float(row[key]) for key in ("value", "low", "high"))
        values: dict[str, Any] = {}
        if row["quantity"] == "gain":
            values = {"context_gain": value, "verdict": str(row["word"])}
        elif row["quantity"] == "loss" and math.isfinite(value):
            values = {"loss": value, "ppl": math.exp(value)}
            if math.isfinite(low):
                values |= {"ppl_low": math.exp(low), "ppl_high": math.exp(high)}
        if values:
            points.setdefault((prefix, int(row["length"])), {}).update(values)
    return points


def _accuracies(data: Mapping[str, "pd.DataFrame"]) -> Points:
    """Returns the accuracy of a task by prefix and length, from the data of a report's section."""
    rows = data["tasks"].to_dict("records") if "tasks" in data else []
    only = len({row["series"] for row in rows}) == 1
    names = {"accuracy": "accuracy", "accuracy_low": "low", "accuracy_high": "high"}
    return {
        ("eval" if only else f"eval/{row['series']}", int(row["length"])): {
            name: row[column] for name, column in names.items()
        }
        for row in rows
    }


class _Terminal:
    """Keeps what wandb would print on the terminal; its threads call it at any time."""

    def __init__(self, messages: list[str]) -> None:
        self._messages = messages

    def info(self, msg: str) -> None:
        """Drops it."""

    def warning(self, msg: str) -> None:
        self._messages.append(msg)

    def error(self, msg: str) -> None:
        self._messages.append(msg)


def _shortened(text: str) -> str:
    """Returns one line without wandb's own prefix; a backend may answer with a whole page."""
    return textwrap.shorten(text.removeprefix("wandb: ").removeprefix("WARNING "), 200).rstrip(".")
