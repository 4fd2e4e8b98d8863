"""Views of a run in W&B and TensorBoard: rows of training, curve, report; the only wandb."""

import logging
import math
import os
import secrets
import shutil
import signal
import sys
import textwrap
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from lengthgen.config.schema import Config, to_plain
from lengthgen.errors import Say, Stopped, UserError, unsaid
from lengthgen.files import Row, hash_of, writing
from lengthgen.runs import directory, status
from lengthgen.runs.signals import SCHEDULER, handled
from lengthgen.terminal import from_here, millions

if TYPE_CHECKING:
    import wandb

SECONDS = 20.0  # that W&B is waited for: once at the start, once at the end
TABLE = [
    *("scheme", "variant", "protocol", "length"),
    *("loss", "low", "high", "bits_per_byte", "series"),
]
# W&B's own preset of lines; docs/wandb.md has one with intervals and a logarithmic axis.
PRESET = "wandb/lineseries/v0"
FIELDS = {"step": "length", "lineKey": "series", "lineVal": "loss"}
TITLES = {"title": "Loss by context length", "xname": "context length in tokens"}
ORIGIN = ["n_parameters", "n_parameters_without_embedding", "commit", "fingerprint"]
Points = dict[int, dict[str, Any]]  # numbers and verdicts by length, or by tokens


def show_results(config: Config, run_dir: Path, *, say: Say) -> None:
    """Shows what was evaluated of a run that was trained here, unless a process trains it now.

    If it cannot, it says so: the rows are there, and other runs may follow.
    """
    if (run_dir / "train.jsonl").exists() and not status.is_running(run_dir):
        try:
            with status.run_lock(run_dir, "train"):
                for view in views(config, run_dir, say=say):
                    with view as opened:
                        opened.results()
        except UserError as error:
            say(f"{from_here(run_dir)} is evaluated, but not shown: {error}")


def views(
    config: Config, run_dir: Path, *, say: Say, is_done: bool = False
) -> "list[AbstractContextManager[Tracker | TensorBoard]]":
    """Returns what runtime.wandb and runtime.tensorboard ask for; each shows once it is entered.

    Of a run that is done, W&B has all rows but where they are asked for online.
    """
    shown: list[AbstractContextManager[Tracker | TensorBoard]] = []
    if config.runtime.wandb == "online" or (config.runtime.wandb != "off" and not is_done):
        shown.append(Tracker(config, run_dir, say=say))
    if config.runtime.tensorboard:
        shown.append(TensorBoard(config, run_dir))
    return shown


def push(config: Config, run_dir: Path, *, again: bool, say: Say) -> None:
    """Shows W&B what it lacks of a run; all of it, as a fresh W&B run, if `again`.

    Raises UserError, before W&B is opened, if a process trains the run, and if W&B took nothing.
    """
    if config.runtime.wandb == "off":
        raise UserError("runtime.wandb=off: so nothing can be pushed; drop it")
    with (
        status.run_lock(run_dir, "train"),
        Tracker(config, run_dir, say=say, again=again, is_push=True) as tracker,
    ):
        tracker.results()
        if not tracker.is_open:
            raise UserError(f"track push: {run_dir.name} is not sent, for the reason above")


class Tracker:
    """Shows a run in W&B, on the main rank: rows of train.jsonl by step, then what was evaluated.

    When it opens it sends the rows that the W&B run lacks. Nothing that W&B does or fails to do is
    raised, nor waited for longer than SECONDS.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        *,
        say: Say,
        again: bool = False,
        is_push: bool = False,  # what is refused is not kept for a later one
    ) -> None:
        self._is_push = is_push
        self._config, self._run_dir, self._say = config, run_dir.absolute(), say
        self._suffix = f"-{secrets.token_hex(2)}" if again else ""
        self._warnings: list[str] = []
        self._run: wandb.Run | None = None
        self._refusal = ""  # why it is offline, though that was not asked for

    def __enter__(self) -> Self:
        rows = directory.read_log(self._run_dir, run=self._config.run_id)
        self._hooks = (sys.exit, sys.excepthook, logging.raiseExceptions)
        # On a full disk every line of wandb's own log would become a traceback on the terminal.
        logging.raiseExceptions = False
        with self._attempt():
            self._run = self._opened()
            if self._run is not None:
                self._run.define_metric("eval/T_valid")
                for key in ("train/*", "val/*"):
                    self._run.define_metric(key, step_metric="train/step")
                known: dict[str, Any] = dict(self._run.summary)
                self._shown = int(known.get("train/step", 0))  # what W&B has stored
        for row in rows:
            self.row(row)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        import wandb

        # When a run fails, so do its other processes, of which torchrun sends this one a signal.
        failed = isinstance(kind, type) and issubclass(kind, UserError)
        ignored = handled(SCHEDULER if failed else (), signal.SIG_IGN)
        with self._attempt(), ignored:
            if self._run is not None:
                by_signal = (Stopped, KeyboardInterrupt)  # not failed: it goes on
                if isinstance(kind, type) and issubclass(kind, by_signal):
                    self._run.mark_preempting()
                with suppress(TimeoutError):  # it is among the warnings too
                    self._run.finish(exit_code=0 if kind is None else 1)
                if self._run.settings.mode == "online" and self._warnings:
                    first, run = _shortened(self._warnings[0]), from_here(self._run_dir)
                    self._say(f"W&B: {first}; to send the rest: lengthgen track push {run}")
        with self._attempt():
            wandb.teardown()
        # wandb replaces the first two when it starts and never puts them back.
        sys.exit, sys.excepthook, logging.raiseExceptions = self._hooks

    @property
    def is_open(self) -> bool:
        """Whether W&B takes what is shown, or its folder for later where that was asked for."""
        return self._run is not None and not self._refusal

    @contextmanager
    def _attempt(self) -> Generator[None]:
        """What concerns W&B alone: its failure ends the view, never the training."""
        try:
            yield
        except (Exception, SystemExit) as error:  # wandb.teardown may call sys.exit
            reason = _shortened(str(error) or type(error).__name__)
            self._say(f"W&B: {reason}; it shows no more of this run, {self._run_dir} has all")
            self._run = None

    def _opened(self) -> "wandb.Run | None":
        """Returns the W&B run: online if that can be, else offline; None if W&B is disabled."""
        import wandb
        from wandb.errors import AuthenticationError

        _refuse_settings_of([self._run_dir])
        for name in [n for n, text in os.environ.items() if n.startswith("WANDB_") and not text]:
            del os.environ[name]  # W&B would refuse some of them
        mode = self._mode(None)  # for auto WANDB_MODE, or that of the folder
        if mode == "disabled" or os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1"):
            self._say("W&B: disabled, by WANDB_MODE, WANDB_DISABLED or `wandb disabled`")
            return None
        if mode == "online":
            try:
                if not wandb.login(prompt=False, verify=False):
                    raise AuthenticationError("no API key (`wandb login` stores one)")
                run = self._init("online")
                self._say(f"W&B: {run.url}")
                return run
            except Exception as error:
                self._refusal = f"{_shortened(str(error))}; "
                wandb.teardown()
                if self._is_push:
                    self._say(f"W&B: {self._refusal.removesuffix('; ')}")
                    return None
        run = self._init("offline")
        upload = f"wandb sync {run.settings.sync_dir}"
        if self._refusal:
            upload = f"lengthgen track push {from_here(self._run_dir)}"
        self._say(f"W&B: {self._refusal}offline, to upload: {upload}")
        return run

    def _mode(self, mode: Any) -> str:
        """Sets W&B up for a mode, without one for that of runtime.wandb; returns its own."""
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
        term.termsetup(settings, SimpleNamespace(info=unsaid, warning=keep, error=keep))  # pyright: ignore[reportArgumentType]
        return wandb.setup(settings).settings.mode

    def _init(self, mode: Any) -> "wandb.Run":
        """Opens the W&B run. WANDB_PROJECT and the like say what no key of runtime does."""
        import wandb

        self._mode(mode)
        name = self._config.run_id + self._suffix
        usual: dict[str, Any] = {"project": "lengthgen", "entity": None, "name": name}
        usual |= {"group": self._config.recipe, "tags": [*_kinds(self._config).values()]}
        usual |= {"job_type": "train", "dir": self._run_dir}
        for key in usual:
            variable = "WANDB_RUN_GROUP" if key == "group" else f"WANDB_{key.upper()}"
            if os.environ.get(variable):
                usual[key] = None  # which is the variable's
            usual[key] = getattr(self._config.runtime, f"wandb_{key}", None) or usual[key]
        about = directory.read_provenance(self._run_dir, run=self._config.run_id)
        config = to_plain(self._config) | {key: about.get(key) for key in ORIGIN}
        config |= {"recipe": self._config.recipe, "kind": _kinds(self._config)}
        run_id = _id_of(self._run_dir, self._config) + self._suffix
        return wandb.init(mode=mode, id=run_id, resume="allow", config=config, **usual)

    def row(self, row: Row) -> None:
        """Shows a row of train.jsonl, unless the W&B run has it."""
        with self._attempt():
            if self._run is not None and row["train/step"] > self._shown:
                self._run.log(_numbers(row))
                self._shown = int(row["train/step"])

    def results(self) -> None:
        """Shows what is evaluated: eval/ppl over eval/T_valid, summary, one table, the report.

        Nothing of what the summary has already.
        """
        with self._attempt():
            if self._run is not None and (self._run_dir / "eval.jsonl").exists():
                self._log_results(self._run)

    def _log_results(self, run: "wandb.Run") -> None:
        import wandb

        from lengthgen.report import report

        rows, sections = _evaluated(self._run_dir, say=self._say)
        (name, table, curve), by_tokens = _curve(rows, sections), _by_tokens(rows)
        values = {f"{k}@{n}": x for n, point in curve.items() for k, x in point.items()}
        values["eval/tables"] = hash_of(table.to_csv(), 8)
        values["kept/rows"] = hash_of(repr(by_tokens), 8)
        new = {key for key, value in values.items() if run.summary.get(key) != value}
        if not new & {"eval/tables", "kept/rows"}:
            return
        changed = {n: at for n, at in curve.items() if any(f"{k}@{n}" in new for k in at)}
        _log_points(run, "eval/T_valid", changed)
        if "kept/rows" in new:
            _log_points(run, "kept/tokens", by_tokens)
        shown = wandb.Table(dataframe=table)  # W&B joins those of many runs
        is_curve = name == "curves"
        run.log({name: wandb.plot_table(PRESET, shown, FIELDS, TITLES) if is_curve else shown})
        with TemporaryDirectory() as folder:
            page, *_ = report.write_pages(rows, sections, Path(folder))
            run.log_artifact(page, name=f"report-{run.id}", type="report")
        if self._config.runtime.wandb_checkpoint:
            weights = status.checkpoint_folders(self._run_dir)[-1] / "model.safetensors"
            run.log_artifact(weights, name=f"model-{run.id}", type="model")
        run.summary.update(values)


def _log_points(run: "wandb.Run", axis: str, points: Points) -> None:
    """Logs points over an axis of theirs: each key by name, since eval/* would match the axis."""
    for at, point in points.items():
        numbers = _numbers(point)
        for key in numbers:
            run.define_metric(key, step_metric=axis)
        run.log({axis: at, **numbers})


class TensorBoard:
    """Shows a run in TensorBoard, from RUN/tensorboard, which every start rewrites."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        self._config, self._run_dir = config, run_dir
        self._folder = run_dir / "tensorboard"  # a folder of a recipe in it, and of its seed

    def __enter__(self) -> Self:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            needs = 'needs tensorboard; pip install "lengthgen[tensorboard]"'
            raise UserError(f"runtime.tensorboard=true {needs}") from None
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # a link, through which the rows would go elsewhere
            self._folder.unlink()
        with writing(self._folder):
            place = self._folder / self._config.recipe / f"s{self._config.seed}"
            self._writer: Any = SummaryWriter(place)
        for row in directory.read_log(self._run_dir, run=self._config.run_id):
            self.row(row)
        return self

    def __exit__(self, *_: object) -> None:
        with writing(self._folder):
            self._writer.close()

    def row(self, row: Row) -> None:
        """Shows a row of train.jsonl."""
        self._add(row, row["train/step"])

    def results(self) -> None:
        """Shows what is evaluated, by length or, of kept checkpoints, by tokens as the step."""
        rows, sections = _evaluated(self._run_dir, say=unsaid)
        *_, curve = _curve(rows, sections)
        for step, point in (*curve.items(), *_by_tokens(rows).items()):
            self._add(point, step)

    def _add(self, row: Row, step: int) -> None:
        with writing(self._folder):
            for key, value in _numbers(row).items():
                self._writer.add_scalar(key, value, step)


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
    _refuse_settings_of(run_dirs)
    ids = [_id_of(run_dir, directory.load_config(run_dir)) for run_dir in run_dirs]
    project = runtime.wandb_project or os.environ.get("WANDB_PROJECT") or "lengthgen"
    try:
        entity = runtime.wandb_entity or os.environ.get("WANDB_ENTITY")
        place = {"entity": entity or wandb.Api().default_entity, "project": project}
        shown = blocks.Runset(**place, filters=f"ID in {ids}")
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


def _refuse_settings_of(run_dirs: Sequence[Path]) -> None:
    """Raises UserError for what says where W&B is, or writes: one's key would go there.

    That are a file in the folder of a run, if one is in it, and a link in one.
    """
    here = Path.cwd()
    inside = any(here.is_relative_to(run.resolve()) for run in run_dirs)
    links = [link for run in run_dirs if (link := run / "wandb").is_symlink()]
    if files := links + [*here.glob("*wandb/settings")] * inside:
        raise UserError(f"{files[0]} would decide where this goes; remove it, or go elsewhere")


def _id_of(run_dir: Path, config: Config) -> str:
    """Returns the id of a run in W&B: its own and that of its training."""
    about = directory.read_provenance(run_dir, run=config.run_id)
    return "-".join(filter(None, (config.run_id, about.get("training"))))


def _kinds(config: Config) -> dict[str, str]:
    """Returns what distinguishes runs: their scheme, size and budget."""
    budget = f"{millions(config.train.tokens)} tokens"
    return {"scheme": config.scheme.name, "size": config.model.label, "budget": budget}


def _numbers(row: Row) -> dict[str, float]:
    """Returns the numbers of train.jsonl, or of a point: those with a slash in their names."""
    return {key: x for key, x in row.items() if "/" in key and not isinstance(x, str)}


def _evaluated(run_dir: Path, *, say: Say) -> tuple[Any, Any]:
    """Returns rows and sections of a run's report."""
    from lengthgen.report import load, report

    rows = load.load_rows([run_dir], checkpoints=True, say=say)
    return rows, report.sections(rows)


def _curve(rows: Any, sections: Any) -> tuple[str, Any, Points]:
    """Returns the name of the table for W&B, the table, and its numbers of the run by length."""
    from lengthgen.report import statistics

    text = rows.loc[rows["unit"].isna()]
    if len(text):
        findings = statistics.findings(text)
        curves: Any = statistics.curves(findings)
        return "curves", curves[TABLE], _by_length(curves, findings)
    table: Any = next(section.data["tasks"] for section in sections if "tasks" in section.data)
    first = table[table["series"] == table["series"].iloc[0]].set_index("length")
    names = {"accuracy": "accuracy", "low": "accuracy_low", "high": "accuracy_high"}
    first = first[[*names]].rename(columns=names).add_prefix("eval/")
    return "tasks", table, first.to_dict("index")


def _by_length(curves: Any, findings: Any) -> Points:
    """Returns what the run shows as trained, under its first protocol, by length."""
    plain = curves[curves["variant"].isna() & (curves["protocol"] == curves["protocol"].iloc[0])]
    names = ["ppl", "ppl_low", "ppl_high", "loss", "bits_per_byte"]
    rows = plain.set_index("length")[names].add_prefix("eval/").to_dict("index")
    points = {n: {k: x for k, x in row.items() if math.isfinite(x)} for n, row in rows.items()}
    gains = findings[findings["variant"].isna() & (findings["quantity"] == "gain")]
    for n, gain, verdict in zip(gains["length"], gains["value"], gains["word"], strict=True):
        points[int(n)] |= {"eval/context_gain": gain, "eval/verdict": verdict}
    return points


def _by_tokens(rows: Any) -> Points:
    """Returns loss at T and context gains by training tokens, of a run with several checkpoints."""
    from lengthgen.report import over_training, statistics
    from lengthgen.report.series import select

    points: Points = {}
    texts = select(rows.loc[rows["unit"].isna()]) if rows["tokens_seen"].nunique() > 1 else []
    for known in (statistics.over_training(text) for text in texts if len(text.earlier)):
        shown = over_training.training_points(known.loc[known["variant"].isna()])
        for row in shown.to_dict("records"):
            what = "loss" if row["quantity"] == "loss" else "context_gain"
            key = f"kept/{what}@{int(row['length'])}"
            points.setdefault(int(row["tokens"]), {})[key] = float(row["value"])
    return points


def _shortened(text: str) -> str:
    """Returns one line without wandb's own prefix; a backend may answer with a whole page."""
    return textwrap.shorten(text.removeprefix("wandb: ").removeprefix("WARNING "), 200).rstrip(".")
