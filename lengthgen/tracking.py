"""The record of a run: JSONL rows on disk, of which a W&B run is a view that may fail."""

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, cast

from lengthgen.config import Config, to_plain
from lengthgen.errors import UserError

if TYPE_CHECKING:
    import wandb

Row = Mapping[str, Any]
Say = Callable[[str], None]

CURVE_METRICS = ("loss", "ppl", "bits_per_byte")


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Appends rows as lines of JSON, all or none, and waits until they are on disk.

    The torn tail that a killed writer left is cut first. Raises UserError where the disk is full
    or the file cannot be written; the good lines before are untouched then.
    """
    lines = memoryview(_lines(rows))
    with _writes(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            end = _end_of_rows(cast(BinaryIO, file))
            if end < size:
                file.truncate(end)
            file.seek(end)
            try:
                while lines:
                    lines = lines[file.write(lines) :]
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):  # the first error is the one to report
                    file.truncate(end)
                raise


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a JSONL file; none where there is no file.

    Text after the last newline is what a killed writer left and is dropped. Raises UserError with
    file and line of any other line that is no JSON object.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); mend its permissions"
        ) from None
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise UserError(
                f"{path}:{number}: damaged row {line[:40]!r}; delete this line or restore the file"
            )
        rows.append(cast(dict[str, Any], row))
    return rows


def keep_rows(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Drops the rows of a JSONL file that `keep` refuses, whole or not at all."""
    rows = read_rows(path)
    kept = [row for row in rows if keep(row)]
    if len(kept) < len(rows):
        replace_file(path, _lines(kept))


def replace_file(path: Path, content: bytes) -> None:
    """Puts a file in place of another in one step: written aside, flushed to disk, renamed."""
    aside = path.with_name(f"{path.name}.tmp")
    with _writes(path):
        try:
            with aside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _writes(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); "
            "free disk space or mend its permissions, then run the same command again"
        ) from error


def _lines(rows: Iterable[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _end_of_rows(file: BinaryIO) -> int:
    """Returns the position after the last newline, read backwards since the file may be long."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


class Tracker:
    """Writes train.jsonl, and shows it and the curve in a W&B run; on the main rank only.

    Nothing that W&B does or fails to do is raised, nor waited for longer than `patience_seconds`
    (once at the start, once at the end); the reason is said in one line. `wandb.json` in the run
    directory remembers what was handed to W&B, so that a resumed run hands over nothing twice.
    It is written before the rows are handed over: after kill -9 the view may lack the rows that
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
        self._run: wandb.Run | None = None
        self._failed = False
        self._sent_step: float | None = None
        self._sent_points: set[str] = set()

    def __enter__(self) -> Self:
        if self._config.runtime.wandb != "off":
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

    def train(self, row: Row) -> None:
        """Appends a row to train.jsonl, then shows it in W&B."""
        append_rows(self._run_dir / "train.jsonl", [row])
        self._attempt(lambda: self._mirror_train([row]))

    def curve(self, points: Iterable[Row]) -> None:
        """Shows points of the curve in W&B: one row per length, and eval/ppl@LENGTH in the summary.

        A point has T_valid, protocol, variant (None for the trained scheme), loss, ppl and
        bits_per_byte. A length that this run has shown before gets no second row; of points that
        differ in nothing else than what W&B does not show (precision, targets), the last counts.
        """
        self._attempt(lambda: self._mirror_curve(list(points)))

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

        wanted, refusal = self._config.runtime.wandb, None
        if wanted == "auto":
            told = self._setup(None)
            if told == "disabled":
                return
            wanted = "offline" if told in ("offline", "dryrun") else "online"
        if wanted == "online":
            try:
                self._run = self._online()
            except Exception as error:
                refusal = _reason(error)
                wandb.teardown()
        if self._run is None:
            self._run = self._init("offline")
        self._say(_where(self._run, refusal))
        self._run.define_metric("train/*", step_metric="train/step")
        self._run.define_metric("eval/*", step_metric="eval/T_valid")
        self._load_sent()
        self._mirror_train(read_rows(self._run_dir / "train.jsonl"))

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
            id=self._config.run_id,
            name=self._config.run_id,
            resume="allow",
            config=to_plain(self._config),
        )

    def _close(self, *, exit_code: int) -> None:
        import wandb

        try:
            if self._run is not None:
                with contextlib.suppress(TimeoutError):  # it is among the warnings too
                    self._run.finish(exit_code=exit_code)
                if self._run.settings.mode == "online" and self._warnings.heard:
                    first, folder = self._warnings.heard[0], self._run.settings.sync_dir
                    self._say(f"W&B: {_shortened(first)}; to upload the rest: wandb sync {folder}")
        finally:
            wandb.teardown()

    def _mirror_train(self, rows: Sequence[Row]) -> None:
        fresh = [
            row for row in rows if self._sent_step is None or row["train/step"] > self._sent_step
        ]
        if self._run is None or self._failed or not fresh:
            return
        self._sent_step = fresh[-1]["train/step"]
        self._save_sent()
        for row in fresh:
            self._run.log(dict(row))

    def _mirror_curve(self, points: Sequence[Row]) -> None:
        if self._run is None or self._failed:
            return
        named = {_name(point): point for point in points}
        sent, self._sent_points = self._sent_points, self._sent_points | set(named)
        if sent != self._sent_points:
            self._save_sent()
        for name, point in named.items():
            prefix, length = _prefix(point), point["T_valid"]
            values = {f"{prefix}/{metric}": point[metric] for metric in CURVE_METRICS}
            if name not in sent:
                # Without a definition by name, the glob eval/* would add eval/T_valid to the row.
                self._run.define_metric(f"{prefix}/T_valid")
                for metric in values:
                    self._run.define_metric(metric, step_metric=f"{prefix}/T_valid")
                self._run.log({f"{prefix}/T_valid": length, **values})
            # Written again for known points: a resumed offline run has a summary of its own.
            self._run.summary.update({f"{key}@{length}": value for key, value in values.items()})

    def _load_sent(self) -> None:
        self._sent_step, self._sent_points = _sent(self._run_dir)

    def _save_sent(self) -> None:
        sent = {"train/step": self._sent_step, "eval": sorted(self._sent_points)}
        replace_file(self._run_dir / "wandb.json", json.dumps(sent).encode())


def is_shown(run_dir: Path, points: Iterable[Row]) -> bool:
    """True if W&B was handed all rows of train.jsonl and these points: there is nothing to open."""
    try:
        step, names = _sent(run_dir)
    except (OSError, ValueError, KeyError, TypeError):  # the Tracker says so
        return False
    rows = read_rows(run_dir / "train.jsonl")
    return bool(rows) and step == rows[-1]["train/step"] and {_name(p) for p in points} <= names


def _sent(run_dir: Path) -> tuple[float | None, set[str]]:
    """Returns the last step and the names of the points that W&B was handed, from wandb.json."""
    path = run_dir / "wandb.json"
    if not path.exists():
        return None, set()
    sent = json.loads(path.read_bytes())
    return sent["train/step"], set(sent["eval"])


class _Warnings:
    """Takes what wandb would print on the terminal; its threads call it at any time."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def info(self, msg: str) -> None:
        """Drops it."""

    def warning(self, msg: str) -> None:
        self.heard.append(msg)

    def error(self, msg: str) -> None:
        self.heard.append(msg)


def _name(point: Row) -> str:
    return f"{_prefix(point)}@{point['T_valid']}"


def _prefix(point: Row) -> str:
    """Returns where a point's metrics stand: eval for the headline, else with its protocol."""
    protocol, variant = point["protocol"], point["variant"]
    if protocol == "tail" and variant is None:
        return "eval"
    return f"eval/{protocol}" if variant is None else f"eval/{protocol}/{variant}"


def _where(run: "wandb.Run", refusal: str | None) -> str:
    """Returns the line that says where a run can be seen, and why not online."""
    if run.settings.mode == "online":
        return f"W&B: {run.url}"
    reason = "" if refusal is None else f"{refusal}; "
    return f"W&B: {reason}offline, to upload: wandb sync {run.settings.sync_dir}"


def _reason(error: BaseException) -> str:
    return _shortened(str(error) or type(error).__name__)


def _shortened(text: str) -> str:
    """Returns one line without wandb's own prefix; a backend may answer with a whole page."""
    return textwrap.shorten(text.removeprefix("wandb: ").removeprefix("WARNING "), 200).rstrip(".")
