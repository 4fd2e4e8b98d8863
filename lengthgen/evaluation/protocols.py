"""Protocols: which tokens are scored from which window, for every length.

A protocol is a pure function of the plan and a length. The headline is `tail`; the others are the
conventions of papers, kept by name so that their numbers can be compared with published ones.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

from lengthgen.data.spans import Endpoint, Span
from lengthgen.errors import UserError, suggestion

Alteration = Literal["swap", "shuffle"]
HEADLINE = "tail"  # scores the same tokens at every length
BY_POSITION = "per_position"  # has a loss for each position
ANSWERS = "answers"  # the only protocol of a task
SPANS = "spans"  # the only protocol of text that an encoder reads


class Answer(NamedTuple):
    """An example of a task: a document whose last `scored` targets answer the ones before."""

    length: int  # in the unit of the task
    document: int
    targets: int
    scored: int


@dataclass(frozen=True, kw_only=True)
class Places:
    """What there is to score: endpoints in documents, a stretch of the stream, answers."""

    endpoints: tuple[Endpoint, ...]
    reach: int  # targets before every endpoint, and in a block of the stream
    blocks: int  # of the stream
    targets: int  # K
    train_length: int  # T, which decides how many targets of an endpoint share a window
    sliding_documents: int  # that sliding windows read: each costs reach / stride windows
    exact_targets: int  # of each endpoint that get a window of their own
    longest: int  # of the lengths evaluated
    packed: bool = False  # the endpoints lie in one document, at least `reach` apart
    answers: tuple[Answer, ...] = ()  # of a task

    @property
    def segments(self) -> list[Endpoint]:
        """One endpoint of each cluster, so that no token is scored twice."""
        first: dict[Endpoint | int, Endpoint] = {}
        for endpoint in self.endpoints:
            first.setdefault(self.cluster(endpoint.document, endpoint.end), endpoint)
        return list(first.values())

    def cluster(self, document: int, end: int) -> Endpoint | int:
        """Returns what the targets before `end` vary with: their document, or, in packed text, the
        endpoint whose `reach` targets hold them.
        """
        if not self.packed or document < 0:
            return document
        return min(one for one in self.endpoints if one.end >= end)

    @property
    def stream(self) -> list[Endpoint]:
        """The ends of the stream's blocks."""
        return [Endpoint(-1 - b, (b + 1) * self.reach) for b in range(self.blocks)]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a length is scored, and how sums become one number."""

    name: str
    summary: str  # what is scored, in a few words
    source: str
    spans: Callable[[int, Places], Iterator[Span]]
    mean: Literal["tokens", "windows"] = "tokens"  # what the loss is a mean over
    per_token: bool = False  # rows keep the nats of every target
    by_position: bool = False  # rows keep sums by position; the longest length alone is scored
    altered: Alteration | None = None  # the text beyond T of every target; lengths beyond T alone
    headline: bool = False  # reference variants are evaluated too, from T on
    in_stream: bool = False
    reads: tuple[str, ...] = ()  # what of Places, besides the endpoints, decides what is scored
    divides: bool = False  # lengths must divide the reach, else other tokens would be scored
    scores_k: bool = False  # K targets, of eval.targets
    matched: bool = False  # in blocks of S(C)
    one_window: bool = False  # which holds all K targets: no length may be below K
    last: int | None = None  # the convention's own K
    of_spans: bool = False  # scores the masked ones of the targets, given the text around them
    of_answers: bool = False  # scores a task: rows say whether each answer is right


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
    raise UserError(f"eval.protocols: no protocol {name!r}; {suggestion(name, PROTOCOLS)}")


def manifest_parts(protocol: Protocol, places: Places) -> list[object]:
    """Returns what, besides the corpus, decides which tokens a protocol scores."""
    if protocol.of_answers:
        return ["answers"]
    if protocol.in_stream:
        return ["stream", places.blocks, places.reach]
    return [sorted(places.endpoints), *(getattr(places, name) for name in protocol.reads)]


# Spans of one length


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


def depth(length: int, *, targets: int, train_length: int) -> int:
    """Returns how many targets of a document the windows of an endpoint span."""
    return length + targets - targets_per_window(length, targets=targets, train_length=train_length)


def _tail(length: int, places: Places) -> Iterator[Span]:
    train_length = places.train_length
    size = targets_per_window(length, targets=places.targets, train_length=train_length)
    return _in_pieces(length, places, size)


def spans_per_window(*, targets: int, train_length: int) -> int:
    """Returns how many targets share a window of masked spans: those of the shortest default."""
    return min(targets, max(1, train_length // 8))


def _spans(length: int, places: Places) -> Iterator[Span]:
    size = spans_per_window(targets=places.targets, train_length=places.train_length)
    return _in_pieces(length, places, size)


def _in_pieces(length: int, places: Places, size: int) -> Iterator[Span]:
    """Yields the windows that score the targets of each endpoint, `size` of them in each."""
    K = places.targets
    for document, end in places.endpoints:
        for done in range(0, K, size):
            scored = min(size, K - done)
            yield Span(document, end - K + done + scored, length, scored)


def _nonoverlap(length: int, places: Places, *, in_stream: bool = False) -> Iterator[Span]:
    for document, end in places.stream if in_stream else places.segments:
        for n in range(places.reach // length):
            last = end - places.reach + (n + 1) * length
            yield Span(document, last, length, length)


def _sliding(length: int, places: Places, *, stride: int) -> Iterator[Span]:
    for document, end in places.segments[: places.sliding_documents]:
        done = end - places.reach
        while done < end:
            at_start = done == end - places.reach
            scored = min(length if at_start else min(stride, length), end - done)
            done += scored
            yield Span(document, done, scored if at_start else length, scored)


def _last_k(length: int, places: Places) -> Iterator[Span]:
    for document, end in places.endpoints:
        yield Span(document, end, length, places.targets)


def _prefix(length: int, places: Places) -> Iterator[Span]:
    for document, end in places.endpoints:
        yield Span(document, end - places.longest + length, length, length)


def _whole(length: int, places: Places) -> Iterator[Span]:
    for document, end in places.endpoints:
        yield Span(document, end, length, length)


def _exact(length: int, places: Places) -> Iterator[Span]:
    for document, end in places.endpoints:
        room = 1 + end - places.longest
        for back in reversed(range(min(places.exact_targets, room))):
            yield Span(document, end - back, length, 1)


def _answers(length: int, places: Places) -> Iterator[Span]:
    for answer in places.answers:
        if answer.length == length:
            yield Span(answer.document, answer.targets, answer.targets, answer.scored)


def _one_per_block(length: int, places: Places, *, targets: int | None) -> Iterator[Span]:
    for document, end in places.stream:
        scored = length if targets is None else min(length, targets)
        yield Span(document, end - places.reach + length, length, scored)


def _sliding_by(stride: int) -> Protocol:
    return Protocol(
        name=f"sliding-{stride}",
        summary=f"windows {stride} tokens apart, each token once, the first one's all",
        source="ALiBi Tables 7 and 13-15; PI and YaRN with stride 256",
        spans=partial(_sliding, stride=stride),
        reads=("sliding_documents",),
    )


def _last_of_blocks(name: str, targets: int, *, source: str) -> Protocol:
    return Protocol(
        name=name,
        summary=f"last {targets} tokens of as many windows of the stream: other tokens at each "
        "length",
        source=source,
        spans=partial(_one_per_block, targets=targets),
        last=targets,
        in_stream=True,
    )


_TAIL = Protocol(
    name="tail",
    summary="matched tail: the same K targets at every length, each after >= T tokens beyond T",
    source="the headline here",
    spans=_tail,
    headline=True,
    per_token=True,
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
            spans=_nonoverlap,
            divides=True,
        ),
        _sliding_by(256),
        Protocol(
            name="last_k",
            summary="the same K targets from one window: those of up to T see fewer than C tokens",
            source="the usual last-K convention, on the endpoints of tail",
            spans=_last_k,
            scores_k=True,
            one_window=True,
        ),
        Protocol(
            name="per_position",
            summary="one window of the longest length per endpoint, loss at every position",
            source="Forgetting Transformer, arXiv 2503.02130",
            spans=_whole,
            by_position=True,
        ),
        Protocol(
            name="alibi_nonoverlap",
            summary="documents joined to a stream, windows side by side, all tokens",
            source="ALiBi Tables 2-4, arXiv 2108.12409",
            spans=partial(_nonoverlap, in_stream=True),
            in_stream=True,
            divides=True,
        ),
        Protocol(
            name="alibi_sliding1",
            summary="stride 1: every token with its full context, on a sample of targets",
            source="ALiBi Tables 13-15, arXiv 2108.12409",
            spans=_exact,
            reads=("exact_targets", "longest"),
        ),
        Protocol(
            name="kerple",
            summary="as many windows of the stream at every length, all tokens: more text if "
            "longer",
            source="KERPLE, arXiv 2205.09921 (320 windows there)",
            spans=partial(_one_per_block, targets=None),
            in_stream=True,
        ),
        _last_of_blocks("dape", 256, source="DAPE, arXiv 2405.14722"),
        Protocol(
            name="yarn",
            summary="stride 256 inside documents, mean over windows instead of tokens",
            source="YaRN, arXiv 2309.00071",
            spans=partial(_sliding, stride=256),
            reads=("sliding_documents",),
            mean="windows",
        ),
        _last_of_blocks("nope_f", 200, source="NoPE appendix F, arXiv 2305.19466"),
        Protocol(
            name="fox",
            summary="prefixes of one long window per endpoint: mean of the loss up to each length",
            source="Forgetting Transformer, arXiv 2503.02130",
            spans=_prefix,
            reads=("longest",),
        ),
        Protocol(
            name=SPANS,
            summary="masked spans: the same ones of the K targets at every length, for "
            "encoder-decoders",
            source="span corruption of T5, arXiv 1910.10683, on the endpoints of tail",
            spans=_spans,
            reads=("train_length",),
            scores_k=True,
            of_spans=True,
        ),
        Protocol(
            name=ANSWERS,
            summary="answers of a task: right if all of it, its end included, is most likely",
            source="exact match under greedy decoding, as NoPE, arXiv 2305.19466",
            spans=_answers,
            of_answers=True,
        ),
    )
}


OF_TEXT = [name for name in PROTOCOLS if name not in (SPANS, ANSWERS)]


def shared(wanted: Sequence[Span]) -> dict[Span, Span]:
    """Returns for each span the longest one that begins at the same token.

    Its forward pass has the losses of all of them where a scheme's outputs do not depend on the
    length of the call.
    """
    longest: dict[tuple[int, int], Span] = {}
    for span in wanted:
        key = (span.document, span.start)
        if key not in longest or longest[key].length < span.length:
            longest[key] = span
    return {span: longest[span.document, span.start] for span in wanted}
