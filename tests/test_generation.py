"""Decoding: the tokens that a model writes, and answers that are what tests say."""

import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from commands import Ran, Shell
from small import SMALL_TASK, config_of, experiment_of, last_logits, small_config, small_model
from tokenizers import Tokenizer
from trained import QUIET, train_and_evaluate

from lengthgen.config.schema import Config
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import Evaluation
from lengthgen.generation import continuation, open_trained, prompt_tokens
from lengthgen.model.transformer import Transformer


def written(
    model: Transformer,
    prompt: list[int],
    *,
    limit: int = 20,
    end: int | None = None,
    temperature: float = 0,
    seed: int = 0,
) -> list[int]:
    """Returns the tokens that the model writes behind a prompt."""
    how = {"limit": limit, "end": end, "temperature": temperature, "seed": seed}
    return list(continuation(model, prompt, precision="fp32", **how))  # pyright: ignore


@pytest.mark.parametrize(("name", "variant"), [("rope", "yarn"), ("randomized_rope", None)])
def test_without_temperature_each_token_is_the_likeliest(name: str, variant: str | None) -> None:
    model, text = small_model(name, variant), [3, 1, 4]
    tokens = written(model, text)
    assert len(tokens) == 20
    for token in tokens:
        assert token == int(last_logits(model, torch.tensor([text])).argmax())
        text = [*text, token]


def test_writing_stops_behind_the_end_or_at_the_limit() -> None:
    model = small_model("alibi")
    text = written(model, [3, 1, 4], temperature=1.0)
    first = text.index(text[5]) + 1
    assert written(model, [3, 1, 4], temperature=1.0, end=text[5]) == text[:first]
    assert written(model, [3, 1, 4], temperature=1.0, limit=7) == text[:7]


def test_a_temperature_draws_by_seed_from_the_softmax_of_logits_divided_by_it() -> None:
    model, n = small_model("nope", dtype=torch.float32), 1000
    p = (last_logits(model, torch.tensor([[5]]))[0] / 2).softmax(-1)
    drawn = Counter(written(model, [5], limit=1, temperature=2.0, seed=s)[0] for s in range(n))
    shares = torch.tensor([drawn[v] / n for v in range(len(p))])
    # The standard deviation of each share is below (p / n)^0.5; 5 of them, for 50 shares.
    assert ((shares - p).abs() < 5 * (p / n).sqrt() + 1e-3).all()
    first, again = (written(model, [3], temperature=1.0) for _ in range(2))
    assert first == again != written(model, [3], temperature=1.0, seed=1)
    for cold in (1e-3, 1e-300):
        assert written(model, [3], temperature=cold) == written(model, [3])


def test_a_model_that_diverged_is_an_error_not_a_text() -> None:
    model = small_model("rope")
    with torch.no_grad():
        model.embedding.weight.fill_(float("nan"))
    for temperature in (0.0, 1.0):
        with pytest.raises(UserError, match="logits are not finite: its training diverged"):
            written(model, [3], temperature=temperature)


class Runs(NamedTuple):
    """A run that learned to copy a little, and one of random words with 16 learned positions."""

    root: Path
    copying: tuple[Evaluation, Tokenizer]
    texts: tuple[Evaluation, Tokenizer]


def trained_on(config: Config) -> tuple[Evaluation, Tokenizer]:
    train_and_evaluate(config)
    return open_trained(experiment_of(config), config.run_dir, is_varied=False, show=QUIET)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("runs")
    where = f"runtime.root={root}"
    words = [*SMALL_TASK, "scheme=alibi", "task.arguments.alphabet=5", "model.init_std=0.02"]
    words += ["train.batch_tokens=640", "train.tokens=30000", "train.lr=0.01", where]
    copying = config_of(*words)
    texts = small_config("scheme=learned_absolute", "train.tokens=256", where)
    return Runs(root, trained_on(copying), trained_on(texts))


def generated(shell: Shell, runs: Runs, *words: str) -> Ran:
    return shell.run("generate", *words, f"runtime.root={runs.root}", "runtime.threads=1")


def test_an_answer_is_printed_behind_its_prompt_to_its_end(runs: Runs, shell: Shell) -> None:
    opened, tokenizer = runs.copying
    [end] = tokenizer.encode("\n").ids
    *answer, last = written(opened.model, prompt_tokens(*runs.copying, "ab="), limit=20, end=end)
    assert last == end
    ran = generated(shell, runs, "alibi", "--prompt", "ab=")
    assert (ran.code, ran.out) == (0, f"ab={tokenizer.decode(answer)}\n")


def test_a_text_goes_on_for_as_many_tokens_as_asked(runs: Runs, shell: Shell) -> None:
    learned = ["learned", "--prompt", "ab cd "]
    prompt = prompt_tokens(*runs.texts, "ab cd ")
    want = "ab cd " + bytes(written(runs.texts[0].model, prompt, limit=10)).decode(errors="replace")
    ran = generated(shell, runs, *learned, "--tokens", "10")
    assert ran.out == f"{want}\n"
    assert "learned_absolute: " not in ran.err
    assert generated(shell, runs, *learned, "--variant", "clamp").out.startswith(want)
    drawn = [*learned, "--tokens", "10", "--temperature", "1"]
    seeds = ("eval.seed=0", "eval.seed=0", "eval.seed=7")
    first, again, other = (generated(shell, runs, *drawn, seed).out for seed in seeds)
    assert first == again != other
    ran = generated(shell, runs, *learned, "--tokens", "2", "--variant", "interpolate")
    [said] = [line for line in ran.err.splitlines() if line.startswith("learned_absolute: ")]
    assert said.endswith("depend on the length of the call: every token reads the whole text again")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--prompt is missing"),
        (("alibi", "learned", "--prompt", "a="), "one run at a time, not 2; drop learned"),
        (("alibi", "--prompt", "abXY="), "--prompt: copy has no token for 'XY'; it has abcde="),
        (("alibi", "--prompt", "\udcff="), "--prompt: this is no UTF-8 text"),
        (("alibi", "--prompt", "a=", "--temperature", "nan"), "'--temperature': Input should be"),
        (("alibi", "--prompt", "a=", "--variant", "x"), "scheme alibi has no variant 'x'"),
        (("learned", "--prompt", "ab cd ", "--tokens", "11"), "--tokens=11: learned_absolute has"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], said: str, runs: Runs, shell: Shell) -> None:
    assert said in shell.error_of("generate", *words, f"runtime.root={runs.root}")


@pytest.mark.parametrize("words", [("learned", "abcd"), ("ab cd ",), ("learned", "a = b")])
def test_a_text_that_is_no_option_is_answered_with_a_command_that_continues_it(
    words: tuple[str, ...], runs: Runs, shell: Shell
) -> None:
    said = shell.error_of("generate", *words, f"runtime.root={runs.root}")
    advised = shlex.split(said.partition("give lengthgen ")[2])
    assert shell.run(*advised, "--tokens", "1").out.startswith(words[-1])


def test_an_empty_prompt_needs_a_token_that_begins_texts(runs: Runs) -> None:
    assert prompt_tokens(*runs.copying, "") == [runs.copying[0].plan.corpus.bos_id]
    opened, tokenizer = runs.texts
    plan = replace(opened.plan, corpus=replace(opened.plan.corpus, bos_id=None))
    run = replace(opened, plan=plan)
    assert prompt_tokens(run, tokenizer, "ab") == [*b"ab"]
    with pytest.raises(UserError, match=r"--prompt: give a character at least; .*bos=false"):
        prompt_tokens(run, tokenizer, "")
