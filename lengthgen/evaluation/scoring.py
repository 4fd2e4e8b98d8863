"""Nats of the scored tokens of any spans: forward passes that many spans may share.

B windows, T tokens, D width.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import IGNORED, Ints, Span, Windows, text_of, window
from lengthgen.evaluation.protocols import HEADLINE, PROTOCOLS, Evaluation, Protocol
from lengthgen.evaluation.scored_text import Advance, Scored
from lengthgen.model.build import generator_of
from lengthgen.model.transformer import Transformer
from lengthgen.runs.distributed import Ranks

BATCH_TOKENS = 8192  # of one forward pass; fixed, so that sums do not depend on the world size
MIN_LAST = 2  # states of a window; SDPA sums one query's keys in an order that depends on threads


class Pass(NamedTuple):
    """Windows of one length that go through the model together; the last n_last targets count."""

    hosts: tuple[Span, ...]
    n_last: int

    def cost(self, model: Transformer) -> int:
        """Returns the multiplications of the blocks, those of causal attention included."""
        T, shape = self.hosts[0].length, model.shape
        of_token = sum(p.numel() for p in model.blocks.parameters()) // shape.n_layers
        read = model.read_by_blocks(T, self.n_last)[:-1]
        return len(self.hosts) * sum(n * (of_token + shape.qkv_widths[0] * n) for n in read)


Replace = Callable[[Ints, Span], Ints]  # inputs of a window with other text, those of a span


def passes(host_of: Mapping[Span, Span]) -> list[Pass]:
    """Returns the forward passes that score spans in these windows, the shortest first."""
    n_last: dict[Span, int] = {}
    for span, host in host_of.items():
        back = host.end - span.end + span.scored
        n_last[host] = max(n_last.get(host, 0), back, min(MIN_LAST, host.length))
    hosts = sorted(n_last, key=lambda host: (-host.length, -n_last[host], host))
    divided: list[Pass] = []
    while hosts:
        first = hosts[0]
        size = max(1, BATCH_TOKENS // first.length)
        together = [host for host in hosts[:size] if host.length == first.length]
        del hosts[: len(together)]
        divided.append(Pass(hosts=tuple(together), n_last=n_last[first]))
    return divided[::-1]


def hosts(model: Transformer, wanted: Sequence[Span], *, predicts: bool) -> dict[Span, Span]:
    """Returns the window in whose forward pass each span is scored.

    Spans that begin at one token share that of the longest, unless the scheme's outputs depend on
    the length of the call. If tokens are to be predicted, each then has a window of its own.
    """
    if model.scheme.depends_on_length and predicts:
        return {prefix: prefix for span in wanted for prefix in _prefixes(span)}
    if model.scheme.depends_on_length or model.scheme.encoder is not None:
        return {span: span for span in wanted}
    return shared(wanted)


def shared(wanted: Sequence[Span]) -> dict[Span, Span]:
    """Returns for each span the longest one that begins at the same token."""
    longest: dict[tuple[int, int], Span] = {}
    for span in sorted(wanted, key=lambda span: -span.length):
        longest.setdefault((span.document, span.start), span)
    return {span: longest[span.document, span.start] for span in wanted}


def evaluated(
    model: Transformer,
    spans: Sequence[Span],
    evaluation: Evaluation,
    advance: Advance = lambda n: None,
    *,
    replace: Replace | None = None,
    protocol: Protocol = PROTOCOLS[HEADLINE],
) -> dict[Span, Scored]:
    """Returns `score` as an evaluation wants it; of the matched tail each window once."""
    config, corpus, known = evaluation.config, evaluation.plan.corpus, evaluation.nats
    scored = partial(score, model, spans, corpus, precision=config.eval.precision, seed=config.seed)
    scored = partial(scored, ranks=evaluation.ranks, advance=advance)
    if protocol.name != HEADLINE:
        return scored(replace=replace, protocol=protocol)
    if all((model.scheme, span) in known for span in spans):
        advance(sum(batch.cost(model) for batch in passes(hosts(model, spans, predicts=False))))
    else:
        known.update({(model.scheme, span): nats for span, nats in scored().items()})
    return {span: known[model.scheme, span] for span in spans}


@torch.inference_mode()
def score(
    model: Transformer,
    wanted: Sequence[Span],
    corpus: TokenizedCorpus,
    *,
    precision: str,
    seed: int,
    ranks: Ranks,
    advance: Advance = lambda n: None,
    replace: Replace | None = None,
    protocol: Protocol = PROTOCOLS[HEADLINE],
) -> dict[Span, Scored]:
    """Returns the nats of each scored token of the spans, in float64.

    Under a protocol that predicts, also the id of the most likely token given the tokens before it
    and no others, also where outputs depend on the length of the call.

    The same numbers for any number of processes: forward passes hold the same windows whatever the
    world size, and each process takes every n-th of them.
    """
    host_of = hosts(model, wanted, predicts=protocol.predicts)
    device = model.embedding.weight.device

    def score_pass(batch: Pass) -> dict[Span, Scored]:
        """Scores the last n_last targets, or those that remain of them in the protocol's batch."""
        inputs, targets = zip(*(window_of(host, corpus) for host in batch.hosts), strict=True)
        if replace is not None:
            inputs = [replace(*window) for window in zip(inputs, batch.hosts, strict=True)]
        windows = Windows(np.stack(inputs), np.stack(targets))
        changed = protocol.batch(batch.hosts, windows, vocab_size=corpus.vocab_size)
        n_scored = int((changed.targets_BT != IGNORED).any(axis=0).sum())
        n_last = batch.n_last if changed is windows else n_scored
        last_BT = changed.targets_BT[:, -n_last:]
        generator = generator_of("evaluation", seed)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            starts = model.answer_starts(torch.from_numpy(changed.targets_BT))
            inputs_BT = torch.from_numpy(changed.inputs_BT).to(device)
            x_BTD = model(inputs_BT, n_last=n_last, generator=generator, **starts)
            nats_BT = model.token_nll(x_BTD, torch.from_numpy(last_BT.copy()).to(device))
            scored = nats_BT.cpu().double().numpy()
            if protocol.predicts:
                predicted = model.argmax_tokens(x_BTD).cpu().double().numpy()
                scored = np.stack([scored, predicted], axis=-1)
        if changed is not windows:
            kept_BT = (last_BT != IGNORED) & (last_BT < corpus.vocab_size)
            scored = [row[kept] for row, kept in zip(scored, kept_BT, strict=True)]
        advance(batch.cost(model) * ranks.world_size)
        return dict(zip(batch.hosts, scored, strict=True))

    nats_of = ranks.divided(passes(host_of), score_pass)

    def scored(span: Span) -> Scored:
        if span not in host_of:  # one token after another
            return np.concatenate([scored(prefix) for prefix in _prefixes(span)])
        nats, host = nats_of[host_of[span]], host_of[span]
        last = len(nats) - (host.end - span.end)
        return nats[max(0, last - span.scored) : last]

    return {span: scored(span) for span in wanted}


def _prefixes(span: Span) -> list[Span]:
    """Returns a window for each scored token that ends with it."""
    return [
        Span(span.document, span.end - back, span.length - back, 1)
        for back in reversed(range(span.scored))
    ]


def window_of(span: Span, corpus: TokenizedCorpus) -> tuple[Ints, Ints]:
    """Returns inputs and targets of a span, [T] each."""
    split, document = text_of(span, corpus)
    return window(corpus, split, document, span.start, span.length, span.length)
