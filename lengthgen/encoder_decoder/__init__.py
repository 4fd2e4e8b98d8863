"""Models with an encoder: encoder-decoders, and masked language models."""
