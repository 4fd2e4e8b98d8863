"""lengthgen data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lengthgen.cli.arguments import ConfigDir, Overrides, PluginFiles
from lengthgen.cli.console import echo, print_table, warn
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.data.corpora import TokenizedCorpus

BAR = 30  # characters


def show_corpus(
    corpus: Annotated[
        str | None,
        typer.Argument(
            metavar="[CORPUS]",
            help="As in corpus=CORPUS of train: files, wikitext103, OWNER/NAME of the Hub.",
        ),
    ] = None,
    overrides: Overrides = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List what is kept of corpora, and where.")
    ] = False,
    remove: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Remove what is kept: a name of --list, or a glob."),
    ] = None,
    config_dir: ConfigDir = None,
    plugin: PluginFiles = None,
) -> None:
    """Prepare a corpus, and show how many documents are how long."""
    if listed or remove is not None:
        words = [word for word in [corpus, *(overrides or [])] if word]
        return _kept(words, remove)
    if corpus is None:
        raise UserError("data: name a corpus, as in: lengthgen data stdlib; or give --list")
    from lengthgen.experiment import resolve

    words = [corpus if "=" in corpus else f"corpus={corpus}", *(overrides or [])]
    experiment = resolve(words, config_dir=config_dir, plugins=plugin or [])
    from lengthgen.data import corpora
    from lengthgen.terminal import from_here

    config = experiment.config
    cache_dir = config.runtime.cache_dir
    loaded = corpora.load_tokenized(config.corpus, experiment.source, cache_dir=cache_dir, say=warn)
    for head, rows in split_tables(loaded, T=config.train.length):
        print_table(head, rows)
        echo("")
    if loaded.packed:
        echo("packed: the documents are one stream, in which every length is reached")
    echo(f"tokens: {from_here(loaded.tokenizer_path.parent)}")


def _kept(words: list[str], remove: str | None) -> None:
    """Lists the folders of the token cache, or removes those of a name or glob."""
    from lengthgen.config.overrides import checked_changes, plain_values
    from lengthgen.config.user import own_defaults, user_cache
    from lengthgen.data import token_cache

    changes = checked_changes(plain_values(words), ("runtime",))
    given = (own_defaults() | changes)["runtime.cache"]
    cache_dir = Path(given).expanduser() if given else user_cache() / "corpora"
    if remove is not None:
        for name, size in token_cache.remove(cache_dir, remove):
            echo(f"removed {name}: {size:,} bytes")
        return
    head = ["kept", "train tokens", "validation tokens", "bytes"]
    print_table(head, token_cache.cached_corpora(cache_dir))
    echo(f"in {cache_dir}")


def split_tables(corpus: "TokenizedCorpus", *, T: int) -> list[tuple[list[str], list[list[str]]]]:
    """Returns the sizes of both splits, the histogram of lengths, and what reaches T ... 32T."""
    import numpy as np

    lengths = {name: corpus.document_lengths(name) for name in ("train", "validation")}
    sizes: list[list[str]] = []
    for name, n in lengths.items():
        ratio = f"{corpus.meta[name]['bytes'] / n.sum():.2f}"
        numbers = [len(n), int(n.sum()), int(np.median(n)), int(n.max())]
        sizes.append([name, *(f"{number:,}" for number in numbers), ratio])
    every = np.concatenate([*lengths.values()])
    low, high = (int(x).bit_length() for x in (every.min(), every.max()))
    edges = [0] * (low < 2) + [1 << i for i in range(max(low - 1, 1), high + 1)]
    counts = {name: np.histogram(n, edges)[0] for name, n in lengths.items()}
    most = np.histogram(every, edges)[0].max()
    bins: list[list[str]] = []
    for i, (train, held_out) in enumerate(zip(*counts.values(), strict=True)):
        bar = "#" * round(BAR * (train + held_out) / most)
        bins.append([f"{edges[i]:,} to {edges[i + 1] - 1:,}", f"{train:,}", f"{held_out:,}", bar])
    reached: list[list[str]] = []
    for i in range(6):
        n_reach = [f"{(n >= T << i).sum():,}" for n in lengths.values()]
        reached.append(["T" if not i else f"{1 << i}T", f"{T << i:,}", *n_reach])
    return [
        (["split", "documents", "tokens", "median", "longest", "bytes a token"], sizes),
        (["tokens of a document", "train", "validation", ""], bins),
        (["documents that reach", "tokens", "train", "validation"], reached),
    ]
