"""Generation: a run's model continues a text by N new tokens; B texts, V vocabulary."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer

from lengthgen.data.tokenizer import normalised, read_tokenizer
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import Evaluation
from lengthgen.experiment import Experiment
from lengthgen.model.build import generator_of, redesigned
from lengthgen.model.kv_cache import forward_cached
from lengthgen.model.transformer import Transformer
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress

CONTINUED = 64  # that a text is continued by, by default


def open_trained(
    experiment: Experiment, run_dir: Path, *, is_varied: bool, show: Progress
) -> tuple[Evaluation, Tokenizer]:
    """Returns a run's newest model to write with, and its tokenizer.

    If `is_varied`, the model acts under the first of eval.variants. Raises UserError as
    Opened.trained does, and for a variant that the scheme cannot take.
    """
    if experiment.config.is_imported:  # its corpus may be too short for its lengths
        experiment = experiment.with_eval(lengths=[1], targets=1, deduplicate=False)
    opened = experiment.opened(run_dir, say=show.say).trained(ranks=ALONE, show=show)
    model = opened.model.requires_grad_(False)
    if is_varied:
        model.scheme = redesigned(model, experiment.evaluated_variants[0])
    return opened, read_tokenizer(opened.plan.corpus.tokenizer_path)


def generate(
    opened: Evaluation, tokenizer: Tokenizer, prompt: str, *, limit: int | None, temperature: float
) -> str:
    """Returns the prompt and what follows it: up to the end of an answer, or `limit` tokens.

    By default that is as many tokens as the longest answer among the tests has; CONTINUED for
    texts.
    """
    objective, given = opened.objective, opened.config.eval
    tokens, beginning = prompt_tokens(opened, tokenizer, prompt), opened.plan.corpus.beginning
    if advice := objective.prompt_advice(prompt):
        opened.show.say(advice)
    answers = itertools.chain(*opened.plan.examples.values())
    limit = limit or max((answer.scored for answer in answers), default=CONTINUED)
    end = next(iter(tokenizer.encode(objective.end, add_special_tokens=False).ids), None)
    n_read = len(tokens) + limit - 1
    if end is None and (reason := opened.model.scheme.unsupported_reason(n_read)):
        raise UserError(f"--tokens={limit}: {reason}; ask for fewer, or begin with a shorter text")
    write = partial(continuation, opened.model, tokens, limit=limit, end=end)
    written = [*write(temperature=temperature, seed=given.seed, precision=given.precision)]
    written = written[:-1] if written[-1] == end else written
    text = tokenizer.decode([*tokens[len(beginning) :], *written], skip_special_tokens=False)
    return objective.decoded(text)


def prompt_tokens(opened: Evaluation, tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Returns the tokens of a prompt as a document of training would begin.

    Raises UserError for text that the tokenizer has no tokens for, which it would drop.
    """
    name = opened.config.corpus.name
    try:
        prompt.encode()
        prompt = normalised(opened.objective.encoded(prompt), tokenizer)
    except UnicodeEncodeError:
        raise UserError("--prompt: this is no UTF-8 text") from None
    except ValueError as error:
        raise UserError(f"--prompt: {name} has {error}") from None
    tokens = tokenizer.encode(prompt, add_special_tokens=False).ids
    read = tokenizer.decode(tokens, skip_special_tokens=False)
    if missing := "".join(sorted({*prompt} - {*read})):
        raise UserError(f"--prompt: {name} has no token for {missing!r}")
    tokens = [*opened.plan.corpus.beginning, *tokens]
    if not tokens:
        raise UserError("--prompt: give a character at least; this run has corpus.bos=false")
    return tokens


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
    for _ in range(limit):
        new_BN = torch.tensor([new], device=device)
        cache = forward_cached(model, new_BN, cache, seed=seed, precision=precision)
        logits_V = cache.logits_BV[0].cpu()
        if not torch.isfinite(logits_V).all():
            raise UserError("the model's logits are not finite: its training diverged")
        if temperature == 0:
            new = [int(logits_V.argmax())]
        else:
            p_V = ((logits_V - logits_V.max()).double() / temperature).softmax(-1)
            new = [int(torch.multinomial(p_V, 1, generator=draws))]
        yield new[0]
        if new[0] == end:
            return
