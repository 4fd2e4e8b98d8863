"""Decoding: the tokens that a model writes, and answers that are what tests say."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from shell import Ran, Shell
from small import small_config, small_model
from torch import Tensor

from lengthgen import generation
from lengthgen.config.schema import Config, from_overrides
from lengthgen.errors import UserError
from lengthgen.evaluation.evaluator import evaluate
from lengthgen.evaluation.plan import windows as spans
from lengthgen.evaluation.scored_text import Cell
from lengthgen.generation import Trained, continuation, open_trained
from lengthgen.model.build import seed_of
from lengthgen.model.transformer import Transformer
from lengthgen.pipeline import train_and_evaluate
from lengthgen.runs.distributed import Ranks
from lengthgen.tasks import END
from lengthgen.terminal import Progress

pytestmark = pytest.mark.xdist_group("decoding")
ALONE = Ranks(rank=0, world_size=1, local_rank=0)
QUIET = Progress(is_main=False)
T = 16  # of the small models


def logits_of_all(model: Transformer, tokens_BS: Tensor) -> Tensor:
    """Returns the logits after the last token, from a call with the whole text."""
    draws = torch.Generator().manual_seed(seed_of("evaluation", 0))
    with torch.no_grad():
        return model.logits(model(tokens_BS, n_last=1, generator=draws)[:, 0])


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
    how = {"limit": limit, "seed": seed}
    return list(
        continuation(model, prompt, end=end, temperature=temperature, precision="fp32", **how)
    )


@pytest.mark.parametrize(
    ("name", "variant"), [("alibi", None), ("rope", "yarn"), ("randomized_rope", None)]
)
def test_without_temperature_each_token_is_the_likeliest_after_all_before_it(
    name: str, variant: str | None
) -> None:
    model, text = small_model(name, variant), [3, 1, 4]
    got = written(model, text)
    for token in got:
        assert token == int(logits_of_all(model, torch.tensor([text])).argmax())
        text = [*text, token]
    assert len(got) == 20


def test_writing_stops_behind_the_end_or_at_the_limit() -> None:
    model = small_model("alibi")
    text = written(model, [3, 1, 4], temperature=1.0)
    end = text[5]
    first = text.index(end) + 1
    assert written(model, [3, 1, 4], temperature=1.0, end=end) == text[:first]
    assert written(model, [3, 1, 4], temperature=1.0, limit=7) == text[:7]


def test_a_temperature_draws_from_the_softmax_of_logits_divided_by_it() -> None:
    model, n = small_model("nope", dtype=torch.float32), 1500
    p = (logits_of_all(model, torch.tensor([[5]]))[0] / 2).softmax(-1)
    drawn = Counter(written(model, [5], limit=1, temperature=2.0, seed=s)[0] for s in range(n))
    got = torch.tensor([drawn[v] / n for v in range(len(p))])
    # The standard deviation of each share is below (p / n)^0.5; 5 of them, for 50 shares.
    assert ((got - p).abs() < 5 * (p / n).sqrt() + 1e-3).all()


def test_a_seed_draws_one_text_another_seed_another_and_a_cold_draw_the_likeliest() -> None:
    model = small_model("rope")
    one = written(model, [3], temperature=1.0)
    assert one == written(model, [3], temperature=1.0)
    assert one != written(model, [3], temperature=1.0, seed=1)
    for cold in (1e-3, 1e-300):
        assert written(model, [3], temperature=cold) == written(model, [3])


def test_a_model_that_diverged_is_an_error_not_a_text() -> None:
    model = small_model("rope")
    with torch.no_grad():
        model.norm.weight.fill_(float("nan"))
    for temperature in (0.0, 1.0):
        with pytest.raises(UserError, match="logits are not finite: its training diverged"):
            written(model, [3], temperature=temperature)


# Runs


COPYING = [
    *("scheme=alibi", "task=copy", "task.arguments.alphabet=5", "task.length=4", "task.longest=8"),
    *("task.examples=500", "task.examples_per_length=10", "train.length=10"),
    *("train.batch_tokens=640", "train.tokens=100000", "train.lr=0.01", "train.precision=fp32"),
    "train.warmup_fraction=0.05",
    *("train.checkpoint_every=1000", "eval.lengths=[1,2,4,6,8]", "model.d_model=32"),
    *("model.n_layers=2", "model.n_heads=4", "model.d_ff=64", "runtime.wandb=off"),
    *("runtime.device=cpu", "runtime.threads=1"),
    "+variants.spread={randomized: {maximum: 1.0, evaluation: linspace}}",
]


class Runs(NamedTuple):
    """A run that learned to copy a little, and one of random words with 16 learned positions."""

    root: Path
    copying: Config
    texts: Config


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("runs")
    where = f"runtime.root={root}"
    copying = from_overrides([*COPYING, where], config_dir=None, plugins=[])
    texts = small_config("scheme=learned_absolute", "train.tokens=256", where)
    for config in (copying, texts):
        train_and_evaluate(config, ranks=ALONE, show=QUIET)
    return Runs(root, copying, texts)


@pytest.fixture(scope="module")
def copying(trained: Runs) -> Trained:
    return open_trained(trained.copying, trained.copying.run_dir, variant=None, show=QUIET)


def answers(one: Trained, length: int) -> list[tuple[list[int], list[int]]]:
    """Returns what decoding writes for each test of a length, and what is right, as tokens."""
    split = one.corpus.validation
    found: list[tuple[list[int], list[int]]] = []
    for span in spans(Cell("answers", None, length), one.planned):
        tokens, given = split.document(span.document).tolist(), split.prompt_length(span.document)
        assert one.corpus.bos_id is not None
        prompt = [one.corpus.bos_id, *tokens[:given]]
        got = written(one.model, prompt, limit=len(tokens) - given, end=one.end)
        found.append((got, tokens[given:]))
    return found


def test_the_first_wrong_token_of_every_test_is_that_of_one_pass_over_the_right_answer(
    trained: Runs, copying: Trained
) -> None:
    config = trained.copying
    rows = evaluate(config, config.run_dir, ranks=ALONE, show=QUIET)
    n_right = n_wrong = 0
    for row in rows:
        decoded: list[int | None] = []
        for got, right in answers(copying, row["length"]):
            both = zip(got, right, strict=False)
            decoded.append(next((n for n, (a, b) in enumerate(both) if a != b), None))
            assert (got == right) == (decoded[-1] is None)
        assert decoded == row["first_wrong"]
        n_right += decoded.count(None)
        n_wrong += len(decoded) - decoded.count(None)
    assert len(rows) == 5
    assert n_right > 5  # so that the test can fail both ways
    assert n_wrong > 5


class Generating(Shell):
    """Runs lengthgen generate on the runs of a folder."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        super().__init__(monkeypatch, capsys)
        self.root = root

    def run(self, *words: str) -> Ran:
        return super().run("generate", *words, f"runtime.root={self.root}", "runtime.threads=1")


@pytest.fixture
def shell(
    trained: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Generating:
    return Generating(trained.root, monkeypatch, capsys)


def test_an_answer_is_printed_behind_its_prompt_and_ends_where_the_model_ends_it(
    shell: Generating, copying: Trained
) -> None:
    [(got, right)] = [(a, b) for a, b in answers(copying, 2) if a == b][:1]
    answer = copying.tokenizer.decode(right).removesuffix(END)
    assert got[-1] == copying.end
    ran = shell.run("alibi", "--prompt", f"{answer}=")
    assert (ran.code, ran.out) == (0, f"{answer}={answer}\n")


def test_a_text_goes_on_for_as_many_tokens_as_asked_and_says_where_its_scheme_ends(
    shell: Generating, trained: Runs
) -> None:
    config = trained.texts
    prompt = "ab cd "
    one = open_trained(config, config.run_dir, variant=None, show=QUIET)
    assert one.corpus.bos_id is not None
    got = written(one.model, [one.corpus.bos_id, *prompt.encode()], limit=10)
    want = prompt + bytes(got).decode(errors="replace")
    assert shell.run("learned", "--prompt", prompt, "--tokens", "10").out == f"{want}\n"
    said = shell.error_of("learned", "--prompt", prompt, "--tokens", "11")
    assert said.startswith("learned_absolute has 16 rows and beyond=na: nothing follows a text of ")
    longer = shell.run("learned", "--prompt", prompt, "--tokens", "11", "--variant", "clamp")
    assert longer.out.startswith(want)
    default = shell.run("learned", "--prompt", prompt, "--variant", "clamp").out
    assert default.startswith(want)
    drawn = ["learned", "--prompt", prompt, "--tokens", "10", "--temperature", "1"]
    first, again, other = (shell.run(*drawn, *words).out for words in ((), (), ("eval.seed=7",)))
    assert first == again != other


def test_a_scheme_that_keeps_nothing_says_so_in_one_line(shell: Generating) -> None:
    ran = shell.run("learned", "--prompt", "ab", "--tokens", "2", "--variant", "interpolate")
    [said] = [line for line in ran.err.splitlines() if line.startswith("learned_absolute: ")]
    assert said.endswith("depend on the length of the call: every token reads the whole text again")
    kept = shell.run("learned", "--prompt", "ab", "--tokens", "2")
    assert "learned_absolute: " not in kept.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Missing option '--prompt'"),
        (("alibi", "learned", "--prompt", "a="), "one run at a time, not 2; drop learned"),
        (("none", "--prompt", "a="), "none: no such run in "),
        (("alibi", "--prompt", "abXY="), "--prompt: copy has no token for 'XY'; it has abcde="),
        (("alibi", "--prompt", "\udcff="), "--prompt: this is no UTF-8 text"),
        (("alibi", "--prompt", "a=", "--tokens", "0"), "Invalid value for '--tokens'"),
        (("alibi", "--prompt", "a=", "--temperature", "-1"), "--temperature: -1.0 is below 0 or"),
        (("alibi", "--prompt", "a=", "--temperature", "nan"), "--temperature: nan is below 0 or"),
        (("alibi", "--prompt", "a=", "--temperature", "hot"), "Invalid value for '--temperature'"),
        (("alibi", "--prompt", "a=", "--variant", "x"), "scheme alibi has no variant 'x'"),
        (("alibi", "--prompt", "a=", "seed=2"), "seed: only eval.* and runtime.* can be given"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], said: str, shell: Generating) -> None:
    assert said in shell.error_of(*words)


def test_an_empty_prompt_needs_a_token_that_begins_texts(trained: Runs, copying: Trained) -> None:
    assert generation.prompt_tokens(copying, "") == [copying.corpus.bos_id]
    config = small_config("scheme=nope", "corpus.bos=false", f"runtime.root={trained.root}/bare")
    config = config.model_copy(update={"train": config.train.model_copy(update={"tokens": 128})})
    train_and_evaluate(config, ranks=ALONE, show=QUIET)
    one = open_trained(config, config.run_dir, variant=None, show=QUIET)
    assert generation.prompt_tokens(one, "ab") == [*b"ab"]
    with pytest.raises(UserError, match=r"--prompt: give a character at least; .*bos=false"):
        generation.prompt_tokens(one, "")
