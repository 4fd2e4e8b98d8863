"""Protocols: which tokens are scored from which window, for every length.

A protocol is a pure function of the scored text and a length. The headline is `tail`; the others
are the conventions of papers, kept by name so that their numbers can be compared with published
ones. Rooms beside the core contribute protocols of other objectives.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from lengthgen.config.registry import contributed
from lengthgen.config.schema import Config
from lengthgen.data.objective import Objective
from lengthgen.data.spans import Span
from lengthgen.data.windows import Ints, Windows, manifest, targets_of
from lengthgen.errors import UserError, suggestion
from lengthgen.evaluation import rows
from lengthgen.evaluation.scored_text import Nats, Plan, Scored, ScoredText
from lengthgen.model.transformer import Transformer
from lengthgen.runs.distributed import Ranks
from lengthgen.terminal import Progress

Alteration = Literal["swap", "shuffle"]
HEADLINE = "tail"  # scores the same tokens at every length
BY_POSITION = "per_position"  # has a loss for each position


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a length is scored, what a row holds, and how sums become one number."""

    name: str
    summary: str  # what is scored, in a few words
    source: str
    windows: Callable[[int, ScoredText], Iterator[Span]]
    objective: type[Objective] = Objective  # of the models that it scores
    mean: Literal["tokens", "windows"] = "tokens"  # what the loss is a mean over
    by_position: bool = False  # rows keep sums by position; the longest length alone is scored
    altered: Alteration | None = None  # the text beyond T of every target; lengths beyond T alone
    headline: bool = False  # reference variants are evaluated too, from T on
    in_stream: bool = False
    reads: tuple[str, ...] = ()  # what of ScoredText, besides the endpoints, decides the windows
    divides: bool = False  # lengths must divide max_context, else other tokens would be scored
    scores_k: bool = False  # K targets, of eval.targets
    matched: bool = False  # in blocks of S(C); rows keep sums over far copies
    one_window: bool = False  # which holds all K targets: no length may be below K
    predicts: bool = False  # the most likely token is kept beside the nats of the right one

    def check(self, config: Config) -> None:
        """Raises UserError for lengths that the protocol cannot score."""
        shortest, targets = min(config.eval.lengths), config.eval.targets
        if self.one_window and shortest < targets:
            raise UserError(
                f"eval.lengths: {shortest} is shorter than the eval.targets={targets} scored "
                f"tokens of protocol {self.name}; drop it or set eval.targets={shortest}"
            )

    def depth(self, length: int, *, targets: int, train_length: int) -> int:
        """Returns how many targets of a document the windows of an endpoint span."""
        if not self.matched:
            return length
        return matched_depth(length, targets=targets, train_length=train_length)

    def manifest_parts(self, text: ScoredText) -> list[object]:
        """Returns what, besides the corpus, decides which tokens are scored."""
        if self.in_stream:
            return ["stream", text.blocks, text.max_context]
        return [sorted(text.endpoints), *(getattr(text, name) for name in self.reads)]

    def batch(self, spans: Sequence[Span], batch: Windows, *, vocab_size: int) -> Windows:
        """Returns windows as the model reads them; targets from vocab_size on are not scored."""
        return batch

    def targets(self, span: Span, plan: Plan) -> Ints:
        """Returns the tokens of a window that are scored."""
        return targets_of(span, plan.corpus)

    def rows(
        self,
        spans: Sequence[Span],
        config: Config,
        plan: Plan,
        scored: Mapping[Span, Scored],
        log_frequency: Nats,
    ) -> list[dict[str, Any]]:
        """Returns what a cell's rows hold: one per document; of packed text, one per endpoint."""
        return rows.per_document(
            spans,
            plan,
            scored,
            log_frequency,
            train_length=config.train.length,
            targets=lambda span: self.targets(span, plan),
            far_copies=self.matched,
            by_position=self.by_position,
        )

    def extend(
        self,
        row: dict[str, Any],
        spans: Sequence[Span],
        config: Config,
        plan: Plan,
        model: Transformer,
        *,
        ranks: Ranks,
        show: Progress,
    ) -> None:
        """Adds to a row what takes more forward passes than those of its windows."""

    def is_complete(self, row: Mapping[str, Any], config: Config) -> bool:
        """True if a row holds what the configuration makes `extend` add."""
        return True


def known() -> dict[str, Protocol]:
    """Returns all protocols by name: PROTOCOLS, of text, and those of rooms beside the core."""
    return PROTOCOLS | {protocol.name: protocol for protocol in contributed("PROTOCOLS")}


def named(name: str) -> Protocol:
    """Returns the protocol of a name. Raises UserError for an unknown one, with a suggestion."""
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    stride = re.fullmatch(r"sliding-([1-9][0-9]*)", name)
    if stride:
        return _sliding_by(int(stride[1]))
    if name == "sliding":
        raise UserError(
            "eval.protocols: sliding needs its stride in tokens, such as sliding-256; sliding-1 "
            "gives every token its full context and costs as much"
        )
    protocols = known()
    if name not in protocols:
        raise UserError(f"eval.protocols: no protocol {name!r}; {suggestion(name, protocols)}")
    return protocols[name]


def manifest_of(name: str, plan: Plan) -> str:
    """Returns 12 hexadecimal digits that name the tokens that a protocol scores."""
    return manifest(plan.corpus, *named(name).manifest_parts(plan.text))


# Windows of one length


def targets_per_window(length: int, *, targets: int, train_length: int) -> int:
    """Returns S(C): how many of the K targets of an endpoint share a window of C tokens.

    max(1, C // 64) up to T, min(K, C - T) beyond. A window of C targets has C inputs, so that each
    scored target is predicted from at least C - S + 1 of them: 63/64 of C up to T, and never fewer
    than T beyond it. With one window of K > 1 targets at T, the loss at T would be that of a model
    with less than T tokens, and context beyond T would seem to help.
    """
    if length <= train_length:
        return max(1, min(targets, length // 64))
    return min(targets, length - train_length)


def matched_depth(length: int, *, targets: int, train_length: int) -> int:
    """Returns how many targets of a document the windows of an endpoint span."""
    return length + targets - targets_per_window(length, targets=targets, train_length=train_length)


def _tail(length: int, text: ScoredText) -> Iterator[Span]:
    train_length = text.train_length
    size = targets_per_window(length, targets=text.targets, train_length=train_length)
    return in_pieces(length, text, size)


def in_pieces(length: int, text: ScoredText, size: int) -> Iterator[Span]:
    """Yields the windows that score the targets of each endpoint, `size` of them in each."""
    K = text.targets
    for document, end in text.endpoints:
        for done in range(0, K, size):
            scored = min(size, K - done)
            yield Span(document, end - K + done + scored, length, scored)


def _nonoverlap(length: int, text: ScoredText, *, in_stream: bool = False) -> Iterator[Span]:
    for document, end in text.stream if in_stream else text.segments:
        for n in range(text.max_context // length):
            last = end - text.max_context + (n + 1) * length
            yield Span(document, last, length, length)


def _sliding(length: int, text: ScoredText, *, stride: int) -> Iterator[Span]:
    for document, end in text.segments[: text.sliding_documents]:
        done = end - text.max_context
        while done < end:
            at_start = done == end - text.max_context
            scored = min(length if at_start else min(stride, length), end - done)
            done += scored
            yield Span(document, done, scored if at_start else length, scored)


def _last_k(length: int, text: ScoredText) -> Iterator[Span]:
    for document, end in text.endpoints:
        yield Span(document, end, length, text.targets)


def _prefix(length: int, text: ScoredText) -> Iterator[Span]:
    for document, end in text.endpoints:
        yield Span(document, end - text.longest + length, length, length)


def _whole(length: int, text: ScoredText) -> Iterator[Span]:
    for document, end in text.endpoints:
        yield Span(document, end, length, length)


def _exact(length: int, text: ScoredText) -> Iterator[Span]:
    for document, end in text.endpoints:
        room = 1 + end - text.longest
        for back in reversed(range(min(text.exact_targets, room))):
            yield Span(document, end - back, length, 1)


def _one_per_block(length: int, text: ScoredText, *, targets: int | None) -> Iterator[Span]:
    for document, end in text.stream:
        scored = length if targets is None else min(length, targets)
        yield Span(document, end - text.max_context + length, length, scored)


def _sliding_by(stride: int) -> Protocol:
    return Protocol(
        name=f"sliding-{stride}",
        summary=f"windows {stride} tokens apart, each token once, the first one's all",
        source="ALiBi Tables 7 and 13-15; PI and YaRN with stride 256",
        windows=partial(_sliding, stride=stride),
        reads=("sliding_documents",),
    )


def _last_of_blocks(name: str, targets: int, *, source: str) -> Protocol:
    return Protocol(
        name=name,
        summary=f"last {targets} tokens of as many windows of the stream: other tokens at each "
        "length",
        source=source,
        windows=partial(_one_per_block, targets=targets),
        in_stream=True,
    )


_TAIL = Protocol(
    name="tail",
    summary="matched tail: the same K targets at every length, each after >= T tokens beyond T",
    source="the headline here",
    windows=_tail,
    headline=True,
    scores_k=True,
    matched=True,
)
_SWAP = replace(
    _TAIL,
    name="swap",
    summary="matched tail, tokens beyond T of every target from another document, 3 times",
    source="far-context swap test",
    headline=False,
    altered="swap",
)
PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        _TAIL,
        _SWAP,
        replace(
            _SWAP,
            name="shuffle",
            summary="matched tail, tokens beyond T of every target in random order, 3 times",
            altered="shuffle",
        ),
        Protocol(
            name="nonoverlap",
            summary="all tokens before one endpoint per document, in windows side by side",
            source="the usual one, inside documents",
            windows=_nonoverlap,
            divides=True,
        ),
        _sliding_by(256),
        Protocol(
            name="last_k",
            summary="the same K targets from one window: those of up to T see fewer than C tokens",
            source="the usual last-K convention, on the endpoints of tail",
            windows=_last_k,
            scores_k=True,
            one_window=True,
        ),
        Protocol(
            name="per_position",
            summary="one window of the longest length per endpoint, loss at every position",
            source="Forgetting Transformer, arXiv 2503.02130",
            windows=_whole,
            by_position=True,
        ),
        Protocol(
            name="alibi_nonoverlap",
            summary="documents joined to a stream, windows side by side, all tokens",
            source="ALiBi Tables 2-4, arXiv 2108.12409",
            windows=partial(_nonoverlap, in_stream=True),
            in_stream=True,
            divides=True,
        ),
        Protocol(
            name="alibi_sliding1",
            summary="stride 1: every token with its full context, on a sample of targets",
            source="ALiBi Tables 13-15, arXiv 2108.12409",
            windows=_exact,
            reads=("exact_targets", "longest"),
        ),
        Protocol(
            name="kerple",
            summary="as many windows of the stream at every length, all tokens: more text if "
            "longer",
            source="KERPLE, arXiv 2205.09921 (320 windows there)",
            windows=partial(_one_per_block, targets=None),
            in_stream=True,
        ),
        _last_of_blocks("dape", 256, source="DAPE, arXiv 2405.14722"),
        Protocol(
            name="yarn",
            summary="stride 256 inside documents, mean over windows instead of tokens",
            source="YaRN, arXiv 2309.00071",
            windows=partial(_sliding, stride=256),
            reads=("sliding_documents",),
            mean="windows",
        ),
        _last_of_blocks("nope_f", 200, source="NoPE appendix F, arXiv 2305.19466"),
        Protocol(
            name="fox",
            summary="prefixes of one long window per endpoint: mean of the loss up to each length",
            source="Forgetting Transformer, arXiv 2503.02130",
            windows=_prefix,
            reads=("longest",),
        ),
    )
}
