"""The tokenizer of small pretrained models."""

import pytest
import tokenizers

from lengthgen.data.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> tokenizers.Tokenizer:
    from pretrained import V

    text = "the quick brown fox jumps over the lazy dog " * 20
    return train_tokenizer(iter([text]), vocab_size=V - 3, say=print)
