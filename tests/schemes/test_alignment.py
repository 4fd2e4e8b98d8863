"""Abacus and position coupling: which rows the tokens of an example get, and how they are drawn."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from small import dims, some_tokens
from torch import Tensor

from lengthgen.config.schema import TaskCorpus, from_overrides
from lengthgen.data.sources import source_of
from lengthgen.data.tokenizer import given_tokenizer
from lengthgen.model.build import create
from lengthgen.schemes import AttentionContext
from lengthgen.schemes.absolute.abacus import Abacus
from lengthgen.schemes.absolute.alignment import Aligned
from lengthgen.schemes.absolute.position_coupling import PositionCoupling

SHAPE = replace(dims(6, train_length=8), init_std=0.5)
PLACES = torch.tensor([[-1, 2, 1, 0, 1, 0, 1, 2], [-1, 1, 2, 3, 0, 0, 1, 0]])
MAKERS: list[Callable[[], Aligned]] = [
    lambda: Abacus(SHAPE, rows=40, shift=5),
    lambda: PositionCoupling(SHAPE, rows=2.5),
]
EACH = pytest.mark.parametrize("make", MAKERS, ids=["abacus", "position_coupling"])


def added(
    part: Aligned,
    places_BT: Tensor | None,
    *,
    training: bool,
    seed: int | None = None,
    tokens: Tensor | None = None,
) -> Tensor:
    """Returns what the part adds to embeddings, [B, T, D]."""
    tokens = (
        torch.zeros_like(PLACES if places_BT is None else places_BT) if tokens is None else tokens
    )
    rows = iter([] if places_BT is None else places_BT.tolist())

    def ids(row: Sequence[int]) -> list[int]:
        return next(rows)

    part.alignment_ids = None if places_BT is None else ids
    x = torch.zeros(*tokens.shape, SHAPE.d_model)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    c = AttentionContext.of_call(SHAPE, tokens, x, training=training, generator=generator)
    return part.embed(x, c).detach()


def rows_of(part: Aligned, added_BTD: Tensor) -> Tensor:
    """Returns which row of the table each token has been given; exactly one, unchanged."""
    assert isinstance(part, Abacus | PositionCoupling)
    same = (added_BTD[:, :, None] == part.table.detach()).all(-1)
    assert (same.sum(-1) == 1).all()
    return same.int().argmax(-1)


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (MAKERS[0], [[0, 2, 1, 0, 1, 0, 1, 2], [0, 1, 2, 3, 0, 0, 1, 0]]),  # row 0: no place
        (MAKERS[1], [[0, 7, 6, 5, 6, 5, 6, 7], [0, 6, 7, 8, 5, 5, 6, 5]]),  # T / 2 = 4 rows on
    ],
)
def test_tokens_have_the_row_of_their_place(
    make: Callable[[], Aligned], want: list[list[int]]
) -> None:
    part = make()
    assert rows_of(part, added(part, PLACES, training=False)).tolist() == want
    assert not rows_of(part, added(part, None, training=False)).any()


@EACH
def test_places_are_shifted_in_training_alone_all_of_an_example_by_one_number(
    make: Callable[[], Aligned],
) -> None:
    part = make()
    plain = rows_of(part, added(part, PLACES, training=False, seed=1))
    first = plain - PLACES * (PLACES > 0)  # the row before that of place 1
    shifts: list[set[int]] = [set(), set()]
    for seed in range(400):
        moved = rows_of(part, added(part, PLACES, training=True, seed=seed)) - plain + first
        for i in (0, 1):
            (shift,) = set(moved[i][plain[i] > 0].tolist())
            shifts[i].add(shift)
            assert not moved[i][plain[i] == 0].any()
    # Each of 6 or 18 shifts is missed by 400 draws with a probability of 1e-10 at most.
    if isinstance(part, Abacus):
        assert shifts == [set(range(6))] * 2
    else:  # row 20 is the last, and the places go to 2 and 3
        assert shifts == [set(range(1, 19)), set(range(1, 18))]
    with pytest.raises(ValueError, match="call the model with a generator"):
        added(part, PLACES, training=True)


@EACH
def test_a_shift_does_not_depend_on_how_a_batch_is_divided(make: Callable[[], Aligned]) -> None:
    part, tokens = make(), some_tokens(8)
    for seed in range(20):
        together = added(part, PLACES, training=True, seed=seed, tokens=tokens)
        apart = [
            added(part, PLACES[[i]], training=True, seed=seed, tokens=tokens[[i]]) for i in (0, 1)
        ]
        assert torch.equal(torch.cat(apart), together)


def starts(tokens: Tensor, seed: int) -> Tensor:
    """Returns the start of each example, of 1000 that there are."""
    part = PositionCoupling(replace(SHAPE, train_length=10), rows=100)
    with torch.no_grad():
        part.table.copy_(torch.arange(len(part.table))[:, None].expand_as(part.table))
    places = torch.zeros_like(tokens)
    return added(part, places, training=True, seed=seed, tokens=tokens)[:, 0, 0].long() - 1


def test_examples_of_a_batch_begin_at_positions_drawn_evenly_and_apart() -> None:
    n = 20_000
    counts = torch.bincount(starts(some_tokens(10, batch=n), seed=0), minlength=1000)
    assert len(counts) == 1000
    chi2 = float(((counts - n / 1000) ** 2 / (n / 1000)).sum())
    assert abs(chi2 - 999) < 5 * (2 * 999) ** 0.5
    # Examples that differ in one token only are unrelated, too: 4.5 sigma of 20,000 draws.
    near = some_tokens(10, batch=1).repeat(2, 1)
    near[1, 4] += 1
    pairs = torch.stack([starts(near, seed) for seed in range(2000)]).double()
    assert abs(float(torch.corrcoef(pairs.T)[0, 1])) < 4.5 / 2000**0.5
    assert len(pairs[:, 0].unique()) > 800  # an example begins elsewhere when it comes back


@EACH
def test_every_length_that_is_not_called_undefined_has_a_row_for_each_token(
    make: Callable[[], Aligned],
) -> None:
    part = make()
    n = 39 if isinstance(part, Abacus) else 16  # rows - 1, 2.5 T - T/2
    assert part.unsupported_reason(n) is None
    assert part.unsupported_reason(n + 1) is not None
    places = torch.arange(-1, n - 1)[None]
    assert rows_of(part, added(part, places, training=False)).shape == (1, n)


def test_a_model_gives_the_part_the_places_that_its_task_says() -> None:
    words = ["scheme=abacus", "task=addition_reversed", "model=tiny"]
    config = from_overrides(words, config_dir=None, plugins=[])
    assert isinstance(config.corpus, TaskCorpus)
    tokenizer = given_tokenizer(config.corpus, source_of(config.corpus))
    assert tokenizer is not None
    bos = tokenizer.get_vocab_size() - 1
    model = create(config, vocab_size=bos + 1).eval()
    texts = {"12+345=753\n": [2, 1, 0, 3, 2, 1, 0, 1, 2, 3, 0]}
    texts["345+12=753\n"] = [3, 2, 1, 0, 2, 1, 0, 1, 2, 3, 0]
    tokens = torch.tensor([[bos, *tokenizer.encode(text).ids] for text in texts])
    places = torch.tensor([[0, *row] for row in texts.values()])
    part = model.scheme.parts["abacus"]
    assert isinstance(part, Abacus)
    x_BTD, _ = model.embedded(tokens, generator=None)
    assert torch.equal(x_BTD, model.embedding(tokens) + part.table[places])
