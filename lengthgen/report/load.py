"""Runs as one table: a row per run, variant, protocol, length and document.

It comes from run directories (eval.jsonl, config.yaml, env.json, train.jsonl) and from folders of
reports, whose rows.parquet holds the same table.
"""

import json
import logging
import math
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from lengthgen.config.schema import Config, Eval, to_plain
from lengthgen.errors import Say, UserError
from lengthgen.evaluation import stored
from lengthgen.evaluation.protocols import named
from lengthgen.evaluation.rows import DIVERGED
from lengthgen.files import is_there, replace_file
from lengthgen.runs import directory, status

ROWS, MANIFEST = "rows.parquet", "manifest.json"
# What all rows of a cell share, the cell's own key first.
CELL = ["run", "variant", "protocol", "targets", "precision", "endpoints", "tokens_seen", "length"]
JSONS = ["config", "environment"]  # of a run
OF_CONTEXT = ["score", "n_scores", "hits", "exact", "tries"]  # which rows of text alone may lack
TYPES: dict[str, Any] = {
    **dict.fromkeys(["run", "recipe", "state", *stored.LABELS, *stored.NAMES], object),
    **dict.fromkeys(stored.ARRAYS, object),
    **dict.fromkeys(["packed", "reference"], "bool"),
    **dict.fromkeys(stored.INTEGERS, "int64"),
    **dict.fromkeys([*stored.COUNTS, *stored.COUNTED, *stored.REALS, "score"], "float64"),
    **dict.fromkeys(["parameters", "train_seconds", "peak_mib", "tokens_per_s"], "float64"),
    **dict.fromkeys(JSONS, "category"),
}
COLUMNS = [*TYPES]
OBJECTS = [name for name, kind in TYPES.items() if kind is object]
LOST = [*DIVERGED, "edit_distances", "results_right"]  # where a run diverged in training
ENVIRONMENT = ["commit", "python", "platform", "processor", "lengthgen", "libraries", "devices"]
LOCAL = ("runtime.root=", "runtime.cache=")  # left out of commands: folders of one machine

# What is known of a run, its reference variants, and rows of eval.jsonl.
Measured = tuple[dict[str, Any], Sequence[str], list[dict[str, Any]]]

_log = logging.getLogger(__name__)


def load_rows(
    paths: Sequence[Path],
    *,
    checkpoints: bool = False,
    say: Say = _log.warning,
) -> pd.DataFrame:
    """Returns the rows of runs and reports; sums are in nats, and NaN where a model diverged.

    Those of `checkpoints` before the last of a run too, if asked for: `tokens_seen` tells them.

    `paths` are run directories, folders of reports, and folders of run directories. Of a document
    that was scored again the last row counts, and of a variant that was defined again the last
    definition; a run that was trained again has no rows of before. What cannot be shown is named
    by `say` in one line each. Raises UserError if nothing can be shown.
    """
    tables: list[pd.DataFrame] = []
    folders, measured = Folders(), list[Measured]()
    diverged: list[tuple[Path, Config]] = []  # in training: without an evaluation
    for path in _listed(paths):
        with directory.or_said(path, "shown", say):
            if (path / ROWS).is_file():
                tables.append(_saved(path / ROWS))
                continue
            config = directory.load_config(path)
            if other := folders.get(config.run_id):
                raise UserError(f"it is run {config.run_id}, which lies in {other} too")
            if rows := stored.stored(path, run=config.run_id):
                below = rows[-1]["tokens_seen"]
                rows = stored.stored_kept(path, run=config.run_id, below=below) + rows
                _refuse_unknown(row["protocol"] for row in rows)
                measured.append((_about(path, config), config.eval.reference_variants, rows))
            elif (state := status.read_status(path, run=config.run_id).state) == "running":
                raise UserError("it is being trained; report again when it is done")
            elif state == "diverged":
                diverged.append((path, config))
            elif status.final_weights(path, run=config.run_id):
                raise UserError(f"it is not evaluated; run lengthgen eval {path}")
            else:
                raise UserError(f"its training is {state}; lengthgen show {path} has its command")
            folders[config.run_id] = str(path)
    tables += [_table(measured)] if measured else []
    for path, config in diverged:
        with directory.or_said(path, "shown", say):
            likes = [table[table["recipe"] == config.recipe] for table in tables]
            seed = next((rows for rows in likes if len(rows)), None)
            if seed is None:
                raise UserError("it diverged in training, and no other seed is evaluated")
            lost = _without_values(seed).assign(**_about(path, config))
            references = lost["variant"].isin(config.eval.reference_variants)
            tables.append(typed(lost.assign(reference=references)))
    if not tables:
        raise UserError(
            f"no run to show in {', '.join(map(str, paths)) or 'an empty list'}; lengthgen train "
            "scheme=rope makes one, runtime.root=DIR looks elsewhere"
        )
    joined = [table.astype(dict.fromkeys(JSONS, object)) for table in tables]
    rows = pd.concat(joined, ignore_index=True)
    newest = rows.groupby(["run", "variant"], dropna=False)["parts"].transform("last")
    of_tokens = rows.groupby(["run", "tokens_seen"])
    trained = of_tokens["weights"].transform("last")  # since it was trained again
    current = (rows["parts"] == newest) & (rows["weights"].isna() | (rows["weights"] == trained))
    rows = rows[current].drop_duplicates([*CELL, "document"], keep="last")
    rows = rows if checkpoints else rows.loc[is_last(rows)]
    rows.attrs["folders"] = folders
    return rows.astype(dict.fromkeys(JSONS, "category")).reset_index(drop=True)


def is_complete(rows: pd.DataFrame) -> Any:
    """Returns the series that says which rows are of a cell with all its documents."""
    n_scored = rows.groupby(CELL, dropna=False)["document"].transform("count")
    return n_scored >= rows["n_documents"]


def is_last(rows: pd.DataFrame) -> Any:
    """Returns the series that says which rows are of the last checkpoint of their run."""
    return rows["tokens_seen"] == rows.groupby("run")["tokens_seen"].transform("max")


def only(rows: pd.DataFrame, measured: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Returns the rows that were scored with the settings of the measured ones."""
    keys = ["run", "protocol", "precision", "targets", "endpoints"]
    asked = pd.DataFrame(measured, columns=keys).astype({"targets": "float64"}).drop_duplicates()
    found = rows[keys].merge(asked, how="left", indicator=True)["_merge"] == "both"
    return rows.loc[found.to_numpy()]


def asked_for(rows: pd.DataFrame, settings: Mapping[str, Eval]) -> pd.DataFrame:
    """Returns the rows that the settings of each run ask for, without what else was measured."""

    def is_asked(row: Any) -> bool:
        wanted = settings[row.run]
        variants = {None, *wanted.variants, *wanted.reference_variants}
        targets = pd.isna(row.targets) or row.targets == wanted.targets
        is_cell = row.protocol in wanted.protocols and row.length in wanted.lengths
        return is_cell and row.variant in variants and row.precision == wanted.precision and targets

    return rows.loc[[is_asked(row) for row in rows.itertuples()]]


def _listed(paths: Sequence[Path]) -> list[Path]:
    """Returns folders of reports and then run directories, which may be newer, each once."""
    listed: dict[Path, Path] = {}
    for path in paths:
        is_folder = not any(is_there(path / name) for name in (ROWS, "config.yaml"))
        below = directory.run_dirs(path) if is_folder and path.is_dir() else []
        listed |= {Path(os.path.realpath(p)): p for p in below or [path]}
    return sorted(listed.values(), key=lambda path: not (path / ROWS).is_file())


class Folders(dict[str, str]):
    """Folders by run. pandas copies what is attached to a table, deeply, at each step."""

    def __deepcopy__(self, memo: object) -> "Folders":
        return self


def _table(measured: Sequence[Measured]) -> pd.DataFrame:
    """Returns the rows of eval.jsonl with what is known of their runs."""
    about = pd.DataFrame([of_run for of_run, *_ in measured]).set_index("run")
    rows = pd.DataFrame([row for *_, held in measured for row in held]).reindex(columns=COLUMNS)
    of_task = ["unit", "chance"]  # which a skipped length of a task lacks
    of_run = rows.groupby("run")[of_task]
    rows[of_task] = of_run.ffill().fillna(of_run.bfill())
    rows = rows.assign(**{str(name): rows["run"].map(about[name]) for name in about})
    references = {of_run["run"]: names for of_run, names, _ in measured}
    of_row = zip(rows["run"], rows["variant"], strict=True)
    return typed(rows.assign(reference=[variant in references[run] for run, variant in of_row]))


def _about(path: Path, config: Config) -> dict[str, Any]:
    """Returns what is known of a run."""
    log = directory.read_log(path, run=config.run_id)
    tokens = [0, *(row["train/tokens"] for row in log)]
    steps = zip(pairwise(tokens), log, strict=True)
    seconds = math.fsum((b - a) / row["train/tokens_per_s"] for (a, b), row in steps)
    provenance = directory.read_provenance(path, run=config.run_id)
    costs = {
        "parameters": provenance.get("n_parameters"),
        "train_seconds": seconds or None,
        "peak_mib": max((row["train/peak_mib"] for row in log), default=None),
        "tokens_per_s": tokens[-1] / seconds if seconds else None,
    }
    return {
        **{name: None if x is None else float(x) for name, x in costs.items()},  # or it is refused
        "run": config.run_id,
        "recipe": config.recipe,
        "seed": config.seed,
        "state": status.read_status(path, run=config.run_id).state,
        "config": config_json(config),
        "environment": json.dumps(_environment(provenance)),
    }


def config_json(config: Config) -> str:
    """Returns a configuration as rows hold it, without its place on this machine."""
    plain = {key: value for key, value in to_plain(config).items() if key != "runtime"}
    return json.dumps(plain, default=str)


def eval_of(rows: pd.DataFrame) -> dict[str, Any]:
    """Returns `eval` of the first row's configuration; empty where it is not known."""
    return json.loads(rows["config"].iloc[0]).get("eval", {})


def of_model(rows: Sequence[Mapping[str, Any]], config: Config) -> pd.DataFrame:
    """Returns rows of a model that is no run, as load_rows returns those of runs."""
    about = {"recipe": config.recipe, "state": "done", "reference": False}
    about |= {"config": config_json(config), "environment": json.dumps({"command": ""})}
    return typed(pd.DataFrame(rows).assign(**about))


def typed(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the table with a type for each column that does not depend on its values."""
    table = table.reindex(columns=COLUMNS).astype(TYPES)
    objects: Any = table[OBJECTS]
    return table.assign(**objects.where(objects.notna(), None))


def _without_values(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of another seed as those of a run that diverged in training.

    The loss is undefined, and no answer of a task is right.
    """
    lost = rows[rows["run"] == rows["run"].iloc[0]].assign(**dict.fromkeys(LOST), weights=None)
    lost.loc[lost["first_wrong"].notna(), ["token_hits", "stop_errors"]] = 0
    return lost.assign(first_wrong=[wrong and [0] * len(wrong) for wrong in lost["first_wrong"]])


def _environment(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what env.json holds of the first start; no host, no local folders."""
    if not provenance:
        return {}
    words = [str(word) for word in provenance["argv"][1:] if not word.startswith(LOCAL)]
    kept = {key: provenance[key] for key in ENVIRONMENT if key in provenance}
    return {"command": shlex.join(["lengthgen", *words]), **kept}


def _refuse_unknown(protocols: Iterable[str]) -> None:
    """Raises UserError for a protocol that is not here, such as one of a later version."""
    for name in {*protocols}:
        named(name)


def _saved(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path, page_checksum_verification=True)
    except (OSError, ValueError) as error:  # pyarrow's errors are among them
        raise UserError(f"{path.name} cannot be read ({error}); restore it") from None
    # Rows of corpora that name no groups may lack them.
    if missing := [n for n in COLUMNS if n not in {*table, *OF_CONTEXT, "group", "settings"}]:
        raise UserError(f"{path.name} lacks the column {missing[0]}; report its runs again")
    _refuse_unknown(table["protocol"])
    table = table.reindex(columns=COLUMNS)
    arrays: dict[str, Any] = {name: [*map(_plain, table[name])] for name in stored.ARRAYS}
    return typed(table.assign(**arrays))


def _plain(values: Any) -> list[Any] | None:
    """Returns a list as it was before it became an array: None where there is no value."""
    if values is None or isinstance(values, float):
        return None
    return [None if value != value else value for value in values.tolist()]


def to_parquet(rows: pd.DataFrame) -> bytes:
    """Returns rows as a file."""
    table = pd.DataFrame(rows[COLUMNS])  # without attrs: no local folders
    return table.to_parquet(
        index=False, compression="zstd", compression_level=19, write_page_checksum=True
    )


def save_rows(rows: pd.DataFrame, folder: Path) -> None:
    """Writes rows.parquet, and into manifest.json where the rows come from."""
    replace_file(folder / ROWS, to_parquet(rows))
    runs = rows.drop_duplicates("run").set_index("run")["environment"]
    manifest = {
        "command": shlex.join(["lengthgen", *sys.argv[1:]]),
        **directory.environment(),
        "tokens": sorted(rows["fingerprint"].unique()),
        "runs": {run: json.loads(text) for run, text in runs.items()},
    }
    replace_file(folder / MANIFEST, f"{json.dumps(manifest, indent=1)}\n".encode())
