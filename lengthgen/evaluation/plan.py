"""The plan of an evaluation: which tokens are scored, fixed before a model is built.

data/windows.py draws the endpoints, protocols.py places the windows before them (the matched tail:
matched_block), and the plan joins both for every protocol, variant and length.
"""

from collections.abc import Sequence
from dataclasses import replace

from lengthgen.config.schema import Config
from lengthgen.data import overlap
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.objective import Objective
from lengthgen.data.windows import Span, endpoints, n_targets, share_seen
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import Protocol
from lengthgen.evaluation.scored_text import Plan


def plan(
    config: Config, protocols: Sequence[Protocol], objective: Objective, corpus: TokenizedCorpus
) -> Plan:
    """Returns what to score: the examples of a corpus that has prompts, or else endpoints.

    Raises UserError, with changes that help, if no document has the longest length, or none
    of the training split a window, or if all that is held out stands in the training split too.
    """
    wanted = config.eval
    objective.check_corpus(corpus)
    planned = Plan(
        corpus=corpus,
        targets=wanted.targets,
        train_length=config.train.length,
        sliding_documents=wanted.sliding_documents,
        exact_targets=wanted.exact_targets,
        longest=max(wanted.lengths),
        evaluator=wanted.evaluator,
        examples=_examples(corpus),
    )
    if planned.examples:
        return planned
    max_context = _max_context(config, protocols, corpus)
    for protocol in protocols:
        uneven = [length for length in wanted.lengths if max_context % length]
        if uneven and protocol.divides:
            raise UserError(
                f"eval.lengths: {uneven[0]} does not divide the {max_context} tokens before an "
                f"endpoint, so that {protocol.name} would score other tokens at it than at other "
                "lengths; drop it, or use eval.protocols=[tail] (lengthgen eval: --protocols tail)"
            )
    seen = None
    if wanted.deduplicate:
        seen = overlap.in_training(corpus, cache_dir=config.runtime.cache_dir)
    drawn = endpoints(
        corpus,
        depth=max_context,
        count=wanted.endpoints,
        per_document=wanted.endpoints if corpus.packed else wanted.endpoints_per_document,
        spacing=max_context if corpus.packed else wanted.targets,
        targets=wanted.targets,
        seed=wanted.seed,
        seen=seen,
    )
    if not drawn:
        raise UserError(
            f"corpus={corpus.name}: the training split has tokens of every span of "
            f"eval.targets={wanted.targets} too (runs of {overlap.run_length(corpus)} tokens); "
            "lower eval.targets, hold out other documents, or set eval.deduplicate=false"
        )
    n_in_stream = len(corpus.validation.tokens) - corpus.first_target
    repeated = 0.0
    if seen is not None:
        repeated = share_seen(corpus, seen, depth=max_context, targets=wanted.targets)
    return replace(
        planned,
        endpoints=tuple(drawn),
        max_context=max_context,
        blocks=min(wanted.blocks, n_in_stream // max_context),
        repeated=repeated,
    )


def _examples(corpus: TokenizedCorpus) -> dict[int, list[Span]]:
    """Returns the answers of all validation documents that have prompts, by length."""
    split, by_length = corpus.validation, dict[int, list[Span]]()
    if split.examples is not None:
        rows = zip(split.examples.tolist(), n_targets(corpus, split).tolist(), strict=True)
        for document, ((length, given), n) in enumerate(rows):
            by_length.setdefault(length, []).append(Span(document, n, n, n - given))
    return by_length


def messages(config: Config, planned: Plan) -> list[str]:
    """Returns how the endpoints differ from those of the configuration."""
    if planned.examples:
        return []
    wanted, depth, n_drawn = config.eval, planned.max_context, len(planned.endpoints)
    said = {
        f"endpoints lie {depth:,} tokens deep, not the {wanted.max_context:,} of "
        "eval.max_context: comparable with evaluations of this depth alone": (
            depth != wanted.max_context
        ),
        f"not scored: the {planned.repeated:.1%} of validation tokens in sequences of "
        f"{overlap.run_length(planned.corpus)} tokens that the training text has too": (
            planned.repeated > 0
        ),
        f"{n_drawn} of the {wanted.endpoints} endpoints requested are left in the validation "
        f"documents of at least {depth:,} tokens": n_drawn < wanted.endpoints,
    }
    return [message for message, applies in said.items() if applies]


def _max_context(config: Config, protocols: Sequence[Protocol], corpus: TokenizedCorpus) -> int:
    """Returns how deep endpoints lie: eval.max_context, or deeper for a length that spans more.

    Where no document is that long, what the trained length can be doubled to in one, so that all
    evaluations score the same. Raises UserError if no document has a length.
    """
    wanted, trained = config.eval, config.train.length
    longest = int(n_targets(corpus, corpus.validation).max(initial=0))
    in_training = trained if config.is_imported else int(corpus.train.lengths.max(initial=0))
    depth = {
        length: max(protocol.depth(length, config) for protocol in protocols)
        for length in wanted.lengths
    }
    deepest = max(depth.values())
    if trained <= in_training and deepest <= longest:
        common = wanted.max_context if wanted.max_context <= longest else _doubled(trained, longest)
        return max(common, deepest)
    lacks, changes = list[str](), list[str]()
    if trained > in_training:
        lacks.append(f"training documents of up to {in_training} tokens, not {trained}")
        trained = _doubled(trained, in_training)
        changes += [f"train.length={trained}", f"train.batch_tokens={config.train.batch * trained}"]
    if deepest > longest:
        lacks.append(f"validation documents of up to {longest} tokens, not {deepest}")
        lengths = [n for n in wanted.lengths if depth[n] <= longest]
        if not lengths:
            lengths = [_doubled(trained, longest)]
            changes.append(
                f"eval.targets={min(wanted.targets, lengths[0], 1 + longest - lengths[0])}"
            )
        changes.append(f"eval.lengths=[{','.join(map(str, lengths))}]")
    key, again = changes[-1].partition("=")[0], "import" if config.is_imported else "train"
    raise UserError(
        f"{key}: corpus {corpus.name} has {' and '.join(lacks)}; try {' '.join(changes)}"
        + ("" if corpus.packed or not corpus.meta else f", or {again} with corpus.packed=true")
    )


def _doubled(length: int, limit: int) -> int:
    """Returns the length doubled, or halved, until it is the last one within the limit."""
    while length > max(1, limit):
        length //= 2
    while 2 * length <= limit:
        length *= 2
    return length
