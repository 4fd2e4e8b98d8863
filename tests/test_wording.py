"""How lengths and numbers are written."""

import pytest

from lengthgen import wording


@pytest.mark.parametrize(
    ("length", "name"), [(512, "512"), (640, "640"), (1536, "1.5k"), (2048, "2k"), (16000, "16000")]
)
def test_a_length_is_shortened_only_where_that_is_exact(length: int, name: str) -> None:
    assert wording.short(length) == name


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.054, "1.05"), (20.0, "20.00"), (173.04, "173.0"), (16024.2, "16,024"), (3e9, "3.0e+09")],
)
def test_a_number_is_as_long_as_its_reader_needs(value: float, text: str) -> None:
    assert wording.number(value) == text
