"""Masked language models: what they see, and that they need positions to fill in an order."""

from pathlib import Path

import pytest
import torch
from small import SMALL, SMALL_TASK, VOCAB, some_tokens
from torch import Tensor
from trained import QUIET

from lengthgen.config.schema import Config, from_overrides
from lengthgen.encoder_decoder.masked_encoder import MaskedEncoder
from lengthgen.errors import UserError
from lengthgen.evaluation import evaluator
from lengthgen.model.build import create
from lengthgen.pipeline import train_and_evaluate, validate
from lengthgen.runs.distributed import ALONE

TASK = [*SMALL_TASK, "model.arch=encoder"]
EVERY = pytest.mark.parametrize("scheme", ["nope", "learned_absolute", "rope", "alibi", "t5"])


def configured(*words: str) -> Config:
    return validate(from_overrides([*TASK, *words], config_dir=None, plugins=[]))


def model_of(scheme: str) -> MaskedEncoder:
    """Returns a model in float64 with all parameters moved off their initial values."""
    config = configured(f"scheme={scheme}", "train.length=16")
    model = create(config, vocab_size=VOCAB).double()
    assert isinstance(model, MaskedEncoder)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.rand(parameter.shape, generator=generator)
    return model.eval().requires_grad_(False)


def states(model: MaskedEncoder, tokens: Tensor, *rows: tuple[int, int]) -> Tensor:
    """Returns the final states of rows (first token of the answer, number of tokens)."""
    answers, n_tokens = (torch.tensor(column) for column in zip(*rows, strict=True))
    return model(tokens, answer_B=answers, n_tokens_B=n_tokens)


@EVERY
def test_no_output_depends_on_a_token_of_the_answer_and_all_on_every_one_of_the_prompt(
    scheme: str,
) -> None:
    model, tokens = model_of(scheme), some_tokens(12, batch=1)
    before = states(model, tokens, (5, 12))
    for i in range(12):
        changed = tokens.clone()
        changed[:, i] = (changed[:, i] + 7) % VOCAB
        differs = ~torch.isclose(before, states(model, changed, (5, 12)), rtol=1e-9).all(-1)
        assert differs.all() if i <= 5 else not differs.any()


@EVERY
def test_without_positions_all_masks_have_one_output(scheme: str) -> None:
    model, tokens = model_of(scheme), some_tokens(12)
    answer = states(model, tokens, (5, 12), (5, 12))[:, 5:]
    one = torch.allclose(answer, answer[:, :1].expand_as(answer), rtol=0, atol=1e-12)
    assert one == (scheme == "nope")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["t5", "nope"])
def test_an_answer_is_right_if_all_of_it_is_filled_in_at_once(scheme: str, tmp_path: Path) -> None:
    words = f"runtime.root={tmp_path}", f"scheme={scheme}", "train.lr=1e-2", "train.tokens=8192"
    config = configured(*words)
    run_dir = train_and_evaluate(config, ranks=ALONE, show=QUIET)
    opened = evaluator.open_run(config, run_dir, ranks=ALONE, show=QUIET)
    model, corpus = evaluator.trained_model(config, opened), opened.planned.corpus
    assert isinstance(model, MaskedEncoder)
    rows = evaluator.evaluate(config, run_dir, ranks=ALONE, show=QUIET)
    scored = {row["length"]: list(row["first_wrong"]) for row in rows}
    for answer in (one for one in opened.planned.examples if one.length in scored):
        tokens = corpus.validation.document(answer.document).tolist()
        given = len(tokens) - answer.scored
        x = states(model, torch.tensor([[corpus.bos_id, *tokens[:-1]]]), (given, len(tokens)))
        filled = model.logits(x[0, given:]).argmax(-1).tolist()
        wrong = [i for i in range(answer.scored) if filled[i] != tokens[given + i]]
        first = scored[answer.length].pop(0)
        assert first == (wrong[0] if wrong else None)
        assert first is not None or scheme != "nope"


def test_text_and_parts_of_one_direction_are_refused() -> None:
    with pytest.raises(UserError, match=r"^model.arch=encoder: corpus synthetic has no prompts"):
        validate(from_overrides([*SMALL, "model.arch=encoder"], config_dir=None, plugins=[]))
    with pytest.raises(
        UserError, match=r"^scheme.parts.fire: not defined for keys after the query"
    ):
        configured("scheme=fire")
    with pytest.raises(
        UserError, match=r"^generate: rope-tiny_encoder-copy-.* takes decoder and enc"
    ):
        configured().refuse_arch("generate", taken=("decoder", "encoder_decoder"))
