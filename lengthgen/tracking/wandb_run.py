"""The W&B run that shows a run's rows, curve and pictures; the only wandb."""

import contextlib
import hashlib
import logging
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from lengthgen.config.schema import Config, to_plain
from lengthgen.files import Row, read_rows
from lengthgen.tracking.wandb_state import Sent, digest, load_sent, save_sent, unsynced

if TYPE_CHECKING:
    import wandb

Say = Callable[[str], None]


class CurvePoint(NamedTuple):
    """Numbers at one length: metric M stands as PREFIX/M over PREFIX/T_valid."""

    prefix: str
    length: int
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Results:
    """What W&B is given of a run's evaluation."""

    curve: Sequence[CurvePoint]
    summary: Mapping[str, float | str]  # next to the curve's PREFIX/METRIC@LENGTH
    pictures: Mapping[str, bytes]  # PNG files by the key they stand under


class Tracker:
    """Writes train.jsonl, and shows it and the results in a W&B run; on the main rank only.

    Nothing that W&B does or fails to do is raised, nor waited for longer than `patience_seconds`
    (once at the start, once at the end); the reason is one line. `wandb.json` in the run
    directory records what was sent to W&B, so that a resumed run sends nothing twice.
    It is written before the rows are sent: after kill -9 the view may lack the rows that
    were under way, the JSONL never does.
    """

    def __init__(
        self, config: Config, run_dir: Path, *, say: Say, patience_seconds: float = 20.0
    ) -> None:
        self._config = config
        self._run_dir = run_dir.absolute()
        self._say = say
        self._patience_seconds = patience_seconds
        self._warnings = _Warnings()
        self._exit_hooks = (sys.exit, sys.excepthook)
        self._logging_shows_tracebacks = logging.raiseExceptions
        self._run: wandb.Run | None = None
        self._failed = False
        self._sent = Sent(run_id=config.run_id)

    def __enter__(self) -> Self:
        if self._config.runtime.wandb != "off":
            # On a full disk every line of wandb's own log would become a traceback on the terminal.
            logging.raiseExceptions = False
            self._attempt(self._open)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._config.runtime.wandb != "off":
            self._attempt(lambda: self._close(exit_code=0 if kind is None else 1))
            # wandb replaces both when it starts and never puts them back.
            sys.exit, sys.excepthook = self._exit_hooks
            logging.raiseExceptions = self._logging_shows_tracebacks

    def train(self, row: Row) -> None:
        """Shows a row of train.jsonl in W&B."""
        self._attempt(lambda: self._mirror_train([row]))

    def results(self, compute: Callable[[], Results]) -> None:
        """Shows what `compute` returns, which is called only if there is a W&B run to show it.

        The curve is a row per length, and eval/ppl@LENGTH in the summary. A number or a picture
        that this run has shown before is not shown again; in the summary the last one stands.
        """
        self._attempt(lambda: self._mirror_results(compute))

    def _attempt(self, action: Callable[[], None]) -> None:
        """Runs what concerns W&B alone; its failure ends the view, never the training."""
        try:
            action()
        except (Exception, SystemExit) as error:  # wandb.teardown may call sys.exit
            if not self._failed:
                self._say(
                    f"W&B: {_reason(error)}; it shows no more of this run, {self._run_dir} has all"
                )
            self._failed = True

    def _open(self) -> None:
        import wandb

        self._sent = load_sent(self._config, self._run_dir)
        wanted, refusal = self._config.runtime.wandb, None
        if wanted == "auto":
            mode = self._setup(None)
            if mode == "disabled":
                self._say("W&B: disabled, by WANDB_MODE or by `wandb disabled`")
                return
            wanted = "offline" if mode in ("offline", "dryrun") else "online"
        if wanted == "online":
            try:
                self._run = self._online()
            except Exception as error:
                refusal = _reason(error)
                wandb.teardown()
        if self._run is None:
            self._run = self._init("offline")
            self._sent.offline.append(Path(self._run.settings.sync_dir).name)
        self._say(self._where(refusal))
        self._run.define_metric("train/*", step_metric="train/step")
        self._run.define_metric("eval/*", step_metric="eval/T_valid")
        if self._run.resumed:
            self._note_what_it_has(self._run)
        self._mirror_train(read_rows(self._run_dir / "train.jsonl", run=self._config.run_id))

    def _note_what_it_has(self, run: "wandb.Run") -> None:
        """Adds what the W&B run holds and wandb.json lacks: the file may be lost."""
        sent = self._sent
        summary: dict[str, Any] = dict(run.summary)
        sent.step = max((x for x in (sent.step, summary.get("train/step")) if x), default=None)
        sent.points |= {key for key in summary if "@" in key}
        for key, value in summary.items():
            if hasattr(value, "get") and value.get("sha256"):  # wandb's own kind of mapping
                sent.pictures.setdefault(key, value["sha256"])

    def _setup(self, mode: Literal["online", "offline"] | None) -> str:
        """Starts wandb and returns its mode: the given one, else WANDB_MODE or `wandb offline`."""
        import wandb
        from wandb.errors import term

        settings = wandb.Settings(
            silent=True,
            console="off",
            init_timeout=self._patience_seconds,
            finish_timeout=self._patience_seconds,
            finish_timeout_raises=True,
        )
        if mode is not None:
            settings.mode = mode
        session = wandb.setup(settings)
        term.termsetup(settings, self._warnings)
        return session.settings.mode

    def _online(self) -> "wandb.Run":
        """Raises whatever keeps the run from being opened at the backend within the patience."""
        import wandb
        from wandb.errors import AuthenticationError

        self._setup("online")
        if not wandb.login(prompt=False, verify=False):
            raise AuthenticationError("no API key (`wandb login` stores one)")
        return self._init("online")

    def _init(self, mode: Literal["online", "offline"]) -> "wandb.Run":
        import wandb

        self._setup(mode)
        return wandb.init(
            mode=mode,
            dir=str(self._run_dir),
            entity=self._config.runtime.wandb_entity,
            project=self._config.runtime.wandb_project,
            group=self._config.scheme.name,
            job_type="train",
            id=self._sent.run_id,
            name=self._sent.run_id,
            resume="allow",
            config=to_plain(self._config),
        )

    def _where(self, refusal: str | None) -> str:
        """Returns where the run can be seen, and why not online."""
        assert self._run is not None
        offline = unsynced(self._sent, self._run_dir)
        upload = f"to upload: wandb sync {' '.join(map(str, offline))}"
        if self._run.settings.mode == "online":
            earlier = f"; earlier parts are offline, {upload}" if offline else ""
            return f"W&B: {self._run.url}{earlier}"
        reason = "" if refusal is None else f"{refusal}; "
        return f"W&B: {reason}offline, {upload}"

    def _close(self, *, exit_code: int) -> None:
        import wandb

        try:
            if self._run is not None:
                with contextlib.suppress(TimeoutError):  # it is among the warnings too
                    self._run.finish(exit_code=exit_code)
                if self._run.settings.mode == "online" and self._warnings.messages:
                    first, folder = self._warnings.messages[0], self._run.settings.sync_dir
                    self._say(f"W&B: {_shortened(first)}; to upload the rest: wandb sync {folder}")
        finally:
            wandb.teardown()

    def _mirror_train(self, rows: Sequence[Row]) -> None:
        last = self._sent.step
        fresh = [row for row in rows if last is None or row["train/step"] > last]
        if self._run is None or self._failed or not fresh:
            return
        self._sent.step = fresh[-1]["train/step"]
        self._save_sent()
        for row in fresh:
            self._run.log({key: value for key, value in row.items() if key != "run"})

    def _mirror_results(self, compute: Callable[[], Results]) -> None:
        if self._run is None or self._failed:
            return
        evaluation = digest(self._run_dir)
        results = compute()
        rows = [row for point in results.curve if (row := self._fresh(point))]
        sums = {key: hashlib.sha256(png).hexdigest() for key, png in results.pictures.items()}
        pictures = {
            key: png
            for key, png in results.pictures.items()
            if self._sent.pictures.get(key) != sums[key]
        }
        known = {f"{p.prefix}/{m}@{p.length}": p.values[m] for p in results.curve for m in p.values}
        self._sent.points |= set(known)
        self._sent.pictures |= sums
        self._sent.evaluation = evaluation
        self._save_sent()
        for row in rows:
            self._run.log(row)
        for key, png in pictures.items():
            self._log_picture(key, png)
        # Written again for known points: a resumed offline run has a summary of its own.
        self._run.summary.update({**known, **results.summary})

    def _fresh(self, point: CurvePoint) -> dict[str, Any]:
        """Returns the row of the point's numbers that W&B lacks, empty if there are none.

        Defines their axis by name, since the glob eval/* would add eval/T_valid to the row.
        """
        assert self._run is not None
        prefix, length, values = point
        row: dict[str, Any] = {
            f"{prefix}/{metric}": value
            for metric, value in values.items()
            if f"{prefix}/{metric}@{length}" not in self._sent.points
        }
        if not row:
            return {}
        self._run.define_metric(f"{prefix}/T_valid")
        for key in row:
            self._run.define_metric(key, step_metric=f"{prefix}/T_valid")
        return {f"{prefix}/T_valid": length, **row}

    def _log_picture(self, key: str, png: bytes) -> None:
        import wandb

        assert self._run is not None
        with tempfile.NamedTemporaryFile(suffix=".png") as file:
            file.write(png)
            file.flush()
            self._run.log({key: wandb.Image(file.name)})  # copies the file

    def _save_sent(self) -> None:
        save_sent(self._sent, self._config, self._run_dir)


class _Warnings:
    """Takes what wandb would print on the terminal; its threads call it at any time."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def info(self, msg: str) -> None:
        """Drops it."""

    def warning(self, msg: str) -> None:
        self.messages.append(msg)

    def error(self, msg: str) -> None:
        self.messages.append(msg)


def _reason(error: BaseException) -> str:
    return _shortened(str(error) or type(error).__name__)


def _shortened(text: str) -> str:
    """Returns one line without wandb's own prefix; a backend may answer with a whole page."""
    return textwrap.shorten(text.removeprefix("wandb: ").removeprefix("WARNING "), 200).rstrip(".")
