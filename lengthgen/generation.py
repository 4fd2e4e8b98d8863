"""Generation: a run's model continues a text token by token.

B texts, N new tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from lengthgen.config.schema import Config
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.objective import Objective, objective_of
from lengthgen.data.tokenizer import read_tokenizer
from lengthgen.data.windows import IGNORED
from lengthgen.errors import UserError
from lengthgen.evaluation.evaluator import open_run, trained_model
from lengthgen.evaluation.scored_text import Plan
from lengthgen.model.build import generator_of, with_parts
from lengthgen.model.kv_cache import forward_cached
from lengthgen.model.transformer import Transformer
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress

TOKENS = 64  # that a text is continued by, by default


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run's newest model, and what it takes to write its text."""

    config: Config
    model: Transformer
    planned: Plan
    tokenizer: Tokenizer
    objective: Objective

    @property
    def corpus(self) -> TokenizedCorpus:
        return self.planned.corpus

    @property
    def end(self) -> int | None:
        """The token that ends an answer, None for texts."""
        return self.tokens(self.objective.end)[0] if self.objective.end else None

    def tokens(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def continuation(
        self, prompt: Sequence[int], *, limit: int, temperature: float
    ) -> Iterator[int]:
        """Yields what the model writes behind a prompt, by the seed of the evaluation."""
        return continuation(
            self.model,
            prompt,
            limit=limit,
            end=self.end,
            temperature=temperature,
            seed=self.config.eval.seed,
            precision=self.config.eval.precision,
        )


def open_trained(config: Config, run_dir: Path, *, variant: str | None, show: Progress) -> Trained:
    """Returns a run's newest checkpoint as a model, under a training-free variant if one is named.

    Raises UserError as open_run does, and for a variant that the scheme cannot take.
    """
    parts = None if variant is None else config.variant(variant)
    opened = open_run(config, run_dir, ranks=ALONE, show=show)
    model = trained_model(config, opened).requires_grad_(False)
    if parts is not None:
        model.scheme = with_parts(model, config, parts)
    return Trained(
        config=config,
        model=model,
        planned=opened.planned,
        tokenizer=read_tokenizer(opened.planned.corpus.tokenizer_path),
        objective=objective_of(config),
    )


def generate(
    trained: Trained, prompt: str, *, limit: int | None, temperature: float, show: Progress
) -> str:
    """Returns the prompt and what follows it: up to the end of an answer, or `limit` tokens.

    By default that is as many tokens as the longest answer among the tests has, TOKENS for texts.
    """
    tokens, end = prompt_tokens(trained, prompt), trained.end
    advice = trained.objective.prompt_advice(prompt)
    if advice:
        show.say(advice)
    if limit is None:
        limit = max((example.scored for example in trained.planned.examples), default=TOKENS)
    show.start("generate", limit)
    written: list[int] = []
    for token in trained.continuation(tokens, limit=limit, temperature=temperature):
        written.append(token)
        show.advance(1)
    show.finish()
    written = written[:-1] if written[-1] == end else written
    text = trained.text([*tokens[len(trained.corpus.beginning) :], *written])
    return trained.objective.decoded(text)


def prompt_tokens(trained: Trained, prompt: str) -> list[int]:
    """Returns the tokens of a prompt as a document of training would begin.

    Raises UserError for text that the tokenizer has no tokens for, which it would drop.
    """
    name = trained.config.corpus.name
    try:
        prompt.encode()
        prompt = trained.objective.encoded(prompt)
    except UnicodeEncodeError:
        raise UserError("--prompt: this is no UTF-8 text") from None
    except ValueError as error:
        raise UserError(f"--prompt: {name} has {error}") from None
    tokens = trained.tokens(prompt)
    missing = "".join(sorted(set(prompt) - set(trained.text(tokens))))
    if missing:
        raise UserError(f"--prompt: {name} has no token for {missing!r}")
    begun = [*trained.corpus.beginning, *tokens]
    if not begun:
        raise UserError("--prompt: give a character at least; this run has corpus.bos=false")
    return begun


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
