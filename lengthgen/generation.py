"""Decoding: a run's model continues a text token by token, and the tests that it gets wrong.

B texts, N new tokens, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.spans import Span
from lengthgen.data.tokenizer import encode, read_tokenizer
from lengthgen.data.windows import IGNORED, targets_of
from lengthgen.errors import UserError
from lengthgen.evaluation import plan, protocols, scoring
from lengthgen.evaluation.evaluator import open_run, trained_model, undefined
from lengthgen.evaluation.scored_text import Cell, Plan
from lengthgen.model.build import generator_of, with_parts
from lengthgen.model.kv_cache import forward_cached, why_uncached
from lengthgen.model.transformer import Transformer
from lengthgen.runs.distributed import ALONE
from lengthgen.tasks import END, task_of
from lengthgen.terminal import Progress

TOKENS = 64  # that a text is continued by, by default


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
        return max((answer.scored for answer in self.planned.text.examples), default=TOKENS)


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
    device, draws = model.embedding.weight.device, generator_of("generation", seed)
    new, cache = list(prompt), None
    starts = model.answer_starts(torch.tensor([[IGNORED] * (len(new) - 1) + [0]]))
    for _ in range(limit):
        new_BN = torch.tensor([new], device=device)
        cache = forward_cached(model, new_BN, cache, seed=seed, precision=precision, starts=starts)
        new = [_chosen(cache.logits_BV[0].cpu(), temperature, draws)]
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


def open_trained(config: Config, run_dir: Path, *, variant: str | None, show: Progress) -> Trained:
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
    trained: Trained, prompt: str, *, limit: int | None, temperature: float, show: Progress
) -> str:
    """Returns the prompt and what follows it: up to the end of an answer, or `limit` tokens."""
    tokens, end = prompt_tokens(trained, prompt), trained.end
    corpus = trained.config.corpus
    if isinstance(corpus, TaskCorpus) and not prompt.endswith(task_of(corpus).prompt_end):
        show.say(f"a prompt of {corpus.name} ends in {task_of(corpus).prompt_end}")
    limit = trained.limit if limit is None else limit
    show.start("generate", limit)
    written: list[int] = []
    for token in _written(trained, tokens, limit=limit, temperature=temperature):
        written.append(token)
        show.advance(1)
    show.finish()
    written = written[:-1] if written[-1] == end else written
    return _spelled(trained, [*tokens[len(trained.corpus.beginning) :], *written])


def prompt_tokens(trained: Trained, prompt: str) -> list[int]:
    """Returns the tokens of a prompt as a document of training would begin.

    Raises UserError for text that the tokenizer has no tokens for, which it would drop.
    """
    corpus = trained.config.corpus
    if isinstance(corpus, TaskCorpus):
        try:
            prompt = task_of(corpus).tokenize(prompt)
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
        has = f"; it has {task_of(corpus).alphabet}" if isinstance(corpus, TaskCorpus) else ""
        raise UserError(f"--prompt: {corpus.name} has no token for {missing!r}{has}")
    begun = [*trained.corpus.beginning, *tokens]
    if not begun:
        raise UserError("--prompt: give a character at least; this run has corpus.bos=false")
    return begun


def failures(trained: Trained, count: int, *, show: Progress) -> list[Failure]:
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
    if why_uncached(trained.model.scheme) is None:
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


def _tests(trained: Trained, *, show: Progress) -> dict[int, list[Span]]:
    """Returns the tests of each length that the configuration asks for and the scheme has."""
    found: dict[int, list[Span]] = {}
    for length in sorted(set(trained.config.eval.lengths)):
        cell = Cell("answers", None, length)
        reason = undefined(cell, {None: trained.model.scheme}, trained.planned)
        if reason:
            show.say(f"{cell.title}: skipped, {reason}")
        else:
            found[length] = plan.windows(cell, trained.planned)
    return found


def _wrong(
    trained: Trained, tests: Mapping[int, list[Span]], *, show: Progress
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
        protocol=protocols.named("answers"),
    )
    show.finish()

    def is_wrong(span: Span) -> bool:
        return bool(np.any(scored[span][:, 1] != targets_of(span, corpus)))

    wrong = {length: [span for span in spans if is_wrong(span)] for length, spans in tests.items()}
    show.say(f"{sum(map(len, wrong.values()))} of {len(wanted)} tests are answered wrongly")
    return wrong


def _failure(trained: Trained, span: Span) -> Failure | None:
    """Returns a test as text with what the model writes, or None if that is right."""
    split = trained.corpus.validation
    tokens, given = split.document(span.document).tolist(), split.prompt_length(span.document)
    assert split.examples is not None
    prompt = [*trained.corpus.beginning, *tokens[:given]]
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
    return task_of(corpus).detokenize(text) if isinstance(corpus, TaskCorpus) else text


def _text(trained: Trained, tokens: Sequence[int]) -> str:
    return trained.tokenizer.decode(list(tokens), skip_special_tokens=False)
