"""How lengths and numbers are written."""

import pytest
from eval_rows import cell

from lengthgen.analysis import formatting
from lengthgen.analysis.curves import curve
from lengthgen.evaluation.protocols import named


@pytest.mark.parametrize(
    ("length", "name"), [(512, "512"), (640, "640"), (1536, "1.5k"), (2048, "2k"), (16000, "16000")]
)
def test_a_length_is_shortened_only_where_that_is_exact(length: int, name: str) -> None:
    assert formatting.short(length) == name


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.054, "1.05"), (20.0, "20.00"), (173.04, "173.0"), (16024.2, "16,024"), (3e9, "3.0e+09")],
)
def test_a_number_is_as_long_as_its_reader_needs(value: float, text: str) -> None:
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "bf16", "targets": 2}, "bf16, K=2"),
        ({"reach": 16384, "endpoints": "deep"}, "endpoints 16,384 deep"),
        ({"tokens_seen": 1024}, "1,024 tokens seen"),
        ({"endpoints": "few"}, "other endpoints"),
    ],
)
def test_what_keeps_points_apart_is_named(changes: dict[str, object], message: str) -> None:
    assert formatting.condition_difference(curve(cell(8.0, **changes)), curve(cell(8.0))) == message


def test_a_headline_names_targets_windows_and_documents() -> None:
    message = formatting.headline(curve(cell(8.0, 8.0)))
    assert message == "matched tail: K=4 targets before each of 4 endpoints in 2 documents"


@pytest.mark.parametrize(
    ("protocol", "targets", "message"),
    [("tail", 4, "of 2 endpoints in 1 document"), ("nonoverlap", None, "8 tokens of 1 document")],
)
def test_one_document_is_not_plural(protocol: str, targets: int | None, message: str) -> None:
    found = formatting.headline(curve(cell(8.0, protocol=protocol, targets=targets)))
    assert found.endswith(message)


def test_another_protocol_says_what_it_scores() -> None:
    message = formatting.headline(curve(cell(8.0, 8.0, protocol="nonoverlap", targets=None)))
    assert message == f"nonoverlap: {named('nonoverlap').summary}; up to 16 tokens of 2 documents"
