"""Seeded random documents: where their copies are, and what they depend on."""

from small_corpora import error_of, read_all
from small_corpora import synthetic as synthetic_corpus

from lengthgen.data.sources import synthetic


def test_a_planted_copy_repeats_its_source() -> None:
    corpus = synthetic_corpus()
    for held_out in (False, True):
        planted = synthetic.planted(corpus, index=1, held_out=held_out)
        words = planted.document.text.split()
        assert len(planted.copies) == corpus.copies
        for copy in planted.copies:
            repeated = words[copy.target : copy.target + copy.n_words]
            assert words[copy.source : copy.source + copy.n_words] == repeated


def test_a_planted_copy_is_a_quarter_of_the_document_away() -> None:
    corpus = synthetic_corpus()
    for index in range(20):
        for copy in synthetic.planted(corpus, index=index, held_out=False).copies:
            assert copy.target - (copy.source + copy.n_words) >= corpus.document_tokens // 4


def test_a_random_document_does_not_depend_on_how_many_there_are() -> None:
    few, _ = read_all(synthetic_corpus(documents=10))
    many, _ = read_all(synthetic_corpus(documents=30))
    assert many[:10] == few


def test_random_documents_all_differ() -> None:
    train, validation = read_all(synthetic_corpus(documents=30))
    assert len({document.text for document in train + validation}) == 33


def test_random_documents_use_the_whole_alphabet_and_nothing_else() -> None:
    train, _ = read_all(synthetic_corpus())
    assert len({word for document in train for word in document.text.split()}) == 64


def test_copies_that_do_not_fit_are_an_error() -> None:
    said = error_of(synthetic_corpus(copy_tokens=51))
    assert said.startswith("corpus.copy_tokens=51 is too long for corpus.copies=4")
    assert said.endswith("at most 50 fit")
