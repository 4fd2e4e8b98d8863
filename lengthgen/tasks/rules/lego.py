"""LEGO, a chain of signs: Zhang et al. 2022, arXiv 2206.04301, as in NoPE's suite."""

from random import Random
from string import ascii_letters

from lengthgen.tasks.base import Example, distinct_characters
from lengthgen.tasks.scratchpad import ScratchpadTask, Step, format_steps


class Lego(ScratchpadTask):
    """a=+1;b=-a;... and a letter from the second half of the chain, for its sign.

    permuted: the clauses are in random order.
    """

    unit = "clauses"
    characters, guess = ascii_letters + "+-1=;?", 1 / 2

    def __init__(self, *, permuted: bool, scratchpad: str) -> None:
        super().__init__(scratchpad=scratchpad)
        self.permuted = permuted

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
