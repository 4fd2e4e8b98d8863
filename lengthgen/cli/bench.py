"""lengthgen bench."""

from typing import Annotated

import typer

from lengthgen.cli.printing import print_rows
from lengthgen.cli.words import ConfigDir, Plugin, complete_schemes, lengths_of, positive


def bench(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCHEME ...] [KEY=VALUE ...]",
            help="Schemes, all if none is named; and overrides, such as model=small.",
            autocompletion=complete_schemes,
        ),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option("--lengths", metavar="L,L,...", help="Default: T, 4T and 32T.")
    ] = None,
    rounds: Annotated[
        str, typer.Option("--rounds", metavar="N", help="Measurements behind a median at T.")
    ] = "5",
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Measure each scheme's cost beside no scheme: parameters, tokens/s, memory at T, 4T, 32T.

    Decoding is of 64 tokens behind T, one by one.
    """
    from lengthgen import benchmark as benching
    from lengthgen import pipeline
    from lengthgen.cli.listing import Listing
    from lengthgen.config import compose, schema
    from lengthgen.terminal import Progress

    overrides = [word for word in words or [] if "=" in word]
    schemes = [word for word in words or [] if "=" not in word]
    built: list[schema.Config] = []
    for scheme in schemes or compose.choices("scheme", config_dir=config_dir):
        plain = compose.compose([*overrides, f"scheme={scheme}"], config_dir=config_dir)
        plain["plugins"] += [str(path.absolute()) for path in plugin or []]
        built.append(pipeline.validate(schema.from_plain(plain)))
    T = built[0].train.length
    asked = [T, 4 * T, 32 * T] if lengths is None else lengths_of(lengths)
    n_rounds = positive(rounds, "--rounds", "a number of measurements, like --rounds 5")
    with Progress(is_main=True) as show:
        found = benching.costs(
            built, asked, rounds=n_rounds, vocab_size=built[0].corpus.vocab_size, show=show
        )
        head, *rows = benching.table(list(found), asked, train_length=T)
    print_rows(Listing(head, rows), head_in_pipes=True)
