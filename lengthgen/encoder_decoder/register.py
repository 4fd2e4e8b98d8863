"""What the encoder-decoder adds to the core."""

from lengthgen.encoder_decoder.masked_encoder import MaskedEncoder
from lengthgen.encoder_decoder.model import EncoderDecoder
from lengthgen.encoder_decoder.objective import SPANS, MaskedSpans

ARCHITECTURES = [EncoderDecoder, MaskedEncoder]
OBJECTIVES = [MaskedSpans]
PROTOCOLS = [SPANS]
