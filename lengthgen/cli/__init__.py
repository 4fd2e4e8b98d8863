"""The command line: the only Typer, the only print. It imports neither torch nor a command."""

import errno
import os
import re
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from lengthgen import __version__
from lengthgen.cli import commands
from lengthgen.cli.console import echo, warn, warn_once
from lengthgen.errors import Stopped, UserError, is_exhausted, out_of_memory
from lengthgen.runs import failures

app = typer.Typer(
    help="Train a small causal LM at length T with any positional scheme; measure it at 2T to 32T.",
    rich_markup_mode=None,  # rich doubles the time of --help, 50 ms without it
    pretty_exceptions_enable=False,
)
tracking = typer.Typer(help="Show runs in Weights & Biases.", rich_markup_mode=None)
commands.add(app, commands.COMMANDS)
commands.add(tracking, commands.TRACK)
app.add_typer(tracking, name="track")


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"lengthgen {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Takes the options of lengthgen itself."""


def main() -> NoReturn:
    """Runs the command line and exits: 0 done, 2 the user's mistake, 128 + n for signal n."""
    _keep_threads_from_spinning()
    try:
        code = app(args=sys.argv[1:] or ["--help"], prog_name="lengthgen", standalone_mode=False)
        sys.stdout.flush()
    except (UserError, typer.TyperException) as error:
        message = _message(error) if isinstance(error, typer.TyperException) else str(error)
        _end(error, "error: " + " ".join(message.split()), 2)
    except Stopped as stopped:
        _end(stopped, str(stopped), stopped.exit_code)
    except BrokenPipeError:  # as in `lengthgen list runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # a bug, but for the first two; Python shows it
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            name = f"{error.filename!s:.60}..."
            _end(error, f"error: {name} is longer than a path can be; give a shorter one", 2)
        if is_exhausted(error):
            _end(error, f"error: {out_of_memory(error)}", 2)
        if "RANK" not in os.environ:
            raise
        _end(error, traceback.format_exc().rstrip(), 1)
    if code == 130:  # what Typer makes of KeyboardInterrupt; training itself raises Stopped
        warn_once("interrupted; the same command continues with what is done")
    sys.exit(code)


def _message(error: typer.TyperException) -> str:
    """Returns Typer's message; for a wrong value with the option, the value and what to give."""
    param, errors = getattr(error, "param", None), getattr(error.__cause__, "errors", None)
    if param is None or errors is None:  # those of pydantic, by which Typer converts values
        return error.format_message()
    found, option = errors()[0], max(param.opts, key=len)
    reason = re.sub(r"^Value error, |, unable to .*|\.$", "", found["msg"])
    about = param.help.rstrip(".")
    return (
        f"{option}: {found['input']!r}: {reason[0].lower()}{reason[1:]}; "
        f"give {option} {param.metavar} ({about[0].lower()}{about[1:]})"
    )


def _end(error: Exception, message: str, exit_code: int) -> NoReturn:
    """Writes the message of an error and exits; of several processes, one writes it for all."""
    last: str | None = message
    if "RANK" in os.environ:
        last, exit_code = failures.end(error, message, exit_code)
    if last is not None:
        warn(last)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stderr.flush()
        os._exit(exit_code)  # the end of Python may wait for threads of a group that has failed
    sys.exit(exit_code)


def _keep_threads_from_spinning() -> None:
    """Bounds how long OpenMP threads spin at barriers; to be called before torch is imported.

    By default they spin for the other threads' whole absence. A step took 1.8 times as long then
    next to one busy process, and 1.1 times with this bound, which costs 5 % on an idle machine
    (scripts/bench_cpu.py, 2 cores). Users' own settings are kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
