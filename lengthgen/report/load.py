# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportInvalidTypeArguments=false, reportOperatorIssue=false, reportReturnType=false
"""Runs as one table: a row per run, variant, protocol, length and document.

It comes from run directories (eval.jsonl, config.yaml, env.json, train.jsonl) and from folders of
reports, whose rows.parquet holds the same table.
"""

import json
import logging
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from lengthgen.config.schema import Config, to_plain
from lengthgen.errors import UserError
from lengthgen.evaluation.rows import stored
from lengthgen.files import read_rows, replace_file
from lengthgen.runs import directory, status

ROWS, MANIFEST = "rows.parquet", "manifest.json"
# What all rows of a cell share, the cell's own key first.
CELL = ["run", "variant", "protocol", "targets", "precision", "endpoints", "tokens_seen", "length"]
OF_RUN = ["recipe", "scheme", "model", "seed", "corpus", "fingerprint", "packed", "train_length"]
SUMS = ["nats", "n_tokens", "n_bytes", "n_windows", "window_nats", "unigram_nats", "far_nats"]
OF_TASKS = ["first_wrong", "token_hits", "stop_errors", "edit_distances", "results_right"]
OF_TASKS += ["answer_ranks", "unit", "chance"]
LISTS = ["position_nats", "position_tokens", *OF_TASKS[:1], *OF_TASKS[3:6]]
COSTS = ["parameters", "train_seconds", "peak_mib", "tokens_per_s"]
NUMBERS = ["far_tokens", "targets", "token_hits", "stop_errors", "chance"]
INTEGERS = ["seed", "train_length", "tokens_seen", "reach", "length", "n_documents"]
TEXTS = ["config", "environment"]  # JSON of a run, the same in all its rows
COLUMNS = [
    *("run", *OF_RUN, "tokens_seen", "trained_in", "weights"),
    *("variant", "reference", "parts", "protocol", "targets", "precision", "endpoints", "reach"),
    *("length", "n_documents", "document", "skipped"),
    *(*SUMS, "far_tokens", "position_nats", "position_tokens"),
    *(*OF_TASKS, *COSTS, "state", *TEXTS),
]
LOST = ["nats", "window_nats", "far_nats", "position_nats", *OF_TASKS[3:6]]  # where a run diverged
ENVIRONMENT = ["commit", "python", "platform", "processor", "lengthgen", "libraries", "devices"]
LOCAL = ("runtime.root=", "runtime.cache=")  # left out of commands: folders of one machine

_log = logging.getLogger(__name__)


def load(paths: Sequence[Path], *, say: Callable[[str], None] = _log.warning) -> pd.DataFrame:
    """Returns the rows of runs and reports; sums are in nats, and NaN where a model diverged.

    `paths` are run directories, folders of reports, and folders of run directories. Of a document
    that was scored again the last row counts, and of a variant that was defined again the last
    definition. What cannot be shown is named by `say` in one line each. Raises UserError if
    nothing can be shown.
    """
    tables: list[pd.DataFrame] = []
    diverged: list[tuple[Path, Config]] = []  # in training: without an evaluation
    folders: dict[str, Path] = {}  # by run
    for path in _listed(paths):
        try:
            if (path / ROWS).is_file():
                tables.append(_read(path / ROWS))
                continue
            config = directory.load_config(path)
            if other := folders.get(config.run_id):
                raise UserError(f"it is run {config.run_id}, which lies in {other} too")
            folders[config.run_id] = path
            if rows := stored(path, run=config.run_id):
                tables.append(_table(rows, path, config))
            elif (state := status.read_status(path, run=config.run_id).state) == "diverged":
                diverged.append((path, config))
            elif status.final_weights(path, run=config.run_id):
                raise UserError(f"it is not evaluated; run lengthgen eval {path}")
            else:
                raise UserError(f"its training is {state}; rerun lengthgen train to resume")
        except UserError as error:
            say(f"{path} is not shown: {error}")
    for path, config in diverged:
        likes = [table[table["recipe"] == config.recipe] for table in tables]
        if not any(map(len, likes)):
            say(f"{path} is not shown: it diverged in training, and no other seed is evaluated")
        else:
            seed = next(rows for rows in likes if len(rows))
            tables.append(_table(_without_values(seed), path, config))
    if not tables:
        raise UserError(
            f"no evaluated run in {', '.join(map(str, paths))}; lengthgen train scheme=rope makes "
            "one, runtime.root=DIR looks elsewhere"
        )
    joined = [table.astype(dict.fromkeys(TEXTS, object)) for table in tables]
    rows = pd.concat(joined, ignore_index=True)
    newest = rows.groupby(["run", "variant"], dropna=False)["parts"].transform("last")
    rows = rows[rows["parts"] == newest].drop_duplicates([*CELL, "document"], keep="last")
    rows.attrs["folders"] = {run: str(path) for run, path in folders.items()}
    return rows.astype(dict.fromkeys(TEXTS, "category")).reset_index(drop=True)


def _listed(paths: Sequence[Path]) -> list[Path]:
    """Returns run directories and folders of reports, each once."""
    listed: dict[Path, Path] = {}
    for path in paths:
        is_folder = not any((path / name).is_file() for name in (ROWS, "config.yaml"))
        below = directory.run_dirs(path) if is_folder and path.is_dir() else []
        listed |= {p.resolve(): p for p in below or [path]}
    return list(listed.values())


def _table(rows: Sequence[Mapping[str, Any]], path: Path, config: Config) -> pd.DataFrame:
    """Returns rows of eval.jsonl with what is known of their run."""
    table = pd.DataFrame(rows).reindex(columns=COLUMNS)
    of_task = ["unit", "chance"]  # which a skipped length of a task lacks
    table[of_task] = table[of_task].ffill().bfill()
    log = read_rows(path / "train.jsonl", run=config.run_id)
    seen = [0, *(row["train/tokens"] for row in log)]
    steps = zip(pairwise(seen), log, strict=True)
    seconds = math.fsum((b - a) / row["train/tokens_per_s"] for (a, b), row in steps)
    provenance = directory.read_provenance(path, run=config.run_id)
    plain = {key: value for key, value in to_plain(config).items() if key != "runtime"}
    about: dict[str, Any] = {
        "run": config.run_id,
        "recipe": config.recipe,
        "seed": config.seed,
        "parameters": provenance.get("n_parameters"),
        "train_seconds": seconds or None,
        "peak_mib": max((row.get("train/peak_mib") or 0 for row in log), default=0) or None,
        "tokens_per_s": seen[-1] / seconds if seconds else None,
        "state": status.read_status(path, run=config.run_id).state,
        "config": json.dumps(plain, default=str),
        "environment": json.dumps(_environment(provenance)),
    }
    references = set(config.eval.reference_variants)
    return typed(table.assign(**about, reference=table["variant"].isin(references)))


def typed(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the table with a type for each column that does not depend on its values."""
    types: dict[str, Any] = {
        **dict.fromkeys(COLUMNS, object),
        **dict.fromkeys([*SUMS, *NUMBERS, *COSTS], "float64"),
        **dict.fromkeys(INTEGERS, "int64"),
        **dict.fromkeys(["packed", "reference"], "bool"),
        **dict.fromkeys(TEXTS, "category"),
    }
    table = table.reindex(columns=COLUMNS).astype(types)
    objects = [name for name, kind in types.items() if kind is object]
    table[objects] = table[objects].where(table[objects].notna(), None)
    return table


def _without_values(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Returns the rows of another seed as those of a run that diverged in training.

    The loss is undefined, and no answer of a task is right.
    """
    lost = rows[rows["run"] == rows["run"].iloc[0]].assign(**dict.fromkeys(LOST), weights=None)
    lost.loc[lost["first_wrong"].notna(), ["token_hits", "stop_errors"]] = 0
    lost["first_wrong"] = [wrong and [0] * len(wrong) for wrong in lost["first_wrong"]]
    return [{str(key): value for key, value in row.items()} for row in lost.to_dict("records")]


def _environment(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what env.json holds of the first start; no host, no local folders."""
    if not provenance:
        return {}
    words = [str(word) for word in provenance["argv"][1:] if not word.startswith(LOCAL)]
    versions = provenance.get("corpus", {}).get("versions")
    return {
        "command": shlex.join(["lengthgen", *words]),
        **{key: provenance[key] for key in ENVIRONMENT if key in provenance},
        **({"corpus_versions": versions} if versions else {}),
    }


def _read(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are among them
        raise UserError(f"{path.name} cannot be read ({error}); restore it") from None
    for name in LISTS:
        table[name] = [_plain(values) for values in table[name]] if name in table else None
    if missing := [name for name in COLUMNS if name not in table]:
        raise UserError(f"{path.name} lacks the column {missing[0]}; report its runs again")
    return typed(table)


def _plain(values: Any) -> list[Any] | None:
    """Returns a list as it was before it became an array: None where there is no value."""
    if values is None or isinstance(values, float):
        return None
    return [None if value != value else value for value in values.tolist()]


def config_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the plain configuration of the run that a row is of."""
    return json.loads(row["config"])


def save(rows: pd.DataFrame, folder: Path) -> None:
    """Writes rows.parquet, and where the rows come from into manifest.json."""
    table = pd.DataFrame(rows[COLUMNS])  # without attrs: no local folders
    content = table.to_parquet(index=False, compression="zstd", compression_level=19)
    replace_file(folder / ROWS, content)
    text = json.dumps(_manifest(rows), indent=1)
    replace_file(folder / MANIFEST, f"{text}\n".encode())


def _manifest(rows: pd.DataFrame) -> dict[str, Any]:
    """Returns commands, commits, machines and versions of this report and of its runs."""
    runs = {
        row.run: json.loads(row.environment)
        | {"training_seconds": None if math.isnan(row.train_seconds) else row.train_seconds}
        for row in rows.drop_duplicates("run").itertuples()
    }
    return {
        "command": shlex.join(["lengthgen", *sys.argv[1:]]),
        **directory.environment(),
        "training_seconds": math.fsum(run["training_seconds"] or 0 for run in runs.values()),
        "tokens": sorted(rows["fingerprint"].unique()),
        "runs": runs,
    }
