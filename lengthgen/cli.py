"""The command line: the only Typer, the only print; nothing heavy is imported at module level."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from lengthgen.errors import Stopped, UserError, suggestion

if TYPE_CHECKING:
    from lengthgen.config import Config
    from lengthgen.listing import Listing

app = typer.Typer(
    help="Train a small causal LM at length T with any positional scheme; measure it at 2T to 32T.",
    rich_markup_mode=None,  # rich doubles the time of --help, 50 ms without it
    pretty_exceptions_enable=False,
)


def main() -> NoReturn:
    """Runs the command line and exits: 0 done, 2 the user's mistake, 128 + n for signal n."""
    _keep_threads_from_spinning()
    try:
        code = app(args=sys.argv[1:] or ["--help"], prog_name="lengthgen", standalone_mode=False)
        sys.stdout.flush()
    except (UserError, typer.TyperException) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        _say_once("error: " + " ".join(message.split()))
        sys.exit(2)
    except Stopped as stopped:
        _say_once(str(stopped))
        sys.exit(stopped.exit_code)
    except BrokenPipeError:  # `lengthgen list runs | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    if code == 130:  # what Typer makes of KeyboardInterrupt; training itself raises Stopped
        _say_once("interrupted; the same command continues with what is done")
    sys.exit(code)


def _keep_threads_from_spinning() -> None:
    """Bounds how long OpenMP threads spin at barriers; to be called before torch is imported.

    By default they spin for the other threads' whole absence. A step took 1.8 times as long then
    beside one busy process, and 1.1 times with this bound, which costs 5 % on an idle machine
    (scripts/bench_cpu.py, 2 cores). Users' own settings are kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _say_once(line: str) -> None:
    """Writes a line to stderr; under torchrun, by one process of all."""
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr)


# Shell completion


def _complete_overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    from lengthgen import completion

    before = ctx.params.get("overrides") or []
    return completion.overrides(before, incomplete, config_dir=ctx.params.get("config_dir"))


def _complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    from lengthgen import completion

    return completion.runs(ctx.params.get("words") or [], incomplete)


def _complete_schemes(ctx: typer.Context, incomplete: str) -> list[str]:
    from lengthgen import completion

    return completion.schemes(ctx.params.get("words") or [], incomplete)


def _complete_kinds(incomplete: str) -> list[str]:
    return [kind for kind in _KINDS if kind.startswith(incomplete)]


# Commands


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE ...]",
        help="Overrides, such as scheme=alibi train.length=1024; Tab completes them.",
        autocompletion=_complete_overrides,
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN ...] [KEY=VALUE ...]",
        help="Run ids, unique beginnings of ids, or paths; and runtime.* overrides.",
        autocompletion=_complete_runs,
    ),
]
ConfigDir = Annotated[
    Path | None, typer.Option("--config-dir", metavar="DIR", help="Folder with groups of your own.")
]

Plugin = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE", help="Python file with parts of your own."),
]


@app.command()
def train(
    overrides: Overrides = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="N", help="Start N processes with torchrun.")
    ] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Train a scheme, then evaluate its curve. Run again: it resumes, or is done at once."""
    from lengthgen import compose, config

    plain = compose.compose(overrides or [], config_dir=config_dir)
    if plugin and isinstance(plain.get("plugins"), list):
        plain["plugins"] += [str(path.absolute()) for path in plugin]
    built = config.from_plain(plain)
    if gpus is not None:
        n_gpus = _positive(gpus, "--gpus", "a number of processes, like --gpus 2")
        _check_gpus(n_gpus, device=built.runtime.device)
        _prepare(built)
        options = ["--config-dir", str(config_dir)] if config_dir else []
        for path in plugin or []:
            options += ["--plugin", str(path)]
        _torchrun(n_gpus, ["train", *(overrides or []), *options])

    from lengthgen import devices, report
    from lengthgen import train as training
    from lengthgen.progress import Progress
    from lengthgen.ranks import Ranks

    ranks = Ranks.from_env()
    device = devices.device_of(built.runtime, ranks)
    with ranks.connected(device.type), Progress(is_main=ranks.is_main) as show:
        run_dir = training.train(built, ranks=ranks, show=show)
    if ranks.is_main:
        print(report.table([run_dir]))
        print(f"run: {run_dir}")


def _check_gpus(gpus: int, *, device: str) -> None:
    import torch

    if "RANK" in os.environ:
        raise UserError("--gpus: torchrun has started this process already; drop --gpus")
    there = torch.cuda.device_count()
    if (device == "cuda" or (device == "auto" and there)) and gpus > there:
        raise UserError(
            f"--gpus: {gpus} asked, {there} in this machine; give --gpus {max(there, 1)}, "
            "or runtime.device=cpu for processes on the CPU"
        )
    if device == "auto" and not there and not torch.backends.mps.is_available():
        _say_once(f"--gpus: there is no GPU in this machine; {gpus} processes on the CPU")


def _prepare(built: "Config") -> None:
    """Builds the token cache, and checks lengths and plugins, before there are N processes."""
    from lengthgen import corpora, evaluate
    from lengthgen.progress import Progress
    from lengthgen.rehearsal import rehearse

    with Progress(is_main=True) as show:
        corpus = corpora.load(built.corpus, cache_dir=built.runtime.cache_dir, say=show.say)
    evaluate.plan(built, corpus)
    rehearse(built)


def _torchrun(gpus: int, arguments: Sequence[str]) -> NoReturn:
    """Starts this program once per GPU, waits for all of them, and exits."""
    from lengthgen import ranks

    # torchrun would set it to 1 with a banner; training then sets its own number of threads.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // gpus)))
    sys.stdout.flush()
    sys.exit(ranks.launch(gpus, arguments))


@app.command("eval")
def evaluate_runs(
    words: Words = None,
    lengths: Annotated[
        str | None, typer.Option("--lengths", metavar="L,L,...", help="Such as 512,2048,16000.")
    ] = None,
    protocols: Annotated[
        str | None, typer.Option("--protocols", metavar="P,...", help="tail, nonoverlap.")
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option("--variants", metavar="V,...", help="Training-free variants; a+b merges two."),
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Evaluate trained runs, the newest if none is named; only missing cells are computed.

    Takes eval.* and runtime.* overrides; everything else is fixed by the run.
    """
    from lengthgen import compose, config, devices, evaluate, report, runs
    from lengthgen.progress import Progress
    from lengthgen.ranks import Ranks

    names, changes = _split(words, sections=("eval", "runtime"))
    if lengths is not None:
        changes["eval.lengths"] = _lengths(lengths)
    if protocols is not None:
        changes["eval.protocols"] = protocols.split(",")
    if variants is not None:
        changes["eval.variants"] = [name.strip() for name in variants.split(",")]
    root = _root(changes)
    run_dirs = [runs.find(name, root) for name in names] or [runs.newest(root)]

    configs: list[config.Config] = []  # all of them are checked before the first is evaluated
    for run_dir in run_dirs:
        plain = config.to_plain(runs.load_config(run_dir))
        plain["variants"] |= compose.variants(config_dir=config_dir)
        for key, value in {"runtime.root": str(run_dir.parent), **changes}.items():
            section, _, name = key.partition(".")
            plain[section][name] = value
        configs.append(config.from_plain(plain))
    ranks = Ranks.from_env()
    device = devices.device_of(configs[0].runtime, ranks)
    with ranks.connected(device.type), Progress(is_main=ranks.is_main) as show:
        for built, run_dir in zip(configs, run_dirs, strict=True):
            evaluate.evaluate(built, run_dir, ranks=ranks, show=show)
    if ranks.is_main:
        print(report.table(run_dirs))


@app.command("report")
def write_report(
    words: Words = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")] = Path(
        "report"
    ),
) -> None:
    """Write figure, table and CSV of runs, of all if none is named."""
    from lengthgen import listing, report, runs

    names, changes = _split(words, sections=("runtime",))
    root = _root(changes)
    evaluated = [path for path in listing.run_dirs(root) if (path / "eval.jsonl").is_file()]
    run_dirs = [runs.find(name, root) for name in names] or evaluated
    if not run_dirs:
        raise UserError(
            f"{root}: no evaluated runs; lengthgen train scheme=rope makes one, "
            "runtime.root=DIR looks elsewhere"
        )
    written = report.write_report(run_dirs, out)
    print(report.table(run_dirs))
    for path in written:
        print(path)


@app.command()
def bench(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCHEME ...] [KEY=VALUE ...]",
            help="Schemes, all if none is named; and overrides, such as model=small.",
            autocompletion=_complete_schemes,
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
    """Measure each scheme's cost beside no scheme: parameters, tokens/s, memory at T, 4T, 32T."""
    from lengthgen import bench as benching
    from lengthgen import compose, config
    from lengthgen.listing import Listing
    from lengthgen.progress import Progress

    overrides = [word for word in words or [] if "=" in word]
    schemes = [word for word in words or [] if "=" not in word]
    built: list[config.Config] = []
    for scheme in schemes or compose.choices("scheme", config_dir=config_dir):
        plain = compose.compose([*overrides, f"scheme={scheme}"], config_dir=config_dir)
        plain["plugins"] += [str(path.absolute()) for path in plugin or []]
        built.append(config.from_plain(plain))
    T = built[0].train.length
    asked = [T, 4 * T, 32 * T] if lengths is None else _lengths(lengths)
    n_rounds = _positive(rounds, "--rounds", "a number of measurements, like --rounds 5")
    with Progress(is_main=True) as show:
        found = benching.costs(
            built, asked, rounds=n_rounds, vocab_size=built[0].corpus.vocab_size, show=show
        )
        head, *rows = benching.table(list(found), asked, train_length=T)
    _print_rows(Listing(head, rows), head_in_pipes=True)


_KINDS = {
    "schemes": "scheme",
    "variants": "variant",
    "models": "model",
    "corpora": "corpus",
    "experiments": "experiment",
    "runs": None,
}


@app.command("list")
def list_kind(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="|".join(_KINDS), help="What to list.", autocompletion=_complete_kinds
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE ...]", help="runtime.root=DIR: where the runs are."),
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """List what can be chosen, or the runs there are."""
    names, changes = _split(words, sections=("runtime",))
    if names:
        raise UserError(f"{names[0]}: not readable as an override; give runtime.root=DIR")
    if kind not in _KINDS:
        raise UserError(f"list: no such kind {kind!r}; {suggestion(kind, _KINDS)}")
    from lengthgen import listing

    group = _KINDS[kind]
    if group is None:
        root = _root(changes)
        listed, nothing = listing.runs(root), f"no runs in {root} yet"
    else:
        listed = listing.choices(group, config_dir=config_dir)
        nothing = f"no {kind} yet; --config-dir DIR adds those of DIR/{group}/NAME.yaml"
    if listed.rows:
        _print_rows(listed)
    else:
        _say_once(nothing)


def _print_rows(listed: "Listing", *, head_in_pipes: bool = False) -> None:
    """Prints a table on a terminal, and lines of tab-separated cells into a pipe."""
    if not sys.stdout.isatty():
        for row in [listed.head] * head_in_pipes + listed.rows:
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*listed.head, box=None, header_style="bold")
    for row in listed.rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


# Which runs, and with what


def _split(
    words: list[str] | None, *, sections: tuple[str, ...]
) -> tuple[list[str], dict[str, Any]]:
    """Parts RUNs from KEY=VALUEs, and returns the latter by key.

    Raises UserError for a key outside the sections, or unknown within them.
    """
    from lengthgen import compose

    overrides = [word for word in words or [] if "=" in word and not Path(word).exists()]
    names = [word for word in words or [] if word not in overrides]
    changes = compose.values(overrides) if overrides else {}
    for key in changes:
        if key.partition(".")[0] not in sections or "." not in key:
            taken = " and ".join(f"{section}.*" for section in sections)
            raise UserError(f"{key}: only {taken} can be given here; the run fixes the rest")
        from lengthgen import config

        known = [one for one in config.known_keys() if one.partition(".")[0] in sections]
        if key not in known:
            raise UserError(f"{key}: unknown key; {suggestion(key, known)}")
    return names, changes


def _lengths(text: str) -> list[int]:
    return [
        _positive(word.strip(), "--lengths", "lengths like 512,2048") for word in text.split(",")
    ]


def _positive(word: str, option: str, example: str) -> int:
    if not re.fullmatch(r"[0-9]+", word) or int(word) == 0:
        raise UserError(f"{option}: {word!r} is not a positive integer; give {example}")
    return int(word)


def _root(changes: Mapping[str, Any]) -> Path:
    from lengthgen import listing

    given = "runtime.root" in changes
    return Path(changes["runtime.root"]) if given else listing.default_root()
