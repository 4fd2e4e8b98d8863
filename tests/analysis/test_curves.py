"""statistics: hand-worked sums, and what is refused."""

import math
import random

import pytest
from eval_rows import NOTHING, Row, cell, row

from lengthgen.analysis.curves import Point, comparable, context_gain, curve
from lengthgen.errors import UserError


def only(rows: list[Row]) -> Point:
    (point,) = curve(rows)
    return point


# Documents of 2 and 6 tokens with 3 and 4 nats: 7/8 nats per token, not the mean of 3/2 and 4/6.
TWO_DOCUMENTS = [
    row(document="a", nats=3.0, n_tokens=2, n_bytes=7),
    row(document="b", nats=4.0, n_tokens=6, n_bytes=13),
]


def test_loss_is_the_sum_of_nats_over_the_sum_of_tokens() -> None:
    assert only(TWO_DOCUMENTS).loss == 7 / 8


def test_perplexity_is_the_exponential_of_the_loss() -> None:
    assert only(TWO_DOCUMENTS).ppl == math.exp(7 / 8)


def test_bits_per_byte_divides_bits_by_bytes() -> None:
    bits_per_byte = only(TWO_DOCUMENTS).bits_per_byte
    assert bits_per_byte == pytest.approx(7 / math.log(2) / 20, rel=1e-15)


def test_a_point_counts_its_tokens_and_documents() -> None:
    point = only(TWO_DOCUMENTS)
    assert (point.n_tokens, point.n_documents) == (8, 2)


def test_uniform_logits_give_the_vocabulary_size_as_perplexity() -> None:
    counts, vocab_size = (17, 256, 1023), 4096
    rows = [
        row(document=str(n), n_documents=3, nats=n * math.log(vocab_size), n_tokens=n)
        for n in counts
    ]
    assert only(rows).ppl == pytest.approx(vocab_size, rel=1e-13)  # exp of a rounded logarithm


def test_the_order_of_rows_changes_no_bit() -> None:
    dice = random.Random(0)
    rows = [
        row(document=str(i), n_documents=99, nats=dice.lognormvariate(0, 9), length=n)
        for i in range(99)
        for n in (512, 1024)
    ]
    shuffled = dice.sample(rows, len(rows))
    assert curve(shuffled) == curve(rows)


def test_a_document_split_in_two_leaves_the_point_as_it_was() -> None:
    whole = only(TWO_DOCUMENTS)
    split = only(
        [
            row(document="a", n_documents=3, nats=3.0, n_tokens=2, n_bytes=7),
            row(document="b1", n_documents=3, nats=1.0, n_tokens=5, n_bytes=6),
            row(document="b2", n_documents=3, nats=3.0, n_tokens=1, n_bytes=7),
        ]
    )
    assert (split.loss, split.bits_per_byte) == (whole.loss, whole.bits_per_byte)


def test_a_cell_without_all_its_documents_is_left_out() -> None:
    assert curve([row(document="a", n_documents=2)]) == []


def test_of_a_cell_computed_twice_the_last_rows_count() -> None:
    assert only([*cell(80.0, 80.0), *cell(8.0, 24.0)]).loss == 2.0


@pytest.mark.parametrize(
    "change",
    [
        {"run": "rope-tiny-toy-s2-0b0b0b0b"},
        {"protocol": "nonoverlap"},
        {"variant": "yarn"},
        {"targets": 2},
        {"precision": "bf16"},
        {"endpoints": "ba9876543210"},
        {"tokens_seen": 8192},
        {"length": 2048},
    ],
    ids=lambda change: next(iter(change)),
)
def test_rows_of_different_cells_are_never_added(change: Row) -> None:
    points = curve([*cell(8.0), *cell(16.0, **change)])
    assert sorted(p.loss or 0 for p in points) == [1.0, 2.0]


def test_a_skipped_cell_is_a_point_with_its_reason_and_no_number() -> None:
    point = only([row(**NOTHING, skipped="512 rows")])
    assert (point.loss, point.ppl, point.skipped) == (None, None, "512 rows")


def test_text_without_bytes_has_no_bits_per_byte() -> None:
    assert only([row(n_documents=1, n_bytes=0)]).bits_per_byte is None


def test_a_loss_beyond_a_float_has_an_infinite_perplexity() -> None:
    assert only(cell(8 * 1000.0)).ppl == math.inf


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nats", math.nan),
        ("nats", math.inf),
        ("nats", -1.0),
        ("n_tokens", -1),
        ("n_tokens", 1.5),
        ("n_bytes", "16"),
        ("seed", None),
    ],
)
def test_an_impossible_value_is_refused_with_run_and_field(field: str, value: object) -> None:
    with pytest.raises(UserError, match=f"rope-tiny-toy-s1-0a0a0a0a: field {field} is {value!r}"):
        curve([row(**{field: value})])


@pytest.mark.parametrize("field", ["nats", "n_tokens", "length", "endpoints", "document"])
def test_a_missing_field_is_refused_with_run_and_field(field: str) -> None:
    damaged = row()
    del damaged[field]
    with pytest.raises(UserError, match=f"rope-tiny-toy-s1-0a0a0a0a: field {field} is missing"):
        curve([damaged])


def test_a_field_that_pydantic_takes_for_its_own_is_refused() -> None:
    with pytest.raises(UserError, match="a field that no row has"):
        curve([row(__dataclass_self__=1)])


def test_a_row_that_neither_scores_nor_skips_is_refused() -> None:
    with pytest.raises(UserError, match="neither document nor skipped"):
        curve([row(document=None)])


def test_rows_of_one_cell_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UserError, match="field n_documents is 2 and 3 in one cell"):
        curve([row(document="a", n_documents=2), row(document="b", n_documents=3)])


def test_a_cell_that_scored_no_token_is_refused() -> None:
    with pytest.raises(UserError, match="field n_tokens is 0 in all rows of length 1024"):
        curve([row(n_documents=1, nats=0.0, n_tokens=0)])


def test_context_gain_is_the_loss_at_T_minus_the_loss_at_C() -> None:
    rows = [*cell(16.0, length=512), *cell(12.0, length=1024), *cell(20.0, length=2048)]
    gains = {gain.point.length: gain.nats for gain in context_gain(curve(rows))}
    assert gains == {512: 0.0, 1024: 0.5, 2048: -0.5}


def test_the_ratio_to_T_is_that_of_the_perplexities() -> None:
    points = curve([*cell(16.0, length=512), *cell(20.0, length=2048)])
    at_T, beyond = (point.ppl or 0 for point in points)
    ratio = context_gain(points)[-1].ratio
    assert ratio == pytest.approx(beyond / at_T, rel=1e-13)  # exp of a difference


def test_curves_gain_against_their_own_loss_at_T() -> None:
    rows = [
        row
        for run, at_T in (("x", 8.0), ("y", 80.0))
        for length, more in ((512, 0.0), (1024, 8.0))
        for row in cell(at_T + more, run=run, length=length)
    ]
    assert [gain.nats for gain in context_gain(curve(rows))] == [0.0, -1.0, 0.0, -1.0]


def test_other_protocols_have_no_context_gain_since_their_targets_differ() -> None:
    rows = [*cell(8.0, length=512, protocol="nonoverlap"), *cell(8.0, protocol="nonoverlap")]
    assert context_gain(curve(rows)) == []


def test_a_curve_without_T_has_no_context_gain() -> None:
    assert context_gain(curve(cell(8.0, length=1024))) == []


def test_the_newest_checkpoint_of_each_run_is_kept() -> None:
    points = curve([*cell(8.0, tokens_seen=4096), *cell(16.0, tokens_seen=8192)])
    assert [p.tokens_seen for p in comparable(points)] == [8192]


def test_runs_on_different_tokens_are_refused_by_name() -> None:
    points = curve([*cell(8.0, run="x"), *cell(8.0, run="y", fingerprint="e" * 64)])
    with pytest.raises(UserError, match="runs x and y were measured on different tokens"):
        comparable(points)


def test_runs_on_different_tokens_are_named_in_the_commands_that_report_them_apart() -> None:
    other = "e" * 64
    rows = [*cell(8.0, run="x"), *cell(8.0, run="y", fingerprint=other), *cell(8.0, run="z")]
    with pytest.raises(UserError, match=r": lengthgen report x z or lengthgen report y$"):
        comparable(curve(rows))


def test_packed_and_whole_documents_are_refused_by_name() -> None:
    points = curve([*cell(8.0, run="x"), *cell(8.0, run="y", packed=True)])
    with pytest.raises(UserError, match=r"runs x and y differ in corpus.packed \(False, True\)"):
        comparable(points)


@pytest.mark.parametrize(("field", "values"), [("precision", "fp32 bf16"), ("targets", "4 8")])
def test_runs_evaluated_otherwise_are_refused_by_name(field: str, values: str) -> None:
    one, other = (int(v) if v.isdigit() else v for v in values.split())
    points = curve([*cell(8.0, run="x", **{field: one}), *cell(8.0, run="y", **{field: other})])
    with pytest.raises(UserError, match=f"x and y were evaluated with eval.{field} {one} and"):
        comparable(points)


def test_runs_without_common_endpoints_are_refused_with_the_command_that_helps() -> None:
    points = curve([*cell(8.0, run="x"), *cell(8.0, run="y", endpoints="other")])
    with pytest.raises(UserError, match=r"x and y share no endpoints.*: lengthgen eval x y --le"):
        comparable(points)


def test_endpoints_that_only_some_runs_have_are_set_aside() -> None:
    everywhere = [*cell(8.0, run="x"), *cell(8.0, run="y")]
    more = [r for n in (512, 2048) for r in cell(8.0, run="x", length=n, endpoints="other")]
    assert comparable(curve([*everywhere, *more])) == curve(everywhere)


def test_of_several_shared_endpoints_those_with_most_lengths_are_kept() -> None:
    few = [r for run in "xy" for r in cell(8.0, run=run, endpoints="few")]
    many = [
        r for run in "xy" for n in (512, 2048) for r in cell(8.0, run=run, length=n, endpoints="m")
    ]
    assert comparable(curve([*few, *many])) == curve(many)


def test_a_variant_scored_on_other_endpoints_is_refused() -> None:
    points = curve([*cell(8.0, run="x"), *cell(8.0, run="x", variant="yarn", endpoints="other")])
    with pytest.raises(UserError, match=r"x and x \+ yarn share no endpoints"):
        comparable(points)
