"""lengthgen audit."""

from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.arguments import VariantNames, comma_words, complete_runs, names_and_overrides
from lengthgen.cli.console import echo, warn
from lengthgen.errors import UserError


def audit_model(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL [KEY=VALUE ...]",
            help="A run, a folder in Hugging Face layout or a name of the Hub; eval.*, runtime.* "
            "and, of a model that is no run yet, corpus.",
            autocompletion=complete_runs,
        ),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(metavar="L,L,...", help="Default: T/8,T/4,T/2,T,2T,4T.")
    ] = None,
    variants: VariantNames = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="N", help="Cheap measurements first, as many as fit."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the page; default: RUN/audit.")
    ] = None,
) -> None:
    """Find out how much of its context a model uses.

    Measured is what it predicts, copies and finds. A second call goes on where the first one ended.
    """
    names, overrides = names_and_overrides(arguments)
    if len(names) != 1:
        raise UserError("audit: give one model, as in: lengthgen audit runs/RUN")
    from lengthgen.config.overrides import checked_changes, plain_values
    from lengthgen.config.user import root_of
    from lengthgen.context import audit
    from lengthgen.report import report

    root = root_of(plain_values([w for w in overrides if w.startswith("runtime.root=")]))
    run_dir, overrides = audit.found(names[0], root, overrides, warn)
    changes = checked_changes(plain_values(overrides), ("eval", "runtime"))
    made, page = audit.audit(
        run_dir,
        changes,
        lengths=comma_words(lengths),
        variants=comma_words(variants),
        minutes=minutes,
        out=out,
        say=warn,
    )
    for line in made[0].sentences:
        echo(line)
    echo(report.short_tables(made[:1]))
    echo(page)


COMMANDS = {"audit": audit_model}
