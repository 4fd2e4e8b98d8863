"""What all tasks hold to, and every answer against a second computation from the prompt's text."""

import math
import re
import string
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from repository import example
from small import refusal, valid
from small_corpora import write

from lengthgen.config import conf
from lengthgen.config.registry import construct
from lengthgen.config.schema import TaskSpec
from lengthgen.data.sources import Document
from lengthgen.errors import UserError
from lengthgen.experiment import resolve
from lengthgen.tasks import END, Task, task_classes
from lengthgen.tasks.objective import commonest
from lengthgen.tasks.scratchpad import Step, format_steps
from lengthgen.tasks.source import TaskSource

FILE, YAML = example("interleave.py"), example("my_conf/task/interleave.yaml")
OTHERS = ("lm", "scan")  # no task, and one that needs a file: test_pairs.py has it
TASKS = [name for name in conf.choices("task", config_dir=None) if name not in OTHERS]
PAD = "_scratchpad"


def addition(prompt: str, *, operands: int = 1, output: int = 1) -> str:
    """Adds numbers that begin with their highest digit, 1, or their lowest, -1."""
    a, b = (int(number[::operands]) for number in prompt.replace("_", "")[:-1].split("+"))
    return str(a + b)[::output]


def padded(prompt: str) -> str:
    a, b = prompt[:-1].split("+")
    return f"{int(a) + int(b):0{len(a) + 1}}"[::-1]


def hinted(prompt: str) -> str:
    """Reads each digit at the place that its letter says, counted from the lowest letter."""
    marked = re.findall(r"([a-zA-Z])(\d)", prompt)
    places = [string.ascii_letters.index(letter) for letter, _ in marked]
    least = min(places)
    total = sum(int(d) * 10 ** (n - least) for n, (_, d) in zip(places, marked, strict=True))
    written = str(total)[::-1]
    return "".join(string.ascii_letters[min(places) + i] + one for i, one in enumerate(written))


def polynomial(prompt: str) -> str:
    x, terms = prompt[:-1].split("@")
    return str(eval(re.sub(r"x(\d)", rf"*({x})**\1", terms)) % 10)


def bitwise_or(prompt: str) -> str:
    a, b = prompt[:-1].split("|")
    size = max(len(a), len(b))
    joined = int(a, 2) << (size - len(a)) | int(b, 2) << (size - len(b))
    return f"{joined:0{size}b}"


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
    "addition": addition,
    "addition_hints": hinted,
    "addition_padded": padded,
    "addition_reversed": lambda p: addition(p, output=-1),
    "addition_reversed_all": lambda p: addition(p, operands=-1, output=-1),
    "addition_spaces": lambda p: addition(p, operands=-1, output=-1),
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
    "modsum": lambda p: str(sum(map(int, re.findall(r"\d", p))))[-1],
    "mqar": mqar,
    "multiplication": lambda p: str(math.prod(map(int, p[:-1].split("*"))))[::-1],
    "odds_first": odds_first,
    "parity": lambda p: str(len(p.replace("0", "")[:-1]) % 2),
    "passkey": passkey,
    "pcfg": pcfg,
    "polynomial": polynomial,
    "reverse": lambda p: "".join(reversed(p[:-1])),
    "reverse_twice": lambda p: "".join(reversed(p[:-1])) + p[:-1],
    "selective_copy": lambda p: p[:-1].replace(".", ""),
    "sort": lambda p: "".join(chr(i) * p[:-1].count(chr(i)) for i in range(128)),
    "sort_numbers": lambda p: ",".join(sorted(p[:-1].split(","), key=lambda n: n.zfill(9))),
    "stack_manipulation": stack_manipulation,
    "variable_tracking": variable_tracking,
}  # second implementations; a new task can do without


ADDITIONS = [name for name in ANSWERS if name.startswith("addition")]


def longer(prompt: str, sign: str) -> int:
    return max(len(part) for part in prompt[:-1].split(sign))


LENGTHS: dict[str, Callable[[str], int]] = {
    **{name: lambda p: longer(p, "+") for name in ADDITIONS},
    "addition_hints": lambda p: longer(p, "+") // 2,
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


def is_result(name: str, prompt: str, answer: str) -> bool:
    """Whether an answer, or what follows its scratchpad, is that of the second implementation."""
    second = ANSWERS.get(name.removesuffix(PAD).removesuffix("_40"))
    return second is None or result_of(answer) == second(prompt)


def result_of(answer: str) -> str:
    return answer.rpartition("#")[2]


class Split(NamedTuple):
    """Few examples of a task."""

    train: list[Document]
    tests: list[Document]


@cache
def written(name: str) -> dict[str, Any]:
    """Returns the values of a task's YAML."""
    return conf.load_choice("task", name)


def spec_of(name: str) -> TaskSpec:
    few = {"examples": 2000, "examples_per_length": 5, "seed": 0}
    return TaskSpec(**written(name)["task"] | few)


def rule_of(name: str, **changed: object) -> Task:
    """Returns the rule of a task with some arguments of its YAML replaced."""
    task = written(name)["task"]
    rule = task_classes()[task["kind"]]
    return construct(rule, {**task["arguments"], **changed}, where="task.arguments")


@cache
def splits(name: str) -> Split:
    source = TaskSource(spec_of(name), rule_of(name))
    return Split(*([*source.read(held_out=held_out)] for held_out in (False, True)))


def prompt_of(document: Document) -> str:
    return document.text[: document.prompt_bytes]


def test_every_rule_has_a_yaml() -> None:
    assert {written(name)["task"]["kind"] for name in [*TASKS, "scan"]} == set(task_classes())


@pytest.mark.parametrize("name", TASKS)
def test_an_example_is_what_its_rule_says_and_a_function_of_its_random_alone(name: str) -> None:
    rule, alphabet = rule_of(name), set(rule_of(name).alphabet)
    count = LENGTHS.get(name.removesuffix(PAD), lambda prompt: prompt.index("="))
    assert max(alphabet) < "\x7f"
    assert END not in alphabet
    for length in range(1, spec_of(name).longest + 1):
        for seed in range(15 if length <= 20 else 3):
            example = rule.example(length, Random(f"{seed} {length}"))
            if seed == 0:
                assert rule_of(name).example(length, Random(f"0 {length}")) == example
            assert set(example.prompt + example.answer) <= alphabet
            assert example.prompt.endswith(rule.prompt_end)
            assert count(example.prompt) == length
            assert is_result(name, example.prompt, example.answer)


@pytest.mark.parametrize("name", TASKS)
def test_the_example_in_a_yamls_comment_is_right(name: str) -> None:
    alphabet = set(rule_of(name).alphabet)
    said = conf.describe(conf.choices("task", config_dir=None)[name])
    words = [word.rstrip(".,") for word in said.split()]
    (shown,) = (word for word in words if set(word) <= alphabet and re.search("=|r[01]$", word))
    match = re.match(r".*\?.=|[^=]*=|.*r(?=.$)", shown)
    assert match is not None
    assert is_result(name, match[0], shown.removeprefix(match[0]))


@pytest.mark.parametrize("name", TASKS)
def test_training_has_lengths_to_l_in_windows_that_hold_them_and_tests_all(name: str) -> None:
    task, (train, tests), sizes = spec_of(name), splits(name), written(name)["train"]
    rule, random = rule_of(name), Random(3)
    at_most = [rule.example(task.length, random) for _ in range(1000)]
    longest = max(len(one.prompt + one.answer + END) for one in at_most)
    assert RARE.get(name, longest) == sizes["length"] >= longest
    assert max(len(document.text) for document in train) <= sizes["length"]
    assert sizes["batch_tokens"] == 32 * sizes["length"]
    assert {document.length for document in train} == {*range(1, task.length + 1)}
    assert task.longest == (200 if name.endswith("_40") else 4 * task.length)
    lengths = written(name)["eval"]["lengths"]
    assert max(lengths) == task.longest
    assert {*lengths} <= {document.length for document in tests}
    for key_of in (rule.canonical_prompt, operands if name.startswith("addition") else str):
        seen = {key_of(prompt_of(document)) for document in train}
        assert not seen & {key_of(prompt_of(document)) for document in tests}


def operands(prompt: str) -> str:
    """Returns the numbers of a sum, in an order of their own."""
    return " ".join(sorted(re.sub(r"[^\d+]", "", prompt).split("+")))


@pytest.mark.parametrize("name", ["parity", "modsum", "lego", "polynomial", "copy"])
def test_who_knows_the_commonest_answer_is_right_as_often_as_is_said(name: str) -> None:
    rule, lengths, random = rule_of(name), [2, 5], Random(11)
    of_length = [[rule.example(n, random).answer for _ in range(1000)] for n in lengths]
    share = sum(max(map(answers.count, set(answers))) for answers in of_length) / 2000
    # The commonest of 300 is at most 3 sqrt(p / 300) above the true share, 1000 examples have less.
    assert (rule.chance or commonest(rule, lengths)) == pytest.approx(share, abs=0.07)


@pytest.mark.parametrize(
    ("name", "seed", "text"),
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
def test_a_scratchpad_writes_its_steps_and_no_result(name: str, seed: int, text: str) -> None:
    plain, rule = rule_of(name + PAD, scratchpad=""), rule_of(name + PAD, scratchpad="ICOVR")
    assert "".join(rule.example(3 if name in ("lego", "polynomial") else 2, Random(seed))) == text
    for length in range(1, 20):
        short, full = (one.example(length, Random(length)) for one in (plain, rule))
        assert (full.prompt, result_of(full.answer)) == short
        assert set(full.prompt + full.answer) <= set(rule.alphabet)
    steps = [Step("i", "c", "o", "v", "r")] * 2
    assert format_steps(steps, "7", parts="OI") == "i=o&i=o#7"  # not in another order


def test_pcfg_has_the_words_of_its_paper_and_its_example() -> None:
    rule, random = rule_of("pcfg"), Random(0)
    prompts = [rule.example(n, random).prompt for n in range(1, 33) for _ in range(100)]
    words = {word for prompt in prompts for word in rule.detokenize(prompt).split()}
    operations = {word for word in words if re.fullmatch("[a-z_]+", word)}
    assert len(operations) == 10
    assert len(words - operations - {",", "="}) == 520
    # From the paper's data, as the NoPE suite prints it.
    prompt = rule.tokenize("shift prepend K10 R1 K12 , E12 F16 =")
    assert rule.detokenize(pcfg(prompt)) == "F16 K10 R1 K12 E12"


def test_random_spaces_are_in_training_alone_and_change_no_sum() -> None:
    train, tests = splits("addition_spaces")
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


@pytest.mark.parametrize(
    ("name", "arguments", "answered"),
    [
        ("mqar", {"keys": 52, "queries": 20}, 18),
        ("variable_tracking", {"chains": 3}, 3),
        ("frequent_words", {"most": 1}, 1),
        ("selective_copy", {"kept": 3}, 3),
        ("passkey", {"key_digits": 7}, 7),
    ],
)
def test_arguments_decide_how_much_is_answered(
    name: str, arguments: dict[str, int], answered: int
) -> None:
    assert len(rule_of(name, **arguments).example(9, Random(0)).answer) == answered


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("study=alibi_figure1", "study=alibi_figure1: task=copy makes its own text; "),
        ("task.lenght=3", "task.lenght: unknown key; did you mean task.length?"),
        ("task.longest=2 eval.lengths=[1]", "task.longest=2: copy has no longer tests, and is"),
        ("task.arguments.times=x", "task.arguments.times: 'x' should be a valid integer"),
        ("task.kind=copi", "task.kind: no task 'copi'; did you mean copy?"),
        ("+task.arguments.tymes=2", "task.arguments.tymes: unknown key; did you mean task.argum"),
        ("eval.protocols=[tail]", "eval.protocols: tail scores text from left to right, and "),
        ("corpus.tokenizer=bytes", "corpus: a task is read by characters"),
        ("task=lm eval.decode=2", "eval.decode=2: tests of a task are decoded, and corpus python "),
        ("task=mqar task.longest=53", "task.longest=53: there are 16 different names, and 53 are"),
        ("task=addition_hints task.longest=53", "task.longest=53: hints reach to 51 digits, not "),
        ("task.arguments.alphabet=63", "task.arguments.alphabet: 63 should be less than or equal "),
        ("task=copy_replace task.arguments.alphabet=1", "task.arguments: replace=true needs an al"),
        ("task=flip_flop task.arguments.ignored=1.5", "task.arguments.ignored: 1.5 should be less"),
        ("task=pcfg task.arguments.answer=9", "task.arguments: answer=9 is below 10, twice string"),
        ("task=sort task.arguments.scratchpad=IX", "task.arguments: scratchpad='IX' is not made o"),
        ("task=addition_scratchpad +task.arguments.spaces=0.1", "task.arguments: a scratchpad goe"),
    ],
)
def test_what_a_task_cannot_honour_is_one_line(words: str, said: str) -> None:
    asked = words.split() if "task=" in words else ["task=copy", *words.split()]
    assert refusal(valid, asked).startswith(said)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (FILE.replace('ascii_lowercase + "="', "ascii_lowercase"), "alphabet lacks '=' of '"),
        (FILE.replace('f"{text}="', '""'), "interleave has an empty prompt"),
        ("", r"task\.kind: no task 'interleave'; .* \(a custom task needs --plugin\)"),
        (FILE.replace('+ "="', '+ "=\u03b1"'), "\u03b1' is not ASCII"),
    ],
)
def test_a_mistake_in_a_task_of_the_user_is_one_line(tmp_path: Path, rule: str, said: str) -> None:
    write(tmp_path, {"interleave.py": rule, "conf/task/interleave.yaml": YAML})
    conf, plugins = tmp_path / "conf", [tmp_path / "interleave.py"] if rule else []
    with pytest.raises(UserError, match=said):
        resolve(["task=interleave"], config_dir=conf, plugins=plugins)


def test_an_error_that_few_examples_meet_names_the_line_of_the_task(tmp_path: Path) -> None:
    rare = FILE.replace('f"{text}="', 'f"{text}=" if random.random() > 0.1 else {}["rare"]')
    write(tmp_path, {"interleave.py": rare, "conf/task/interleave.yaml": YAML})
    conf, plugins = tmp_path / "conf", [tmp_path / "interleave.py"]
    source = resolve(["task=interleave"], config_dir=conf, plugins=plugins).source
    with pytest.raises(UserError, match=r"task.kind: Interleave raised KeyError.*leave.py, line "):
        list(source.read(held_out=False))


def test_ids_run_backwards_up_to_the_end_of_a_prompt_whatever_it_is() -> None:
    rule = rule_of("reverse")
    plain = rule.alignment_ids("abc=cba\n")
    rule.prompt_end = ">"
    assert rule.alignment_ids("abc>cba\n") == plain == [3, 2, 1, 0, 1, 2, 3, 0]
