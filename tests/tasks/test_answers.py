"""A task from its configuration to the accuracy in a report: training, scoring, what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import SMALL

from lengthgen.config.schema import Config, from_overrides
from lengthgen.data import corpora
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import IGNORED, train_batch, training_windows
from lengthgen.errors import UserError
from lengthgen.evaluation import evaluator, plan
from lengthgen.evaluation.scored_text import Evaluation
from lengthgen.files import read_rows
from lengthgen.hub import load
from lengthgen.hub.folder import export
from lengthgen.model.build import with_parts
from lengthgen.pipeline import train_and_evaluate, validate
from lengthgen.probes import run as probes
from lengthgen.runs.distributed import Ranks
from lengthgen.tasks.objective import ANSWERS
from lengthgen.terminal import Progress

pytestmark = pytest.mark.slow

QUIET = Progress(is_main=False)
ALONE = Ranks(rank=0, world_size=1, local_rank=0)
NO_MODEL: Any = None  # rows are made of what was scored
TASK = [
    *(word for word in SMALL if not word.startswith(("corpus", "eval"))),
    *("task=copy", "task.length=3", "task.longest=6", "task.examples=300"),
    *("task.examples_per_length=5", "train.length=8", "eval.lengths=[1,2,3,4,6]"),
]


def configured(*words: str) -> Config:
    return validate(from_overrides([*TASK, *words], config_dir=None, plugins=[]))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def corpus(cache: Path) -> TokenizedCorpus:
    return loaded(configured(), cache)


def loaded(config: Config, cache: Path) -> TokenizedCorpus:
    return corpora.load(config.corpus, cache_dir=cache, say=lambda message: None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Config, Path]:
    root = tmp_path_factory.mktemp("runs")
    config = configured("scheme=nope", f"runtime.root={root}", f"runtime.cache={cache}")
    return config, train_and_evaluate(config, ranks=ALONE, show=QUIET)


def text_of(corpus: TokenizedCorpus, ids: Any) -> str:
    """Returns the characters of token ids, spelt by the vocabulary and not by the decoder."""
    vocab = json.loads(corpus.tokenizer_path.read_text())["model"]["vocab"]
    spelt = {i: "\n" if ord(token) > 126 else token for token, i in vocab.items()}
    return "".join(spelt[int(i)] for i in ids)


# The corpus


def test_a_document_is_prompt_answer_and_end_a_token_per_character(
    corpus: TokenizedCorpus,
) -> None:
    assert corpus.train.examples is not None
    assert len(corpus.train.names) == 300
    for i, (length, given) in enumerate(corpus.train.examples.tolist()):
        text = text_of(corpus, corpus.train.document(i))
        prompt, answer = text[:given], text[given:]
        assert (len(prompt), answer) == (length + 1, prompt[:-1] + "\n")


def test_targets_are_the_answer_and_its_end_alone(corpus: TokenizedCorpus) -> None:
    windows = training_windows(corpus, 8)
    assert windows.count == 300
    batch = train_batch(windows, seed=1, step=0, batch=16)
    for inputs, targets in zip(batch.inputs_BT, batch.targets_BT, strict=True):
        scored = np.flatnonzero(targets != IGNORED)
        answer = text_of(corpus, targets[scored])
        assert answer.endswith("\n")
        prompt = text_of(corpus, inputs[1 : scored[0] + 1])
        assert prompt == answer[:-1] + "="
        assert len(scored) == len(answer)
        assert (np.diff(scored) == 1).all()


# Scoring


def rows_by_hand(
    config: Config, corpus: TokenizedCorpus, said: Any, *, nats: float = 0.5
) -> dict[int, dict[str, Any]]:
    """The rows of all lengths if the model says what `said` gives for (document, target)."""
    planned = plan.plan(config, corpus)
    rows: dict[int, dict[str, Any]] = {}
    for cell in plan.cells(config):
        spans = plan.windows(cell, planned)
        scored = {
            span: np.array(
                [[nats, said(span.document, n)] for n in range(span.end - span.scored, span.end)]
            )
            for span in spans
        }
        evaluation = Evaluation(
            config=config, plan=planned, model=NO_MODEL, ranks=ALONE, show=QUIET
        )
        (rows[cell.length],) = ANSWERS.rows(spans, scored, evaluation)
    return rows


def test_an_answer_of_the_right_tokens_is_right_and_every_other_wrong_where_it_first_differs(
    corpus: TokenizedCorpus,
) -> None:
    config, split = configured(), corpus.validation

    def right(document: int, n: int) -> int:
        return int(split.document(document)[n])

    for length, row in rows_by_hand(config, corpus, right).items():
        assert row["first_wrong"] == [None] * row["n_windows"]
        assert row["token_hits"] == row["n_tokens"] == (length + 1) * row["n_windows"]
        assert row["nats"] == 0.5 * row["n_tokens"]

    def late(document: int, n: int) -> int:
        assert split.examples is not None
        length, given = split.examples[document]
        return right(document, n) + (n == given + length - 1)  # its last character

    for length, row in rows_by_hand(config, corpus, late).items():
        assert row["first_wrong"] == [length - 1] * row["n_windows"]
        assert row["token_hits"] == length * row["n_windows"]
        assert row["stop_errors"] == 0


def test_stopping_early_and_not_stopping_are_stop_errors(corpus: TokenizedCorpus) -> None:
    split = corpus.validation
    end = int(split.tokens[-1])

    def early(document: int, n: int) -> int:
        return end

    def late(document: int, n: int) -> int:
        said = int(split.document(document)[n])
        return said + 1 if said == end else said

    for said in (early, late):
        for row in rows_by_hand(configured(), corpus, said).values():
            assert row["stop_errors"] == row["n_windows"]


def test_a_diverged_model_answers_nothing(corpus: TokenizedCorpus) -> None:
    def right(document: int, n: int) -> int:
        return int(corpus.validation.document(document)[n])

    for row in rows_by_hand(configured(), corpus, right, nats=np.nan).values():
        assert row["nats"] is None
        assert row["first_wrong"] == [0] * row["n_windows"]
        assert row["token_hits"] == 0


@pytest.mark.parametrize("variant", [None, "interpolate"])  # which reads the length of the call
def test_a_run_says_of_every_test_whether_greedy_decoding_answers_it(
    tmp_path: Path, cache: Path, variant: str | None
) -> None:
    config = configured(
        *("scheme=alibi", "eval.variants=[interpolate]", "train.tokens=20000", "train.lr=1e-2"),
        *("task.longest=12", "task.examples_per_length=40", "eval.lengths=[2,3,5,8,12]"),
        *(f"runtime.root={tmp_path}", f"runtime.cache={cache}"),
    )
    run_dir = train_and_evaluate(config, ranks=ALONE, show=QUIET)
    opened = evaluator.open_run(config, run_dir, ranks=ALONE, show=QUIET)
    model, corpus = evaluator.trained_model(config, opened), opened.planned.corpus
    if variant is not None:
        model.scheme = with_parts(model, config, config.variant(variant))
    assert model.scheme.depends_on_length == (variant is not None)
    written = read_rows(run_dir / "eval.jsonl")
    rows = {row["length"]: row for row in written if row["variant"] == variant}
    outcomes = {one is None for row in rows.values() for one in row["first_wrong"]}
    assert outcomes == {True, False}
    for length, row in rows.items():
        found: list[int | None] = []
        for answer in opened.planned.examples:
            if answer.length != length:
                continue
            document = corpus.validation.document(answer.document).astype(np.int64)
            given = answer.targets - answer.scored
            text, wrong = [corpus.bos_id, *document[:given].tolist()], None
            for i, target in enumerate(document[given:].tolist()):
                with torch.inference_mode():
                    x = model(torch.tensor([text]), generator=torch.Generator().manual_seed(0))
                    text.append(int(model.logits(x[0, -1]).argmax()))
                if text[-1] != target:
                    wrong = i
                    break
            found.append(wrong)
        assert row["first_wrong"] == found


# What is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["experiment=alibi_figure1"], "experiment=alibi_figure1: task=copy makes its own text; "),
        (["corpus=stdlib"], "corpus=stdlib: task=copy makes its own text; drop one of them"),
        (["task.lenght=3"], "task.lenght: unknown key; did you mean task.length?"),
        (["task.length=0"], "task.length: 0 should be greater than 0"),
        (["task.longest=2"], "task.longest=2 is below task.length=3; set task.longest=12"),
        (["task.arguments.alphabet=99"], "task.arguments: alphabet=99 is not from 1 to 62"),
        (["task.arguments.times=x"], "task.arguments.times: 'x' should be a valid integer"),
        (["task.kind=copi"], "task.kind: no task 'copi'; did you mean copy?"),
        (["+task.arguments.tymes=2"], "task.arguments.tymes: unknown key; did you mean task.argum"),
        (
            ["eval.lengths=[7]"],
            "eval.lengths: task copy has no tests of length 7; drop it, or train with ",
        ),
        (["eval.protocols=[tail]"], "eval.protocols: tail scores text from left to right, and "),
        (["corpus.tokenizer=bytes"], "corpus: a task is read by characters"),
    ],
)
def test_what_a_task_cannot_honour_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        configured(*words)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_characters_are_no_tokenizer_of_text(tmp_path: Path) -> None:
    config = from_overrides([*SMALL, "corpus.tokenizer=characters"], config_dir=None, plugins=[])
    with pytest.raises(UserError, match="characters are those of a task; give bytes, bpe"):
        loaded(config, tmp_path)


def test_a_window_too_short_for_an_example_is_refused_with_a_remedy_that_works(
    cache: Path,
) -> None:
    config = configured("train.length=6", "train.batch_tokens=48")
    with pytest.raises(UserError) as caught:
        plan.plan(config, loaded(config, cache))
    said = str(caught.value)
    assert "the longest training example of copy has 8 tokens; set train.length=8" in said
    remedied = configured(*said.partition("; set ")[2].split())
    assert plan.plan(remedied, loaded(remedied, cache)).text.examples


def test_a_task_all_of_whose_prompts_are_held_out_says_so(tmp_path: Path) -> None:
    config = configured("task.length=1", "task.arguments.alphabet=3", "eval.lengths=[4]")
    with pytest.raises(UserError, match=r"^task.length=1: of copy all prompts up to this length"):
        loaded(config, tmp_path)


def test_what_reads_text_refuses_a_run_of_a_task(run: tuple[Config, Path]) -> None:
    config, run_dir = run
    with pytest.raises(UserError, match=r"^probe: .* is of a task, and probes read text"):
        probes.probe(config, run_dir, probes.build(None), show=QUIET)


def test_a_run_of_a_task_is_exported_and_answers_as_itself(
    run: tuple[Config, Path], tmp_path: Path
) -> None:
    config, run_dir = run
    export(config, run_dir, tmp_path / "model", license=None, say=QUIET.say)
    model, tokenizer = load(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "## Results over length" in card
    prompt = re.search(r'tokenizer.encode\("(.*)"\)', card)
    assert prompt is not None
    ids = torch.tensor([tokenizer.encode(prompt[1]).ids])
    assert ids.shape == (1, 1 + 3 + 1)  # the bos token, three letters, "="
    assert model.logits(model(ids, generator=torch.Generator())).shape == (1, 5, 29)
