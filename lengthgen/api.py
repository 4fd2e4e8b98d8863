"""The Python API: what the commands do, for scripts and notebooks."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import tokenizers

from lengthgen import experiment, generation, pipeline
from lengthgen.config import drafts
from lengthgen.config.overrides import checked_changes, overrides_of
from lengthgen.config.sections import flatten
from lengthgen.config.user import root_of
from lengthgen.errors import Say, UserError, unsaid
from lengthgen.evaluation import callables
from lengthgen.evaluation.callables import Logits
from lengthgen.evaluation.evaluator import measured_rows
from lengthgen.model.transformer import Transformer
from lengthgen.report import report as pages
from lengthgen.report import statistics
from lengthgen.report.load import asked_for, of_model, only
from lengthgen.report.load import load_rows as load_rows
from lengthgen.report.series import select
from lengthgen.runs import directory
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress

Run = str | Path  # a run directory, or below runtime.root a run id or its unique beginning


def train(
    *overrides: str,
    base: Run | None = None,
    config_dir: str | Path | None = None,
    plugins: str | Path | Sequence[str | Path] = (),
    **values: Any,
) -> Path:
    """Trains a scheme and evaluates its curve as `lengthgen train`; returns the run directory.

    A run that was interrupted resumes; a finished one is returned at once.

    Args:
        overrides: As typed on the command line, such as "train.lr=2e-3".
        base: A run whose configuration is changed, in place of the defaults.
        config_dir: Folder with custom groups.
        plugins: Python files with custom parts, or one, whose code this call runs.
        values: The same as nested values: scheme="rope", seed=2, train={"tokens": 1_000_000}.

    Raises:
        UserError: A value cannot be used; the message names it and the remedy.

    Examples:
        >>> run = lengthgen.train(scheme="alibi", train={"tokens": 1_000_000})
        >>> again = lengthgen.train(base=run, seed=2)
    """
    words = [*map(str, overrides), *overrides_of(values)]
    folder, files = None if config_dir is None else Path(config_dir), _paths(plugins)
    if base is None:
        asked = experiment.resolve(words, config_dir=folder, plugins=files)
    else:
        _, asked = experiment.changed(str(base), words, config_dir=folder, plugins=files)
    pipeline.train(asked)
    return asked.run_dir


def evaluate(
    run: Run,
    *,
    lengths: int | Sequence[int] | None = None,
    protocols: str | Sequence[str] | None = None,
    variants: str | Sequence[str] | None = None,
    checkpoints: Literal["all"] | int | Sequence[int] | None = None,
    plugins: str | Path | Sequence[str | Path] = (),
    **values: Any,
) -> pd.DataFrame:
    """Evaluates a run, and returns its curve; only what is missing is computed.

    Args:
        run: A run directory, or the id of a run in runtime.root.
        lengths: Lengths in tokens, such as [512, 2048, 16384] or 512.
        protocols: Such as ["tail", "swap"] or "tail"; `lengthgen list protocols` shows them.
        variants: Training-free variants, such as ["ntk", "yarn"] or "ntk".
        checkpoints: Of those that train.keep_checkpoints keeps "all", or the ones after about so
            many tokens, such as [4_000_000, 8_000_000]; the last one is always evaluated.
        plugins: The python files that the run was trained with.
        values: eval and runtime as nested values, such as eval={"targets": 64}.

    Returns:
        As `results`, of this run and of what was requested.

    Examples:
        >>> curve = lengthgen.evaluate(run, lengths=[512, 2048], variants="ntk")
    """
    requested = {"lengths": lengths, "protocols": protocols, "variants": variants}
    changes = {f"eval.{key}": _listed(v) for key, v in requested.items() if v is not None}
    changes = checked_changes(changes | flatten(values), ("eval", "runtime"))
    run_dir = directory.find(str(run), root_of(changes))
    kept = "all" if checkpoints == "all" else [int(n) for n in _listed(checkpoints)]
    asked = experiment.of_run(run_dir, changes, plugins=_paths(plugins))
    ((*_, rows),) = pipeline.evaluate_runs([run_dir], [asked], kept=kept)
    measured = only(load_rows([run_dir], checkpoints=bool(kept)), rows)
    return _curves(asked_for(measured, {asked.run_id: asked.config.eval}), bool(kept))


def results(
    runs: Run | Sequence[Run] | None = None,
    *,
    per: Literal["series", "seed", "document"] = "series",
    checkpoints: bool = False,
) -> pd.DataFrame:
    """Returns the curves of runs, without computing anything.

    Args:
        runs: A folder of runs or of a report, a run, or a list of them; by default all runs in
            runtime.root. What cannot be read or compared is named on stderr, once, and left out.
        per: "series" for intervals; "seed" for a row of each run, "document" of each of its
            documents, for statistics of one's own.
        checkpoints: At the checkpoints before the last, too, where they are evaluated: a column
            `tokens` has the number of tokens seen at each.

    Returns:
        A row for each corpus, series (runs of one recipe), protocol and length: its perplexity from
        `ppl_low` to `ppl_high`, its loss in nats per token with the 95 % interval `low` to `high`
        over seeds and documents (NaN where skipped), and model, tokens seen, learning rate. Per
        seed and document there is no interval, but run id, seed and document.

    Raises:
        UserError: There is no such folder or run, or nothing in it is evaluated; another `per`.

    Examples:
        >>> curves = lengthgen.results("runs").query("protocol == 'tail'")
        >>> curves.pivot(index=["corpus", "series"], columns="length", values="ppl")
    """
    if per not in ("series", "seed", "document"):
        raise UserError(f'results: per={per!r}; give "series", "seed" or "document"')
    root = root_of({})
    given = directory.every(root) if runs is None else _paths(runs)
    paths = [p if p.is_dir() else directory.find(str(p), root) for p in given]
    with Progress(is_main=True) as show:
        rows = load_rows(paths, checkpoints=checkpoints, say=show.say)
        return _curves(rows, checkpoints, per=per, say=show.say)


def _curves(
    rows: pd.DataFrame, checkpoints: bool, *, per: str = "series", say: Say = unsaid
) -> pd.DataFrame:
    """Returns the curves of runs at their last checkpoint, or at all; says what is left out."""
    tables: list[pd.DataFrame] = []
    for text in select(rows):
        for note in text.terminal_notes:
            say(note)
        if per != "series":
            every = pd.concat([text.rows, text.earlier]) if checkpoints else text.rows
            table = statistics.by_run(every, documents=per == "document")
        elif checkpoints:
            table = statistics.over_training(text)
        else:
            table = statistics.findings(text.rows)
        tables.append(table.assign(corpus=text.text))
    joined = pd.concat(tables, ignore_index=True)
    return statistics.curves(joined) if per == "series" else joined


def measure(
    logits: Logits,
    documents: Iterable[str] | Iterable[Sequence[int]],
    *,
    lengths: int | Sequence[int],
    protocols: str | Sequence[str] = "tail",
    train_length: int | None = None,
    tokenizer: Any = None,
    bos_id: int | None = None,
    precision: str = "fp32",
    name: str = "model",
    report: str | Path | None = None,
    **values: Any,
) -> pd.DataFrame:
    """Measures any model that gives logits, under the protocols of runs; returns its curve.

    Args:
        logits: A callable from token ids [B, T] to logits [B, T, V], or to an object that has them
            as `logits`, such as a model of transformers. V may exceed the ids. Nothing is assumed
            of positions.
        documents: Held-out texts, or sequences of token ids.
        lengths: Lengths in tokens, such as [512, 2048, 16384].
        protocols: Such as ["tail", "forgetting", "retrieval"].
        train_length: T, from which gains count; by default the longest of the lengths.
        tokenizer: Of texts: that of the library tokenizers, or a fast one of transformers. Bits per
            byte are those of a byte-level one; of others they are not known.
        bos_id: The token before every window, if the model was trained with one.
        precision: "bf16" calls the model under autocast.
        name: Of the model, in tables.
        report: A folder that a report is written to, for `lengthgen report` too.
        values: eval and runtime as nested values, such as eval={"targets": 256}.

    Returns:
        As `results`.

    Raises:
        UserError: A length that no document has, or a value that cannot be used.

    Examples:
        >>> model = transformers.AutoModelForCausalLM.from_pretrained("state-spaces/mamba-130m-hf")
        >>> curve = lengthgen.measure(model, documents, lengths=[512, 2048], protocols="forgetting")
    """
    if not (wanted := sorted(int(n) for n in _listed(lengths))):
        raise UserError("eval.lengths: none is given; give some, such as [512, 2048]")
    changes = checked_changes(flatten(values), ("eval", "runtime"))
    given: dict[str, Any] = {
        **{"model": "tiny", "corpus": "synthetic", "train.precision": "fp32"},
        **{"train.length": (T := train_length or wanted[-1]), "train.batch_tokens": T},
        **{"eval.lengths": wanted, "eval.protocols": _listed(protocols)},
        **{"eval.precision": precision, "eval.deduplicate": False},
        **{"eval.reference_variants": [], "runtime.device": "cpu"},
    }
    draft = drafts.drafted(overrides_of(given | changes))
    about = {"name": "documents", "bos": bos_id is not None}
    unknown = {"name": name, "parts": {}, "layers": None, "variants": {}}  # the callable's, unknown
    asked = experiment.resolved(
        draft.model_copy(
            update={
                "train": draft.train.model_copy(update={"tokens": 0}),
                "corpus": draft.corpus.model_copy(update=about),
                "model": draft.model.model_copy(update={"name": name}),
                "scheme": draft.scheme.model_copy(update=unknown),
            }
        )
    )
    config = asked.config
    corpus = callables.corpus_of(documents, tokenizer=tokenizer, bos_id=bos_id)
    with Progress(is_main=True) as show:
        given_model = callables.Given(logits, config, corpus)
        scored = asked.opened_on(corpus).scored(given_model, ranks=ALONE, show=show)
        rows = of_model(measured_rows(scored), config)
    if report is not None:
        pages.write_pages(rows, pages.sections(rows), Path(report))
    return statistics.curves(statistics.findings(rows))


def load(
    run: Run, *, variant: str | None = None, plugins: str | Path | Sequence[str | Path] = ()
) -> tuple[Transformer, tokenizers.Tokenizer]:
    """Returns the model of a run's newest checkpoint, in evaluation mode, and its tokenizer.

    model.logits(model(tokens)) of tokens [B, T] are logits [B, T, vocabulary].

    Args:
        run: A run directory, or the id of a run in runtime.root.
        variant: A training-free variant of the scheme, such as "ntk".
        plugins: The python files that the run was trained with.

    Examples:
        >>> model, tokenizer = lengthgen.load(run)
        >>> tokens = torch.tensor([tokenizer.encode("def main(").ids])
        >>> logits = model.logits(model(tokens))
    """
    run_dir = directory.find(str(run), root_of({}))
    changes = {} if variant is None else {"eval.variants": [variant]}
    of_run = experiment.of_run(run_dir, changes, plugins=_paths(plugins))
    with Progress(is_main=True) as show:
        opened, tokenizer = generation.open_trained(
            of_run, run_dir, is_varied=variant is not None, show=show
        )
    return opened.model, tokenizer


def _listed(values: Any) -> list[Any]:
    """Returns what was given in place of a list: its values, or a single one; none for None."""
    several = isinstance(values, Iterable) and not isinstance(values, str)
    return [*values] if several else [] if values is None else [values]


def _paths(given: Any) -> list[Path]:
    return [Path(str(path)) for path in _listed(given)]
