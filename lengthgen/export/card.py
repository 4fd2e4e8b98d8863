"""The model card: what was trained on what, what was measured and how, and how it is loaded."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import yaml

from lengthgen.analysis import curves
from lengthgen.config.schema import Config, TaskCorpus, to_plain
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.export.about import About
from lengthgen.report import collect, study
from lengthgen.tasks import task_of

Row = Mapping[str, Any]

SNIPPET = """\
import torch
from lengthgen.export import load

model, tokenizer = load({name}{plugins})
ids = torch.tensor([tokenizer.encode({text}).ids])
logits = model.logits(model(ids, generator=torch.Generator()))
"""


def card(
    config: Config,
    run_dir: Path,
    about: About,
    corpus: TokenizedCorpus,
    *,
    name: str,
    n_parameters: int,
    rows: Sequence[Row],
    license: str | None,
) -> str:
    """Returns the card of a folder of this name.

    `rows` are those of eval.jsonl that belong to these weights.
    """
    T, scheme = config.train.length, config.scheme.name
    unfinished = f" It is unfinished: step {about.step} of {about.steps}." * (
        about.step < about.steps
    )
    quantity = "Accuracy" if isinstance(config.corpus, TaskCorpus) else "Perplexity"
    return "\n".join(
        [
            _front_matter(config, license),
            f"# {about.run}",
            "",
            f"A causal language model of {n_parameters:,} parameters, trained at length T = {T:,} "
            f"with the positional scheme `{scheme}`, to see what it does at longer lengths."
            f"{unfinished} Made by lengthgen {about.lengthgen}.",
            "",
            "## Use",
            "",
            "```python",
            SNIPPET.format(
                name=json.dumps(name),
                plugins=_consent(name, about),
                text=json.dumps(_text(config)),
            )
            + "```",
            "",
            *_about_code(about),
            "The tokenizer puts the token in front that every training window began with."
            if corpus.bos_id is not None
            else "Nothing is put in front of a text, as in training.",
            *_words(config),
            "Logits are fp32, a row for each token; for the last token's alone of a long text: "
            "`model(ids, n_last=1, ...)`.",
            "",
            "## Training",
            "",
            f"{about.tokens_seen:,} tokens in windows of {T:,}, seed {config.seed}; corpus "
            f"`{corpus.name}` (fingerprint `{about.fingerprint[:12]}`), {_splits(corpus)}.",
            "",
            textwrap.indent(_settings(config), "    "),
            f"## {quantity} over length",
            "",
            _measured(run_dir, rows, config),
            "## Limits",
            "",
            "- It is an instrument to compare positional schemes with: small, trained on little "
            "text, neither instructed nor filtered. What it writes is not to be relied on.",
            "- What is not in the tables above was not measured: other lengths, other text.",
            "- Differences to other schemes mean something only between runs of one corpus, size "
            "and budget, over several seeds.",
            "- Whatever is wrong, biased or protected in the training text may come out of it.",
            "",
        ]
    )


def _text(config: Config) -> str:
    """Returns what the snippet encodes: a prompt of the task, if it is one."""
    if isinstance(config.corpus, TaskCorpus):
        return task_of(config.corpus).example(config.corpus.task.length, Random(0)).prompt
    return "def main():"


def _words(config: Config) -> list[str]:
    """Returns what characters stand for, where they stand for words."""
    if not isinstance(config.corpus, TaskCorpus):
        return []
    rule = task_of(config.corpus)
    said = [
        f"`{one}` {rule.detokenize(one)}" for one in rule.alphabet if rule.detokenize(one) != one
    ]
    return [f"A word is a character: {', '.join(said)}."] if said else []


def _front_matter(config: Config, license: str | None) -> str:
    """Returns the YAML that the Hugging Face Hub reads."""
    said: dict[str, Any] = {
        "library_name": "lengthgen",
        "tags": ["lengthgen", "causal-lm", "length-extrapolation", "positional-encoding"],
    }
    said["tags"].append(config.scheme.name)
    if config.corpus.source == "hub":
        said["datasets"] = [config.corpus.repo]
    if license is not None:
        said["license"] = license
    missing = "# license: yours to choose (lengthgen export --license apache-2.0)\n"
    return f"---\n{yaml.safe_dump(said, sort_keys=False)}{missing * (license is None)}---\n"


def _consent(name: str, about: About) -> str:
    paths = ", ".join(json.dumps(f"{name}/{plugin}") for plugin in about.plugins)
    return f", plugins=[{paths}]" if paths else ""


def _about_code(about: About) -> list[str]:
    if not about.plugins:
        return []
    return [
        "A part of the scheme is code of its own that comes along: read it before you allow it to "
        "run by naming it, as above."
    ]


def _splits(corpus: TokenizedCorpus) -> str:
    said = [
        f"{len(split.tokens):,} tokens of {kind}"
        for kind, split in (("training", corpus.train), ("validation", corpus.validation))
    ]
    packed = ", documents packed" if corpus.packed else ""
    return f"{' and '.join(said)}, vocabulary {corpus.vocab_size:,}{packed}"


def _settings(config: Config) -> str:
    """Returns what was set, as YAML; indented it is code in Markdown, whatever stands in it."""
    plain = to_plain(config)
    del plain["scheme"]["variants"]
    return yaml.safe_dump(
        {key: plain[key] for key in ("scheme", "model", "corpus", "train")}, sort_keys=False
    )


def _measured(run_dir: Path, rows: Sequence[Row], config: Config) -> str:
    """Returns the report's tables of this checkpoint; no text of a row becomes markup."""
    if not curves.curve(rows):
        return "Not measured.\n"
    about = (
        "The same tokens are scored at every length, only the text before them changes: a rising "
        "line means that text beyond T does harm."
    )
    if isinstance(config.corpus, TaskCorpus):
        about = "Every length has tests of its own, none of which asks what training did."
    tables = collect.table(study.read([run_dir], rows)).replace("<", "&lt;")
    return f"{about}\n\n{tables}"
