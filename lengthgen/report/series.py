"""Series: which rows can be compared, and the names of runs that differ in the seed alone."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lengthgen.config.overrides import overrides_of
from lengthgen.config.sections import flatten
from lengthgen.config.user import root_of
from lengthgen.errors import UserError, shortened
from lengthgen.escaping import visible, without_folders
from lengthgen.report.load import CELL, eval_of, is_complete, is_last
from lengthgen.terminal import millions

UPPER_BOUND = " (upper bound)"  # ends the names of series that read alignment ids
KEYS = ["recipe", "variant", "parts", "tokens_seen"]  # of a series
VARYING = ["model", "train_length", "tokens_seen"]  # named where they vary
RATIOS = ("train.scheme_lr_ratio", "scheme.lr_ratio")
VARIANTS = ("scheme.variants", "variants")
# Keys of a configuration that do not tell series apart, or that _science adds in another form.
ASIDE = (
    *("seed", "eval.", "train.checkpoint_every", "train.keep_", "train.val_every"),
    *("train.tuned", "train.init_from", *RATIOS, *VARIANTS),
)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rows of one text that can be compared, and what is left out or limits the comparison.

    `rows` are those of load_rows with a column `series`: the name of its scheme and variant, and of
    what else differs. References are variants to compare a scheme with, not competitors.
    """

    rows: pd.DataFrame
    earlier: pd.DataFrame  # rows of their series at checkpoints before the last
    notes: dict[str, str]  # by text, the end of its command on this machine: where its run is
    text: str  # the corpus, and what tells its tokens from others of that name

    @property
    def terminal_notes(self) -> list[str]:
        """The notes with commands that can be typed here."""
        return [note + end for note, end in self.notes.items()]

    @property
    def title(self) -> str:
        """Corpus, model, and the precisions of training and scoring."""
        names = ("model", "trained_in", "precision")
        model, trained, scored = (
            " and ".join(sorted(self.rows[name].dropna().unique())) for name in names
        )
        trained = f"trained in {trained}, " if trained else ""
        return f"corpus {self.text}, model {model}, {trained}scored in {scored}"


def select(rows: pd.DataFrame) -> list[Selection]:
    """Returns the comparable rows of each text, the one with most runs first.

    Those are the complete cells; of each run those of its newest checkpoint; under each protocol
    those of the one condition (precision, targets, endpoints) that most curves have, of several the
    one of most lengths, of these that of most tokens, of these the one evaluated last; of runs of
    one seed the first by name; and the seeds that have the lengths which most seeds of the series
    have.

    Raises UserError if rows are left out of all texts, and none is kept.
    """
    usual, folders = root_of({}).resolve(), rows.attrs.get("folders", {})
    roots = {run: Path(folder).parent for run, folder in folders.items()}
    elsewhere = {run: str(root) for run, root in roots.items() if root.resolve() != usual}
    of_rows: Any = [elsewhere.get(run) for run in rows["run"]]
    rows = rows.reset_index(drop=True).assign(root=of_rows)
    configs = rows["config"].astype(object)
    given = {c: json.loads(c).get("corpus", {}) for c in configs.unique()}
    has_bos = configs.map({c: corpus.get("bos", True) for c, corpus in given.items()})
    texts = [of_text for _, of_text in rows.groupby(["fingerprint", "packed", has_bos])]
    texts.sort(key=lambda of_text: (-of_text["run"].nunique(), of_text["corpus"].iloc[0]))
    names = _text_names(texts, [flatten(given[t["config"].iloc[0]]) for t in texts])
    varied = ["model"] if rows["model"].nunique() > 1 else []
    selections, lost = list[Selection](), dict[str, str]()
    for text, of_text in zip(names, texts, strict=True):
        kept, earlier, notes = _selected(of_text, varied=varied)
        if not kept["reference"].all():
            selections.append(Selection(rows=kept, earlier=earlier, notes=notes, text=text))
        else:
            lost |= notes
    if selections:
        selections[0].notes.update(lost)
    elif lost:
        raise UserError(f"nothing can be compared: {'; '.join(lost)}")
    return selections


def _text_names(texts: Sequence[pd.DataFrame], corpora: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the name of each text's corpus; where two share it, with what tells them apart.

    That is three keys at most, and the fingerprint of the tokens where these do not suffice.
    """
    names = [t["corpus"].iloc[0] + " (packed)" * bool(t["packed"].iloc[0]) for t in texts]
    labels = list[str]()
    for name, corpus in zip(names, corpora, strict=True):
        twins = [given for given, its_name in zip(corpora, names, strict=True) if its_name == name]
        words = shortened(", ".join(_differences(corpus, twins)[:3]))
        labels.append(f"{name} ({words})" if words else name)
    tokens = [f"tokens {t['fingerprint'].iloc[0][:12]}" for t in texts]
    pairs = zip(labels, tokens, strict=True)
    return [x if labels.count(x) == 1 else f"{x} ({y})" for x, y in pairs]


def _selected(
    rows: pd.DataFrame, *, varied: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, str]]:
    """Returns the comparable rows of one text, those of their cells at checkpoints before, and a
    line on each run that is left out.
    """
    is_whole, is_newest = is_complete(rows), is_last(rows)
    notes = dict(_left_out(rows[~is_whole], ", evaluated in part", {}))
    rows, earlier = rows[is_whole & is_newest], rows[is_whole & ~is_newest]
    condition = rows["precision"].map(str) + rows["targets"].map(str) + rows["endpoints"].map(str)
    rows = rows.assign(condition=condition, curve=rows["run"] + rows["variant"].fillna(""))
    counts = rows.reset_index().groupby(["protocol", "condition"])
    ranked = counts.agg(
        {"curve": "nunique", "length": "nunique", "n_tokens": "sum", "index": "max"}
    )
    ordered = ranked.sort_values([*ranked.columns]).reset_index()
    chosen = rows["protocol"].map(ordered.groupby("protocol")["condition"].last())
    is_other = rows["condition"] != chosen
    notes |= _otherwise(rows[is_other], rows[~is_other])
    rows = _labelled(rows[~is_other], varied=varied)
    # Further runs of one seed are no independent seeds.
    curve = ["series", "protocol"]
    is_first = rows["run"] == rows.groupby([*curve, "seed"])["run"].transform("min")
    repeated = sorted(set(rows.loc[~is_first, "run"]))
    notes |= {f"Not shown: {run}, a second run of one seed": "" for run in repeated}
    rows = rows[is_first].drop(columns=["condition", "curve"])
    n_seeds = rows.groupby(curve)["seed"].transform("nunique")
    is_common = 2 * rows.groupby([*curve, "length"])["seed"].transform("nunique") > n_seeds
    common = rows["length"].where(is_common)
    n_own = common.groupby([rows[key] for key in (*curve, "seed")]).transform("nunique")
    n_all = common.groupby([rows[key] for key in curve]).transform("nunique")
    has_all = (n_own > 0) & (n_own == n_all)
    for series, of_series in rows[~has_all].groupby("series"):
        lengths = common[rows["series"] == series].dropna().astype(int).unique()
        notes |= _left_out(of_series, ", fewer lengths than other seeds", {}, lengths)
    rows = rows[has_all].reset_index(drop=True)
    cells = rows[[*CELL, "parts", "series"]].drop(columns="tokens_seen").drop_duplicates()
    return rows, earlier.merge(cells), notes


def _otherwise(others: pd.DataFrame, shown: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yields, as `_left_out`, the runs that are measured with other settings than what is shown."""
    settings = shown.drop_duplicates("protocol", keep="last").set_index("protocol")
    of_curve = ["run", "protocol", "variant"]
    is_there = {*shown[of_curve].fillna("").itertuples(index=False, name=None)}
    for (run, _, protocol), measured in others.groupby(["run", "condition", "protocol"]):
        mine, theirs = _words(measured.iloc[-1]), _words(settings.loc[str(protocol)])
        differ = [key for key in mine if key in theirs and mine[key] != theirs[key]]
        has, not_has = (", ".join(f"{k}={x[k]}" for k in differ) for x in (mine, theirs))
        why = f" has {has}, shown is {not_has}" if differ else ", other targets are scored"
        is_known = {*measured[of_curve].fillna("").itertuples(index=False, name=None)} <= is_there
        remedy, lengths = theirs if differ and not is_known else None, list[int]()
        is_deeper = measured["length"].max() > float(theirs.get("eval.max_context", "inf"))
        if is_deeper and {*shown["run"]} == {run}:  # what is shown is measured as deep
            remedy, lengths = mine, shown.loc[shown["protocol"] == protocol, "length"].unique()
        yield from _left_out(measured, why, remedy, lengths)


def _words(row: Any) -> dict[str, str]:
    """Returns the settings that rows are measured with, by key; of rows without, what is known."""
    if row["settings"]:
        return dict(word.split("=", 1) for word in row["settings"].split(" "))
    known = {"precision": row["precision"], "max_context": f"{row['max_context']}"}
    known |= {"targets": f"{row['targets']:g}"} if pd.notna(row["targets"]) else {}
    return {f"eval.{key}": value for key, value in known.items()}


def _left_out(
    rows: pd.DataFrame, why: str, remedy: Mapping[str, str] | None, lengths: Iterable[int] = ()
) -> Iterator[tuple[str, str]]:
    """Yields a line on each run of the rows: "Not shown: rope-s1 (tail at 512, 1k)WHY: COMMAND".

    The command, if there is a remedy, measures the same with these settings, or else the rows' own.
    Beside it stands its end on this machine: the folder of runs, where that is not the usual one.
    """
    for run, of_run in rows.groupby("run"):
        curves = of_run[["protocol", "variant"]].itertuples(index=False, name=None)
        names = {f"{protocol} + {variant}" if variant else protocol for protocol, variant in curves}
        at = ", ".join(map(short, sorted(set(of_run["length"]))))
        line = f"Not shown: {run} ({', '.join(sorted(names))} at {at}){why}"
        if remedy is None:
            yield line, ""
            continue
        wanted = eval_of(of_run)
        usual = {*overrides_of({"eval": wanted})}
        words = [f"{k}={x}" for k, x in (remedy or _words(of_run.iloc[-1])).items()]
        words = [word for word in words if word not in usual]
        lists = {"lengths": {*lengths, *of_run["length"]}, "protocols": {*of_run["protocol"]}}
        lists["variants"] = {*of_run["variant"].dropna()} - {*wanted.get("reference_variants", ())}
        for name, needed in lists.items():
            is_given = any(word.startswith(f"eval.{name}=") for word in words)
            if not is_given and not needed <= {*wanted.get(name, needed)}:
                words.append(f"--{name}={','.join(map(str, sorted(needed)))}")
        root = of_run["root"].iloc[0]
        end = "" if pd.isna(root) else f" {shlex.join([f'runtime.root={root}'])}"
        yield f"{line}: lengthgen eval {shlex.join([str(run), *words])}", end


def _labelled(rows: pd.DataFrame, *, varied: list[str]) -> pd.DataFrame:
    """Returns the rows with the name of their series; runs that differ in the seed share it.

    A series is a recipe at a checkpoint under a variant, as it was defined when it was evaluated.
    The name is the scheme's and the variant's; what differs between series of one name is added
    where it must be.
    """
    parts = rows["parts"].where(rows["variant"].notna(), "")
    keyed = rows.assign(parts=parts, variant=rows["variant"].fillna(""))
    first: Any = keyed.sort_values(["seed", "run"]).drop_duplicates(KEYS).to_dict("records")
    varied = [*varied, *(field for field in VARYING if rows[field].nunique() > 1)]
    names = [_name(series, varied) for series in first]
    oracles = set[str]()
    if rows["unit"].notna().any():  # of a task: the alignment of a text is not known
        from lengthgen import schemes

        oracles = {name for name, part in schemes.part_classes().items() if part.reads_alignment}
    labels: dict[tuple[Any, ...], str] = {}
    for series, name in zip(first, names, strict=True):
        twins = [twin for twin, its_name in zip(first, names, strict=True) if its_name == name]
        label = f"{name} ({_distinction(series, twins)})" if len(twins) > 1 else name
        is_bound = oracles & {*(json.loads(series["config"])["scheme"].get("parts") or {})}
        if label in labels.values():  # what differs are folders
            label += f" ({series['run'].rsplit('-', 1)[-1]})"
        key = tuple(series[key] for key in KEYS)
        labels[key] = visible(label + UPPER_BOUND if is_bound else label)
    of_rows = [labels[key] for key in keyed[KEYS].itertuples(index=False, name=None)]
    return rows.assign(series=of_rows)


def _name(series: Mapping[str, Any], varied: Sequence[str]) -> str:
    """Returns scheme and variant, and of model, T and tokens seen what varies; tells fine-tuning.

    An imported model stands for its scheme.
    Tokens seen are those of the run itself: those of the run it began with are not among them.
    """
    texts = {
        "model": series["model"],
        "train_length": f"T={series['train_length']}",
        "tokens_seen": f"{millions(series['tokens_seen'])} tokens",
    }
    train = json.loads(series["config"]).get("train", {})
    plain = series["scheme"]
    if train.get("tokens") == 0:  # an imported one has a name of its own
        plain = texts.pop("model")
    details = [text for field, text in texts.items() if field in varied]
    if train.get("init_from") and train.get("tokens"):  # without tokens it was imported
        details.append("fine-tuned")
    name = " + ".join([plain, *filter(None, series["variant"].split("+"))])
    return f"{name} ({', '.join(details)})" if details else name


def _distinction(series: Mapping[str, Any], twins: Sequence[Mapping[str, Any]]) -> str:
    """Returns the keys in which series of one name differ, the scheme's first, four at most.

    Those come first that tell more of the series apart, of these the ones whose values are words:
    of an optimizer and its betas the optimizer. Where four do not suffice the end of the run does.
    """
    sciences = [_science(twin) for twin in twins]
    changes = _differences(_science(series), sciences)
    telling, told = list[str](), [""] * len(twins)
    for change in sorted(changes, key=lambda change: change[-1].isdigit()):
        key = change.split("=")[0].removeprefix("no ")
        finer = [f"{x} {json.dumps(own.get(key))}" for x, own in zip(told, sciences, strict=True)]
        if len({*finer}) > len({*told}):
            telling, told = [*telling, change], finer
    named = sorted([*telling, *(c for c in changes if c not in telling)][:4], key=changes.index)
    is_told = len(telling) <= 4 and len({*told}) == len(twins)
    return ", ".join([*named, *([] if is_told else [series["run"].rsplit("-", 1)[-1]])])


def _differences(given: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns KEY=VALUE of what others lack or have in another way, the scheme's keys first."""
    keys = {key for other in others for key in given.keys() ^ other.keys()}
    keys |= {key for key in given if any(key in o and given[key] != o[key] for o in others)}
    ordered = sorted(keys, key=lambda key: (not key.startswith("scheme."), key))
    texts = {k: f"{v:.15g}" if isinstance(v, float) else v for k, v in given.items()}
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in texts.items()}
    texts = {k: without_folders(v) for k, v in texts.items()}
    return [f"{k}={texts[k]}" if k in given else f"no {k}" for k in ordered]


def _science(series: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what decides a series' numbers but the seed, by dotted key."""
    flat = flatten(json.loads(series["config"]))
    names = filter(None, series["variant"].split("+"))
    used = tuple(f"{home}.{name}." for name in names for home in VARIANTS)
    return {
        **{k: v for k, v in flat.items() if k.startswith(used) or not k.startswith(ASIDE)},
        "train.scheme_lr_ratio": next((flat[k] for k in RATIOS if flat.get(k) is not None), 1.0),
        "init_from": flat.get("train.init_from.recipe"),
        **{key: series[key] for key in ("variant", "parts", "tokens_seen")},
    }


def short(length: float) -> str:
    """Returns a length as 512, 1k (1024), 1.5k (1536), 16k (16384); others whole."""
    length = int(length)
    return f"{length / 1024:g}k" if length >= 1024 and length % 512 == 0 else str(length)
