"""Every shipped experiment says what it claims, and its files and commands do what they say."""

import csv
import math
import re
import shlex
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

import pytest
from eval_rows import table_of
from repository import ROOT
from small import SMALL, small_config

from lengthgen import pipeline
from lengthgen.analysis import reference_results
from lengthgen.config import compose
from lengthgen.config.schema import Config, TaskCorpus, from_overrides, from_plain
from lengthgen.errors import UserError
from lengthgen.evaluation import plan, protocols
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.files import read_rows
from lengthgen.pipeline import validate

PUBLISHED = reference_results.FOLDER / "perplexity.csv"
NAMES = compose.choices("experiment", config_dir=None)
LAPTOP = "alibi_figure1_laptop"
LABELS = ["Claim", "Command", "Cost", "Expected", "Differs"]
SCALE = {"million": 1e6, "billion": 1e9}


def paragraphs(name: str) -> list[str]:
    """Returns what the file's comment says: paragraphs of lines, without their marks."""
    text = (compose.conf_dir() / f"experiment/{name}.yaml").read_text(encoding="utf-8")
    marked = re.match(r"# @package _global_\n((?:#.*\n)+)", text)
    assert marked is not None, f"{name}: no comment behind # @package _global_"
    return re.sub(r"(?m)^# ?", "", marked[1]).strip().split("\n\n")


def paragraph(name: str, label: str) -> str:
    (found,) = [text for text in paragraphs(name) if text.startswith(f"{label}")]
    return found


def commands(name: str) -> list[list[str]]:
    """Returns the words of every command, the first one's before the others'."""
    whole = paragraph(name, "Command").replace("\\\n", " ")
    return [shlex.split(line) for line in whole.splitlines() if line.startswith("  ")]


def grid(words: list[str]) -> list[list[str]]:
    """Returns the overrides of every point of a sweep's command, in its order."""
    return compose.expand(words[2:], config_dir=None)


FRESH = "train.init_from=null"  # the runs that an experiment begins with are not here


@cache
def configured(overrides: tuple[str, ...]) -> Config:
    return validate(from_plain(compose.compose([*overrides, FRESH], config_dir=None)))


def every_config(name: str) -> list[Config]:
    """Returns what the commands train, one configuration of those that differ in the seed alone."""
    points = [point for words in commands(name) for point in grid(words)]
    seedless = [tuple(w for w in point if not w.startswith("seed=")) for point in points]
    return [configured(overrides) for overrides in dict.fromkeys(seedless)]


class Table(NamedTuple):
    """Perplexities that an experiment's comment quotes."""

    source: str
    ppl: dict[str, dict[int, str]]  # by scheme and length, as written
    at: int
    order: list[str]


def tables(name: str) -> list[Table]:
    """Returns the tables of a comment, each with the order that is read off it."""
    pattern = r"Expected \((.+?)\), .*:\n((?:  .+\n)+)Order at ([\d,]+): ([\w, +\n]+?)(?=\nExp|$)"
    found: list[Table] = []
    for source, body, at, order in re.findall(pattern, paragraph(name, "Expected")):
        head, *rows = (re.split(r"  +", line.strip()) for line in body.splitlines())
        lengths = [number(cell) for cell in head]
        ppl = {scheme: dict(zip(lengths, cells, strict=True)) for scheme, *cells in rows}
        found.append(Table(source, ppl, number(at), re.split(r",\s+", order)))
    return found


def number(text: str) -> int:
    return int(text.replace(",", ""))


TABLES = [(name, table) for name in NAMES for table in tables(name)]
each_table = pytest.mark.parametrize(("name", "table"), TABLES)
each = pytest.mark.parametrize("name", NAMES)
OF_TASKS = [name for name in NAMES if compose.is_of_tasks(name, config_dir=None)]
OF_TEXT = [name for name in NAMES if name not in OF_TASKS]


def test_there_are_the_classic_figures_and_one_for_a_laptop() -> None:
    classic = {"alibi_figure1", "alibi_figure1_1024", "kerple_table3", "nope_appendix_f", LAPTOP}
    assert classic <= set(NAMES)
    assert len(TABLES) >= len(OF_TEXT) - 1
    assert OF_TASKS == ["addition_formats"]


@each
def test_an_experiment_says_source_claim_command_cost_what_to_expect_and_what_differs(
    name: str,
) -> None:
    first, *rest = paragraphs(name)
    assert re.search(r"arXiv \d{4}\.\d{5}", first)
    assert [text.split()[0].rstrip(":") for text in rest] == LABELS
    assert all(len(text) > 60 for text in rest)


@each
def test_its_commands_are_sweeps_of_it(name: str) -> None:
    assert commands(name)
    for words in commands(name):
        assert words[:3] == ["lengthgen", "sweep", f"experiment={name}"]


@each
def test_its_commands_vary_the_scheme_or_its_variants_and_the_seed(name: str) -> None:
    for words in commands(name):
        points = grid(words)
        assert len({tuple(point) for point in points}) == len(points)
        assert any(word.startswith("seed=") for word in words)
        assert len(points) > 1


@pytest.mark.slow
@each
def test_every_configuration_that_its_commands_span_is_valid_and_a_run_of_its_own(
    name: str,
) -> None:
    runs = [config.run_id for config in every_config(name)]
    assert len(set(runs)) == len(runs)


@each
def test_the_lengths_it_names_are_those_it_has(name: str) -> None:
    first = " ".join(paragraphs(name)[0].split())
    said = re.search(r"trained (?:at T|to L) = ([\d,]+).* measured at ([\d,]+) to ([\d,]+)", first)
    assert said is not None
    for config in every_config(name):
        lengths, corpus = config.eval.lengths, config.corpus
        is_task = isinstance(corpus, TaskCorpus)
        trained = corpus.task.length if is_task else config.train.length
        assert [number(n) for n in said.groups()] == [trained, min(lengths), max(lengths)]
        assert trained in lengths


@each
def test_its_cost_counts_the_tokens_of_its_first_command(name: str) -> None:
    cost = " ".join(paragraph(name, "Cost").split())
    said = re.search(r"([\d.]+) (\w+) tokens a run, ([\d.]+) (\w+) for .*?(\d+) runs", cost)
    assert said is not None
    each_run, all_runs = float(said[1]) * SCALE[said[2]], float(said[3]) * SCALE[said[4]]
    n_runs, tokens = len(grid(commands(name)[0])), every_config(name)[0].train.tokens
    assert n_runs == int(said[5])
    assert tokens == pytest.approx(each_run, rel=0.01)
    assert n_runs * tokens == pytest.approx(all_runs, rel=0.03)


@pytest.mark.parametrize("name", OF_TEXT)
def test_its_protocols_can_score_its_lengths(name: str) -> None:
    for config in every_config(name):
        wanted = [protocols.named(protocol) for protocol in config.eval.protocols]
        assert HEADLINE in config.eval.protocols
        assert max(config.eval.lengths) <= config.eval.reach
        for protocol in wanted:
            if protocol.divides:
                assert all(config.eval.reach % length == 0 for length in config.eval.lengths)
            # Joined documents are one, and text is swapped with that of another.
            assert not (config.corpus.packed and protocol.altered == "swap")


@each
def test_it_sets_only_what_a_run_may_and_leaves_runtime_to_the_user(name: str) -> None:
    assert set(compose.load("experiment", name, config_dir=None)) <= {
        "defaults",
        "corpus",
        "train",
        "eval",
    }


@pytest.mark.parametrize("name", OF_TASKS)
def test_a_task_chosen_on_the_command_line_wins_over_an_experiment_of_tasks(name: str) -> None:
    chosen = [f"experiment={name}", "model=small", "scheme=xpos", "task=copy"]
    config = validate(from_plain(compose.compose(chosen, config_dir=None)))
    assert (config.model.name, config.scheme.name, config.corpus.name) == ("small", "xpos", "copy")
    for word in ("experiment=alibi_figure1", "corpus=synthetic"):
        with pytest.raises(UserError, match=f"^{word}: task=copy makes its own text"):
            compose.compose(["task=copy", word], config_dir=None)


@pytest.mark.parametrize("name", OF_TASKS)
def test_an_experiment_of_tasks_has_five_seeds_of_each_pair_of_scheme_and_format(name: str) -> None:
    for words in commands(name):
        seeds: dict[tuple[str, ...], set[str]] = {}
        for point in grid(words):
            other = tuple(word for word in point if not word.startswith("seed="))
            seeds.setdefault(other, set()).update(set(point) - set(other))
        assert {len(of) for of in seeds.values()} == {5}


@pytest.mark.parametrize("name", OF_TASKS)
def test_every_seed_of_an_experiment_of_tasks_is_in_its_report(name: str, tmp_path: Path) -> None:
    task = ["task=addition_hints", "task.length=2", "task.longest=4", "task.examples=200"]
    less = ["task.examples_per_length=4", "train.length=17", "train.batch_tokens=136"]
    less += ["train.tokens=272", "eval.lengths=[1,2,3,4]", f"runtime.root={tmp_path}"]
    model = [word for word in SMALL if word.startswith(("model", "runtime"))]
    runs: list[Path] = []
    for seed in (1, 2, 3):
        words = [f"experiment={name}", *task, *less, *model, f"seed={seed}"]
        runs.append(pipeline.train(from_overrides(words, config_dir=None, plugins=[])))
    said = table_of(*runs)
    assert "unseen, each seed" in said
    (line,) = (line for line in said.splitlines() if line.startswith("| rope"))
    assert len(line.split("|")[-2].split(",")) == 3


@pytest.mark.parametrize("name", OF_TEXT)
def test_a_group_chosen_on_the_command_line_wins_over_the_experiment(name: str) -> None:
    chosen = [f"experiment={name}", "model=small", "scheme=xpos", "corpus=synthetic", FRESH]
    config = validate(from_plain(compose.compose(chosen, config_dir=None)))
    assert (config.model.name, config.scheme.name) == ("small", "xpos")
    assert config.corpus.source == "synthetic"


def there(source: str) -> dict[tuple[str, int], float]:
    """Returns the perplexities of a file that a table quotes, by scheme and length.

    Of seeds it is that of their mean loss, as in the tables of a report.
    """
    file, said = source, {"protocol": HEADLINE}
    if " in " in source:
        table, file, protocol = re.split(r" in |, ", source)
        said = {"table": table, "protocol": protocol}
    path = (
        PUBLISHED if file == "lengthgen/analysis/reference_results" else ROOT / file / "curve.csv"
    )
    with path.open(newline="", encoding="utf-8") as opened:
        rows = [row for row in csv.DictReader(opened) if said.items() <= row.items()]
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        series = row.get("series", row["scheme"]).removesuffix(" (T=512)")
        key = series, int(row["length"])
        found.setdefault(key, []).append(float(row["ppl"] or "nan"))
    return {key: geometric_mean(of) if len(of) > 1 else of[0] for key, of in found.items()}


@pytest.mark.parametrize(("name", "table"), [one for one in TABLES if "/" in one[1].source])
def test_perplexities_quoted_from_a_file_are_those_it_holds(name: str, table: Table) -> None:
    held = there(table.source)
    for scheme, ppl in table.ppl.items():
        for length, written in ppl.items():
            digits = len(written.partition(".")[2])
            assert round(held[scheme, length], digits) == float(written)


@each_table
def test_a_table_names_the_file_or_the_papers_table_that_it_is_from(
    name: str, table: Table
) -> None:
    file = r"\S+ in lengthgen/analysis/reference_results, \S+|results/\w+"
    assert re.fullmatch(rf"{file}|Table \d+, \w+", table.source)


@each_table
def test_the_order_is_that_of_its_table(name: str, table: Table) -> None:
    values = [float(table.ppl[scheme][table.at]) for scheme in table.order]
    assert sorted(table.order) == sorted(table.ppl)
    assert values == sorted(values)


@each_table
def test_its_commands_train_every_scheme_that_the_table_has(name: str, table: Table) -> None:
    found = every_config(name)
    curves = {config.scheme.name for config in found} | {
        " + ".join([config.scheme.name, *variant.split("+")])
        for config in found
        for variant in config.eval.variants
    }
    assert set(table.ppl) <= curves


def in_miniature(words: list[str], root: Path) -> dict[tuple[str, str | None, int], float]:
    """Trains and measures a point with a model and a text of a second; returns its losses."""
    config = small_config(*words, FRESH, f"runtime.root={root}")
    run_dir = pipeline.train(config)
    rows = read_rows(run_dir / "eval.jsonl")
    assert [row["skipped"] for row in rows if "skipped" in row] == []
    scored = {(row["protocol"], row["variant"], row["length"]) for row in rows}
    assert scored == {(cell.protocol, cell.variant, cell.length) for cell in plan.cells(config)}
    return {
        (row["protocol"], row["variant"], row["length"]): row["nats"] / row["n_tokens"]
        for row in rows
    }


@pytest.mark.parametrize("words", grid(commands(LAPTOP)[0]), ids=" ".join)
def test_the_laptops_figure_runs_from_end_to_end_in_miniature(
    words: list[str], tmp_path: Path
) -> None:
    losses = in_miniature(words, tmp_path)
    protocols_and_lengths = {(protocol, length) for protocol, _, length in losses}
    wanted = every_config(LAPTOP)[0].eval.protocols
    assert protocols_and_lengths == {(one, length) for one in wanted for length in (16, 32, 64)}
    assert all(math.isfinite(loss) and loss > 0 for loss in losses.values())


@pytest.mark.parametrize("name", [name for name in OF_TEXT if name != LAPTOP])
def test_the_others_run_in_miniature_under_their_own_protocols_and_variants(
    name: str, tmp_path: Path
) -> None:
    less = ["train.tokens=256", "eval.lengths=[16,64]", "eval.endpoints=2"]
    losses = in_miniature([*grid(commands(name)[0])[0], *less], tmp_path)
    wanted = every_config(name)[0].eval
    assert {protocol for protocol, _, _ in losses} == set(wanted.protocols)
    assert {variant for _, variant, _ in losses} == {None, *wanted.variants}
