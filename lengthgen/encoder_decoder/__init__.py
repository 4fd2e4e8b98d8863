"""Models with an encoder beside the decoder."""
