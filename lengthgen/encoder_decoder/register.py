"""What the encoder-decoder adds to the core."""

from lengthgen.encoder_decoder.model import EncoderDecoder, MaskedEncoder
from lengthgen.encoder_decoder.spans import SPANS, MaskedSpans

ARCHITECTURES = [EncoderDecoder, MaskedEncoder]
OBJECTIVES = [MaskedSpans]
PROTOCOLS = [SPANS]
