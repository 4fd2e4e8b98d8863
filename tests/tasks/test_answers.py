"""A task from its corpus to the rows of its answers, forced and decoded."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from commands import here
from small import SMALL_TASK, experiment_of, plan_of, refusal, small_model, smaller, valid, varied
from small_corpora import load_tokens
from trained import ALONE, QUIET, evaluate, open_run, train_and_evaluate, with_eval

from lengthgen.config.schema import Config
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import IGNORED, TrainingWindows, train_batch
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import Evaluation
from lengthgen.files import read_rows
from lengthgen.generation import continuation
from lengthgen.tasks.decoding import greedy
from lengthgen.tasks.objective import ANSWERS

NO_MODEL: Any = None  # rows are made of what was scored
HOW: dict[str, Any] = {"seed": 0, "precision": "fp32"}
N = 4  # of 5 tests of a length
FAST = ["train.batch_tokens=512", "train.lr=0.01"]


def configured(*words: str) -> Config:
    return valid(smaller(*words, usual=SMALL_TASK))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def loaded(config: Config, cache: Path) -> TokenizedCorpus:
    return load_tokens(config.corpus, cache_dir=cache, say=lambda message: None)


@pytest.fixture(scope="module")
def corpus(root: Path) -> TokenizedCorpus:
    return loaded(configured(), root)


def test_targets_of_a_document_are_its_answer_and_end_alone(corpus: TokenizedCorpus) -> None:
    vocab = json.loads(corpus.tokenizer_path.read_text())["model"]["vocab"]
    spelt = {i: "\n" if ord(token) > 126 else token for token, i in vocab.items()}

    def text_of(ids: Any) -> str:
        return "".join(spelt[int(i)] for i in ids)

    assert corpus.train.examples is not None
    for i, (length, given) in enumerate(corpus.train.examples.tolist()):
        text = text_of(corpus.train.document(i))
        prompt, answer = text[:given], text[given:]
        assert (len(prompt), answer) == (length + 1, prompt[:-1] + "\n")
    windows = TrainingWindows(corpus, 8)
    assert windows.count == 300
    batch = train_batch(windows, seed=1, step=0, batch=16)
    for inputs, targets in zip(batch.inputs_BT, batch.targets_BT, strict=True):
        scored = np.flatnonzero(targets != IGNORED)
        assert (np.diff(scored) == 1).all()
        answer = text_of(targets[scored])
        assert text_of(inputs[1 : scored[0] + 1]) == answer[:-1] + "="
        assert answer.endswith("\n")


OfLength = Callable[[int], int | None]
MISTAKES: list[tuple[str, float, OfLength, OfLength, bool]] = [
    ("all right", 0.5, lambda L: None, lambda L: L + 1, False),
    ("last character wrong", 0.5, lambda L: L - 1, lambda L: L, False),
    ("end at once", 0.5, lambda L: 0, lambda L: 1, True),
    ("no end", 0.5, lambda L: L, lambda L: L, True),
    ("all right", np.nan, lambda L: 0, lambda L: 0, False),  # a diverged model answers nothing
]


@pytest.mark.parametrize(("said", "nats", "first_wrong", "hits", "stops"), MISTAKES)
def test_an_answer_is_wrong_where_it_first_differs(
    said: str, nats: float, first_wrong: Any, hits: Any, stops: bool, corpus: TokenizedCorpus
) -> None:
    config, split = configured(), corpus.validation
    planned, end = plan_of(config, corpus), int(corpus.validation.tokens[-1])

    def predicted(document: int, n: int) -> int:
        assert split.examples is not None
        length, given = split.examples[document]
        right = int(split.document(document)[n])
        wrong = {
            "last character wrong": right + (n == given + length - 1),
            "end at once": end,
            "no end": right + (right == end),
        }
        return int(wrong.get(said, right))

    about: dict[str, Any] = {"weights": "", "tokens_seen": 0, "ranks": ALONE, "show": QUIET}
    about |= {"cells": [], "designs": {}, "run_dir": Path()}
    about["objective"] = experiment_of(config).objective
    evaluation = Evaluation(config=config, plan=planned, model=NO_MODEL, scheme=NO_MODEL, **about)
    for length in config.eval.lengths:
        spans = ANSWERS.windows(length, planned)
        at = {s: range(s.end - s.scored, s.end) for s in spans}
        scored = {s: np.array([[nats, predicted(s.document, n)] for n in at[s]]) for s in spans}
        (row,) = ANSWERS.rows(spans, scored, evaluation)
        assert row["first_wrong"] == [first_wrong(length)] * len(spans)
        assert row["token_hits"] == hits(length) * len(spans)
        assert row["n_tokens"] == (length + 1) * len(spans)
        assert row["nats"] == (None if np.isnan(nats) else nats * row["n_tokens"])
        if not np.isnan(nats):
            assert row["stop_errors"] == stops * len(spans)


def test_a_window_too_short_for_an_example_has_a_remedy_that_works(corpus: TokenizedCorpus) -> None:
    said = refusal(plan_of, configured("train.length=6", "train.batch_tokens=48"), corpus)
    assert "the longest training example of copy has 8 tokens; set train.length=8" in said
    remedied = configured(*said.partition("; set ")[2].split())
    assert plan_of(remedied, corpus).examples


def test_a_task_all_of_whose_prompts_are_held_out_says_so(root: Path) -> None:
    config = configured("task.length=1", "task.arguments.alphabet=3", "eval.lengths=[4]")
    with pytest.raises(UserError, match=r"^task.length=1: copy has few prompts up to this length"):
        loaded(config, root)


def by_recursion(one: str, other: str) -> int:
    """Returns the edit distance from what its last characters can be."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        kept = distance(i - 1, j - 1) + (one[i - 1] != other[j - 1])
        return min(kept, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    return distance(len(one), len(other))


def test_decoding_ends_where_the_scheme_or_the_model_does() -> None:
    model = small_model("learned_absolute")
    (got,) = greedy(model, [[3, 1, 4]], limit=50, end=-1, **HOW)
    assert len(got) == 16 - 3 + 1  # each of 16 rows is read, and one more token written
    with torch.no_grad():
        next(model.norm.parameters()).fill_(float("nan"))  # it diverged
    assert greedy(model, [[3], [4]], limit=5, end=1, **HOW) == [[], []]


class Run(NamedTuple):
    config: Config  # of which no test is decoded
    run_dir: Path


def trained(root: Path, *words: str) -> Run:
    config = configured(*words, *FAST, f"runtime.root={root}")
    return Run(config, train_and_evaluate(config))


@pytest.fixture(scope="module")
def copying(root: Path) -> Run:
    words = "scheme=alibi", "task.arguments.alphabet=5", "train.tokens=60000"
    return trained(root, *words, "eval.variants=[interpolate]", "eval.lengths=[1,2,3,5,6]")


def rows_of(run_dir: Path, variant: str | None = None) -> dict[int, dict[str, Any]]:
    rows = read_rows(run_dir / "eval.jsonl")
    return {row["length"]: row for row in rows if row["variant"] == variant}


def decoded(run: Run, folder: Path, *, n: int = N) -> Path:
    """Returns a copy of the run of which n tests of each length are decoded."""
    run_dir = Path(shutil.copytree(run.run_dir, folder / run.run_dir.name))
    evaluate(with_eval(run.config, decode=n), run_dir)
    return run_dir


@pytest.mark.slow
@pytest.mark.parametrize("variant", [None, "interpolate"])  # which reads the length of the call
def test_a_row_says_where_greedy_decoding_goes_wrong_and_how_far_off_it_is(
    copying: Run, tmp_path: Path, variant: str | None
) -> None:
    config, _ = copying
    opened = open_run(config, copying.run_dir)
    model, corpus = opened.model, opened.plan.corpus
    if variant is not None:
        model.scheme = varied(model, config, variant)
    assert model.scheme.depends_on_length == (variant is not None)
    outcomes, end = set[bool](), int(corpus.validation.tokens[-1])
    run_dir, before = decoded(copying, tmp_path), rows_of(copying.run_dir, variant)
    for length, row in rows_of(run_dir, variant).items():
        tests = opened.plan.examples[length]
        for i, (test, wrong) in enumerate(zip(tests, row["first_wrong"], strict=True)):
            tokens = corpus.validation.document(test.document).astype(int).tolist()
            prompt = [*corpus.beginning, *tokens[: test.length - test.scored]]
            true = tokens[test.length - test.scored :]
            limit = 2 * test.scored
            text = [*continuation(model, prompt, limit=limit, end=end, temperature=0, **HOW)]
            text += [-1] * (len(true) - len(text))
            differs = [n for n, token in enumerate(true) if text[n] != token]
            assert wrong == (differs[0] if differs else None)
            outcomes.add(wrong is None)
            if i < N:
                wrote = [t for t in text if t not in (-1, end)]
                longer = max(1, len(wrote), len(true) - 1)
                want = by_recursion(*("".join(map(chr, part)) for part in (wrote, true[:-1])))
                assert row["edit_distances"][i] == pytest.approx(want / longer, abs=1e-6)
        assert len(row.pop("edit_distances")) == min(N, row["n_windows"])
        assert row == before[length]  # nothing of it has changed
    assert outcomes == {True, False}
    log = (run_dir / "eval.jsonl").read_bytes()
    for n in (0, 1, N):  # as many are decoded
        evaluate(with_eval(copying.config, decode=n), run_dir)
    assert (run_dir / "eval.jsonl").read_bytes() == log


@pytest.mark.slow
def test_a_result_may_be_right_behind_a_wrong_scratchpad(root: Path, tmp_path: Path) -> None:
    words = "task=parity_scratchpad", "task.arguments.scratchpad=O", "train.length=16"
    run = trained(root, *words, "scheme=t5", "model.arch=encoder_decoder", "train.tokens=40000")
    outcomes = {
        (distance == 0, wrong is None, right)
        for row in rows_of(decoded(run, tmp_path)).values()
        if "skipped" not in row
        for distance, wrong, right in zip(
            row["edit_distances"], row["first_wrong"][:N], row["results_right"], strict=True
        )
    }
    assert all(is_zero == is_right for is_zero, is_right, _ in outcomes)
    assert {(False, False, True), (False, False, False)} <= outcomes
    assert (True, True, False) not in outcomes
    generated = here("generate", str(run.run_dir), "--prompt", "0110")
    assert (generated.code, "ends in =" in generated.err) == (0, True)
    assert "is of a task, and probes read text" in here("probe", str(run.run_dir)).error
    out = str(tmp_path / "export")
    assert "and export takes decoder alone" in here("export", str(run.run_dir), out).error
