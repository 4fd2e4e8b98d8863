"""Texts made to ask something of a model: the probabilities of a few tokens at a few places.

B texts, T tokens, P places, C tokens asked for, D width, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from lengthgen.data.windows import Ints, Span
from lengthgen.evaluation.protocols import Evaluation
from lengthgen.evaluation.scored_text import Advance, Nats
from lengthgen.evaluation.scoring import MIN_LAST, Pass, passes
from lengthgen.model.build import generator_of
from lengthgen.model.transformer import LOGIT_BYTES


class Text(NamedTuple):
    """What a model reads, and what is asked after some of its tokens."""

    tokens_T: Ints
    places_P: Ints  # after which of them
    asked_PC: Ints  # the tokens whose probability counts


class Answer(NamedTuple):
    nats_PC: Nats  # of each token asked for
    likeliest_P: Ints


def read_answers(texts: Sequence[Text], evaluation: Evaluation, advance: Advance) -> list[Answer]:
    """Returns the answers to the texts, in their order, the same for any number of processes.

    A forward pass reads texts of one length; `advance` receives the cost of each.
    """
    lengths = enumerate(len(text.tokens_T) for text in texts)
    spans = [Span(i, n, n, 1) for i, n in lengths]  # the texts are the documents

    def answered(batch: Pass) -> dict[Span, Answer]:
        answers = _answers([texts[span.document] for span in batch.hosts], evaluation)
        advance(batch.cost(evaluation.model) * evaluation.ranks.world_size)
        return dict(zip(batch.hosts, answers, strict=True))

    every = evaluation.ranks.divided(passes({span: span for span in spans}), answered)
    return [every[span] for span in spans]


@torch.inference_mode()
def _answers(texts: Sequence[Text], evaluation: Evaluation) -> list[Answer]:
    model, config = evaluation.model, evaluation.config
    device = model.embedding.weight.device
    tokens_BT = torch.from_numpy(np.stack([text.tokens_T for text in texts])).to(device)
    T = tokens_BT.shape[1]
    first = min(int(text.places_P.min()) for text in texts)
    n_last = max(T - first, min(MIN_LAST, T))
    generator = generator_of("evaluation", config.seed)
    answers: list[Answer] = []
    with torch.autocast(device.type, torch.bfloat16, enabled=config.eval.precision == "bf16"):
        x_BTD = model(tokens_BT, n_last=n_last, generator=generator)
        n = max(1, LOGIT_BYTES // (4 * model.embedding.num_embeddings))  # places at a time
        for text, x_TD in zip(texts, x_BTD, strict=True):
            x_PD = x_TD[torch.from_numpy(text.places_P - T + n_last).to(device)]
            asked_PC = torch.from_numpy(text.asked_PC).to(device)
            parts: list[tuple[Nats, Ints]] = []
            for x, asked in zip(x_PD.split(n), asked_PC.split(n), strict=True):
                logits_PV = model.logits(x).float()
                nats = logits_PV.logsumexp(-1, keepdim=True) - logits_PV.gather(-1, asked)
                parts.append((nats.cpu().double().numpy(), logits_PV.argmax(-1).cpu().numpy()))
            answers.append(Answer(*map(np.concatenate, zip(*parts, strict=True))))
    return answers
