"""The model card: what was trained on what, what was measured and how, and how it is loaded."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from lengthgen.config.schema import to_plain
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.errors import UserError, unsaid
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.experiment import Experiment
from lengthgen.hub.exported import About
from lengthgen.hub.families import OWN
from lengthgen.report import report
from lengthgen.report.load import load_rows
from lengthgen.report.report import ReportSection
from lengthgen.report.tables import markdown
from lengthgen.runs.checkpoints import Checkpoint


def to_share(value: Any) -> Any:
    """Returns plain values with the last part of each absolute path in place of the path."""
    if isinstance(value, dict):
        return {key: to_share(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [*map(to_share, value)]
    return Path(value).name if isinstance(value, str) and os.path.isabs(value) else value


def card(
    experiment: Experiment,
    run_dir: Path,
    about: About,
    corpus: TokenizedCorpus,
    checkpoint: Checkpoint,
    *,
    name: str,
    repository: str,
    license: str | None,
    keys: Mapping[str, Any],
) -> str:
    """Returns the card of a folder with this name, and these keys of its config.json.

    transformers load it by the name of its repository, which may be the folder.

    No text of a row becomes markup.
    """
    config, is_ours = experiment.config, keys["model_type"] == OWN
    plain = to_share(to_plain(config))
    del plain["scheme"]["variants"]
    of_training = ("corpus", "train") if config.train.tokens else ()  # else it was imported
    settings = {key: plain[key] for key in ("scheme", "model", *of_training)}
    tags = ["lengthgen", "causal-lm", "length-extrapolation", "positional-encoding"]
    front_matter: dict[str, Any] = {"library_name": "lengthgen" if is_ours else "transformers"}
    front_matter["tags"] = [*tags, config.scheme.name]
    if config.corpus.source == "hub":
        front_matter["datasets"] = [plain["corpus"]["repo"]]
    if license is not None:
        front_matter["license"] = license
    sections = _sections(run_dir, checkpoint)
    if metrics := [*_metrics(sections)]:
        dataset = {"type": config.corpus.name, "name": config.corpus.name}
        result = {"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics}
        front_matter["model-index"] = [{"name": about.run, "results": [result]}]
    environment = Environment(
        loader=PackageLoader("lengthgen", "hub"),
        autoescape=False,  # of Markdown, whose code stands as it is
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("card.md.j2").render(
        about=about,
        config=config,
        corpus=corpus,
        front_matter=yaml.safe_dump(front_matter, sort_keys=False),
        license=license,
        rotary="rope_parameters" in keys,
        longest=keys.get("max_seq_len") or keys.get("n_positions"),
        n_parameters=sum(tensor.numel() for tensor in checkpoint.weights.values()),
        name=name,
        repository=repository,
        objective=experiment.objective,
        is_ours=is_ours,
        settings=yaml.safe_dump(settings, sort_keys=False),
        tables="\n".join(markdown(table) for section in sections for table in section.tables),
    )


def _sections(run_dir: Path, checkpoint: Checkpoint) -> Sequence[ReportSection]:
    """Returns what a report shows of these weights; nothing of what is evaluated in part."""
    try:
        rows = load_rows([run_dir], say=unsaid)
        rows = rows.loc[rows["weights"] == checkpoint.sha256]
        return report.sections(rows) if len(rows) else []
    except UserError:
        return []


def _metrics(sections: Sequence[ReportSection]) -> Iterator[dict[str, Any]]:
    """Yields perplexity by length under the matched tail, as the Hub's model-index has metrics."""
    for known in (section.data["curves"] for section in sections if "curves" in section.data):
        for row in known.loc[known["protocol"] == HEADLINE].to_dict("records"):
            if pd.isna(row["variant"]) and math.isfinite(row["ppl"]):
                name = f"perplexity at {row['length']} tokens"
                value = round(float(row["ppl"]), 4)
                yield {"type": "perplexity", "name": name, "value": value}
