"""Pairs of a file, such as SCAN: words as characters and back, lengths, splits and mistakes."""

from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from small_corpora import read_all

from lengthgen import generation
from lengthgen.config.schema import Config, TaskCorpus, from_overrides
from lengthgen.data.sources import Document, source_of
from lengthgen.errors import UserError
from lengthgen.generation import Trained, open_trained
from lengthgen.pipeline import train_and_evaluate, validate
from lengthgen.runs.distributed import Ranks
from lengthgen.tasks import Task, task_of
from lengthgen.tasks.rules.pairs import SIGNS
from lengthgen.terminal import Progress

ALONE = Ranks(rank=0, world_size=1, local_rank=0)
QUIET = Progress(is_main=False)


def phrases(verbs: Mapping[str, str]) -> dict[str, str]:
    """Returns SCAN's commands without "and" and "after", and what they do."""
    done = {verb: [act] for verb, act in verbs.items()}
    for side in ("left", "right"):
        turn = f"I_TURN_{side.upper()}"
        for verb, acts in [*((verb, [act]) for verb, act in verbs.items()), ("turn", [])]:
            done[f"{verb} {side}"] = [turn, *acts]
            done[f"{verb} opposite {side}"] = [turn, turn, *acts]
            done[f"{verb} around {side}"] = [turn, *acts] * 4
    often = {"": 1, " twice": 2, " thrice": 3}
    return {f"{one}{n}": " ".join(done[one] * often[n]) for one in done for n in often}


@cache
def scan() -> dict[str, str]:
    """Returns every command of SCAN with its actions: Lake and Baroni 2018, figures 6 and 7."""
    simple = phrases({verb: f"I_{verb.upper()}" for verb in ("walk", "look", "run", "jump")})
    found = dict(simple)
    for (x, x_done), (y, y_done) in product(simple.items(), repeat=2):
        found[f"{x} and {y}"] = f"{x_done} {y_done}"
        found[f"{x} after {y}"] = f"{y_done} {x_done}"
    return found


def lines(pairs: Mapping[str, str]) -> str:
    return "".join(f"IN: {asked} OUT: {done}\n" for asked, done in pairs.items())


def composed(path: Path, *words: str) -> Config:
    asked = ["task=scan", f"task.arguments.path={path}", *words]
    return validate(from_overrides(asked, config_dir=None, plugins=[]))


def corpus_of(config: Config) -> TaskCorpus:
    assert isinstance(config.corpus, TaskCorpus)
    return config.corpus


@pytest.fixture(scope="module")
def tasks_txt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "tasks.txt"
    path.write_text(lines(scan()))
    return path


@pytest.fixture(scope="module")
def config(tasks_txt: Path) -> Config:
    return composed(tasks_txt, "task.examples=3000", "task.examples_per_length=20")


@pytest.fixture(scope="module")
def rule(config: Config) -> Task:
    return task_of(corpus_of(config))


class Split(NamedTuple):
    """Both splits of SCAN, in small."""

    train: list[Document]
    tests: list[Document]


@pytest.fixture(scope="module")
def splits(config: Config) -> Split:
    return Split(*read_all(corpus_of(config)))


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def data_key(corpus: TaskCorpus) -> str:
    return source_of(corpus).data_key()


def n_words(text: str) -> int:
    return len(text.split())


def words_of(pairs: Mapping[str, str]) -> set[str]:
    return {word for both in pairs.items() for text in both for word in text.split()}


def test_the_grammar_makes_the_published_number_of_commands() -> None:
    assert len(scan()) == 20_910
    assert scan()["jump twice"] == "I_JUMP I_JUMP"
    assert scan()["walk after turn opposite left"] == "I_TURN_LEFT I_TURN_LEFT I_WALK"
    assert max(map(n_words, scan().values())) == 48


# Words as characters


def test_every_word_has_one_character_of_its_own(rule: Task) -> None:
    words = words_of(scan())
    signs = [rule.tokenize(word) for word in words]
    assert {len(one) for one in signs} == {1}
    assert len(set(signs)) == len(words)
    assert set(signs) < set(SIGNS)
    assert set(rule.alphabet) == {*signs, "="}
    assert len(rule.alphabet) == len(words) + 1
    assert max(rule.alphabet) < "\x7f"


def test_tokenize_and_detokenize_are_inverse_on_every_pair(rule: Task) -> None:
    for asked, done in scan().items():
        short = rule.tokenize(f"{asked} = {done}")
        assert len(short) == n_words(asked) + 1 + n_words(done)
        assert rule.detokenize(short) == f"{asked} = {done}"
        assert rule.tokenize(rule.detokenize(short)) == short


def test_characters_are_words_by_the_set_of_words_alone(rule: Task, tmp_path: Path) -> None:
    simple = phrases({verb: f"I_{verb.upper()}" for verb in ("walk", "run", "look", "jump")})
    other = dict(reversed(simple.items())) | {"after and": "I_RUN"}
    path = written(tmp_path / "other.txt", lines(other))
    there = task_of(
        corpus_of(composed(path, "task.length=8", "task.longest=24", "eval.lengths=[24]"))
    )
    assert words_of(other) == words_of(scan())
    for word in words_of(scan()):
        assert there.tokenize(word) == rule.tokenize(word)


# Examples


def test_an_example_is_a_pair_of_the_file_with_so_many_words_in_its_answer(rule: Task) -> None:
    random = Random(1)
    for length in sorted(set(map(n_words, scan().values()))):
        drawn = [rule.example(length, random) for _ in range(30)]
        for one in drawn:
            asked = rule.detokenize(one.prompt).removesuffix(" =")
            assert scan()[asked] == rule.detokenize(one.answer)
            assert len(one.answer) == length
        different = sum(n_words(done) == length for done in scan().values())
        assert len(set(drawn)) > 1 or different == 1


def test_no_prompt_is_in_training_and_in_tests(splits: Split) -> None:
    train, tests = ({one.text[: one.prompt_bytes] for one in split} for split in splits)
    assert len(train) > 1000
    assert len(tests) > 300
    assert not train & tests


def test_training_has_the_lengths_up_to_L_that_the_file_has_and_tests_all_of_it(
    splits: Split,
) -> None:
    there = set(map(n_words, scan().values()))
    assert {one.length for one in splits.train} == {n for n in there if n <= 25}
    assert {one.length for one in splits.tests} == there


def test_the_trained_length_is_that_of_the_longest_training_example(config: Config) -> None:
    L = corpus_of(config).task.length
    sizes = [n_words(asked) + 1 + n_words(d) + 1 for asked, d in scan().items() if n_words(d) <= L]
    assert config.train.length == max(sizes)
    assert config.train.batch_tokens == 32 * config.train.length


# Files

FEW = {"jump": "JUMP", "jump twice": "JUMP JUMP", "walk and jump": "WALK JUMP"}
SHORT = ["task.length=1", "task.longest=2", "eval.lengths=[1,2]"]


def test_a_changed_file_has_another_source(tmp_path: Path) -> None:
    hashes = [
        data_key(corpus_of(composed(written(tmp_path / name, text), *SHORT)))
        for name, text in (("a", lines(FEW)), ("b", lines(FEW)), ("c", lines(FEW) + "run\tRUN\n"))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read it (No such file or directory); give a file of lines such as IN: "),
        (b"IN: a OUT: \xff\n", "cannot read it (not UTF-8 text); give a file of lines"),
        ("IN: a OUT: b\n\na b c\n", ", line 3: neither IN: words OUT: words nor two texts with a "),
        ("a\tb\tc\n", ", line 1: neither IN: words OUT: words nor two texts with a tab between"),
        ("IN: a OUT:\n", ", line 1: neither IN: words OUT: words nor two texts with a tab between"),
        ("IN: OUT: a b\nx\ty", ", line 1: neither IN: words OUT: words nor two texts with a "),
        ("a b\tc\nb\tc\na b\tc c\n", ", line 3: a b has another answer in a line above"),
        ("a\tb = c\n", ": =: = ends a prompt here; write another word"),
        ("a b=c\td\nb\td d", ": b=c: = ends a prompt here; write another word"),
        (
            " ".join(f"w{n}" for n in range(8649)) + "\ta",
            ": 8650 different words, and there are 8649 ",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    text: str | bytes | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    if text is not None:
        written(path, text)
    with pytest.raises(UserError) as caught:
        composed(path, *SHORT)
    told = str(caught.value)
    assert told.startswith(f"task.arguments.path={path}")
    assert said in told
    assert "\n" not in told


def test_a_path_is_stored_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "few.txt", lines(FEW))
    monkeypatch.chdir(tmp_path)
    assert corpus_of(composed(Path("few.txt"), *SHORT)).task.arguments["path"] == str(path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("task.length=22 task.longest=23", "task.longest=23: the file has no answer of 23 words"),
        ("task.longest=49", "task.longest=49: the file has no answer of 49 words"),
        ("task.length=23", "task.length=23: the file has no answer of 23 words"),
    ],
)
def test_a_length_without_answers_is_named(words: str, said: str, tasks_txt: Path) -> None:
    with pytest.raises(UserError) as caught:
        composed(tasks_txt, *words.split(), "eval.lengths=[1]")
    assert str(caught.value) == said


# Runs

TINY = [
    *("scheme=alibi", "task.length=4", "task.longest=12", "eval.lengths=[1,2,3,4,6,8,12]"),
    *("task.examples=500", "task.examples_per_length=10", "train.length=12"),
    *("train.batch_tokens=768", "train.tokens=60000", "train.lr=0.01", "train.precision=fp32"),
    *("train.checkpoint_every=1000", "model.d_model=32", "model.n_layers=2", "model.n_heads=4"),
    *("model.d_ff=64", "runtime.wandb=off", "runtime.device=cpu", "runtime.threads=1"),
]
VERBS = {"jump": "I_JUMP", "walk": "I_WALK"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = tmp_path_factory.mktemp("run")
    path = written(root / "few.txt", lines(phrases(VERBS)))
    config = composed(path, *TINY, f"runtime.root={root / 'runs'}")
    train_and_evaluate(config, ranks=ALONE, show=QUIET)
    return open_trained(config, config.run_dir, variant=None, show=QUIET)


def generated(trained: Trained, prompt: str) -> str:
    return generation.generate(trained, prompt, limit=None, temperature=0, show=QUIET)


def test_a_prompt_is_given_in_words_and_answered_in_words(trained: Trained) -> None:
    known = phrases(VERBS)
    for asked in ("jump", "jump twice", "walk left", "walk opposite right thrice"):
        said = generated(trained, f"{asked} =")
        assert generated(trained, f"{asked}=") == said
        prompt, answer = said.split(" = ")
        assert prompt == asked
        assert set(answer.split()) <= words_of(known)
    assert generated(trained, "jump twice =") == "jump twice = I_JUMP I_JUMP"


def test_a_word_that_the_file_lacks_is_refused_with_what_it_has(trained: Trained) -> None:
    with pytest.raises(
        UserError, match=r"^--prompt: scan has no word 'dance'; there are .*, jump, .*, walk$"
    ) as caught:
        generated(trained, "dance twice =")
    assert "\n" not in str(caught.value)
