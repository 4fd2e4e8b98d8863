"""Decoding: a text continued token by token; earlier tokens are kept, not computed again.

Every layer keeps what later tokens need of earlier ones: normalised inputs, keys, values. Keys are
kept as they are before `qk`, which acts on all of them for each token: what a part does to them may
depend on all keys of the call, as the scale of xpos does. That costs about as much as the sum
over keys itself, and no product of matrices. What is kept holds wherever a prefix alone gives what
it gives within a longer call. Elsewhere the whole text is read again for each token.

B texts of one length, N new tokens, S tokens, D width, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.tokenizer import encode, read_tokenizer
from lengthgen.errors import UserError
from lengthgen.evaluation import plan, protocols, scoring
from lengthgen.evaluation.evaluator import Show, open_run, trained_model, undefined
from lengthgen.evaluation.plan import Cell, Plan
from lengthgen.evaluation.protocols import Span
from lengthgen.model.transformer import Block, LayerCache, Transformer, seed_of, with_parts
from lengthgen.runs.distributed import ALONE
from lengthgen.schemes import Scheme
from lengthgen.tasks import END

TOKENS = 64  # that a text is continued by, by default


class Read(NamedTuple):
    """Texts that a model has read, and what it keeps of them."""

    tokens_BS: Tensor
    logits_BV: Tensor  # of the token that comes next
    segment: int  # where the last segment begins: 0 unless the scheme has a memory
    layers: tuple[
        LayerCache, ...
    ]  # of that segment and what it remembers; empty if nothing is kept


class Failure(NamedTuple):
    """A test of a task that a model gets wrong, as text."""

    length: int  # in the unit of the task
    prompt: str
    expected: str
    got: str  # up to its end, or as many tokens as are expected


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run's newest model, and what it takes to write its text."""

    config: Config
    model: Transformer
    planned: Plan
    tokenizer: Tokenizer

    @property
    def corpus(self) -> TokenizedCorpus:
        return self.planned.corpus

    @property
    def end(self) -> int | None:
        """The token that ends an answer, None for texts."""
        corpus = self.config.corpus
        if not isinstance(corpus, TaskCorpus):
            return None
        return int(encode([END.encode()], corpus, self.tokenizer)[0][0])

    @property
    def limit(self) -> int:
        """Tokens after which to stop: as the longest answer among the tests, TOKENS for texts."""
        return max((one.scored for one in self.planned.places.answers), default=TOKENS)


def rereads(scheme: Scheme) -> str | None:
    """Returns why nothing can be kept of earlier tokens, or None if it can."""
    if scheme.depends_on_length:
        return "outputs depend on the length of the call: every token reads the whole text again"
    return None


@torch.inference_mode()
def read(
    model: Transformer, new_BN: Tensor, *, after: Read | None, seed: int, precision: str
) -> Read:
    """Returns the texts with new tokens behind them, and the logits of what comes next.

    They are those of a call with the whole text, to rounding: sums run over other blocks. Raises
    UserError where the scheme has no value at that length. A part that samples draws from the
    start of `seed`, as in every call of an evaluation.
    """
    tokens_BS = new_BN if after is None else torch.cat([after.tokens_BS, new_BN], dim=1)
    reason = model.scheme.unsupported_reason(tokens_BS.shape[1])
    if reason:
        raise UserError(
            f"{reason}: nothing follows a text of {tokens_BS.shape[1]} tokens; begin with a "
            "shorter one, or ask for fewer tokens"
        )
    with torch.autocast(new_BN.device.type, torch.bfloat16, enabled=precision == "bf16"):
        if rereads(model.scheme):
            generator = _draws(seed)
            logits = model.logits(model(tokens_BS, n_last=1, generator=generator)[:, 0])
            return Read(tokens_BS, logits, 0, ())
        return _extended(model, tokens_BS, after, seed=seed)


def _extended(model: Transformer, tokens_BS: Tensor, after: Read | None, *, seed: int) -> Read:
    """Returns what is read when each layer has seen the tokens that are new."""
    scheme, length = model.scheme, tokens_BS.shape[1]
    done, segment = (0, 0) if after is None else (after.tokens_BS.shape[1], after.segment)
    layers = () if after is None else after.layers
    size = model.shape.train_length if scheme.memory else length
    x_BND = tokens_BS.new_empty(0)
    while done < length:
        if done == segment + size:  # which is full: of it, the memory alone is kept
            segment, layers = done, tuple(_last(past, scheme.memory) for past in layers)
        remembered = layers[0].k_BSD.shape[1] - (done - segment) if layers else 0
        stop = min(segment + size, length)
        x_BSD, c = model.embedded(
            tokens_BS[:, segment:stop], generator=_draws(seed), remembered=remembered
        )
        x_BND = x_BSD[:, done - segment :]
        kept: list[LayerCache] = []
        for i, (block, layer) in enumerate(zip(model.blocks, scheme.layers, strict=True)):
            assert isinstance(block, Block)
            past = layers[i] if layers else None
            x_BND, one = block.forward_cached(x_BND, past, layer, replace(c, layer=i))
            kept.append(one)
        done, layers = stop, tuple(kept)
    return Read(tokens_BS, model.logits(model.norm(x_BND[:, -1])), segment, layers)


def _last(past: LayerCache, n: int) -> LayerCache:
    """Returns what is kept of the last n tokens."""
    return LayerCache(*(kept[:, max(0, kept.shape[1] - n) :] for kept in past))


def _draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of("evaluation", seed))


def continuation(
    model: Transformer,
    prompt: Sequence[int],
    *,
    limit: int,
    end: int | None,
    temperature: float,
    seed: int,
    precision: str,
) -> Iterator[int]:
    """Yields the tokens that a model writes behind a prompt: `limit`, or up to `end`, included.

    At a temperature of 0 the likeliest ones; else they are drawn, from `seed` alone.
    """
    device, draws = model.embedding.weight.device, torch.Generator()
    draws.manual_seed(seed_of("generation", seed))
    new, text = list(prompt), None
    for _ in range(limit):
        new_BN = torch.tensor([new], device=device)
        text = read(model, new_BN, after=text, seed=seed, precision=precision)
        new = [_chosen(text.logits_BV[0].cpu(), temperature, draws)]
        yield new[0]
        if new[0] == end:
            return


def _chosen(logits_V: Tensor, temperature: float, draws: torch.Generator) -> int:
    if not torch.isfinite(logits_V).all():
        raise UserError("the model's logits are not finite: its training diverged")
    if temperature == 0:
        return int(logits_V.argmax())
    p_V = ((logits_V - logits_V.max()).double() / temperature).softmax(-1)
    return int(torch.multinomial(p_V, 1, generator=draws))


# Of a run


def open_trained(config: Config, run_dir: Path, *, variant: str | None, show: Show) -> Trained:
    """Returns a run's newest checkpoint as a model, under a training-free variant if one is named.

    Raises UserError as open_run does, and for a variant that the scheme cannot take.
    """
    parts = None if variant is None else config.variant(variant)
    opened = open_run(config, run_dir, ranks=ALONE, show=show)
    model = trained_model(config, opened).requires_grad_(False)
    if parts is not None:
        model.scheme = with_parts(model, config, parts)
    tokenizer = read_tokenizer(opened.planned.corpus.tokenizer_path)
    return Trained(config=config, model=model, planned=opened.planned, tokenizer=tokenizer)


def generate(
    trained: Trained, prompt: str, *, limit: int | None, temperature: float, show: Show
) -> str:
    """Returns the prompt and what follows it: up to the end of an answer, or `limit` tokens."""
    tokens, end = prompt_tokens(trained, prompt), trained.end
    corpus = trained.config.corpus
    if isinstance(corpus, TaskCorpus) and not prompt.endswith(corpus.rule().ends):
        show.say(f"a prompt of {corpus.name} ends in {corpus.rule().ends}")
    limit = trained.limit if limit is None else limit
    show.start("generate", limit)
    written: list[int] = []
    for token in _written(trained, tokens, limit=limit, temperature=temperature):
        written.append(token)
        show.advance(1)
    show.finish()
    written = written[:-1] if written[-1] == end else written
    return _spelled(trained, [*tokens[trained.corpus.bos_id is not None :], *written])


def prompt_tokens(trained: Trained, prompt: str) -> list[int]:
    """Returns the tokens of a prompt as a document of training would begin.

    Raises UserError for text that the tokenizer has no tokens for, which it would drop.
    """
    corpus = trained.config.corpus
    if isinstance(corpus, TaskCorpus):
        try:
            prompt = corpus.rule().abridged(prompt)
        except ValueError as error:
            raise UserError(f"--prompt: {corpus.name} has {error}") from None
    try:
        raw = prompt.encode()
    except UnicodeEncodeError:
        raise UserError("--prompt: this is no UTF-8 text") from None
    tokens = encode([raw], corpus, trained.tokenizer)[0].tolist()
    kept = _text(trained, tokens)
    if kept != prompt:
        missing = "".join(sorted(set(prompt) - set(kept)))
        has = f"; it has {corpus.rule().alphabet}" if isinstance(corpus, TaskCorpus) else ""
        raise UserError(f"--prompt: {corpus.name} has no token for {missing!r}{has}")
    bos = trained.corpus.bos_id
    if bos is None and not tokens:
        raise UserError("--prompt: give a character at least; this run has corpus.bos=false")
    return tokens if bos is None else [bos, *tokens]


def failures(trained: Trained, count: int, *, show: Show) -> list[Failure]:
    """Returns up to `count` tests with a wrong answer, the shortest first.

    One test of each length is taken before a second of any. Where one pass over the right answer
    tells what decoding writes, it finds them; else all tests are decoded, until there are enough.
    Raises UserError for a run of no task.
    """
    config, corpus = trained.config, trained.corpus
    if corpus.validation.examples is None:
        raise UserError(
            f"--failures: {config.run_id} was trained on texts; runs of a task alone have tests"
        )
    by_length = _tests(trained, show=show)
    if rereads(trained.model.scheme) is None:
        by_length = _wrong(trained, by_length, show=show)
    in_turn = filter(None, chain.from_iterable(zip_longest(*by_length.values())))
    found: list[Failure] = []
    show.start("decode", min(count, sum(map(len, by_length.values()))), "wrong answers")
    while len(found) < count and (span := next(in_turn, None)) is not None:
        failure = _failure(trained, span)
        if failure is not None:
            found.append(failure)
            show.advance(1)
    show.finish()
    return sorted(found, key=lambda failure: failure.length)


def _tests(trained: Trained, *, show: Show) -> dict[int, list[Span]]:
    """Returns the tests of each length that the configuration asks for and the scheme has."""
    found: dict[int, list[Span]] = {}
    for length in sorted(set(trained.config.eval.lengths)):
        cell = Cell(protocols.ANSWERS, None, length)
        reason = undefined(cell, {None: trained.model.scheme}, trained.planned)
        if reason:
            show.say(f"{cell.title}: skipped, {reason}")
        else:
            found[length] = plan.spans(cell, trained.planned)
    return found


def _wrong(
    trained: Trained, tests: Mapping[int, list[Span]], *, show: Show
) -> dict[int, list[Span]]:
    """Returns the tests that are answered wrongly, from one pass over each right answer."""
    config, corpus = trained.config, trained.corpus
    wanted = [span for spans in tests.values() for span in spans]
    show.start("score tests", sum(span.length for span in wanted))
    scored = scoring.score(
        trained.model,
        wanted,
        corpus,
        precision=config.eval.precision,
        generator_seed=config.eval.seed,
        ranks=ALONE,
        advance=show.advance,
        predict=True,
    )
    show.finish()

    def is_wrong(span: Span) -> bool:
        return bool(np.any(scored[span][:, 1] != scoring.targets_of(span, corpus)))

    wrong = {length: [one for one in spans if is_wrong(one)] for length, spans in tests.items()}
    show.say(f"{sum(map(len, wrong.values()))} of {len(wanted)} tests are answered wrongly")
    return wrong


def _failure(trained: Trained, span: Span) -> Failure | None:
    """Returns a test as text with what the model writes, or None if that is right."""
    split, bos = trained.corpus.validation, trained.corpus.bos_id
    tokens, given = split.document(span.document).tolist(), split.given(span.document)
    assert split.examples is not None
    prompt = tokens[:given] if bos is None else [bos, *tokens[:given]]
    got = list(_written(trained, prompt, limit=span.scored, temperature=0))
    if got == tokens[given:]:
        return None
    ends = [part[:-1] if part[-1:] == [trained.end] else part for part in (tokens[given:], got)]
    texts = [_spelled(trained, part) for part in (tokens[:given], *ends)]
    return Failure(int(split.examples[span.document, 0]), *texts)


def _written(
    trained: Trained, prompt: Sequence[int], *, limit: int, temperature: float
) -> Iterator[int]:
    return continuation(
        trained.model,
        prompt,
        limit=limit,
        end=trained.end,
        temperature=temperature,
        seed=trained.config.eval.seed,
        precision=trained.config.eval.precision,
    )


def _spelled(trained: Trained, tokens: Sequence[int]) -> str:
    """Returns text as people are to read it."""
    text, corpus = _text(trained, tokens), trained.config.corpus
    return corpus.rule().spelled(text) if isinstance(corpus, TaskCorpus) else text


def _text(trained: Trained, tokens: Sequence[int]) -> str:
    return trained.tokenizer.decode(list(tokens), skip_special_tokens=False)
