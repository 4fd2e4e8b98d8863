"""What the encoder-decoder adds to the core."""

from lengthgen.encoder_decoder.model import EncoderDecoder

ARCHITECTURES = [EncoderDecoder]
