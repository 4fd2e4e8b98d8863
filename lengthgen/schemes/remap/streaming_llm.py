"""StreamingLLM: Xiao et al. 2023, arXiv 2309.17453.

The mask of the part `window`, and positions within the cache: of the `width` keys that a query
sees, sinks are numbered 0 ... sinks-1, recent ones follow, and the query is the last. So recent
keys keep their distance, and sink j has min(i, width - 1) - j: none was not trained if the width
is T. Every layer keeps the keys and values that it computed under the same mask, as the release's
cache does; running the model again on a cropped text is another, stronger baseline.

The release counts its recent keys without the query's own: sinks + recent_size + 1 = width here.
In a layer that does not rotate there is nothing to remap, and the engine leaves this part out, its
mask too: add `window` there.
"""

import torch

from lengthgen.schemes.base import AttentionContext
from lengthgen.schemes.mask.window import Window
from lengthgen.schemes.remap.remap import Branch, Remap, from_first


class StreamingLlm(Remap, Window):
    """Hides all keys but the first and the most recent ones, and rotates by places in the cache.

    width: keys that a query sees, in multiples of T. sinks: how many of them are the first ones, in
    tokens; 4 in the paper.
    """

    def branches(self, c: AttentionContext) -> list[Branch]:
        j = torch.arange(c.cols.start, c.cols.stop, device=c.k_pos.device)
        sink = (j < self.sinks).expand(c.q_pos.shape[-1], -1)
        q_pos, k_pos = from_first(c)
        return [
            Branch(c.q_pos, c.k_pos, ~sink),
            Branch(q_pos.clamp(max=self.width - 1), k_pos, sink),
        ]
