"""lengthgen bench."""

from typing import Annotated

import typer

from lengthgen import benchmark, pipeline
from lengthgen.cli import completion
from lengthgen.cli.arguments import ConfigDir, Plugin, lengths_of
from lengthgen.cli.console import warn
from lengthgen.cli.tables import print_table
from lengthgen.config import compose, schema
from lengthgen.terminal import Progress


def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCHEME ...] [KEY=VALUE ...]",
            help="Schemes, all if none is named; and overrides, such as model=small.",
            autocompletion=completion.schemes,
        ),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(metavar="L,L,...", help="Default: T, 4T and 32T.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Measurements of which the median is taken.")
    ] = 5,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Measure parameters, tokens/s and memory of schemes.

    At T, 4T and 32T, as ratios to a model without positions; decoding is of 64 tokens after T, one
    by one.
    """
    overrides = [word for word in arguments or [] if "=" in word]
    schemes = [word for word in arguments or [] if "=" not in word]
    configs: list[schema.Config] = []
    for scheme in schemes or compose.choices("scheme", config_dir=config_dir):
        config = schema.from_overrides(
            [*overrides, f"scheme={scheme}"], config_dir=config_dir, plugins=plugin or []
        )
        configs.append(pipeline.validate(config))
    T, vocab_size = configs[0].train.length, configs[0].corpus.vocab_size
    measured = [T, 4 * T, 32 * T] if lengths is None else lengths_of(lengths)
    with Progress(is_main=True) as show:
        costs = list(
            benchmark.costs(configs, measured, rounds=rounds, vocab_size=vocab_size, show=show)
        )
    head, *rows = benchmark.table(costs, measured, train_length=T)
    print_table(head, rows, head_in_pipes=True)
    for cost in costs:
        for window in cost.evaluated:
            if window.skipped is not None:
                warn(f"{cost.scheme} at {window.length:,}: n/a, {window.skipped}")
