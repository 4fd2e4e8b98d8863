"""Alignment ids of tasks: what they mark, the parts that read them, and how reports label these."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from eval_rows import row
from small import dims, small_config, some_tokens
from small_corpora import read_all
from torch import Tensor

from lengthgen.analysis.seed_groups import UPPER_BOUND
from lengthgen.config import compose
from lengthgen.config.schema import Config, TaskCorpus, from_overrides
from lengthgen.data import corpora
from lengthgen.data.sources import source_of
from lengthgen.data.tokenizer import given_tokenizer
from lengthgen.data.windows import training_windows
from lengthgen.errors import UserError
from lengthgen.evaluation.evaluator import evaluate
from lengthgen.evaluation.plan import windows as spans
from lengthgen.evaluation.scored_text import Cell
from lengthgen.generation import continuation, open_trained
from lengthgen.model.build import create
from lengthgen.model.kv_cache import why_uncached
from lengthgen.pipeline import train_and_evaluate, validate
from lengthgen.report import collect, task_tables
from lengthgen.report.run_records import RunRecord, task_facts
from lengthgen.report.table_formats import Table
from lengthgen.runs.distributed import Ranks
from lengthgen.schemes import AttentionContext, Part
from lengthgen.schemes.absolute.abacus import Abacus
from lengthgen.schemes.absolute.position_coupling import PositionCoupling
from lengthgen.tasks import END, Task, alignment_ids
from lengthgen.tasks import task_of as task_of_corpus
from lengthgen.terminal import Progress
from lengthgen.training.trainer import fresh_state, train_step

ALONE = Ranks(rank=0, world_size=1, local_rank=0)
QUIET = Progress(is_main=False)
OTHERS = ("lm", "scan")  # no task, and one that needs a file


def composed(*words: str) -> Config:
    return validate(from_overrides(words, config_dir=None, plugins=[]))


@cache
def yaml_of(name: str) -> dict[str, Any]:
    return compose.load("task", name, config_dir=None)["task"]


@cache
def some_corpus() -> TaskCorpus:
    corpus = composed("task=copy").corpus
    assert isinstance(corpus, TaskCorpus)
    return corpus


def corpus_of(name: str, **changes: int) -> TaskCorpus:
    """Returns the corpus of a task, with some sizes of its YAML replaced."""
    spec = some_corpus().task.model_copy(update={**yaml_of(name), **changes})
    return some_corpus().model_copy(update={"name": name, "task": spec})


def task_of(name: str) -> Task:
    return task_of_corpus(corpus_of(name))


TASKS = [name for name in compose.choices("task", config_dir=None) if name not in OTHERS]
ADDITIONS = ["addition_padded", "addition_reversed", "addition_reversed_all"]
ALIGNED = sorted([*ADDITIONS, "bitwise_or", "copy", "copy_40", "reverse", "reverse_40"])
LENGTHS = range(1, 41)


def marked(text: str, places: Sequence[int]) -> list[list[tuple[int, str]]]:
    """Returns place and character of each run of characters that have places."""
    found: list[list[tuple[int, str]]] = [[]]
    for place, character in zip(places, text, strict=True):
        if place:
            found[-1].append((place, character))
        elif found[-1]:
            found.append([])
    return [one for one in found if one]


# What tasks say


def test_the_tasks_with_places_are_those_whose_answers_are_aligned_with_their_prompts() -> None:
    assert sorted(name for name in TASKS if task_of(name).has_alignment) == ALIGNED


@pytest.mark.parametrize("name", ADDITIONS)
def test_digits_of_additions_read_at_their_places_are_the_numbers(name: str) -> None:
    rule, random = task_of(name), Random(1)
    for length in LENGTHS:
        prompt, answer = rule.example(length, random)
        text = prompt + answer + END
        runs = marked(text, rule.alignment_ids(text))
        a, b, total = (sum(int(d) * 10 ** (place - 1) for place, d in run) for run in runs)
        written = [one if name != ADDITIONS[2] else one[::-1] for one in prompt[:-1].split("+")]
        assert [a, b] == [int(one) for one in written]
        assert total == a + b


@pytest.mark.parametrize("name", ["copy", "reverse"])
def test_a_character_of_an_answer_has_the_place_of_the_one_that_it_is_copied_from(
    name: str,
) -> None:
    rule, random = task_of(name), Random(1)
    for length in LENGTHS:
        prompt, answer = rule.example(length, random)
        text = prompt + answer + END
        requested, answered = marked(text, rule.alignment_ids(text))
        assert dict(requested) == dict(answered)
        assert [place for place, _ in answered] == [*range(1, length + 1)]


def test_the_first_bits_of_all_three_numbers_have_place_1() -> None:
    rule, random = task_of("bitwise_or"), Random(1)
    for length in LENGTHS:
        prompt, answer = rule.example(length, random)
        text = prompt + answer + END
        runs = marked(text, rule.alignment_ids(text))
        assert ["".join(bit for _, bit in run) for run in runs] == re.findall("[01]+", text)
        assert all(run[0][0] == 1 for run in runs)
        a, b, either = map(dict, runs)
        assert either == {p: max(a.get(p, "0"), b.get(p, "0")) for p in range(1, length + 1)}


@pytest.mark.parametrize("name", ALIGNED)
def test_signs_and_the_end_have_no_place_and_all_else_has_one(name: str) -> None:
    rule, random = task_of(name), Random(2)
    for length in LENGTHS:
        example = rule.example(length, random)
        text = example.prompt + example.answer + END
        places = rule.alignment_ids(text)
        assert len(places) == len(text)
        for place, character in zip(places, text, strict=True):
            assert (place == 0) == (character in f"+|={END}")


@pytest.mark.parametrize("name", ALIGNED)
def test_what_follows_a_prompt_changes_no_place_of_what_is_there(name: str) -> None:
    rule, random = task_of(name), Random(3)
    for length in range(1, 11):
        for _ in range(10):
            prompt, answer = rule.example(length, random)
            n = len(prompt)
            garbage = "".join(random.choices(rule.alphabet + END, k=3 * length))
            for text in (prompt + garbage, prompt + answer + garbage):
                places = rule.alignment_ids(text)
                assert places[:n] == rule.alignment_ids(prompt)
                for stop in range(n, len(text)):
                    assert rule.alignment_ids(text[:stop]) == places[:stop]


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ALIGNED])
def test_a_task_without_places_tells_none(name: str) -> None:
    assert alignment_ids(corpus_of(name)) is None
    rule = task_of(name)
    if type(rule).alignment_ids is Task.alignment_ids:
        text = "".join(rule.example(5, Random(0))) + END
        assert rule.alignment_ids(text) == [0] * len(text)


def test_a_text_corpus_has_no_places() -> None:
    assert alignment_ids(small_config("scheme=rope").corpus) is None


@pytest.mark.parametrize("name", ALIGNED)
def test_tokens_have_the_places_of_their_characters_and_a_first_bos_has_minus_one(
    name: str,
) -> None:
    corpus, rule, random = corpus_of(name), task_of(name), Random(4)
    tokenizer, places = given_tokenizer(corpus, source_of(corpus)), alignment_ids(corpus)
    assert tokenizer is not None
    assert places is not None
    bos = tokenizer.get_vocab_size() - 1
    for length in (1, 2, 7, 20):
        example = rule.example(length, random)
        text = example.prompt + example.answer + END
        tokens, want = tokenizer.encode(text).ids, rule.alignment_ids(text)
        assert places(tokens) == want
        assert places([bos, *tokens]) == [-1, *want]
        assert places([bos]) == [-1]
        again = places([bos, *tokens, bos, *tokens])  # within a text it is like a sign
        assert again[: len(tokens) + 2] == [-1, *want, 0]


# What asks the same


def numbers(name: str, prompt: str) -> tuple[str, ...]:
    """The two numbers of a prompt, in order, without letters that hint at places."""
    text = re.sub("[a-zA-Z]", "", prompt) if name == "addition_hints" else prompt
    return tuple(sorted(re.findall(r"\d+", text)))


@pytest.mark.parametrize(
    "name", [*(name for name in TASKS if name.startswith("addition")), "bitwise_or"]
)
def test_a_sum_and_the_same_sum_in_another_order_are_never_in_training_and_in_tests(
    name: str,
) -> None:
    few = corpus_of(name, length=3, longest=3, examples=4000, examples_per_length=100)
    train, tests = ({one.text[: one.prompt_bytes] for one in split} for split in read_all(few))
    requested = [numbers(name, prompt) for prompt in train]
    assert len(set(requested)) < len(requested)  # both orders are there
    assert len(tests) > 100 or name == "bitwise_or"
    assert len(tests) > 10
    assert not {numbers(name, prompt) for prompt in tests} & set(requested)


# What parts do with them

SHAPE = replace(dims(6, train_length=8), init_std=0.5)
PLACES = torch.tensor([[-1, 2, 1, 0, 1, 0, 1, 2], [-1, 1, 2, 3, 0, 0, 1, 0]])
MAKERS: list[Callable[[], Part]] = [
    lambda: Abacus(SHAPE, rows=40, shift=5),
    lambda: PositionCoupling(SHAPE, rows=2.5),
]
EACH = pytest.mark.parametrize("make", MAKERS, ids=["abacus", "position_coupling"])


def added(
    part: Part,
    alignment_BT: Tensor | None,
    *,
    training: bool,
    seed: int | None = None,
    tokens: Tensor | None = None,
) -> Tensor:
    """Returns what the part adds to embeddings, [B, T, D]."""
    shape = PLACES.shape if alignment_BT is None else alignment_BT.shape
    x = torch.zeros(*shape, SHAPE.d_model)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    c = AttentionContext.of_call(
        SHAPE,
        torch.zeros(shape, dtype=torch.int64) if tokens is None else tokens,
        x,
        training=training,
        generator=generator,
        alignment_BT=alignment_BT,
    )
    return part.embed(x, c).detach()


def table_of(part: Part) -> Tensor:
    assert isinstance(part, Abacus | PositionCoupling)
    return part.table.detach()


def rows_of(part: Part, added_BTD: Tensor) -> Tensor:
    """Returns which row of the table each token has been given; exactly one, unchanged."""
    same = (added_BTD[:, :, None] == table_of(part)).all(-1)
    assert (same.sum(-1) == 1).all()
    return same.int().argmax(-1)


def test_abacus_adds_the_row_of_the_place_and_row_0_to_all_others() -> None:
    part = Abacus(SHAPE, rows=40, shift=5)
    got = rows_of(part, added(part, PLACES, training=False))
    assert got.tolist() == [[0, 2, 1, 0, 1, 0, 1, 2], [0, 1, 2, 3, 0, 0, 1, 0]]


def test_position_coupling_has_a_row_for_each_place_one_for_signs_and_row_0_before_the_text() -> (
    None
):
    part = PositionCoupling(SHAPE, rows=2.5)
    got = rows_of(part, added(part, PLACES, training=False))
    # T / 2 rows on: 4
    assert got.tolist() == [[0, 7, 6, 5, 6, 5, 6, 7], [0, 6, 7, 8, 5, 5, 6, 5]]


@EACH
def test_embeddings_of_tokens_are_kept_beside_what_is_added(make: Callable[[], Part]) -> None:
    part, x = make(), torch.randn(2, 8, SHAPE.d_model)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    c = AttentionContext.of_call(
        SHAPE, tokens, x, training=False, generator=None, alignment_BT=PLACES
    )
    assert torch.equal(part.embed(x, c), x + added(part, PLACES, training=False))


@EACH
def test_without_a_channel_every_token_has_row_0(make: Callable[[], Part]) -> None:
    part = make()
    for training in (False, True):
        assert not rows_of(part, added(part, None, training=training, seed=0)).any()


@EACH
def test_places_are_shifted_in_training_alone_all_of_an_example_by_one_number(
    make: Callable[[], Part],
) -> None:
    part = make()
    plain = rows_of(part, added(part, PLACES, training=False, seed=1))
    assert torch.equal(plain, rows_of(part, added(part, PLACES, training=False)))
    first = plain - PLACES * (PLACES > 0)  # the row before that of place 1
    shifts: list[set[int]] = [set(), set()]
    for seed in range(400):
        moved = rows_of(part, added(part, PLACES, training=True, seed=seed)) - plain + first
        for one in (0, 1):
            (shift,) = set(moved[one][plain[one] > 0].tolist())
            shifts[one].add(shift)
            assert not moved[one][plain[one] == 0].any()
    # Each of 6 or 18 shifts is missed by 400 draws with a probability of 1e-10 at most.
    if isinstance(part, Abacus):
        assert shifts == [set(range(6))] * 2
    else:  # row 20 is the last, and the places go to 2 and 3
        assert shifts == [set(range(1, 19)), set(range(1, 18))]


@EACH
def test_a_shift_does_not_depend_on_how_a_batch_is_divided(make: Callable[[], Part]) -> None:
    part = make()
    tokens = some_tokens(8)
    for seed in range(20):
        whole = added(part, PLACES, training=True, seed=seed, tokens=tokens)
        halves = [
            added(part, PLACES[[i]], training=True, seed=seed, tokens=tokens[[i]]) for i in (0, 1)
        ]
        assert torch.equal(torch.cat(halves), whole)


def numbered(part: PositionCoupling) -> PositionCoupling:
    """Returns the part with rows that are their own numbers."""
    with torch.no_grad():
        part.table.copy_(torch.arange(len(part.table))[:, None].expand_as(part.table))
    return part


def starts(tokens: Tensor, seed: int) -> Tensor:
    """Returns the start of each example, of 1000 that there are."""
    part = numbered(PositionCoupling(replace(SHAPE, train_length=10), rows=100))
    places = torch.zeros_like(tokens)
    return added(part, places, training=True, seed=seed, tokens=tokens)[:, 0, 0].long() - 1


def test_examples_of_a_batch_begin_at_positions_drawn_evenly_and_apart() -> None:
    n = 20_000
    found = starts(some_tokens(10, batch=n), seed=0)
    counts = torch.bincount(found, minlength=1000)
    assert len(counts) == 1000
    chi2 = float(((counts - n / 1000) ** 2 / (n / 1000)).sum())
    assert abs(chi2 - 999) < 5 * (2 * 999) ** 0.5
    # Examples that differ in one token only are unrelated, too: 4.5 sigma of 20,000 draws.
    near = some_tokens(10, batch=1).repeat(2, 1)
    near[1, 4] += 1
    pairs = torch.stack([starts(near, seed) for seed in range(2000)]).double()
    assert abs(float(torch.corrcoef(pairs.T)[0, 1])) < 4.5 / 2000**0.5


def test_an_example_begins_elsewhere_when_it_comes_back() -> None:
    tokens = some_tokens(10, batch=1).repeat(2, 1)
    both = [starts(tokens, seed) for seed in range(50)]
    assert all(torch.equal(one[0], one[1]) for one in both)  # the same in a batch
    assert len({int(one[0]) for one in both}) > 40


@pytest.mark.slow
@pytest.mark.parametrize("task", ["addition_padded", "addition_reversed", "copy", "bitwise_or"])
def test_position_coupling_is_tested_on_the_rows_that_training_visits_most(task: str) -> None:
    config = composed(
        *("scheme=position_coupling", f"task={task}", "task.examples=6000"),
        *("task.examples_per_length=2", "model=tiny"),
    )
    assert isinstance(config.corpus, TaskCorpus)
    corpus, places = config.corpus, alignment_ids(config.corpus)
    tokenizer, T = given_tokenizer(corpus, source_of(corpus)), config.train.length
    assert tokenizer is not None
    assert places is not None
    arguments = config.scheme.parts["position_coupling"]
    part = numbered(PositionCoupling(replace(SHAPE, train_length=T), **arguments))
    bos = tokenizer.get_vocab_size() - 1

    def encoded(texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the tokens, padded as in training; their places; which are no padding."""
        ids = [[bos, *tokenizer.encode(text).ids] for text in texts]
        width = max(map(len, ids))
        tokens = torch.tensor([one + [0] * (width - len(one)) for one in ids])
        sizes = torch.tensor([len(one) for one in ids])
        kept = torch.arange(width) < sizes[:, None]
        return tokens, torch.tensor([places(one) for one in tokens.tolist()]), kept

    train, validation = read_all(corpus)
    tokens, ids, kept = encoded([one.text for one in train])
    visits = torch.zeros(len(part.table), dtype=torch.int64)
    for step in range(1500):  # of batches of 32, as in training
        rows = torch.arange(32 * step, 32 * (step + 1)) % len(tokens)
        found = added(part, ids[rows], training=True, seed=step, tokens=tokens[rows])[..., 0]
        visits += torch.bincount(found.long()[kept[rows]], minlength=len(visits))
    tokens, ids, kept = encoded([one.text for one in validation])
    read = added(part, ids, training=False, tokens=tokens)[..., 0].long()[kept].unique()
    read = read[read > 0]
    assert len(read) > 30
    assert visits[read].min() > 0.8 * visits[1:].max()
    assert visits[1] < 0.5 * visits[1:].max()  # where the release's tests begin


@EACH
def test_training_without_a_generator_is_refused_rather_than_unshifted(
    make: Callable[[], Part],
) -> None:
    with pytest.raises(ValueError, match="call the model with a generator"):
        added(make(), PLACES, training=True)


@EACH
def test_the_longest_text_of_training_never_leaves_the_table(make: Callable[[], Part]) -> None:
    part = make()
    longest = torch.arange(-1, SHAPE.train_length - 1)[None]  # a bos, a sign, and all one number
    used = [rows_of(part, added(part, longest, training=True, seed=n)).max() for n in range(200)]
    assert max(map(int, used)) < len(table_of(part))


@EACH
def test_every_length_that_is_not_called_undefined_has_a_row_for_each_token(
    make: Callable[[], Part],
) -> None:
    part = make()
    defined = [n for n in range(1, 100) if part.unsupported_reason(n) is None]
    assert defined == [*range(1, len(defined) + 1)]
    assert len(defined) == (39 if isinstance(part, Abacus) else 16)  # rows - 1, 2.5 T - T/2
    rows_of(part, added(part, torch.arange(-1, len(defined) - 1)[None], training=False))
    assert "rows" in (part.unsupported_reason(len(defined) + 1) or "")


def test_the_model_hands_the_places_of_its_tokens_to_the_part() -> None:
    config = composed("scheme=abacus", "task=addition_reversed", "model=tiny")
    assert isinstance(config.corpus, TaskCorpus)
    tokenizer = given_tokenizer(config.corpus, source_of(config.corpus))
    assert tokenizer is not None
    model = create(config, vocab_size=tokenizer.get_vocab_size()).eval()
    bos = tokenizer.get_vocab_size() - 1
    texts = {"12+345=753\n": [2, 1, 0, 3, 2, 1, 0, 1, 2, 3, 0]}
    texts["345+12=753\n"] = [3, 2, 1, 0, 2, 1, 0, 1, 2, 3, 0]
    tokens = torch.tensor([[bos, *tokenizer.encode(text).ids] for text in texts])
    x, c = model.embedded(tokens, generator=None, remembered=0)
    places = torch.tensor([[-1, *one] for one in texts.values()])
    assert c.alignment_BT is not None
    assert torch.equal(c.alignment_BT, places)
    part = model.scheme.parts["abacus"]
    assert isinstance(part, Part)
    want = model.embedding(tokens) + table_of(part)[places.clamp(min=0)]
    assert torch.equal(x, want)


def test_a_scheme_that_is_not_told_places_asks_for_none() -> None:
    config = composed("scheme=rope", "task=copy", "model=tiny")
    model = create(config, vocab_size=50)
    _, c = model.embedded(some_tokens(5), generator=None, remembered=0)
    assert c.alignment_BT is None


@pytest.mark.parametrize(
    ("scheme", "word", "message"),
    [
        ("abacus", "rows=127", "rows=127 must be more than T + shift (28 + 99): places up to that"),
        ("abacus", "rows=0", "rows=0 must be more than T + shift (28 + 99)"),
        ("abacus", "shift=-1", "shift: -1 should be greater than or"),
        ("abacus", "shift=996", "rows=1024 must be more than T + shift (28 + 996)"),
        ("abacus", "rows=many", "'many' is not an integer"),
        ("position_coupling", "rows=0.9", "rows: 0.9 should be greater than or equal to 1"),
        ("position_coupling", "rows=-4", "rows: -4 should be greater than or equal to 1"),
    ],
)
def test_a_value_that_a_part_refuses_is_one_line_with_its_key(
    scheme: str, word: str, message: str
) -> None:
    requested = ["task=addition_reversed_all", f"scheme={scheme}", "train.length=28"]
    batch = "train.batch_tokens=896"
    with pytest.raises(UserError) as caught:
        composed(*requested, batch, f"scheme.parts.{scheme}.{word}")
    assert str(caught.value).startswith(f"scheme.parts.{scheme}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "word"),
    [("abacus", "rows=128"), ("abacus", "shift=995"), ("position_coupling", "rows=1")],
)
def test_the_last_value_that_fits_is_taken(scheme: str, word: str) -> None:
    requested = ["task=addition_reversed_all", f"scheme={scheme}", "train.length=28"]
    composed(*requested, "train.batch_tokens=896", f"scheme.parts.{scheme}.{word}")


# Runs

TINY = [
    *("train.precision=fp32", "train.checkpoint_every=1000", "train.lr=0.01", "model.d_model=32"),
    *("model.n_layers=2", "model.n_heads=4", "model.d_ff=64", "runtime.wandb=off"),
    *("runtime.device=cpu", "runtime.threads=1", "task.examples=500"),
    *("task.examples_per_length=10", "train.tokens=100000"),
]
RUNS = {
    "abacus": [
        *("scheme=abacus", "scheme.parts.abacus.rows=32", "scheme.parts.abacus.shift=4"),
        *("task=copy", "task.arguments.alphabet=5", "task.length=4", "task.longest=8"),
        *("eval.lengths=[1,2,4,6,8]", "train.length=10", "train.batch_tokens=640"),
    ],
    "position_coupling": [
        *("scheme=position_coupling", "scheme.parts.position_coupling.rows=2.5"),
        *("task=reverse", "task.arguments.alphabet=5", "task.length=4", "task.longest=8"),
        *("eval.lengths=[1,2,4,6,8]", "train.length=10", "train.batch_tokens=640"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_decoding_with_kept_keys_writes_what_one_pass_over_the_right_answers_says(
    name: str, tmp_path: Path
) -> None:
    config = composed(*RUNS[name], *TINY, f"runtime.root={tmp_path}")
    train_and_evaluate(config, ranks=ALONE, show=QUIET)
    rows = evaluate(config, config.run_dir, ranks=ALONE, show=QUIET)
    one = open_trained(config, config.run_dir, variant=None, show=QUIET)
    assert why_uncached(one.model.scheme) is None
    split = one.corpus.validation
    assert one.corpus.bos_id is not None
    n_right = n_wrong = 0
    for found in rows:
        decoded: list[int | None] = []
        for span in spans(Cell("answers", None, found["length"]), one.planned):
            tokens, given = (
                split.document(span.document).tolist(),
                split.prompt_length(span.document),
            )
            prompt, right = [one.corpus.bos_id, *tokens[:given]], tokens[given:]
            how: dict[str, Any] = {"limit": len(right), "end": one.end, "temperature": 0, "seed": 0}
            got = continuation(one.model, prompt, precision="fp32", **how)
            both = zip(got, right, strict=False)
            decoded.append(next((n for n, (a, b) in enumerate(both) if a != b), None))
        assert decoded == found["first_wrong"]
        n_right += decoded.count(None)
        n_wrong += len(decoded) - decoded.count(None)
    assert len(rows) == 5
    assert n_right > 5  # so that the test can fail both ways
    assert n_wrong > 5


@pytest.mark.parametrize("name", RUNS)
def test_how_a_step_is_divided_changes_no_start(name: str, tmp_path: Path) -> None:
    config = composed(*RUNS[name], *TINY, f"runtime.root={tmp_path}")
    corpus = corpora.load(config.corpus, cache_dir=tmp_path, say=QUIET.say)
    windows = training_windows(corpus, config.train.length)
    losses: list[float] = []
    for size in (64, 5, 1):
        runtime = config.runtime.model_copy(update={"micro_batch": size})
        divided = config.model_copy(update={"runtime": runtime})
        state = fresh_state(
            divided, create(divided, vocab_size=corpus.vocab_size), device=torch.device("cpu")
        )
        how: dict[str, Any] = {"ranks": ALONE, "forward": state.model}
        losses += [train_step(state, windows, **how).nats for _ in range(2)]
    assert losses[:2] == pytest.approx(losses[2:4], rel=1e-6)
    assert losses[:2] == pytest.approx(losses[4:], rel=1e-6)


@pytest.mark.parametrize("scheme", ["abacus", "position_coupling"])
@pytest.mark.parametrize("corpus", ["synthetic", "sort", "copy_2x"])
def test_training_where_nothing_tells_the_places_is_refused_before_a_run_is_written(
    scheme: str, corpus: str, tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    words = [f"scheme={scheme}", f"runtime.root={root}", "runtime.device=cpu", "runtime.wandb=off"]
    config = small_config(*words)
    if corpus != "synthetic":
        config = composed(f"task={corpus}", *words)
    with pytest.raises(UserError) as caught:
        train_and_evaluate(config, ranks=ALONE, show=QUIET)
    message = str(caught.value)
    assert message.startswith(f"scheme.parts.{scheme}: needs to know which characters belong ")
    assert f"corpus={corpus} does not define it; use task=" in message
    assert "\n" not in message
    assert not root.exists()


def test_every_task_that_the_refusal_offers_has_places(tmp_path: Path) -> None:
    config = small_config("scheme=abacus", f"runtime.root={tmp_path}")
    with pytest.raises(UserError) as caught:
        train_and_evaluate(config, ranks=ALONE, show=QUIET)
    offered = str(caught.value).split("task=")[1].removesuffix(", or another scheme")
    names = re.split(", | or ", offered)
    assert len(names) > 1
    assert set(names) <= set(ALIGNED)


# Reports

L = 4


def answered(task: str, scheme: str, *, right: int, length: int) -> dict[str, Any]:
    """The row of a length of which `right` of 10 tests are answered right."""
    wrong = [None] * right + [0] * (10 - right)
    names = {"run": f"{scheme}-tiny-{task}-s1-0a0a0a0a", "scheme": scheme, "corpus": task}
    sizes = {"reach": 0, "n_documents": 1, "n_tokens": 30, "n_bytes": 0, "n_windows": 10}
    found = {"first_wrong": wrong, "token_hits": 3 * right, "stop_errors": 0}
    fixed = {"document": "10 examples", "protocol": "answers", "targets": None}
    return row(train_length=L, length=length, **names, **sizes, **found, **fixed)


def reported(right: Mapping[str, Sequence[int]]) -> task_tables.TaskReport:
    """The report of copy and reverse: of each scheme, the answers that are right in both."""
    rows: list[dict[str, Any]] = []
    configs: dict[str, dict[str, Any]] = {}
    for scheme, both in right.items():
        for task, n in zip(("copy", "reverse"), both, strict=True):
            rows += [
                answered(task, scheme, right=right, length=at) for right, at in ((10, L), (n, 5))
            ]
            arguments = {"alphabet": 5, **({"times": 1} if task == "copy" else {})}
            spec = {"name": task, "kind": task, "arguments": arguments}
            parts = {"name": scheme, "parts": {scheme: {}}}
            configs[rows[-1]["run"]] = {"seed": 1, "corpus": {"task": spec}, "scheme": parts}
    records = [
        RunRecord(
            run=run,
            config=config,
            task=task_facts(config),
            rows=[dict(row) for row in rows if row["run"] == run],
        )
        for run, config in configs.items()
    ]
    return collect.gather_tasks(records)


PLAIN = {"alibi": (5, 6), "rope": (7, 2)}
BOUNDS = {"abacus": (10, 9), "position_coupling": (1, 10)}


def notes(table: Table) -> str:
    return " ".join(table.notes)


def test_series_that_are_told_places_are_named_upper_bounds() -> None:
    report = reported(PLAIN | BOUNDS)
    for found in report.by_task.values():
        bounds = {one.series.label for one in found if one.series.bound}
        assert bounds == {name + UPPER_BOUND for name in BOUNDS}
        assert {one.series.label for one in found} - bounds == set(PLAIN)
    assert UPPER_BOUND == " (upper bound)"


def test_a_bound_is_shown_but_neither_bold_nor_ranked_and_a_note_says_so() -> None:
    matrix, *tables = task_tables.contents(reported(PLAIN | BOUNDS))
    rows = {line[0].text: line[1:] for line in matrix.rows}
    assert [cell.text for cell in rows["abacus (upper bound)"]] == ["100.0", "90.0", "-"]
    assert [cell.text for cell in rows["position_coupling (upper bound)"]] == ["10.0", "100.0", "-"]
    assert {name for name, line in rows.items() for cell in line if cell.mark} == set(PLAIN)
    assert (rows["rope"][0].mark, rows["alibi"][1].mark) == ("best", "best")
    assert f"{task_tables.BOUND}; neither compared nor ranked." in matrix.notes
    assert all(task_tables.BOUND in notes(table) for table in tables)
    assert len(tables) == 2


def test_the_others_are_marked_and_ranked_as_without_bounds() -> None:
    matrix, *_ = task_tables.contents(reported(PLAIN | BOUNDS))
    alone, *tables = task_tables.contents(reported(PLAIN))
    assert [line for line in matrix.rows if line[0].text in PLAIN] == list(alone.rows)
    assert alone.rows[0][-1].text != "-"
    assert all(task_tables.BOUND not in notes(table) for table in (alone, *tables))


def test_bounds_alone_have_no_best_and_no_ranks() -> None:
    matrix, *_ = task_tables.contents(reported(BOUNDS))
    assert len(matrix.rows) == 2
    assert {cell.mark for line in matrix.rows for cell in line[1:-1]} == {"faint"}
    assert [line[-1].text for line in matrix.rows] == ["-", "-"]
