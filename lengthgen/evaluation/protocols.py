"""Protocols: which tokens are scored from which window, for every length.

A protocol is a pure function of the plan and a length. The headline is `tail`; the others are the
conventions of papers, kept by name so that their numbers can be compared with published ones.
Subpackages beside the core contribute protocols of other objectives.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from lengthgen.config.overrides import overrides_of
from lengthgen.config.registry import contributed
from lengthgen.config.schema import Config
from lengthgen.data.objective import Objective
from lengthgen.data.windows import Ints, Span, Windows, manifest, targets_of
from lengthgen.errors import UserError, suggestion
from lengthgen.evaluation import rows
from lengthgen.evaluation.scored_text import Advance, Plan, Scored, ScoredSpans
from lengthgen.evaluation.stored import HEADLINE as HEADLINE

if TYPE_CHECKING:  # a report of text needs no torch
    from lengthgen.model.transformer import Transformer
    from lengthgen.runs.distributed import Ranks
    from lengthgen.schemes import Design, Scheme
    from lengthgen.terminal import Progress

Alteration = Literal["swap", "shuffle"]
BlockSize = Callable[[int, int, int], int]  # of C, K and T
# Keys of eval that decide which targets are scored, and how; some protocols read more.
DECIDING = {
    *("targets", "endpoints", "endpoints_per_document", "deduplicate", "max_context"),
    *("blocks", "seed", "precision"),
}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a length is scored, what a row holds, and how sums become one number."""

    name: str
    summary: str  # what is scored, in a few words
    source: str
    # Which windows are scored:
    place: Callable[[int, Plan], Iterator[Span]] | None = None  # those of a length
    block: BlockSize | None = None  # or how many of an endpoint's K targets share a window
    reads: tuple[str, ...] = ()  # what of the plan, besides the endpoints, decides the windows
    divides: bool = False  # lengths must divide max_context, else other tokens would be scored
    # What of them:
    altered: Alteration | None = None  # the text beyond T of every target; lengths beyond T alone
    matched: bool = False  # scored by itself, to the bit; rows keep sums over copy opportunities
    by_position: bool = False  # rows keep sums by position; the longest length alone is scored
    mean: Literal["tokens", "windows"] = "tokens"  # what the loss is a mean over
    # Of a kind that does more than score text:
    objective: ClassVar[type[Objective]] = Objective  # of the models that it scores
    predicts: ClassVar[bool] = False  # the likeliest token is kept beside the nats of the right one
    texts: ClassVar[int] = 0  # that it reads in place of each window, by `scored`; 0: the windows
    bounds: ClassVar[tuple[float, float]] = (-math.inf, math.inf)  # of its score; (0, 1) is a share

    def block_of(self, length: int, config: Config) -> int:
        """Returns how many targets a window scores: all that it has, or those of its block."""
        K, T = config.eval.targets, config.train.length
        return length if self.block is None else self.block(length, K, T)

    def windows(self, length: int, plan: Plan) -> list[Span]:
        """Returns the windows of a length, in the order of endpoints."""
        if self.place is not None:
            return list(self.place(length, plan))
        assert self.block is not None, "a protocol without windows"
        K, size = plan.targets, self.block(length, plan.targets, plan.train_length)
        return [
            Span(document, end - K + done + min(size, K - done), length, min(size, K - done))
            for document, end in plan.endpoints
            for done in range(0, K, size)
        ]

    def check(self, config: Config) -> None:
        """Raises UserError for a length below the number of targets that share a window."""
        for length in config.eval.lengths:
            if length < (size := self.block_of(length, config)):
                raise UserError(
                    f"eval.lengths: {length} is shorter than the {size} targets that a window of "
                    f"protocol {self.name} scores; drop it or set eval.targets={length}"
                )

    def depth(self, length: int, config: Config) -> int:
        """Returns how many targets of a document the windows of an endpoint span."""
        K = config.eval.targets
        return length if self.block is None else length + K - self.block_of(length, config)

    def manifest_parts(self, plan: Plan) -> list[object]:
        """Returns what, besides the corpus, decides which tokens are scored."""
        return [sorted(plan.endpoints), *(getattr(plan, name) for name in self.reads)]

    def settings(self, config: Config, plan: Plan) -> str:
        """Returns what of `eval` the manifest and the numbers follow from, as a command takes it.

        The depth of endpoints is that of the plan.
        """
        wanted, read = config.eval.model_dump(mode="json"), {*DECIDING, *self.reads}
        if "longest" in read:
            read.add("lengths")
        values = {key: wanted[key] for key in wanted if key in read}
        return " ".join(overrides_of({"eval": values | {"max_context": plan.max_context}}))

    def manifest(self, plan: Plan) -> str:
        """Returns 12 hexadecimal digits that name the tokens that are scored."""
        return manifest(plan.corpus, *self.manifest_parts(plan))

    def batch(self, spans: Sequence[Span], batch: Windows, *, vocab_size: int) -> Windows:
        """Returns windows as the model reads them; targets from vocab_size on are not scored."""
        return batch

    def targets(self, span: Span, plan: Plan) -> Ints:
        """Returns the tokens of a window that are scored."""
        return targets_of(span, plan.corpus)

    def before(self, plan: Plan) -> list[Span]:
        """Returns the windows that are scored once before those of any length."""
        return []

    def scored(
        self, spans: Sequence[Span], evaluation: "Evaluation", advance: Advance
    ) -> dict[Span, Scored]:
        """Returns what texts of its own show, made of the spans; the processes share the work."""
        raise NotImplementedError

    def rows(
        self, spans: Sequence[Span], scored: ScoredSpans, evaluation: "Evaluation"
    ) -> list[dict[str, Any]]:
        """Returns what a cell's rows hold: one per document; of packed text, one per endpoint."""
        plan, found = evaluation.plan, [span for span in spans if span in scored]
        nats = {span: np.column_stack([scored[span]])[:, 0] for span in found}
        made = rows.per_document(
            spans,
            {span: (self.targets(span, plan), nats[span]) for span in found},
            plan,
            copies=self.matched,
            by_position=self.by_position,
        )
        windows = plan.by_cluster(found).values()
        return [row | self.sums(w, scored, plan) for row, w in zip(made, windows, strict=True)]

    def sums(self, windows: Sequence[Span], scored: ScoredSpans, plan: Plan) -> dict[str, Any]:
        """Returns what else the row of these windows holds."""
        return {}

    def is_complete(self, row: Mapping[str, Any], config: Config) -> bool:
        """True if a row holds all that the configuration wants in it."""
        return True


class InStream(Protocol):
    """Windows of all documents joined to a stream."""

    def manifest_parts(self, plan: Plan) -> list[object]:
        return ["stream", plan.blocks, plan.max_context]


def known() -> dict[str, Protocol]:
    """Returns all protocols by name: PROTOCOLS, and those of subpackages beside the core."""
    return PROTOCOLS | {protocol.name: protocol for protocol in contributed("PROTOCOLS")}


def named(name: str) -> Protocol:
    """Returns the protocol of a name. Raises UserError for an unknown one, with a suggestion."""
    if stride := re.fullmatch(r"sliding-([1-9][0-9]*)", name):
        return _sliding_by(int(stride[1]))
    protocols = PROTOCOLS if name in PROTOCOLS else known()  # which imports their files
    if name not in protocols:
        raise UserError(f"eval.protocols: no protocol {name!r}; {suggestion(name, protocols)}")
    return protocols[name]


class Cell(NamedTuple):
    """One number of the curve: what is scored together."""

    protocol: Protocol
    variant: str | None
    length: int

    @property
    def title(self) -> str:
        variant = f" + {self.variant}" if self.variant else ""
        return f"{self.protocol.name} {self.length:,}{variant}"

    def windows(self, planned: Plan) -> list[Span]:
        """Returns the windows that are scored."""
        return self.protocol.windows(self.length, planned)


@dataclass
class TimeLimit:
    """When evaluations are to end, how long they took per multiplication, and what did not fit."""

    end: float = math.inf  # on the monotonic clock
    seconds: float = 0.0
    cost: int = 0
    left: list[Cell] = field(default_factory=list)
    left_cost: int = 0

    def fits(self, cost: int) -> bool:
        """True for what ends in time at the speed so far, and for the first measurement of all."""
        return not self.cost or time.monotonic() + self.seconds * cost / self.cost <= self.end


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """A run's newest checkpoint as a model, and what it is scored on."""

    config: Config
    objective: Objective
    cells: Sequence[Cell]
    # Of the scheme, None, and of its variants; why a reference variant has none.
    designs: "Mapping[str | None, Design | UserError]"
    plan: Plan
    run_dir: Path
    model: "Transformer"
    scheme: "Scheme"  # that it was trained with; the model may act under that of a variant
    weights: str  # sha256 of their file
    tokens_seen: int
    ranks: "Ranks"
    show: "Progress"
    limit: TimeLimit = field(default_factory=TimeLimit)
    # Of the windows of the matched tail scored so far; other protocols may score the same ones.
    nats: "dict[tuple[Scheme, Span], Scored]" = field(default_factory=dict)


def cells_of(config: Config, protocols: Sequence[Protocol]) -> list[Cell]:
    """Returns all cells of a configuration, the shortest first under each protocol."""
    wanted, listed = config.eval, dict[Cell, None]()
    for protocol in protocols:
        lengths = sorted(wanted.lengths)
        references = wanted.reference_variants if protocol.name == HEADLINE else []
        for length in lengths[-1:] if protocol.by_position else lengths:
            if protocol.altered and length <= config.train.length:
                continue
            from_T = references if length >= config.train.length else []
            for variant in (None, *wanted.variants, *from_T):
                listed[Cell(protocol, variant, length)] = None
    return list(listed)


def protocols_of(config: Config, objective: Objective) -> tuple[Protocol, ...]:
    """Returns the protocols of a configuration. Raises UserError for one that does not fit it."""
    chosen = tuple(map(named, config.eval.protocols))
    for protocol in chosen:
        if protocol.objective is not type(objective):
            raise UserError(
                f"eval.protocols: {protocol.name} scores {protocol.objective.learns}, and this "
                f"model learns {objective.learns}; give {objective.protocol}"
            )
        protocol.check(config)
    return chosen


# Windows of one length


def matched_block(length: int, targets: int, train_length: int) -> int:
    """Returns S(C): how many of the K targets of an endpoint share a window of C tokens.

    max(1, min(K, C // 64)) up to T, min(K, C - T) beyond. A window of C targets has C inputs, so
    that each scored target is predicted from at least C - S + 1 of them: 63/64 of C up to T, and
    never fewer than T beyond it. With one window of K > 1 targets at T, the loss at T would be that
    of a model with less than T tokens, and context beyond T would seem to help.
    """
    if length <= train_length:
        return max(1, min(targets, length // 64))
    return min(targets, length - train_length)


def _nonoverlap(length: int, plan: Plan, *, in_stream: bool = False) -> Iterator[Span]:
    for document, end in plan.stream if in_stream else plan.segments:
        for n in range(plan.max_context // length):
            last = end - plan.max_context + (n + 1) * length
            yield Span(document, last, length, length)


def _sliding(length: int, plan: Plan, *, stride: int) -> Iterator[Span]:
    for document, end in plan.segments[: plan.sliding_documents]:
        done = end - plan.max_context
        while done < end:
            at_start = done == end - plan.max_context
            scored = min(length if at_start else min(stride, length), end - done)
            done += scored
            yield Span(document, done, scored if at_start else length, scored)


def _whole(length: int, plan: Plan, *, prefix: bool = False) -> Iterator[Span]:
    for document, end in plan.endpoints:
        yield Span(document, end - prefix * (plan.longest - length), length, length)


def _exact(length: int, plan: Plan) -> Iterator[Span]:
    for document, end in plan.endpoints:
        room = 1 + end - plan.longest
        for back in reversed(range(min(plan.exact_targets, room))):
            yield Span(document, end - back, length, 1)


def _one_per_block(length: int, plan: Plan, *, targets: int | None) -> Iterator[Span]:
    for document, end in plan.stream:
        scored = length if targets is None else min(length, targets)
        yield Span(document, end - plan.max_context + length, length, scored)


def _sliding_by(stride: int) -> Protocol:
    return Protocol(
        name=f"sliding-{stride}",
        summary=f"windows every {stride} tokens; each scores its new tokens, the first all",
        source="PI and YaRN with stride 256; ALiBi Table 7 with 512",
        place=partial(_sliding, stride=stride),
        reads=("sliding_documents",),
    )


def _last_of_blocks(name: str, targets: int, *, source: str) -> Protocol:
    return InStream(
        name=name,
        summary=f"last {targets} tokens of a fixed number of windows of the joined documents: "
        "tokens differ by length",
        source=source,
        place=partial(_one_per_block, targets=targets),
    )


_TAIL = Protocol(
    name=HEADLINE,
    summary="matched tail: the same K targets at every length, beyond T after at least T tokens",
    source="the main protocol of lengthgen",
    block=matched_block,
    matched=True,
)
_SWAP = replace(
    _TAIL,
    name="swap",
    summary="matched tail, tokens beyond T of every target from another document, 3 times",
    source="far-context swap test",
    altered="swap",
)
_ALL = (
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
        summary="max_context tokens before one endpoint per document, in windows side by side",
        source="common practice, here within documents",
        place=_nonoverlap,
        divides=True,
    ),
    _sliding_by(256),
    Protocol(
        name="last_k",
        summary="the same K targets from one window: up to T the first have less context",
        source="common practice, here on the endpoints of tail",
        block=lambda length, targets, train_length: targets,
    ),
    Protocol(
        name="per_position",
        summary="one window of the longest length per endpoint, loss at every position",
        source="Forgetting Transformer, arXiv 2503.02130",
        place=_whole,
        by_position=True,
    ),
    InStream(
        name="alibi_nonoverlap",
        summary="documents joined to a stream, windows side by side, all tokens",
        source="ALiBi Tables 2-4, arXiv 2108.12409",
        place=partial(_nonoverlap, in_stream=True),
        divides=True,
    ),
    Protocol(
        name="alibi_sliding1",
        summary="stride 1: every token with its full context, on a sample of targets",
        source="ALiBi Tables 13-15, arXiv 2108.12409",
        place=_exact,
        reads=("exact_targets", "longest"),
    ),
    InStream(
        name="kerple",
        summary="a fixed number of windows of the joined documents, all tokens: longer windows "
        "score more text",
        source="KERPLE, arXiv 2205.09921 (320 windows there)",
        place=partial(_one_per_block, targets=None),
    ),
    _last_of_blocks("dape", 256, source="DAPE, arXiv 2405.14722"),
    replace(
        _sliding_by(256),
        name="yarn",
        summary="stride 256 inside documents, mean over windows instead of tokens",
        source="YaRN, arXiv 2309.00071",
        mean="windows",
    ),
    _last_of_blocks("nope_f", 200, source="NoPE appendix F, arXiv 2305.19466"),
    Protocol(
        name="fox",
        summary="prefixes of one long window per endpoint: mean of the loss up to each length",
        source="Forgetting Transformer, arXiv 2503.02130",
        place=partial(_whole, prefix=True),
        reads=("longest",),
    ),
)
PROTOCOLS = {protocol.name: protocol for protocol in _ALL}
