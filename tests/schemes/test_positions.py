"""Positions in embeddings, random ones, those of a task; layers and variants of a scheme."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from repository import published
from small import close, context, create, dims, small_config, small_model, some_tokens
from torch import Tensor

from lengthgen import schemes
from lengthgen.data.tokenizer import given_tokenizer
from lengthgen.errors import UserError
from lengthgen.experiment import resolve
from lengthgen.schemes import AttentionContext
from lengthgen.schemes.absolute.abacus import Abacus
from lengthgen.schemes.absolute.alignment import Aligned
from lengthgen.schemes.absolute.learned_absolute import LearnedAbsolute
from lengthgen.schemes.absolute.position_coupling import PositionCoupling
from lengthgen.schemes.absolute.randomized import Randomized
from lengthgen.schemes.absolute.sinusoidal import Sinusoidal

SHAPE = dims(train_length=4)


@pytest.mark.parametrize("case", published("sinusoids"))
def test_sinusoids_are_those_of_each_layout(case: dict[str, Any]) -> None:
    layout, position = case["layout"], case["position"]
    part = Sinusoidal(SHAPE, base=1e4, layout=layout, scale=1.0)
    got = part.table(torch.tensor([position]), torch.float64)[0]
    # fairseq ran in fp32: its angle at position p is off by up to p * 2^-24.
    atol = 2e-6 + (position * 2**-24 if layout == "concat_t2t" else 0)
    close(got, torch.tensor(case["want"], dtype=torch.float64), atol=atol)


def test_published_sinusoids_are_added_to_embeddings_of_size_1_up_to_a_common_factor() -> None:
    config = small_config("scheme=sinusoidal", "scheme.parts.sinusoidal.scale=published")
    model = create(config, vocab_size=50).double()
    (part,) = model.scheme.all
    assert isinstance(part, Sinusoidal)
    c = context(model, 9, dtype=torch.float64)
    for factor in (1.0, 6.0):  # the embeddings grow
        with torch.no_grad():
            model.embedding.weight *= factor
        size = model.embedding.weight.detach().square().mean().sqrt()
        want = c.x_BTD / size + part.table(torch.arange(9), torch.float64)
        close(part.embed(c.x_BTD, c) / size, want, atol=1e-12)


def test_a_learned_scale_of_sinusoids_is_that_of_match_at_first_and_is_trained() -> None:
    config = small_config("scheme=sinusoidal", "scheme.parts.sinusoidal.scale=learned")
    model = create(config, vocab_size=50)
    (part,) = model.scheme.all
    assert isinstance(part, Sinusoidal)
    c = context(model, 9, dtype=torch.float32)
    match = Sinusoidal(model.shape, base=1e4, layout="interleaved", scale="match")
    close(part.embed(c.x_BTD, c), match.embed(c.x_BTD, c), atol=0)
    part.embed(c.x_BTD, c).sum().backward()
    [scale] = part.parameters()
    assert scale.grad is not None
    n_texts = len(c.x_BTD)
    close(scale.grad, n_texts * part.table(c.pos, c.dtype).sum(), atol=1e-3)


@pytest.mark.parametrize(
    ("beyond", "want"),
    [  # T = 4, L = 8; interpolate resamples at p * 3/7
        ("clamp", [0, 1, 2, 3, 3, 3, 3, 3]),
        ("wrap", [0, 1, 2, 3, 0, 1, 2, 3]),
        ("interpolate", [p * 3 / 7 for p in range(8)]),
    ],
)
def test_learned_rows_continue_past_t_as_they_say(beyond: str, want: list[float]) -> None:
    part = LearnedAbsolute(SHAPE, beyond=beyond).double()  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        part.table.copy_(torch.arange(4, dtype=torch.float64)[:, None].expand(4, 8))
    got = part.lookup(torch.arange(8), 8)[:, 0]
    close(got, torch.tensor(want, dtype=torch.float64), atol=1e-12)
    assert torch.equal(part.lookup(torch.arange(4), 4), part.table)


def test_layers_are_cycled_and_name_the_parts_that_act_in_each() -> None:
    words = ["+scheme.parts.alibi.beyond=extend", "scheme.layers=[[rope],[alibi],[]]"]
    asked, shape = small_config("scheme=rope", *words).scheme, dims(n_layers=5, n_heads=4)
    built = schemes.Design(shape=shape, layers=asked.layers).with_parts(asked.parts).build()
    acting = [(len(layer.qk), len(layer.bias)) for layer in built.layers]
    assert acting == [(1, 0), (0, 1), (0, 0), (1, 0), (0, 1)]


def test_variants_merge_in_order_drop_parts_and_change_arguments() -> None:
    config = small_config(
        "scheme=rope",
        "+scheme.variants.slow={rope: {base: 500000}}",
        "+scheme.variants.biased={alibi: {beyond: extend}}",
        "+scheme.variants.bare={rope: null}",
        "+variants.fast={rope: {base: 700}}",
    )
    assert config.variant("slow+biased") == {
        "rope": {"base": 500000, "rotary_percentage": 1.0, "layout": "half"},
        "alibi": {"beyond": "extend"},
    }
    assert config.variant("biased+bare") == {"alibi": {"beyond": "extend"}}
    assert [config.variant(v)["rope"]["base"] for v in ("slow+fast", "fast+slow")] == [700, 500000]
    for name, near in {"slwo": r"'slwo'; did you mean slow\?", "slow+": "''"}.items():
        with pytest.raises(UserError, match=f"no variant {near}"):
            config.variant(name)


SMALL = small_config().shape  # T = 16
Evaluation = Literal["random", "arange", "linspace"]


def draw(length: int, seed: int, *, training: bool = False, **changed: Any) -> Tensor:
    given: dict[str, Any] = {"maximum": 32, "evaluation": "random", **changed}
    part = Randomized(SMALL, **given)
    tokens, x = torch.zeros(2, length, dtype=torch.long), torch.zeros(2, length, SMALL.d_model)
    generator = torch.Generator().manual_seed(seed)
    c = AttentionContext.of_call(SMALL, tokens, x, training=training, generator=generator)
    return part.positions(tokens, c)


def test_positions_are_distinct_sorted_and_below_the_maximum() -> None:
    for seed in range(20):
        pos = draw(40, seed)
        assert pos.dtype == torch.int64
        assert pos.shape == (40,)
        assert (pos.diff() > 0).all()
        assert pos[0] >= 0
        assert pos[-1] < 512
    assert torch.equal(draw(512, 0), torch.arange(512))


@pytest.mark.parametrize(
    ("evaluation", "want"),
    [("arange", [0, 1, 2, 3, 4, 5, 6]), ("linspace", [0, 5, 10, 15, 20, 25, 31])],  # 31 i // 6
)
def test_evaluation_may_have_positions_of_its_own(evaluation: Evaluation, want: list[int]) -> None:
    assert draw(7, 0, maximum=2, evaluation=evaluation).tolist() == want
    drawn = draw(7, 0, maximum=2, evaluation=evaluation, training=True)
    assert torch.equal(drawn, draw(7, 0, maximum=2))
    assert draw(1, 0, evaluation=evaluation).tolist() == [0]
    longest = draw(32, 0, maximum=2, evaluation=evaluation)
    assert torch.equal(longest, torch.arange(32))


@pytest.mark.parametrize("evaluation", ["random", "linspace"])
def test_a_call_longer_than_the_maximum_has_no_positions(evaluation: Evaluation) -> None:
    part = Randomized(SMALL, maximum=2, evaluation=evaluation)
    assert part.unsupported_reason(32) is None
    assert part.unsupported_reason(33) == "randomized has 32 positions"
    with pytest.raises(ValueError, match=r"33 tokens, but randomized has 32 positions"):
        draw(33, 0, maximum=2, evaluation=evaluation)


def test_a_model_that_draws_refuses_to_do_without_a_generator() -> None:
    with pytest.raises(ValueError, match=r"randomized draws positions; .* with a generator"):
        small_model("randomized_rope")(some_tokens(8))
    model = small_model("randomized_rope", "arange").eval()
    assert model(some_tokens(8)).shape == (2, 8, 32)


TASK_SHAPE = replace(dims(6, train_length=8), init_std=0.5)
PLACES = torch.tensor([[-1, 2, 1, 0, 1, 0, 1, 2], [-1, 1, 2, 3, 0, 0, 1, 0]])
MAKERS: list[Callable[[], Aligned]] = [
    lambda: Abacus(TASK_SHAPE, rows=40, shift=5),
    lambda: PositionCoupling(TASK_SHAPE, rows=2.5),
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
    if tokens is None:
        tokens = torch.zeros_like(PLACES if places_BT is None else places_BT)
    places: list[list[int]] = [] if places_BT is None else places_BT.tolist()
    rows = iter(places)
    part.alignment_ids = None if places_BT is None else lambda _row: next(rows)
    x = torch.zeros(*tokens.shape, TASK_SHAPE.d_model)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    c = AttentionContext.of_call(TASK_SHAPE, tokens, x, training=training, generator=generator)
    return part.embed(x, c).detach()


def rows_of(part: Aligned, added_BTD: Tensor) -> Tensor:
    """Returns which row of the table each token has been given; exactly one, unchanged."""
    assert isinstance(part, Abacus | PositionCoupling)
    same = (added_BTD[:, :, None] == part.table.detach()).all(-1)
    assert (same.sum(-1) == 1).all()
    return same.int().argmax(-1)


@EACH
def test_tokens_have_the_row_of_their_place(make: Callable[[], Aligned]) -> None:
    part, want = make(), PLACES.clamp(min=0)  # row 0: no place
    if isinstance(part, PositionCoupling):
        want = torch.where(PLACES < 0, 0, PLACES + 5)  # T / 2 = 4 rows on
    assert torch.equal(rows_of(part, added(part, PLACES, training=False)), want)
    assert not rows_of(part, added(part, None, training=False)).any()


@EACH
def test_places_are_shifted_in_training_alone_by_one_number(make: Callable[[], Aligned]) -> None:
    part = make()
    plain = rows_of(part, added(part, PLACES, training=False, seed=1))
    first = plain - PLACES * (PLACES > 0)  # the row before that of place 1
    shifts: list[set[int]] = [set(), set()]
    for seed in range(150):
        moved = rows_of(part, added(part, PLACES, training=True, seed=seed)) - plain + first
        for i in (0, 1):
            (shift,) = set(moved[i][plain[i] > 0].tolist())
            shifts[i].add(shift)
            assert not moved[i][plain[i] == 0].any()
    # 150 draws miss none of 6 or 18 shifts
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
        how: Any = {"training": True, "seed": seed}
        apart = [added(part, PLACES[[i]], tokens=tokens[[i]], **how) for i in (0, 1)]
        assert torch.equal(torch.cat(apart), together)


def starts(tokens: Tensor, seed: int) -> Tensor:
    """Returns the start of each example, of 1000 that there are."""
    part = PositionCoupling(replace(TASK_SHAPE, train_length=10), rows=100)
    with torch.no_grad():
        part.table.copy_(torch.arange(len(part.table))[:, None].expand_as(part.table))
    places = torch.zeros_like(tokens)
    return added(part, places, training=True, seed=seed, tokens=tokens)[:, 0, 0].long() - 1


def test_examples_of_a_batch_begin_at_positions_drawn_evenly_and_apart() -> None:
    n = 10_000
    counts = torch.bincount(starts(some_tokens(10, batch=n), seed=0), minlength=1000)
    assert len(counts) == 1000
    chi2 = float(((counts - n / 1000) ** 2 / (n / 1000)).sum())
    assert abs(chi2 - 999) < 5 * (2 * 999) ** 0.5
    # Examples that differ in one token only are unrelated, too: 4.5 sigma of 1000 draws.
    near = some_tokens(10, batch=1).repeat(2, 1)
    near[1, 4] += 1
    pairs = torch.stack([starts(near, seed) for seed in range(1000)]).double()
    assert abs(float(torch.corrcoef(pairs.T)[0, 1])) < 4.5 / 1000**0.5
    assert len(pairs[:, 0].unique()) > 600  # an example begins elsewhere when it comes back


@EACH
def test_every_defined_length_has_a_row_for_each_token(make: Callable[[], Aligned]) -> None:
    part = make()
    n = 39 if isinstance(part, Abacus) else 16  # rows - 1, 2.5 T - T/2
    assert part.unsupported_reason(n) is None
    assert part.unsupported_reason(n + 1) is not None
    places = torch.arange(-1, n - 1)[None]
    assert rows_of(part, added(part, places, training=False)).shape == (1, n)


def test_a_model_gives_the_part_the_places_that_its_task_says() -> None:
    experiment = resolve(["scheme=abacus", "task=addition_reversed", "model=tiny"])
    tokenizer = given_tokenizer(experiment.config.corpus, experiment.source)
    assert tokenizer is not None
    bos = tokenizer.get_vocab_size() - 1
    model = experiment.create(vocab_size=bos + 1).eval()
    texts = {"12+345=753\n": [2, 1, 0, 3, 2, 1, 0, 1, 2, 3, 0]}
    texts["345+12=753\n"] = [3, 2, 1, 0, 2, 1, 0, 1, 2, 3, 0]
    tokens = torch.tensor([[bos, *tokenizer.encode(text).ids] for text in texts])
    places = torch.tensor([[0, *row] for row in texts.values()])
    part = model.scheme.parts["abacus"]
    assert isinstance(part, Abacus)
    x_BTD, _ = model.embedded(tokens, generator=None)
    assert torch.equal(x_BTD, model.embedding(tokens) + part.table[places])
