"""The model card: what was trained on what, what was measured and how, and how it is loaded."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from lengthgen.analysis import curves
from lengthgen.config.schema import Config, TaskCorpus, to_plain
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.export import About
from lengthgen.report import collect, run_records
from lengthgen.tasks import task_of

SETTINGS = ("scheme", "model", "corpus", "train")


def card(
    config: Config,
    run_dir: Path,
    about: About,
    corpus: TokenizedCorpus,
    *,
    name: str,
    n_parameters: int,
    rows: Sequence[Mapping[str, Any]],
    license: str | None,
) -> str:
    """Returns the card of a folder of this name; no text of a row becomes markup.

    `rows` are those of eval.jsonl that belong to these weights.
    """
    plain = to_plain(config)
    del plain["scheme"]["variants"]
    prompt, words = "def main():", list[str]()
    if isinstance(config.corpus, TaskCorpus):
        rule = task_of(config.corpus)
        prompt = rule.example(config.corpus.task.length, Random(0)).prompt
        spelled = ((one, rule.detokenize(one)) for one in rule.alphabet)
        words = [f"`{one}` {word}" for one, word in spelled if word != one]
    measured = collect.table(run_records.read([run_dir], rows)) if curves.curve(rows) else ""
    environment = Environment(
        loader=PackageLoader("lengthgen", "export"),
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
        front_matter=_front_matter(config, license),
        is_task=isinstance(config.corpus, TaskCorpus),
        licensed=license is not None,
        n_parameters=n_parameters,
        name=name,
        prompt=prompt,
        scheme=config.scheme.name,
        seed=config.seed,
        # Indented it is code in Markdown, whatever stands in it.
        settings=yaml.safe_dump({key: plain[key] for key in SETTINGS}, sort_keys=False),
        tables=measured,
        T=config.train.length,
        words=words,
    )


def _front_matter(config: Config, license: str | None) -> str:
    """Returns the YAML that the Hugging Face Hub reads."""
    tags = ["lengthgen", "causal-lm", "length-extrapolation", "positional-encoding"]
    fields: dict[str, Any] = {"library_name": "lengthgen", "tags": [*tags, config.scheme.name]}
    if config.corpus.source == "hub":
        fields["datasets"] = [config.corpus.repo]
    if license is not None:
        fields["license"] = license
    return yaml.safe_dump(fields, sort_keys=False)
