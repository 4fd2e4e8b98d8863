"""Pairs of a file, such as SCAN: words as characters and back, lengths, splits and mistakes."""

from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from random import Random

import pytest
from small import refusal, valid

from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.data.sources import source_of
from lengthgen.tasks import Task, task_of
from lengthgen.tasks.objective import commonest
from lengthgen.tasks.rules.pairs import ALPHABET

FEW = {"jump": "JUMP", "jump twice": "JUMP JUMP", "walk and jump": "WALK JUMP"}
SHORT = ["task.length=1", "task.longest=2", "eval.lengths=[1,2]"]


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
    commands = dict(simple)
    for (x, x_done), (y, y_done) in product(simple.items(), repeat=2):
        commands[f"{x} and {y}"] = f"{x_done} {y_done}"
        commands[f"{x} after {y}"] = f"{y_done} {x_done}"
    return commands


def written(path: Path, pairs: Mapping[str, str] | bytes) -> Path:
    if isinstance(pairs, Mapping):
        pairs = "".join(f"IN: {asked} OUT: {done}\n" for asked, done in pairs.items()).encode()
    path.write_bytes(pairs)
    return path


def composed(path: Path, *words: str) -> Config:
    return valid(["task=scan", f"task.arguments.path={path}", *words])


def corpus_of(config: Config) -> TaskCorpus:
    assert isinstance(config.corpus, TaskCorpus)
    return config.corpus


@pytest.fixture(scope="module")
def tasks_txt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("scan") / "tasks.txt", scan())


@pytest.fixture(scope="module")
def config(tasks_txt: Path) -> Config:
    return composed(tasks_txt, "task.examples=3000", "task.examples_per_length=20")


@pytest.fixture(scope="module")
def rule(config: Config) -> Task:
    return task_of(corpus_of(config).task)[0]


def n_words(text: str) -> int:
    return len(text.split())


def test_words_have_own_characters_that_texts_are_spelt_by(rule: Task, tmp_path: Path) -> None:
    words = {word for pair in scan().items() for text in pair for word in text.split()}
    signs = {word: rule.tokenize(word) for word in words}
    assert {len(sign) for sign in signs.values()} == {1}
    assert len({*signs.values()}) == len(words)
    assert {*signs.values()} < {*ALPHABET}
    assert {*rule.alphabet} == {*signs.values(), "="}
    for asked, done in [*scan().items()][::20]:
        short = rule.tokenize(f"{asked} = {done}")
        assert len(short) == n_words(asked) + 1 + n_words(done)
        assert rule.detokenize(short) == f"{asked} = {done}"
    reordered = written(tmp_path / "other.txt", dict(reversed(scan().items())))
    reordered.write_bytes(b"\xef\xbb\xbf" + reordered.read_bytes())  # as Notepad writes
    other, _ = task_of(corpus_of(composed(reordered)).task)
    assert other.tokenize(" ".join(words)) == "".join(signs.values())


def test_an_example_is_a_pair_of_the_file_with_so_many_words_in_its_answer(rule: Task) -> None:
    random = Random(1)
    for length in sorted(set(map(n_words, scan().values()))):
        drawn = [rule.example(length, random) for _ in range(30)]
        for example in drawn:
            asked = rule.detokenize(example.prompt).removesuffix(" =")
            assert scan()[asked] == rule.detokenize(example.answer)
            assert len(example.answer) == length
        different = sum(n_words(done) == length for done in scan().values())
        assert len(set(drawn)) > 1 or different == 1


def test_training_has_the_lengths_up_to_l_and_no_prompt_of_the_tests(config: Config) -> None:
    (source, _), L = source_of(config.corpus), corpus_of(config).task.length
    train, tests = ([*source.read(held_out=held_out)] for held_out in (False, True))
    there = set(map(n_words, scan().values()))
    assert {document.length for document in train} == {n for n in there if n <= L == 25}
    assert {document.length for document in tests} == there
    asked, held_out = ({d.text[: d.prompt_bytes] for d in split} for split in (train, tests))
    assert len(asked) > 1000
    assert len(held_out) > 300
    assert not asked & held_out
    sizes = [n_words(asked) + 1 + n_words(d) + 1 for asked, d in scan().items() if n_words(d) <= L]
    assert config.train.length == max(sizes)
    assert config.train.batch_tokens == 32 * config.train.length


def test_a_changed_file_has_another_source_and_its_path_is_stored_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hashes: list[str] = []
    for name, pairs in (("a", FEW), ("b", FEW), ("c", FEW | {"run": "RUN"})):
        corpus = corpus_of(composed(written(Path(name), pairs), *SHORT))
        assert corpus.task.arguments["path"] == str(tmp_path / name)
        hashes.append(source_of(corpus)[0].data_key())
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read it (No such file or directory); give a file of lines such as IN: "),
        (b"IN: a OUT: \xff\n", "cannot read it (not UTF-8 text); give a file of lines"),
        (b"IN: a OUT: b\n\na b c\n", ", line 3: neither IN: words OUT: words nor two texts with a"),
        (b"a\tb\tc\n", ", line 1: neither IN: words OUT: words nor two texts with a tab between"),
        (b"a b\tc\nb\tc\na b\tc c\n", ", line 3: a b has another answer in a line above"),
        (b"a b=c\td\nb\td d", ": b=c: = ends a prompt here; write another word"),
        (b" ".join(b"w%d" % n for n in range(8649)) + b"\ta", ": 8650 different words, and there"),
    ],
)
def test_a_file_that_cannot_be_used_is_said(text: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    if text is not None:
        written(path, text)
    line = refusal(composed, path, *SHORT)
    assert line.startswith(f"task.arguments.path={path}")
    assert said in line


def test_lengths_without_answers_have_no_commonest_one(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", {"a": "b", "c": "d d d"})
    words = ("task.length=1", "task.longest=3", "eval.lengths=[1,2,3]")
    rule, _ = task_of(corpus_of(composed(path, *words)).task)
    assert commonest(rule, [1, 2, 3]) == 1
    assert commonest(rule, [2]) == 0


def test_a_length_without_answers_is_named(tasks_txt: Path) -> None:
    for word, n in (("task.longest=49", 49), ("task.length=23", 23)):
        said = refusal(composed, tasks_txt, word, "eval.lengths=[1]")
        assert said == f"{word}: the file has no answer of {n} words"
