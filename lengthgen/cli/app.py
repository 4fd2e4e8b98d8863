"""The program `lengthgen`: its commands, and how it ends."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from lengthgen import __version__
from lengthgen.cli import data, evaluate, generate, lists, report, runs, sweep, track, train, tune
from lengthgen.cli.console import echo, warn, warn_once
from lengthgen.config.registry import beside_core
from lengthgen.errors import Stopped, UserError, out_of_memory
from lengthgen.files import replace_file

COMMANDS: dict[str, Callable[..., None]] = {
    "train": train.train,
    "sweep": sweep.sweep,
    "tune": tune.tune,
    "eval": evaluate.evaluate_runs,
    "generate": generate.generate_text,
    "report": report.write_report,
    "data": data.show_corpus,
    "list": lists.list_kind,
    "show": runs.show_runs,
    "rm": runs.remove_runs,
}
for _subpackage in beside_core("cli"):
    COMMANDS.update(_subpackage.COMMANDS)

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
app = typer.Typer(
    help="Train a small causal LM at length T with any positional scheme; measure it at 2T to 32T.",
    rich_markup_mode=None,  # rich doubles the time of --help
    pretty_exceptions_enable=False,
)
tracking = typer.Typer(help="Show runs in Weights & Biases.", rich_markup_mode=None)

for _name, _function in COMMANDS.items():
    app.command(_name)(_function)
tracking.command("push")(track.push)
tracking.command("report")(track.report)
app.add_typer(tracking, name="track")


@app.callback(invoke_without_command=True)
def of_program(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Takes the options of lengthgen itself."""
    if version:
        echo(f"lengthgen {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Runs the command line and exits: 0 done, 2 the user's mistake, 128 + n for signal n."""
    # OpenMP threads spin at barriers: beside a busy process a step took 1.8 times as long without
    # this bound, 1.1 times with it. torch reads it when it is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # which reads all packages for any
    words = sys.argv[1:] or ["--help"]
    try:
        code = _run(args=words, prog_name="lengthgen", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        composes = words[0] in ("train", "sweep", "tune") and hasattr(error, "option_name")
        instead = _instead(words) if composes else None
        _end(f"error: {instead or ' '.join(error.format_message().split())}", 2)
    except UserError as error:
        _end(f"error: {error}", 2)
    except Stopped as stopped:
        if ERROR_FILE in os.environ:  # torchrun has no word for a signal that it passed on
            warn_once(str(stopped))
        _end(str(stopped), stopped.exit_code)
    except BrokenPipeError:  # as in `lengthgen list runs | head`
        _close_stdout()
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            _close_stdout()
        where = f"{error.filename or 'standard output'!s:.100}"
        _end(f"error: {where}: {(error.strerror or str(error)).lower()}", 2)
    except Exception:  # a bug, which Python shows
        if "RANK" not in os.environ:
            raise
        told = traceback.format_exc()
        warn(told.rstrip())
        _leave(told)
        sys.stderr.flush()
        os._exit(1)
    if code == 130:  # what Typer makes of KeyboardInterrupt
        raise KeyboardInterrupt
    sys.exit(code)


def _run(**arguments: Any) -> Any:
    """Runs the command; memory that ran out is the user's mistake, and of one line."""
    try:
        return app(**arguments)
    except Exception as error:
        if line := out_of_memory(error):
            raise UserError(line) from error
        raise


def _instead(words: list[str]) -> str | None:
    """Returns what to type in place of Hydra's -m, or of an option that is a key: --seed=1."""
    from lengthgen.config.overrides import keys

    known = keys(config_dir=None)
    for word in words[1:]:
        option, _, value = word.partition("=")
        if option in ("-m", "--multirun"):
            return f"{option}: for several values of a key, give lengthgen sweep in place of train"
        key = option.removeprefix("--")
        if key != option and key in known:
            return f"{option}: keys have no dashes; give {key}={value or 'VALUE'}"
    return None


def _end(message: str, exit_code: int) -> NoReturn:
    """Writes the message of an error, under torchrun in its file for a traceback, and exits."""
    if ERROR_FILE in os.environ:
        _leave(message)
    else:
        warn(message)
    if os.environ.get("WORLD_SIZE", "1") != "1" and "MASTER_ADDR" in os.environ:
        sys.stderr.flush()
        os._exit(exit_code)  # the end of Python may wait for threads of a failed group
    sys.exit(exit_code)


def _leave(shown: str) -> None:
    """Leaves the error that is handled where torchrun, which fails on half a file, shows it."""
    if file := os.environ.get(ERROR_FILE):
        error = sys.exception()
        extra = {"py_callstack": shown, "timestamp": str(int(time.time()))}
        left = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
        with suppress(UserError):  # a full disk hides no error
            replace_file(Path(file), json.dumps(left).encode())


def _close_stdout() -> None:
    """Drops what is left to write to a standard output that takes no more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
