"""Every shipped study says what it claims, and its commands and lengths are what it says."""

import re
import shlex
from collections.abc import Iterator
from functools import cache

import pytest
from small import FRESH, config_of

from lengthgen.config import conf, study
from lengthgen.config.schema import Config

NAMES = conf.choices("study", config_dir=None)
LABELS = ["Claim", "Command", "Cost", "Expected", "Differs"]
cached = cache(config_of)
SCALE = {"million": 1e6, "billion": 1e9}
each = pytest.mark.parametrize("name", NAMES)


def paragraphs(name: str) -> list[str]:
    """Returns what the file's comment says: paragraphs of lines, without their marks."""
    text = (conf.conf_dir() / f"study/{name}.yaml").read_text(encoding="utf-8")
    marked = re.match(r"# @package _global_\n((?:#.*\n)+)", text)
    assert marked is not None, f"{name}: no comment behind # @package _global_"
    return re.sub(r"(?m)^# ?", "", marked[1]).strip().split("\n\n")


def paragraph(name: str, label: str) -> str:
    (labelled,) = [text for text in paragraphs(name) if text.startswith(label)]
    return labelled


def commands(name: str) -> list[list[str]]:
    """Returns the words of every command."""
    text = paragraph(name, "Command").replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.startswith("  ")]


def grid(words: list[str]) -> list[list[str]]:
    """Returns the overrides of every point of a sweep's command, in its order."""
    return study.expand_study(words[2:], config_dir=None)


def configs(name: str) -> Iterator[Config]:
    """Yields what the commands train, one configuration of those that differ in the seed alone."""
    points = [point for words in commands(name) for point in seedless(grid(words))]
    yield from (cached(*point, FRESH) for point in dict.fromkeys(points))


def seedless(points: list[list[str]]) -> list[tuple[str, ...]]:
    return [tuple(sorted(w for w in point if not w.startswith("seed="))) for point in points]


@each
def test_it_names_source_claim_command_cost_expectation_and_differences(name: str) -> None:
    first, *rest = paragraphs(name)
    assert re.search(r"arXiv \d{4}\.\d{5}", first)
    assert [text.split()[0].rstrip(":") for text in rest] == LABELS
    assert all(len(text) > 60 for text in rest if not text.startswith("Command"))


@each
def test_its_commands_are_sweeps_of_it_over_seeds(name: str) -> None:
    assert commands(name)
    for words in commands(name):
        assert words[1:3] in (["sweep", f"study={name}"], ["report", f"study={name}"])
        points = grid(words)
        assert all(any(word.startswith("seed=") for word in point) for point in points)
        assert len({tuple(point) for point in points}) == len(points) > 1


@pytest.mark.slow
@each
def test_its_configurations_are_valid_runs_of_the_lengths_it_names(name: str) -> None:
    first = " ".join(paragraphs(name)[0].split())
    said = re.search(r"trained (?:at T|to L) = ([\d,]+).* measured at ([\d,]+) to ([\d,]+)", first)
    assert said is not None
    trained, shortest, longest = (int(n.replace(",", "")) for n in said.groups())
    runs = [(config).run_id for config in configs(name)]
    assert len(set(runs)) == len(runs)
    assert max(max(config.eval.lengths) for config in configs(name)) == longest
    for config in configs(name):
        lengths = config.eval.lengths
        assert min(lengths) == shortest
        assert trained in lengths
        task = config.corpus.model_dump().get("task")
        assert trained == (task["length"] if task else config.train.length)


@each
def test_its_cost_counts_the_tokens_of_its_first_command(name: str) -> None:
    cost = " ".join(paragraph(name, "Cost").split())
    said = re.search(r"([\d.]+) (\w+) tokens a run, ([\d.]+) (\w+) for .*?(\d+) runs", cost)
    assert said is not None
    each_run, all_runs = float(said[1]) * SCALE[said[2]], float(said[3]) * SCALE[said[4]]
    tokens = [cached(*point, FRESH).train.tokens for point in seedless(grid(commands(name)[0]))]
    assert len(tokens) == int(said[5])
    assert tokens[0] == pytest.approx(each_run, rel=0.01)
    assert sum(tokens) == pytest.approx(all_runs, rel=0.03)


@pytest.mark.parametrize("name", ["drope", "pi_finetuning"])
def test_what_it_begins_with_is_a_run_of_the_study_it_names(name: str) -> None:
    begin = conf.load_choice("study", name)["train"]["init_from"]
    words = begin.replace("${seed}", "2").split()
    points = study.expand_study([w for w in words if "seed" not in w], config_dir=None)
    assert config_of(*words).run_id in [config_of(*point).run_id for point in points]
    assert " ".join(words[:-1]) in paragraph(name, "Cost").replace("\n", " ")


@each
def test_it_leaves_runtime_to_the_user_and_gives_way_to_the_command_line(name: str) -> None:
    sections = set(conf.load_choice("study", name))
    assert sections <= {"defaults", "corpus", "train", "eval", "grid"}
    config = config_of(f"study={name}", "model=small", "scheme=xpos", FRESH)
    assert (config.model.name, config.scheme.name) == ("small", "xpos")
