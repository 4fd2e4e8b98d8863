"""The tests of a task that a model answers wrongly, as text."""

from collections.abc import Mapping
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from lengthgen.data.spans import Span
from lengthgen.data.windows import targets_of
from lengthgen.errors import UserError
from lengthgen.evaluation import plan, scoring
from lengthgen.evaluation.evaluator import undefined
from lengthgen.evaluation.scored_text import Cell
from lengthgen.generation import Trained
from lengthgen.runs.distributed import ALONE
from lengthgen.tasks.objective import ANSWERS
from lengthgen.terminal import Progress


class Failure(NamedTuple):
    """A test of a task that a model gets wrong, as text."""

    length: int  # in the unit of the task
    prompt: str
    expected: str
    got: str  # up to its end, or as many tokens as are expected


def failures(trained: Trained, count: int, *, show: Progress) -> list[Failure]:
    """Returns up to `count` tests with a wrong answer, the shortest first.

    One test of each length is taken before a second of any.

    Raises UserError for a run of no task.
    """
    config, corpus = trained.config, trained.corpus
    if corpus.validation.examples is None:
        raise UserError(
            f"--failures: {config.run_id} was trained on texts; runs of a task alone have tests"
        )
    by_length = _wrong(trained, _tests(trained, show=show), show=show)
    in_turn = filter(None, chain.from_iterable(zip_longest(*by_length.values())))
    wrong: list[Failure] = []
    show.start("decode", min(count, sum(map(len, by_length.values()))), "wrong answers")
    while len(wrong) < count and (span := next(in_turn, None)) is not None:
        failure = _failure(trained, span)
        if failure is not None:
            wrong.append(failure)
            show.advance(1)
    show.finish()
    return sorted(wrong, key=lambda failure: failure.length)


def _tests(trained: Trained, *, show: Progress) -> dict[int, list[Span]]:
    """Returns the tests of each length that the configuration asks for and the scheme has."""
    tests: dict[int, list[Span]] = {}
    for length in sorted(set(trained.config.eval.lengths)):
        cell = Cell(ANSWERS.name, None, length)
        reason = undefined(cell, {None: trained.model.scheme}, trained.planned)
        if reason:
            show.say(f"{cell.title}: skipped, {reason}")
        else:
            tests[length] = plan.windows(cell, trained.planned)
    return tests


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
        protocol=ANSWERS,
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
    got = list(trained.continuation(prompt, limit=span.scored, temperature=0))
    if got == tokens[given:]:
        return None
    ends = [part[:-1] if part[-1:] == [trained.end] else part for part in (tokens[given:], got)]
    texts = [trained.objective.decoded(trained.text(part)) for part in (tokens[:given], *ends)]
    return Failure(int(split.examples[span.document, 0]), *texts)
