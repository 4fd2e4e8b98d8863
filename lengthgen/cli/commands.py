"""The commands by name; the module of one is imported only when that one is asked for."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_command

from lengthgen.cli import completion


class Command(NamedTuple):
    """A function of a module of this package, and what is known of it without its import.

    `help` is the first line of its docstring; `complete` completes its arguments.
    """

    module: str
    function: str
    help: str
    complete: Callable[[typer.Context, str], list[str]] | None = None

    def load(self) -> Callable[..., None]:
        """Returns the function."""
        return getattr(import_module(f"{__package__}.{self.module}"), self.function)


COMMANDS = {
    "train": Command(
        "train",
        "train",
        "Train a scheme, then evaluate its curve. Run again: it resumes, or is done at once.",
        completion.overrides,
    ),
    "sweep": Command(
        "sweep",
        "sweep",
        "Run every combination of a,b or range() or glob() values. Run again: it continues.",
        completion.overrides,
    ),
    "tune": Command(
        "sweep",
        "tune",
        "Choose a rate per scheme: scheme=a,b train.lr=1e-3,2e-3,4e-3. Run again: it continues.",
        completion.overrides,
    ),
    "eval": Command(
        "evaluate",
        "evaluate_runs",
        "Evaluate trained runs, by default the newest one.",
        completion.runs,
    ),
    "probe": Command(
        "probe",
        "probe_runs",
        "Analyse the checkpoints of runs, by default of the newest one.",
        completion.runs,
    ),
    "generate": Command(
        "generate",
        "generate_text",
        "Continue a text, or show tests of a task with wrong answers.",
        completion.runs,
    ),
    "report": Command(
        "report",
        "write_report",
        "Write figures, tables and a page of runs, by default of all.",
        completion.reported,
    ),
    "export": Command(
        "export",
        "export_run",
        "Write a model to share: weights, tokenizer, model card.",
        completion.runs,
    ),
    "list": Command(
        "lists",
        "list_kind",
        "List what can be chosen, or the runs there are.",
        completion.kinds,
    ),
    "bench": Command(
        "bench",
        "bench",
        "Measure parameters, tokens/s and memory of schemes.",
        completion.schemes,
    ),
}
TRACK = {
    "push": Command(
        "track",
        "push",
        "Send runs to Weights & Biases, by default the newest one.",
        completion.runs,
    ),
}


def add(app: typer.Typer, commands: Mapping[str, Command]) -> None:
    """Adds commands to an app."""
    for name, command in commands.items():
        app.command(name, cls=_lazy(name, command), help=command.help)(_arguments(command))


def _lazy(name: str, command: Command) -> type[TyperCommand]:
    """Returns a class whose command imports the module to parse arguments, and to run with them.

    To complete an argument it is not imported, unless options stand before it.
    """

    def loaded() -> Any:
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name)(command.load())
        return get_command(alone)

    class Lazy(TyperCommand):
        def make_context(
            self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
        ) -> Any:
            is_completed = extra.get("resilient_parsing", False)
            if is_completed and not any(word.startswith("-") for word in args):
                return super().make_context(info_name, args, parent, **extra)
            return loaded().make_context(info_name, args, parent, **extra)

        def shell_complete(self, ctx: Any, incomplete: str) -> Any:
            """Returns the options."""
            return loaded().shell_complete(ctx, incomplete)

    return Lazy


def _arguments(command: Command) -> Callable[..., None]:
    """Returns a function whose arguments are completed as the command's are."""
    argument = typer.Argument(autocompletion=command.complete)

    def function(arguments: Annotated[list[str] | None, argument] = None) -> None: ...

    return function
