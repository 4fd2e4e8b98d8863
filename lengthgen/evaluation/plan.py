"""The plan of an evaluation: which tokens are scored, fixed before a model is built.

data/windows.py draws the endpoints, protocols.py places the windows before them (the matched tail:
targets_per_window and _tail), and the plan joins both for every protocol, variant and length.
"""

from dataclasses import replace

from lengthgen.config.schema import Config
from lengthgen.data import overlap
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.objective import objective_of
from lengthgen.data.spans import Span
from lengthgen.data.windows import endpoints, n_targets, share_seen
from lengthgen.errors import UserError
from lengthgen.evaluation import protocols
from lengthgen.evaluation.scored_text import Cell, Example, Plan, ScoredText


def plan(config: Config, corpus: TokenizedCorpus) -> Plan:
    """Returns what to score: the examples of a corpus that has prompts, or else endpoints.

    Raises UserError, with changes that help, if no document has the longest length, or none
    of the training split a window, or if all that is held out stands in the training split too.
    """
    wanted = config.eval
    objective_of(config).check_corpus(corpus)
    text = ScoredText(
        targets=wanted.targets,
        train_length=config.train.length,
        sliding_documents=wanted.sliding_documents,
        exact_targets=wanted.exact_targets,
        longest=max(wanted.lengths),
        packed=corpus.packed,
    )
    if corpus.validation.examples is not None:
        return Plan(corpus=corpus, text=replace(text, examples=_examples(corpus)))
    longest = int(n_targets(corpus, corpus.validation).max(initial=0))
    _refuse_short_documents(config, corpus, longest)
    max_context = _max_context(config, longest)
    for name in wanted.protocols:
        uneven = [length for length in wanted.lengths if max_context % length]
        if uneven and protocols.named(name).divides:
            raise UserError(
                f"eval.lengths: {uneven[0]} does not divide the {max_context} tokens before an "
                f"endpoint, so that {name} would score other tokens at it than at other lengths; "
                "drop it, or use eval.protocols=[tail] (lengthgen eval: --protocols tail)"
            )
    seen = None
    if wanted.deduplicate:
        seen = overlap.in_training(corpus, cache_dir=config.runtime.cache_dir)
    drawn = endpoints(
        corpus,
        reach=max_context,
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
    blocks = min(wanted.blocks, n_in_stream // max_context)
    repeated = 0.0
    if seen is not None:
        repeated = share_seen(corpus, seen, reach=max_context, targets=wanted.targets)
    text = replace(text, endpoints=tuple(drawn), max_context=max_context, blocks=blocks)
    return Plan(corpus=corpus, text=text, repeated=repeated)


def _examples(corpus: TokenizedCorpus) -> tuple[Example, ...]:
    """Returns all validation documents of a corpus whose documents have prompts."""
    split = corpus.validation
    assert split.examples is not None
    rows = zip(split.examples, n_targets(corpus, split), strict=True)
    return tuple(
        Example(int(length), document, int(n), int(n) - int(given))
        for document, ((length, given), n) in enumerate(rows)
    )


def cells(config: Config) -> list[Cell]:
    """Returns all cells of the configuration, the longest first under each protocol."""
    wanted = config.eval
    lengths = sorted(set(wanted.lengths), reverse=True)
    found: dict[Cell, None] = {}
    for name in wanted.protocols:
        protocol = protocols.named(name)
        references = wanted.reference_variants if protocol.headline else []
        for variant in (None, *wanted.variants, *references):
            first = 0
            if protocol.altered:
                first = config.train.length + 1
            elif variant in references and variant not in wanted.variants:
                first = config.train.length
            for length in lengths[:1] if protocol.by_position else lengths:
                if length >= first:
                    found[Cell(name, variant, length)] = None
    return list(found)


def windows(cell: Cell, planned: Plan) -> list[Span]:
    """Returns the windows that a cell scores."""
    return list(protocols.named(cell.protocol).windows(cell.length, planned.text))


def messages(config: Config, planned: Plan) -> list[str]:
    """Returns how the endpoints differ from those of the configuration."""
    found: list[str] = []
    if planned.text.examples:
        return found
    if planned.max_context != config.eval.reach:
        found.append(_depth(config, planned))
    if planned.repeated:
        found.append(
            f"{planned.repeated:.1%} of the validation tokens that could be scored lie in runs of "
            f"{overlap.run_length(planned.corpus)} tokens that training has too; none is "
            "a target of an endpoint"
        )
    if len(planned.endpoints) < config.eval.endpoints:
        found.append(
            f"{len(planned.endpoints)} of the {config.eval.endpoints} endpoints requested are left "
            f"in the validation documents of at least {planned.max_context:,} tokens"
        )
    return found


def _max_context(config: Config, longest: int) -> int:
    """Returns how deep endpoints lie, in documents of at most `longest` tokens.

    Only a length whose windows span more than _common_context has endpoints of its own.
    """
    spanned = (_spanned(config, length) for length in config.eval.lengths)
    return max(_common_context(config, longest), *spanned)


def _spanned(config: Config, length: int) -> int:
    """Returns how many targets of a document the windows of a length span, over all protocols."""
    sizes = {"targets": config.eval.targets, "train_length": config.train.length}
    return max(protocols.named(name).depth(length, **sizes) for name in config.eval.protocols)


def _common_context(config: Config, longest: int) -> int:
    """Returns the depth that no length changes, so that all evaluations score the same.

    eval.reach; where no document is that long, what the trained length can be doubled to in one.
    """
    if config.eval.reach <= longest:
        return config.eval.reach
    return _doubled(config.train.length, longest)


def _depth(config: Config, planned: Plan) -> str:
    """Returns how deep endpoints lie, and why not eval.reach."""
    longest = int(n_targets(planned.corpus, planned.corpus.validation).max())
    common = _common_context(config, longest)
    if planned.max_context > common:
        why = f"more than the {common:,} of other evaluations, for the longest of eval.lengths"
    else:
        why = f"no validation document has the {config.eval.reach:,} of eval.reach"
    return f"endpoints lie {planned.max_context:,} tokens deep: {why}"


def _doubled(length: int, limit: int) -> int:
    """Returns the length doubled, or halved, until it is the last one within the limit."""
    while length > max(1, limit):
        length //= 2
    while 2 * length <= limit:
        length *= 2
    return length


def _refuse_short_documents(config: Config, corpus: TokenizedCorpus, longest: int) -> None:
    """Raises UserError, naming all that must change, if no document holds a window of a length."""
    wanted, trained = config.eval, config.train.length
    needed = max(_spanned(config, length) for length in wanted.lengths)
    in_training = int(corpus.train.lengths.max())
    if needed <= longest and trained <= in_training:
        return
    enough = needed <= corpus.validation.lengths.sum() and trained <= corpus.train.lengths.sum()
    changes: dict[str, object] = {}
    if trained > in_training:
        trained = changes["train.length"] = _doubled(trained, in_training)
        if config.train.batch_tokens % trained:
            changes["train.batch_tokens"] = config.train.batch_tokens // trained * trained
    lengths = [n for n in wanted.lengths if _spanned(config, n) <= longest]
    targets = wanted.targets
    if not lengths:
        lengths = [_doubled(trained, longest)]
        targets = min(targets, 1 + longest - lengths[0])
    if any(protocols.named(name).one_window for name in wanted.protocols):
        targets = min(targets, *lengths)
    if targets < wanted.targets:
        changes["eval.targets"] = targets
    written = ",".join(map(str, lengths))
    if needed > longest:
        changes["eval.lengths"] = f"[{written}]"
    remedy = "try " + " ".join(f"{key}={changes[key]}" for key in sorted(changes))
    if enough and not corpus.packed:
        remedy += ", or train with corpus.packed=true"
    if needed > longest:
        raise UserError(
            f"eval.lengths: no validation document of corpus {corpus.name} has the {needed} tokens "
            f"that the windows of {max(wanted.lengths)} span (the longest has {longest}); {remedy} "
            f"(lengthgen eval: --lengths {written})"
        )
    raise UserError(
        f"train.length={config.train.length}: the longest training document of corpus "
        f"{corpus.name} has {in_training} tokens; {remedy}"
    )
