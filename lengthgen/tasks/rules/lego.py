"""LEGO, a chain of signs: Zhang et al. 2022, arXiv 2206.04301, as in NoPE's suite."""

from random import Random
from string import ascii_letters

from lengthgen.tasks.base import Example, Task, distinct_characters
from lengthgen.tasks.scratchpad import Step, format_steps, scratchpad_alphabet, validate_parts


class Lego(Task):
    """a=+1;b=-a;... and a letter from the second half of the chain, for its sign.

    permuted: the clauses are in random order.
    """

    unit = "clauses"

    def __init__(self, *, permuted: bool, scratchpad: str) -> None:
        self.permuted = permuted
        self.parts = validate_parts(scratchpad)
        self.chance = 0.0 if self.parts else 1 / 2
        self.alphabet = ascii_letters + "+-1=;?" + scratchpad_alphabet(self.parts)

    def example(self, length: int, random: Random) -> Example:
        names = distinct_characters(ascii_letters, length, random)
        signs = random.choices("+-", k=length)
        sources = ["1", *names[:-1]]
        clauses = [
            f"{name}={sign}{source}"
            for name, sign, source in zip(names, signs, sources, strict=True)
        ]
        queried = random.randrange(length // 2, length)
        values: list[str] = []
        steps: list[Step] = []
        for i in range(queried + 1):
            before = values[-1] if values else "+"
            values.append("+" if signs[i] == before else "-")
            computed = f"{signs[i]}{before}"
            rest = ";".join(clauses[i + 1 : queried + 1])
            steps.append(Step(clauses[i], computed, values[-1], f"{names[i]}{values[-1]}", rest))
        order = random.sample(range(length), length) if self.permuted else range(length)
        prompt = "".join(f"{clauses[i]};" for i in order)
        answer = format_steps(steps, values[-1], parts=self.parts)
        return Example(f"{prompt}?{names[queried]}=", answer)
