"""The W&B run that shows a run: its rows of training, its curve and its report; the only wandb."""

import logging
import math
import os
import secrets
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from lengthgen.config.schema import Config, to_plain
from lengthgen.errors import UserError
from lengthgen.files import read_rows
from lengthgen.runs import directory, status

if TYPE_CHECKING:
    import wandb

SECONDS = 20.0  # that W&B is waited for: once at the start, once at the end
TABLE = ["scheme", "variant", "protocol", "length", "loss", "low", "high"]
FACTS = ["n_parameters", "n_parameters_without_embedding", "commit", "fingerprint"]
Say = Callable[[str], None]
Row = Mapping[str, Any]
Points = dict[int, dict[str, Any]]  # numbers and verdict by length


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
        self._attempt(lambda: self._log_train(row))

    def results(self) -> None:
        """Shows what is evaluated: eval/ppl over eval/T_valid, summary, one table, the report."""
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
        self._run.define_metric("eval/T_valid")
        for key in ("train/*", "val/*"):
            self._run.define_metric(key, step_metric="train/step")
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
        keep: Any = self._warnings.append  # what wandb's threads would print on the terminal
        term.termsetup(settings, SimpleNamespace(info=len, warning=keep, error=keep))  # pyright: ignore[reportArgumentType]
        return wandb.setup(settings).settings

    def _init(self, mode: str) -> "wandb.Run":
        """Opens the W&B run. WANDB_PROJECT and the like say what no key of runtime does."""
        import wandb

        self._settings(mode)
        usual = {"project": "lengthgen", "entity": None, "name": self._id, "tags": None}
        usual |= {"group": self._config.scheme.name, "job_type": "train", "dir": self._run_dir}
        chosen: dict[str, Any] = {}
        for key, value in usual.items():
            variable = "WANDB_RUN_GROUP" if key == "group" else f"WANDB_{key.upper()}"
            outer = os.environ.get(variable)
            own = getattr(self._config.runtime, f"wandb_{key}", None)
            shown = ",".join(own) if isinstance(own, list) else own
            if own and outer and shown != outer:
                self._say(f"W&B: runtime.wandb_{key}={shown}, not {variable}={outer}")
            if own or not outer:
                chosen[key] = own or value
        about = directory.read_provenance(self._run_dir, run=self._config.run_id)
        config = to_plain(self._config) | {key: about.get(key) for key in FACTS}
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
        if self._run is None:
            return
        step = int(row["train/step"])  # W&B's own steps, too: a resumed run knows its next one
        if step >= self._run.starting_step:
            shown = {key: value for key, value in row.items() if key.startswith(("train/", "val/"))}
            self._run.log(shown, step=step, commit=True)

    def _log_results(self) -> None:
        """Shows the curve, unless the summary holds the same values."""
        if self._run is None:
            return
        import wandb

        from lengthgen.report import report, statistics
        from lengthgen.report.load import load

        rows: Any = load([self._run_dir], say=self._say)
        sections = report.sections(rows)
        text = rows.loc[rows["unit"].isna()]
        tables: dict[str, Any] = {
            name: table for section in sections for name, table in section.data.items()
        }
        if len(text):
            findings = statistics.findings(text)
            points = _perplexities(findings)
            tables["curves"] = statistics.curves(findings)[TABLE]
        else:
            points = _accuracies(tables["tasks"])
        values = {f"eval/{k}@{n}": x for n, point in points.items() for k, x in point.items()}
        known: dict[str, Any] = dict(self._run.summary)
        if all(known.get(key) == value for key, value in values.items()):
            return
        for length, point in points.items():
            row = {f"eval/{k}": x for k, x in point.items() if not isinstance(x, str)}
            for key in row:  # by name, since the glob eval/* would add the axis to the row
                self._run.define_metric(key, step_metric="eval/T_valid")
            self._run.log({"eval/T_valid": length, **row})
        for name in {"curves", "tasks"} & tables.keys():  # W&B joins those of many runs
            self._run.log({name: wandb.Table(dataframe=tables[name])})
        with TemporaryDirectory() as folder:
            artifact = wandb.Artifact(f"report-{self._id}", type="report")
            artifact.add_file(str(report.write(rows, sections, Path(folder))[0]))
            self._run.log_artifact(artifact)
        self._run.summary.update(values)


def _perplexities(findings: Any) -> Points:
    """Returns what the run shows as trained, under its first protocol, by length."""
    own = findings[findings["variant"].isna() & findings["quantity"].isin(["gain", "loss"])]
    points: Points = {}
    for row in own[own["protocol"] == own["protocol"].iloc[0]].to_dict("records"):
        point, loss = points.setdefault(int(row["length"]), {}), float(row["value"])
        if row["quantity"] == "gain":
            point |= {"context_gain": loss, "verdict": str(row["word"])}
        elif math.isfinite(loss):
            bounds = {"ppl": loss, "ppl_low": row["low"], "ppl_high": row["high"]}
            bounds = {key: math.exp(x) for key, x in bounds.items() if math.isfinite(x)}
            point |= {"loss": loss, **bounds}
    return points


def _accuracies(table: Any) -> Points:
    """Returns the accuracy of a task as trained, by length."""
    own = table[table["series"] == table["series"].iloc[0]]
    names = {"accuracy": "accuracy", "low": "accuracy_low", "high": "accuracy_high"}
    return own.set_index("length")[[*names]].rename(columns=names).to_dict("index")


def _shortened(text: str) -> str:
    """Returns one line without wandb's own prefix; a backend may answer with a whole page."""
    return textwrap.shorten(text.removeprefix("wandb: ").removeprefix("WARNING "), 200).rstrip(".")
