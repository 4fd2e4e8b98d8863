"""Commands given in this process, as a shell would give them."""

import sys
from typing import NamedTuple

import pytest

from lengthgen.__main__ import main


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


class Shell:
    """Runs lengthgen in this process, as the only one of its run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys
        monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # main() then leaves the environment alone
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name, raising=False)

    def run(self, *words: str) -> Ran:
        self.monkeypatch.setattr(sys, "argv", ["lengthgen", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self.capsys.readouterr()
        return Ran(int(ended.value.code or 0), out, err)

    def refused(self, *words: str) -> str:
        """Returns the one line of a command that ends with exit code 2."""
        ran = self.run(*words)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("error: ")
        assert ran.err.count("\n") == 1
        assert ran.err.endswith("\n")
        return ran.err.removeprefix("error: ").removesuffix("\n")

    def error_of(self, *words: str) -> str:
        """Returns the error of a command that has begun to read, and said so, before it."""
        ran = self.run(*words)
        assert (ran.code, ran.out) == (2, "")
        errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
        assert errors == ran.err.splitlines()[-1:]
        assert "Traceback" not in ran.err
        return errors[0].removeprefix("error: ")
