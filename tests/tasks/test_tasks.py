"""What all tasks hold to, and every answer against a second computation from the prompt's text."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from random import Random

import pytest
import yaml
from small_corpora import read_all

from lengthgen.config import compose
from lengthgen.config.schema import Config, TaskCorpus, from_overrides
from lengthgen.data.sources import Document
from lengthgen.errors import UserError
from lengthgen.pipeline import validate
from lengthgen.tasks import END, Example, Task, build, majority_accuracy, registry, task_of
from lengthgen.tasks.scratchpad import Step, format_steps

OTHERS = ("lm", "scan")  # no task, and one that needs a file: test_pairs.py has it
TASKS = [name for name in compose.choices("task", config_dir=None) if name not in OTHERS]
PAD = "_scratchpad"
PADS = [name for name in TASKS if name.endswith(PAD)]


def addition(prompt: str, *, output_first: str, operands_first: str) -> str:
    """Adds digit by digit; `highest` or `lowest` says which digit a number begins with."""
    a, b = (list(map(int, one)) for one in prompt[:-1].split("+"))
    if operands_first == "highest":
        a, b = a[::-1], b[::-1]
    width = max(len(a), len(b))
    digits, carry = "", 0
    for i in range(width):
        column = carry + sum(number[i] for number in (a, b) if i < len(number))
        digits, carry = digits + str(column % 10), column // 10
    digits += "1" * carry
    return digits if output_first == "lowest" else digits[::-1]


def padded(prompt: str) -> str:
    a, b = prompt[:-1].split("+")
    return f"{int(a) + int(b):0{len(a) + 1}}"[::-1]


def hinted(prompt: str) -> str:
    """Reads each digit at the place that its letter says, counted from the lowest letter."""
    marked = re.findall(r"([a-zA-Z])(\d)", prompt)
    places = [string.ascii_letters.index(letter) for letter, _ in marked]
    total = sum(
        int(digit) * 10 ** (place - min(places))
        for place, (_, digit) in zip(places, marked, strict=True)
    )
    written = str(total)[::-1]
    return "".join(string.ascii_letters[min(places) + i] + one for i, one in enumerate(written))


def modsum(prompt: str) -> str:
    total = 0
    for character in prompt:
        total += int(character) if character.isdigit() else 0
    return str(total)[-1]


def polynomial(prompt: str) -> str:
    x, terms = prompt[:-1].split("@")
    return str(eval(re.sub(r"x(\d)", rf"*({x})**\1", terms)) % 10)


def multiplication(prompt: str) -> str:
    a, b = prompt[:-1].split("*")
    rows = [int(a) * int(digit) * 10**i for i, digit in enumerate(reversed(b))]
    return str(sum(rows))[::-1]


def bitwise_or(prompt: str) -> str:
    a, b = prompt[:-1].split("|")
    size = max(len(a), len(b))
    joined = int(a, 2) << (size - len(a)) | int(b, 2) << (size - len(b))
    return f"{joined:0{size}b}"


def sort_letters(prompt: str) -> str:
    return "".join(chr(i) * prompt[:-1].count(chr(i)) for i in range(128))


def sort_numbers(prompt: str) -> str:
    return ",".join(sorted(prompt[:-1].split(","), key=lambda number: number.zfill(9)))


def mqar(prompt: str) -> str:
    pairs, asked = prompt[:-1].split("|")
    return "".join(key + pairs[pairs.index(key) + 1] for key in asked)


def lego(prompt: str) -> str:
    clauses, asked = prompt[:-1].split("?")
    told = {clause[0]: clause[2:] for clause in clauses.split(";") if clause}
    flips, at = 0, asked
    while at != "1":
        sign, at = told[at]
        flips += sign == "-"
    return "+-"[flips % 2]


def variable_tracking(prompt: str) -> str:
    clauses, asked = prompt[:-1].split("?")
    held, found = dict[str, str](), ""
    for clause in clauses[:-1].split(";"):
        name, value = clause.split("=")
        held[name] = held.get(value, value)
        found += name if held[name] == asked else ""
    return found


def frequent_words(prompt: str) -> str:
    left, found = prompt[:-1], ""
    while left and len(found) < 3:
        best = max(left, key=left.count)  # the first of equals
        left, found = left.replace(best, ""), found + best
    return found


def dyck(prompt: str) -> str:
    left = prompt[:-1]
    while "()" in left or "[]" in left:
        left = left.replace("()", "").replace("[]", "")
    return "".join({"(": ")", "[": "]"}[one] for one in reversed(left))


def cycle_navigation(prompt: str) -> str:
    states = "01234"
    for step in prompt[:-1]:
        states = {"+": states[1:] + states[0], "-": states[-1] + states[:-1], "0": states}[step]
    return states[0]


def odds_first(prompt: str) -> str:
    numbered = list(enumerate(prompt[:-1], start=1))
    return "".join(c for i, c in numbered if i % 2) + "".join(c for i, c in numbered if not i % 2)


def stack_manipulation(prompt: str) -> str:
    values, actions = prompt[:-1].split(":")
    stack = list(values)
    for action in actions:
        if action != "-":
            stack.append(action)
        elif stack:
            stack.pop()
    return "".join(reversed(stack))


def flip_flop(prompt: str) -> str:
    pairs = re.findall(r"([wir])([01])", prompt)
    assert "".join(kind + bit for kind, bit in pairs) + "r" == prompt
    for i, (kind, bit) in enumerate(pairs):
        if kind == "r":
            assert bit == [b for k, b in pairs[:i] if k == "w"][-1]
    return [bit for kind, bit in pairs if kind == "w"][-1]


def passkey(prompt: str) -> str:
    (found,) = re.findall(r"#(\d+)", prompt)
    assert len(found) == 5
    return found


def pcfg(prompt: str) -> str:
    """Evaluates from the last word to the first, with a stack; 0 to 9 are the operations."""
    stack: list[list[str]] = []
    for part in reversed(re.findall(r"\d|(?:[A-Z][a-t])+", prompt)):
        if not part.isdigit():
            stack.append(re.findall("..", part))
            continue
        x = stack.pop()
        y = stack.pop() if part in "6789" else []
        last = len(x) - 1
        stack.append(
            {
                "0": x,
                "1": [*reversed(x)],
                "2": [x[(i + 1) % len(x)] for i in range(len(x))],
                "3": [x[{0: last, last: 0}.get(i, i)] for i in range(len(x))],
                "4": 2 * x,
                "5": [*x, x[last]],
                "6": [*x, *y],
                "7": [*y, *x],
                "8": y,
                "9": x,
            }[part]
        )
    (value,) = stack
    return "".join(value)


ANSWERS: dict[str, Callable[[str], str]] = {
    "addition": lambda p: addition(p, output_first="highest", operands_first="highest"),
    "addition_hints": hinted,
    "addition_padded": padded,
    "addition_reversed": lambda p: addition(p, output_first="lowest", operands_first="highest"),
    "addition_reversed_all": lambda p: addition(p, output_first="lowest", operands_first="lowest"),
    "addition_spaces": lambda p: addition(
        p.replace("_", ""), output_first="lowest", operands_first="lowest"
    ),
    "bitwise_or": bitwise_or,
    "copy": lambda p: p[:-1],
    "copy_2x": lambda p: p[:-1] + p[:-1],
    "copy_repeat": lambda p: p[:-1],
    "copy_repeat_2x": lambda p: p[:-1] + p[:-1],
    "copy_replace": lambda p: p.replace(p[0], p[-2]).split(">")[0],
    "cycle_navigation": cycle_navigation,
    "dyck": dyck,
    "even_pairs": lambda p: str(int(p[0] != p[-2])),
    "flip_flop": flip_flop,
    "frequent_words": frequent_words,
    "lego": lego,
    "modsum": modsum,
    "mqar": mqar,
    "multiplication": multiplication,
    "odds_first": odds_first,
    "parity": lambda p: str(len(p.replace("0", "")[:-1]) % 2),
    "passkey": passkey,
    "pcfg": pcfg,
    "polynomial": polynomial,
    "reverse": lambda p: "".join(reversed(p[:-1])),
    "reverse_twice": lambda p: "".join(reversed(p[:-1])) + p[:-1],
    "selective_copy": lambda p: p[:-1].replace(".", ""),
    "sort": sort_letters,
    "sort_numbers": sort_numbers,
    "stack_manipulation": stack_manipulation,
    "variable_tracking": variable_tracking,
}


def longer(prompt: str, sign: str) -> int:
    return max(len(part) for part in prompt[:-1].split(sign))


LENGTHS: dict[str, Callable[[str], int]] = {
    "addition": lambda p: longer(p, "+"),
    "addition_hints": lambda p: longer(p, "+") // 2,
    "addition_padded": lambda p: longer(p, "+"),
    "addition_reversed": lambda p: longer(p, "+"),
    "addition_reversed_all": lambda p: longer(p, "+"),
    "addition_spaces": lambda p: longer(p, "+"),
    "bitwise_or": lambda p: longer(p, "|"),
    "copy_replace": lambda p: p.index(">"),
    "flip_flop": lambda p: p.count("w") + p.count("i") + p.count("r") - 1,
    "lego": lambda p: p.count(";"),
    "modsum": lambda p: p.count("+") + 1,
    "mqar": lambda p: len(re.findall(r"[a-zA-Z]\d", p)),
    "multiplication": lambda p: p.index("*"),
    "passkey": lambda p: len(re.findall("[a-z]", p)),
    "pcfg": lambda p: len(re.findall(r"\d", p)),
    "polynomial": lambda p: p.count("x"),
    "sort_numbers": lambda p: p.count(",") + 1,
    "stack_manipulation": lambda p: len(p) - 2,
    "variable_tracking": lambda p: p.count(";"),
}  # all others: the characters before "="


# Tokens of the longest training example, where too rare to be drawn. pcfg: 8 binary operations with
# a comma each, 9 strings of 5 symbols and 20 more in the answer, two tokens each, = and END.
# addition_spaces: two numbers of 8 digits with 7 spaces each, 9 digits, +, = and END.
RARE = {"pcfg": 8 * 2 + (9 * 5 + 20) * 2 + 2, "addition_spaces": 2 * (8 + 7) + 9 + 3}


def result(name: str, prompt: str) -> str:
    """Returns the answer of a task, or what follows its scratchpad."""
    return ANSWERS[name.removesuffix(PAD).removesuffix("_40")](prompt)


def result_of(answer: str) -> str:
    return answer.rpartition("#")[2]


@cache
def configured(name: str) -> Config:
    few = ["task.examples=2000", "task.examples_per_length=5"]
    return from_overrides([f"task={name}", *few], config_dir=None, plugins=[])


def corpus_of(name: str) -> TaskCorpus:
    corpus = configured(name).corpus
    assert isinstance(corpus, TaskCorpus)
    return corpus


def changed(name: str, arguments: Mapping[str, object]) -> Task:
    """Returns the rule of a task with some arguments of its YAML replaced."""
    task = corpus_of(name).task
    return build(task.kind, {**task.arguments, **arguments}, where="task")


def some(name: str, *, n: int) -> Iterator[tuple[int, Example]]:
    """Yields examples of every tested length, n of each, and their lengths."""
    corpus = corpus_of(name)
    rule, random = task_of(corpus), Random(7)
    for length in range(1, corpus.task.longest + 1):
        for _ in range(n):
            yield length, rule.example(length, random)


@cache
def splits(name: str) -> tuple[list[Document], list[Document]]:
    return read_all(corpus_of(name))


def prompt_of(document: Document) -> str:
    return document.text[: document.prompt_bytes]


def refused(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        validate(from_overrides(words, config_dir=None, plugins=[]))
    said = str(caught.value)
    assert "\n" not in said
    return said


@pytest.mark.slow
def test_every_rule_has_a_yaml() -> None:
    pairs: str = compose.load("task", "scan", config_dir=None)["task"]["kind"]
    assert {corpus_of(name).task.kind for name in TASKS} | {pairs} == set(registry())


@pytest.mark.parametrize("name", TASKS)
def test_an_example_is_of_the_alphabet_and_its_prompt_ends_as_the_rule_says(name: str) -> None:
    rule = task_of(corpus_of(name))
    alphabet = set(rule.alphabet)
    assert max(alphabet) < "\x7f"
    assert END not in alphabet
    for _, example in some(name, n=20):
        assert set(example.prompt + example.answer) <= alphabet
        assert example.prompt.endswith(rule.prompt_end)


@pytest.mark.parametrize("name", TASKS)
def test_an_example_is_a_function_of_its_random_alone(name: str) -> None:
    corpus = corpus_of(name)
    lengths, used = range(1, corpus.task.longest + 1), task_of(corpus)
    once = [used.example(length, Random(length)) for length in lengths]
    again = [used.example(length, Random(length)) for length in reversed(lengths)]
    assert again[::-1] == once
    assert [task_of(corpus).example(length, Random(length)) for length in lengths] == once


@pytest.mark.parametrize("name", TASKS)
def test_an_answer_is_what_a_second_computation_gives(name: str) -> None:
    for _, example in some(name, n=20):
        assert result_of(example.answer) == result(name, example.prompt)


def share_of_the_commonest(name: str, lengths: Sequence[int]) -> float:
    rule, random = task_of(corpus_of(name)), Random(11)
    shares = (
        max(Counter(rule.example(n, random).answer for _ in range(2000)).values()) / 2000
        for n in lengths
    )
    return sum(shares) / len(lengths)


@pytest.mark.parametrize("name", ["parity", "modsum", "lego", "dyck", "polynomial", "copy"])
def test_who_knows_the_commonest_answer_is_right_as_often_as_is_said(name: str) -> None:
    rule, lengths = task_of(corpus_of(name)), [2, 5, 8]
    said = rule.chance or majority_accuracy(rule, lengths)
    # The commonest of 300 is at most 3 sqrt(p / 300) above the true share, 2000 examples have less.
    assert said == pytest.approx(share_of_the_commonest(name, lengths), abs=0.06)


@pytest.mark.parametrize("name", TASKS)
def test_the_example_in_a_yamls_comment_is_right(name: str) -> None:
    alphabet = set(task_of(corpus_of(name)).alphabet)
    said = compose.describe("task", name, config_dir=None)
    words = [word.rstrip(".,") for word in said.split()]
    (shown,) = (word for word in words if set(word) <= alphabet and re.search("=|r[01]$", word))
    match = re.match(r".*\?.=|[^=]*=|.*r(?=.$)", shown)
    assert match is not None
    assert result_of(shown.removeprefix(match[0])) == result(name, match[0])


@pytest.mark.parametrize("name", TASKS)
def test_a_length_counts_what_the_unit_says(name: str) -> None:
    count = LENGTHS.get(name.removesuffix(PAD), lambda prompt: prompt.index("="))
    for length, example in some(name, n=5):
        assert count(example.prompt) == length


@pytest.mark.parametrize("name", TASKS)
def test_the_trained_length_is_that_of_the_longest_training_example(name: str) -> None:
    corpus, train = corpus_of(name), configured(name).train
    rule, random = task_of(corpus), Random(3)
    at_most = [rule.example(corpus.task.length, random) for _ in range(1000)]
    longest = max(len(one.prompt + one.answer + END) for one in at_most)
    assert RARE.get(name, longest) == train.length >= longest
    assert max(len(document.text) for document in splits(name)[0]) <= train.length
    assert train.batch_tokens == 32 * train.length


@pytest.mark.parametrize("name", TASKS)
def test_training_has_all_lengths_up_to_L_and_tests_all_up_to_four_times_that(name: str) -> None:
    task, (train, tests) = corpus_of(name).task, splits(name)
    assert {document.length for document in train} == set(range(1, task.length + 1))
    assert task.longest == (200 if name.endswith("_40") else 4 * task.length)
    assert max(configured(name).eval.lengths) == task.longest
    assert set(configured(name).eval.lengths) <= {document.length for document in tests}


@pytest.mark.parametrize("name", TASKS)
def test_no_prompt_is_in_both_splits(name: str) -> None:
    train, tests = splits(name)
    assert not {prompt_of(one) for one in train} & {prompt_of(one) for one in tests}


@pytest.mark.parametrize(
    ("name", "seed", "written"),
    [
        ("addition", 1, "27+4=7,4:7+4+0=1;1|2+0&2,0:2+0+1=3;0|+#31"),
        ("lego", 2, "f=-d;d=-1;x=-f;?x=d=-1:-+=-;d-|f=-d;x=-f&f=-d:--=+;f+|x=-f&x=-f:-+=-;x-|#-"),
        ("modsum", 2, "9+9=9:0+9=9;9|9&9:9+9=8;8|#8"),
        ("parity", 2, "11=1:0+1=1;1|1&1:1+1=0;0|#0"),
        (
            *("polynomial", 2),
            "-2@-3x0-1x1+2x2=-3x0:-3*+1=7;7|-1x1+2x2&-1x1:-1*-2=2;9|+2x2&+2x2:+2*+4=8;7|#7",
        ),
        ("sort", 1, "gS=gS:S=S;S|g&g:g=g;Sg|#Sg"),
    ],
)
def test_the_steps_of_a_scratchpad(name: str, seed: int, written: str) -> None:
    rule = changed(name + PAD, {"scratchpad": "ICOVR"})
    length = 3 if name in ("lego", "polynomial") else 2
    assert "".join(rule.example(length, Random(seed))) == written


@pytest.mark.parametrize("parts", ["", "C", "IO", "VR", "ICOVR"])
def test_a_scratchpad_has_the_parts_that_are_asked_in_order(parts: str) -> None:
    steps = [Step("i", "c", "o", "v", "r")] * 2
    signs = {"I": "i", "C": ":c", "O": "=o", "V": ";v", "R": "|r"}
    step = "".join(signs[part] for part in parts)
    assert format_steps(steps, "7", parts=parts) == (f"{step}&{step}#7" if parts else "7")
    assert format_steps(steps, "7", parts=parts[::-1]) == format_steps(steps, "7", parts=parts)


@pytest.mark.parametrize("name", PADS)
def test_a_scratchpad_changes_neither_prompt_nor_result(name: str) -> None:
    for length in range(1, 20):
        plain = changed(name, {"scratchpad": ""}).example(length, Random(length))
        rule = changed(name, {"scratchpad": "ICOVR"})
        full = rule.example(length, Random(length))
        assert full.prompt == plain.prompt
        assert result_of(full.answer) == plain.answer
        assert set(full.prompt + full.answer) <= set(rule.alphabet)


def test_pcfg_has_the_words_of_its_paper_and_its_example() -> None:
    rule = task_of(corpus_of("pcfg"))
    words = {w for _, one in some("pcfg", n=100) for w in rule.detokenize(one.prompt).split()}
    operations = {word for word in words if re.fullmatch("[a-z_]+", word)}
    assert len(operations) == 10
    assert len(words - operations - {",", "="}) == 520
    # From the paper's data, as the NoPE suite prints it.
    prompt = rule.tokenize("shift prepend K10 R1 K12 , E12 F16 =")
    assert rule.detokenize(pcfg(prompt)) == "F16 K10 R1 K12 E12"


def test_random_spaces_are_in_training_alone_and_change_no_sum() -> None:
    train, tests = splits("addition_spaces")
    rule = task_of(corpus_of("addition_spaces"))
    spaces = places = 0
    for document in train:
        prompt, answer = prompt_of(document), document.text[document.prompt_bytes : -1]
        assert re.fullmatch(r"\d(_?\d)*\+\d(_?\d)*=", prompt)
        assert answer == ANSWERS["addition_reversed_all"](prompt.replace("_", ""))
        spaces += prompt.count("_")
        places += len(re.findall(r"\d", prompt)) - 2
    assert places > 10_000  # four deviations of the share are 0.02
    assert spaces / places == pytest.approx(0.5, abs=0.02)
    assert [one.text for one in tests] == [one.text for one in splits("addition_reversed_all")[1]]
    asked = {rule.canonical_prompt(prompt_of(one)) for one in tests}
    assert not asked & {rule.canonical_prompt(prompt_of(one)) for one in train}


def test_a_random_space_does_not_part_a_digit_from_its_hint() -> None:
    rule, random = changed("addition_hints", {"spaces": 1.0}), Random(5)
    example = rule.example(8, random)
    augmented = rule.augment(example, random)
    assert re.fullmatch(r"([a-zA-Z]\d(_(?=[a-zA-Z])|(?=\W)))+\+.*=", augmented.prompt)
    assert augmented.prompt.count("_") == len(re.findall(r"\d", example.prompt)) - 2
    assert augmented.answer == example.answer == hinted(augmented.prompt)
    assert changed("addition_hints", {"spaces": 0.0}).augment(example, random) == example


@pytest.mark.parametrize(
    ("name", "arguments", "answered"),
    [
        ("mqar", {"keys": 52, "queries": 1}, 2),
        ("mqar", {"keys": 52, "queries": 20}, 18),
        ("variable_tracking", {"chains": 1}, 9),
        ("variable_tracking", {"chains": 3}, 3),
        ("frequent_words", {"most": 1}, 1),
        ("selective_copy", {"kept": 3}, 3),
        ("copy", {"times": 3}, 27),
        ("passkey", {"key_digits": 7}, 7),
    ],
)
def test_an_argument_decides_how_much_is_answered(
    name: str, arguments: dict[str, int], answered: int
) -> None:
    assert len(changed(name, arguments).example(9, Random(0)).answer) == answered


@pytest.mark.parametrize(
    ("name", "word", "said"),
    [
        ("copy", "alphabet=0", "alphabet=0 is not from 1 to 62"),
        ("copy", "times=0", "times=0 is not positive"),
        ("copy_replace", "alphabet=1", "replace=true needs an alphabet of 2 or more"),
        ("modsum", "modulus=1", "modulus=1 is not from 2 to 10"),
        ("mqar", "queries=0", "queries=0 is not positive"),
        ("mqar", "keys=53", "keys=53 is not from 1 to 52"),
        ("multiplication", "by=0", "by=0 is not from 1 to 4096"),
        ("dyck", "kinds=5", "kinds=5 is not from 1 to 4"),
        ("dyck", "depth=0", "depth=0 is not positive"),
        ("cycle_navigation", "states=1", "states=1 is not from 2 to 10"),
        ("flip_flop", "ignored=1.5", "ignored=1.5 is not from 0 to 1"),
        ("selective_copy", "kept=0", "kept=0 is not positive"),
        ("passkey", "key_digits=0", "key_digits=0 is not from 1 to 4096"),
        ("pcfg", "symbols=521", "symbols=521 is not from 1 to 520"),
        ("pcfg", "string=0", "string=0 is not from 1 to 64"),
        ("pcfg", "answer=9", "answer=9 is not from 10 to 4096"),
        ("variable_tracking", "chains=11", "chains=11 is not from 1 to 10"),
        ("frequent_words", "most=27", "most=27 is not from 1 to 26"),
        ("frequent_words", "exponent=0", "exponent=0 is not from 1 to 64"),
        ("sort", "scratchpad=IX", "scratchpad='IX' is not made of ICOVR, each at most once"),
        ("addition_spaces", "spaces=1.5", "spaces=1.5 is not from 0 to 1"),
        ("addition_scratchpad", "spaces=0.1", "a scratchpad goes with plain addition only"),
        (
            "addition_reversed",
            "scratchpad=CO",
            "a scratchpad goes with plain addition only",
        ),
    ],
)
def test_a_value_that_a_rule_refuses_is_named(name: str, word: str, said: str) -> None:
    key, value = word.split("=")
    with pytest.raises(UserError) as caught:
        changed(name, {key: yaml.safe_load(value)})
    assert str(caught.value) == f"task.arguments: {said}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mqar", "there are 16 different names, and 53 are needed"),
        ("lego", "there are 52 different names, and 53 are needed"),
        ("variable_tracking", "there are 52 different names, and 53 are needed"),
        ("addition_hints", "hints reach to 51 digits, not to 53"),
    ],
)
def test_a_length_that_a_rule_has_no_example_of_is_named(name: str, said: str) -> None:
    assert refused(f"task={name}", "task.longest=53") == f"task.longest=53: {said}"


@pytest.mark.parametrize(
    ("name", "longest"), [("mqar", 16), ("lego", 52), ("variable_tracking", 52)]
)
def test_every_length_that_there_are_names_for_has_an_example(name: str, longest: int) -> None:
    assert task_of(corpus_of(name)).example(longest, Random(0)).prompt
