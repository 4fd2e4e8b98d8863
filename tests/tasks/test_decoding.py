"""Decoded tests: how far answers are off, results behind scratchpads, ranks of true answers."""

import shutil
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from small import SMALL_TASK, small_model
from trained import QUIET

from lengthgen.config.schema import Config, from_overrides
from lengthgen.errors import UserError
from lengthgen.evaluation import evaluator
from lengthgen.files import read_rows
from lengthgen.generation import continuation, open_trained
from lengthgen.pipeline import train_and_evaluate, validate
from lengthgen.runs.distributed import ALONE
from lengthgen.tasks.decoding import edit_distance, greedy
from lengthgen.tasks.scratchpad import result_of

HOW: dict[str, Any] = {"seed": 0, "precision": "fp32"}
N = 4  # of 5 tests of a length
SHORT = [*(word for word in SMALL_TASK if word != "task=copy"), "scheme=alibi"]
PARITY = [
    *("task=parity_scratchpad", "task.arguments.scratchpad=O", "train.length=15"),
    *("train.batch_tokens=960", "train.tokens=40000", "train.lr=0.01"),
]
COPY = [
    *("task=copy", "task.arguments.alphabet=5", "train.batch_tokens=512"),
    *("train.tokens=60000", "train.lr=0.01"),
]


def by_recursion(one: str, other: str) -> int:
    """Returns the edit distance from what its last characters can be."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        kept = distance(i - 1, j - 1) + (one[i - 1] != other[j - 1])
        return min(kept, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    return distance(len(one), len(other))


def test_an_edit_distance_is_the_least_number_of_edits() -> None:
    short = ["".join(of) for n in range(4) for of in product("ab", repeat=n)]
    random = Random(0)
    long = ["".join(random.choices("abc", k=random.randint(0, 12))) for _ in range(60)]
    for one, other in [*product(short, short), *zip(long, reversed(long), strict=True)]:
        got = edit_distance([*map(ord, one)], [*map(ord, other)])
        assert got == by_recursion(one, other), (one, other)


@pytest.mark.parametrize(
    ("name", "variant"), [("alibi", None), ("rope", "yarn"), ("learned_absolute", None)]
)
def test_prompts_are_decoded_together_as_each_alone(name: str, variant: str | None) -> None:
    model, prompts = small_model(name, variant), [[3, 1, 4], [1, 5, 9], [2, 6, 5], [7, 7, 7]]
    limit = 12  # 3 and 12 tokens are less than the 16 rows of learned positions
    alone = [
        list(continuation(model, prompt, limit=limit, end=None, temperature=0, **HOW))
        for prompt in prompts
    ]
    end = alone[0][4]
    got = greedy(model, prompts, limit=limit, end=end, **HOW)
    assert got == [one[: one.index(end)] if end in one else one for one in alone]
    assert len({len(one) for one in got}) > 1


def test_decoding_ends_where_the_scheme_does() -> None:
    model = small_model("learned_absolute")
    (got,) = greedy(model, [[3, 1, 4]], limit=50, end=-1, **HOW)
    assert len(got) == 16 - 3 + 1  # each of 16 rows is read, and one more token written


def test_a_model_that_diverged_writes_nothing() -> None:
    model = small_model("rope")
    with torch.no_grad():
        model.norm.weight.fill_(float("nan"))
    assert greedy(model, [[3], [4]], limit=5, end=1, **HOW) == [[], []]


def test_a_result_is_what_follows_the_scratchpad() -> None:
    assert result_of("7,8:7+8+0=5;1|5+6&5,6=2#125") == "125"
    assert result_of("1#") == ""
    assert result_of("125") is None  # nothing marks it


# Runs


class Run(NamedTuple):
    config: Config  # of which no test is decoded
    run_dir: Path


def trained(root: Path, words: list[str]) -> Run:
    overrides = [*words, f"runtime.root={root}"]
    of = [w for w in SHORT if w.partition("=")[0] not in {one.partition("=")[0] for one in words}]
    config = validate(from_overrides([*of, *overrides], config_dir=None, plugins=[]))
    return Run(config, train_and_evaluate(config, ranks=ALONE, show=QUIET))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    root = tmp_path_factory.mktemp("runs")
    words = {"copy": COPY, "parity": PARITY}
    words["encoder_decoder"] = [*COPY, "scheme=t5", "model.arch=encoder_decoder"]
    return {name: trained(root, of) for name, of in words.items()}


def decoding(config: Config, n: int) -> Config:
    return config.model_copy(update={"eval": config.eval.model_copy(update={"decode": n})})


def decoded(run: Run, root: Path, *, n: int = N) -> tuple[Path, dict[int, dict[str, Any]]]:
    """Returns a copy of the run of which n tests of each length are decoded, and its rows."""
    run_dir = Path(shutil.copytree(run.run_dir, root / run.run_dir.name))
    evaluator.evaluate(decoding(run.config, n), run_dir, ranks=ALONE, show=QUIET)
    return run_dir, {row["length"]: row for row in read_rows(run_dir / "eval.jsonl")}


def test_distances_are_those_of_what_each_test_is_continued_by(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    config, _ = run = runs["copy"]
    run_dir, rows = decoded(run, tmp_path)
    one = open_trained(config, run_dir, variant=None, show=QUIET)
    bos, seen = one.corpus.bos_id, set[bool]()
    assert bos is not None
    for row in rows.values():
        assert len(row["edit_distances"]) == min(N, row["n_windows"])
        tests = [a for a in one.planned.examples if a.length == row["length"]]
        for test, got in zip(tests, row["edit_distances"], strict=False):
            tokens = one.corpus.validation.document(test.document).tolist()
            given, limit = len(tokens) - test.scored, 2 * test.scored
            how: dict[str, Any] = {"end": one.end, "limit": limit, "temperature": 0, **HOW}
            text = [*continuation(one.model, [bos, *tokens[:given]], **how)]
            wrote, true = (
                "".join(map(chr, part[:-1] if part[-1] == one.end else part))
                for part in (text, tokens[given:])
            )
            assert got == pytest.approx(by_recursion(wrote, true) / max(len(wrote), len(true)))
        for got, wrong in zip(row["edit_distances"], row["first_wrong"], strict=False):
            assert (got == 0) == (wrong is None)
            seen.add(wrong is None)
    assert seen == {True, False}


def test_decoding_adds_to_rows_and_changes_nothing_of_them(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    run_dir, rows = decoded(runs["copy"], tmp_path)
    before = {row["length"]: row for row in read_rows(runs["copy"].run_dir / "eval.jsonl")}
    for length, row in rows.items():
        added = {"edit_distances"}
        assert row.keys() - before[length].keys() == added
        assert {key: value for key, value in row.items() if key not in added} == before[length]
    log = (run_dir / "eval.jsonl").read_bytes()
    for n in (0, 1, N):  # as many are decoded
        evaluator.evaluate(decoding(runs["copy"].config, n), run_dir, ranks=ALONE, show=QUIET)
    assert (run_dir / "eval.jsonl").read_bytes() == log


def test_an_encoder_decoder_is_decoded_from_its_prompt(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    _, rows = decoded(runs["encoder_decoder"], tmp_path)
    outcomes = [
        (distance == 0, wrong is None)
        for row in rows.values()
        for distance, wrong in zip(row["edit_distances"], row["first_wrong"], strict=False)
    ]
    assert set(outcomes) == {(True, True), (False, False)}


def test_a_result_may_be_right_behind_a_wrong_scratchpad(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    _, rows = decoded(runs["parity"], tmp_path)
    outcomes = {
        (right, distance == 0)
        for row in rows.values()
        if "skipped" not in row
        for right, distance in zip(row["results_right"], row["edit_distances"], strict=True)
    }
    assert (False, True) not in outcomes
    assert {right for right, _ in outcomes} == {True, False}
    assert (True, False) in outcomes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["corpus=synthetic"], "eval.decode=2: tests of a task are decoded, and corpus synthetic "),
        (["task=copy", "model.arch=encoder"], "eval.decode=2: model.arch=encoder writes all of an"),
        (["task=copy", "eval.decode=-1"], "eval.decode: -1 should be greater than or equal to 0"),
    ],
)
def test_what_cannot_be_decoded_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        validate(from_overrides(["eval.decode=2", *words], config_dir=None, plugins=[]))
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
