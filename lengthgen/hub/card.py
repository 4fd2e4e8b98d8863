"""The model card: what was trained on what, what was measured and how, and how it is loaded."""

import json
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from lengthgen.config.schema import Config, to_plain
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.objective import objective_of
from lengthgen.errors import UserError
from lengthgen.hub.exported import About
from lengthgen.report import report
from lengthgen.report.load import load
from lengthgen.report.tables import markdown
from lengthgen.runs.checkpoints import Checkpoint

SETTINGS = ("scheme", "model", "corpus", "train")


def card(
    config: Config,
    run_dir: Path,
    about: About,
    corpus: TokenizedCorpus,
    checkpoint: Checkpoint,
    *,
    name: str,
    license: str | None,
    own: bool,
) -> str:
    """Returns the card of a folder of this name; no text of a row becomes markup.

    own: whether the layout is lengthgen's.
    """
    plain = to_plain(config)
    del plain["scheme"]["variants"]
    environment = Environment(
        loader=PackageLoader("lengthgen", "hub"),
        autoescape=False,  # of Markdown, whose code stands as it is
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters["json"] = json.dumps
    return environment.get_template("card.md.j2").render(
        about=about,
        corpus=corpus,
        front_matter=_front_matter(config, license, library="lengthgen" if own else "transformers"),
        legend=objective_of(config).legend(),
        licensed=license is not None,
        n_parameters=sum(tensor.numel() for tensor in checkpoint.weights.values()),
        name=name,
        own=own,
        prompt=objective_of(config).example_prompt(),
        scheme=config.scheme.name,
        seed=config.seed,
        # Indented it is code in Markdown, whatever stands in it.
        settings=yaml.safe_dump({key: plain[key] for key in SETTINGS}, sort_keys=False),
        tables=_measured(run_dir, checkpoint),
        T=config.train.length,
    )


def _measured(run_dir: Path, checkpoint: Checkpoint) -> str:
    """Returns tables of what was evaluated of these weights, as Markdown."""
    try:
        rows = load([run_dir], say=lambda message: None)
    except UserError:
        return ""  # nothing is evaluated
    rows = rows.loc[rows["weights"] == checkpoint.sha256]
    sections = report.sections(rows) if len(rows) else []
    return "\n".join(markdown(table) for section in sections for table in section.tables)


def _front_matter(config: Config, license: str | None, *, library: str) -> str:
    """Returns the YAML that the Hugging Face Hub reads."""
    tags = ["lengthgen", "causal-lm", "length-extrapolation", "positional-encoding"]
    fields: dict[str, Any] = {"library_name": library, "tags": [*tags, config.scheme.name]}
    if config.corpus.source == "hub":
        fields["datasets"] = [config.corpus.model_dump()["repo"]]
    if license is not None:
        fields["license"] = license
    return yaml.safe_dump(fields, sort_keys=False)
