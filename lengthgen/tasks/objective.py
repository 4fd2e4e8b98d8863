"""Answers of a task: what a model trains on, how its tests are scored, and what their rows hold."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from random import Random
from typing import Any

import numpy as np

from lengthgen.config.registry import errors_of
from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.objective import Objective
from lengthgen.data.sources import Source
from lengthgen.data.windows import Span, n_targets, targets_of
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import Evaluation, Protocol
from lengthgen.evaluation.scored_text import Plan, ScoredSpans
from lengthgen.tasks import END, Task
from lengthgen.tasks.decoding import decoded
from lengthgen.tasks.source import TaskSource

COMMONEST_OF = 300  # examples of each length


def commonest(rule: Task, lengths: Sequence[int]) -> float:
    """Returns the mean over lengths of the share of the commonest answer among new examples.

    About the best that is possible without reading the prompt. Of lengths that have examples.
    """
    shares: list[float] = []
    for length in lengths:
        random = Random(length)
        with suppress(ValueError):
            answers = Counter(rule.example(length, random).answer for _ in range(COMMONEST_OF))
            shares.append(max(answers.values()) / COMMONEST_OF)
    return sum(shares) / len(shares) if shares else 0.0


class Answers(Objective):
    """The answer of each example, given its prompt, of which no token is predicted."""

    learns = "answers of a task"
    protocol = "answers"

    def __init__(self, config: Config, source: Source) -> None:
        super().__init__(config, source)
        assert isinstance(config.corpus, TaskCorpus)
        assert isinstance(source, TaskSource)
        self.corpus, self.rule = config.corpus, source.rule

    @staticmethod
    def takes(config: Config) -> bool:
        return isinstance(config.corpus, TaskCorpus)

    def check(self) -> None:
        """Raises UserError for keys, arguments or lengths that the task has no examples of."""
        corpus, spec, longest = self.corpus, self.corpus.task, max(self.config.eval.lengths)
        if corpus.held_out == "tuning":
            raise UserError(
                f"task={corpus.name}: rates are tuned on text alone (corpus.held_out=tuning, which "
                "lengthgen tune and sweep --search set); compare those of a task by lengthgen sweep"
            )
        if (corpus.tokenizer, corpus.bos, corpus.packed) != ("characters", True, False):
            raise UserError(
                "corpus: a task is read by characters, each example a document after <|bos|>; drop "
                "corpus.tokenizer, corpus.bos and corpus.packed"
            )
        if spec.longest < max(spec.length, longest):
            raise UserError(
                f"task.longest={spec.longest}: {spec.name} has no longer tests, and is trained to "
                f"task.length={spec.length} and tested to eval.lengths={longest}; set "
                f"task.longest={max(4 * spec.length, longest)} or drop lengths"
            )
        rule = self.rule
        for key, length in (("length", spec.length), ("longest", spec.longest)):
            with errors_of(type(rule), where=f"task.{key}={length}", refuses=True):
                example = rule.example(length, Random(0))
                shown = rule.augment(example, Random(0))
                text = example.prompt + example.answer + shown.prompt + shown.answer
            if unknown := sorted({*text} - {*rule.alphabet}):
                raise UserError(
                    f"task={spec.name}: the alphabet lacks {''.join(unknown)!r} of {text[:40]!r}; "
                    "add it to `alphabet`"
                )
            if not example.prompt:
                raise UserError(
                    f"task.{key}={length}: {spec.name} has an empty prompt; begin with a character"
                )
        if not rule.alphabet.isascii():
            raise UserError(f"task={spec.name}: {rule.alphabet!r} is not ASCII; use other letters")

    def check_corpus(self, corpus: TokenizedCorpus) -> None:
        """Raises UserError if a training example fits no window."""
        train, longest = self.config.train, int(n_targets(corpus, corpus.train).max(initial=0))
        if longest > train.length:
            raise UserError(
                f"train.length={train.length}: the longest training example of {corpus.name} has "
                f"{longest} tokens; set train.length={longest} "
                f"train.batch_tokens={train.batch * longest}"
            )

    @property
    def train_length(self) -> int:
        return self.corpus.task.length

    @cached_property
    def chance(self) -> float:
        """The accuracy up to L of a model that does not read the prompt, at the lengths scored."""
        lengths = [n for n in self.config.eval.lengths if n <= self.train_length]
        return self.rule.chance or commonest(self.rule, lengths)

    end = END

    def example_prompt(self) -> str:
        return self.rule.example(self.corpus.task.length, Random(0)).prompt

    def encoded(self, text: str) -> str:
        rule = self.rule
        spelled = rule.tokenize(text)
        missing = "".join(sorted(set(spelled) - {*rule.alphabet, END}))
        if missing:
            raise ValueError(f"no token for {missing!r}; it has {rule.alphabet}")
        return spelled

    def decoded(self, text: str) -> str:
        return self.rule.detokenize(text)

    def legend(self) -> str:
        rule = self.rule
        spelled = ((character, rule.detokenize(character)) for character in rule.alphabet)
        words = [f"`{character}` {word}" for character, word in spelled if word != character]
        return f"A word is a character: {', '.join(words)}." if words else ""

    def prompt_advice(self, prompt: str) -> str | None:
        end = self.rule.prompt_end
        return None if prompt.endswith(end) else f"a prompt of {self.corpus.name} ends in {end}"


class AnswersProtocol(Protocol):
    """All tests of a length: one row says where each answer goes wrong."""

    objective = Answers
    predicts = True

    def manifest_parts(self, plan: Plan) -> list[object]:
        return ["answers"]

    def rows(
        self, spans: Sequence[Span], scored: ScoredSpans, evaluation: Evaluation
    ) -> list[dict[str, Any]]:
        """Returns the one row of a length.

        Teacher forcing shows what greedy decoding would write up to its first mistake, and that is
        what makes an answer right or wrong. The first eval.decode tests are decoded too.
        """
        config, corpus = evaluation.config, evaluation.plan.corpus
        answers, n_decoded = evaluation.objective, config.eval.decode
        assert isinstance(answers, Answers)
        end = int(corpus.validation.tokens[-1])  # which all documents end with
        first_wrong: list[int | None] = []
        n_hits = n_stops = 0
        for span in spans:
            targets, predicted = targets_of(span, corpus), scored[span][:, 1].astype(np.int64)
            finite = np.isfinite(scored[span][:, 0]).all()  # a diverged model has no answer
            wrong = np.flatnonzero(predicted != targets) if finite else np.arange(span.scored)
            n_hits += span.scored - len(wrong)
            first_wrong.append(int(wrong[0]) if len(wrong) else None)
            if len(wrong):
                n_stops += end in (int(predicted[wrong[0]]), int(targets[wrong[0]]))
        nats = [math.fsum(scored[span][:, 0]) for span in spans]
        per_window = math.fsum(n / span.scored for n, span in zip(nats, spans, strict=True))
        is_finite = math.isfinite(math.fsum(nats))
        row = {
            "n_documents": 1,
            "document": f"{len(spans)} examples",
            "nats": math.fsum(nats) if is_finite else None,
            "n_tokens": sum(span.scored for span in spans),
            "n_bytes": 0,
            "n_windows": len(spans),
            "window_nats": per_window if is_finite else None,
            "first_wrong": first_wrong,  # the first wrong token of each answer
            "token_hits": n_hits,
            "stop_errors": n_stops,  # answers that first go wrong where they stop, or should
            "unit": answers.rule.unit,
            "chance": answers.chance,
        }
        if n_decoded:
            evaluation.show.advance(0, at=f"decoding {n_decoded} tests")
            row |= decoded(spans[:n_decoded], evaluation, answers.rule)
        return [row]

    def is_complete(self, row: Mapping[str, Any], config: Config) -> bool:
        wanted = min(config.eval.decode, row["n_windows"])
        return len(row.get("edit_distances") or ()) >= wanted


ANSWERS = AnswersProtocol(
    name="answers",
    summary="answers of a task: correct if greedy decoding writes all of it and its end",
    source="exact match under greedy decoding, as NoPE, arXiv 2305.19466",
    place=lambda length, plan: iter(plan.examples.get(length, ())),
)
