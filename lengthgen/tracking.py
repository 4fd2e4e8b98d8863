"""Views of a run in W&B and TensorBoard: rows of training, curve, report; the only wandb."""

import hashlib
import logging
import math
import os
import secrets
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from lengthgen.config.schema import Config, to_plain
from lengthgen.errors import UserError
from lengthgen.files import read_rows
from lengthgen.runs import directory, status

if TYPE_CHECKING:
    import pandas as pd
    import wandb

    from lengthgen.report.report import Section

SECONDS = 20.0  # that W&B is waited for: once at the start, once at the end
TABLE = ["scheme", "variant", "protocol", "length", "loss", "low", "high", "series"]
# W&B's own preset of lines; docs/wandb.md has one with intervals and a logarithmic axis.
PRESET = "wandb/lineseries/v0"
FIELDS = {"step": "length", "lineKey": "series", "lineVal": "loss"}
TITLES = {"title": "Loss by context length", "xname": "context length in tokens"}
FACTS = ["n_parameters", "n_parameters_without_embedding", "commit", "fingerprint"]
Say = Callable[[str], None]
Row = Mapping[str, Any]
Points = dict[int, dict[str, Any]]  # numbers and verdict by length


def show_results(config: Config, run_dir: Path, *, say: Say) -> None:
    """Shows what was evaluated of a run that was trained here, unless a process trains it now."""
    if (run_dir / "train.jsonl").exists() and not status.is_running(run_dir):
        with status.run_lock(run_dir, "train"):
            for view in views(config, run_dir, say=say):
                with view as opened:
                    opened.results()


def views(
    config: Config, run_dir: Path, *, say: Say
) -> "list[AbstractContextManager[Tracker | TensorBoard]]":
    """Returns what runtime.wandb and runtime.tensorboard ask for; each shows once it is entered."""
    shown: list[AbstractContextManager[Tracker | TensorBoard]] = []
    if config.runtime.wandb != "off":
        shown.append(Tracker(config, run_dir, say=say))
    if config.runtime.tensorboard:
        shown.append(TensorBoard(config, run_dir))
    return shown


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
    raised, nor waited for longer than SECONDS.
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

    def row(self, row: Row) -> None:
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
        known: dict[str, Any] = dict(self._run.summary)
        self._shown = int(known.get("train/step", 0))  # what W&B has stored
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
        if row["train/step"] > self._shown:
            shown = {key: value for key, value in row.items() if key.startswith(("train/", "val/"))}
            self._run.log(shown)
            self._shown = int(row["train/step"])

    def _log_results(self) -> None:
        """Shows the curve, unless the summary holds the same values."""
        if self._run is None:
            return
        import wandb

        from lengthgen.report import report

        rows, sections, tables, points = _evaluated(self._run_dir, say=self._say)
        content = "".join(tables[name].to_csv() for name in sorted(tables))
        values = {f"eval/{k}@{n}": x for n, point in points.items() for k, x in point.items()}
        values["eval/tables"] = hashlib.sha256(content.encode()).hexdigest()[:8]
        known: dict[str, Any] = dict(self._run.summary)
        if known.get("eval/tables") == values["eval/tables"]:
            return
        for length, point in points.items():
            if all(known.get(f"eval/{k}@{length}") == x for k, x in point.items()):
                continue
            row = {f"eval/{k}": x for k, x in point.items() if not isinstance(x, str)}
            for key in row:  # by name, since the glob eval/* would add the axis to the row
                self._run.define_metric(key, step_metric="eval/T_valid")
            self._run.log({"eval/T_valid": length, **row})
        for name, table in tables.items():  # W&B joins those of many runs
            shown = wandb.Table(dataframe=table)
            is_curve = name == "curves"
            chart = wandb.plot_table(PRESET, shown, FIELDS, TITLES) if is_curve else shown
            self._run.log({name: chart})
        with TemporaryDirectory() as folder:
            self._log_files("report", report.write(rows, sections, Path(folder))[:1])
        if self._config.runtime.wandb_checkpoint:
            weights = status.checkpoint_folders(self._run_dir)[-1] / "model.safetensors"
            self._log_files("model", [weights, self._run_dir / "config.yaml"])
        self._run.summary.update(values)

    def _log_files(self, kind: str, paths: Sequence[Path]) -> None:
        """Stores files as an artifact of the run; the same content is no new version."""
        import wandb

        assert self._run is not None
        artifact = wandb.Artifact(f"{kind}-{self._run.id}", type=kind)
        for path in paths:
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)


class TensorBoard:
    """Shows a run in TensorBoard, from RUN/tensorboard, which every start rewrites."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        self._config, self._run_dir = config, run_dir

    def __enter__(self) -> Self:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            needs = 'needs tensorboard; pip install "lengthgen[tensorboard]"'
            raise UserError(f"runtime.tensorboard=true {needs}") from None
        folder = self._run_dir / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self._writer: Any = SummaryWriter(folder)
        for row in read_rows(self._run_dir / "train.jsonl", run=self._config.run_id):
            self.row(row)
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def row(self, row: Row) -> None:
        """Shows a row of train.jsonl."""
        for key, value in row.items():
            if key.startswith(("train/", "val/")):
                self._writer.add_scalar(key, value, row["train/step"])

    def results(self) -> None:
        """Shows what is evaluated, with the length in place of the step."""
        for length, point in _evaluated(self._run_dir, say=len)[-1].items():
            for key, value in point.items():
                if not isinstance(value, str):
                    self._writer.add_scalar(f"eval/{key}", value, length)


def write_report(run_dirs: Sequence[Path], config: Config) -> str:
    """Makes a W&B report of the runs of a project, and returns its address.

    Raises UserError without wandb-workspaces or for what W&B refuses.
    """
    try:
        import wandb

        blocks: Any = import_module("wandb_workspaces.reports.v2")
    except ImportError:
        needs = 'needs wandb-workspaces; pip install "lengthgen[report]"'
        raise UserError(f"track report {needs}") from None
    runtime = config.runtime
    project = runtime.wandb_project or os.environ.get("WANDB_PROJECT", "lengthgen")
    try:
        entity = runtime.wandb_entity or os.environ.get("WANDB_ENTITY")
        place = {"entity": entity or wandb.Api().default_entity, "project": project}
        runs = [run_dir.name for run_dir in run_dirs]
        shown = blocks.Runset(**place, filters=f"ID in {runs}")
        lines = {"log_x": True, "log_y": True, "x": "eval/T_valid", "y": ["eval/ppl"]}
        chart = blocks.CustomChart.from_table("curves_table", FIELDS, TITLES)
        chart.chart_name = PRESET
        panels = [blocks.LinePlot(**lines, title="perplexity by context length"), chart]
        grid = blocks.PanelGrid(runsets=[shown], panels=panels)
        report = blocks.Report(**place, title="Context lengths beyond T", blocks=[grid])
        report.save()
        return report.url
    except Exception as error:
        raise UserError(f"track report: W&B: {_shortened(str(error))}") from None
    finally:
        wandb.teardown()


def _evaluated(
    run_dir: Path, *, say: Callable[[str], Any]
) -> "tuple[pd.DataFrame, list[Section], dict[str, pd.DataFrame], Points]":
    """Returns rows and sections of a run's report, its tables for W&B, its numbers by length."""
    from lengthgen.report import report, statistics
    from lengthgen.report.load import load

    rows = load([run_dir], say=say)
    sections = report.sections(rows)
    text = rows.loc[rows["unit"].isna()]
    if not len(text):
        of_task = next(s.data["tasks"] for s in sections if "tasks" in s.data)
        return rows, sections, {"tasks": of_task}, _accuracies(of_task)
    findings = statistics.findings(text)
    curves: Any = statistics.curves(findings)[TABLE]
    return rows, sections, {"curves": curves}, _perplexities(findings)


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
