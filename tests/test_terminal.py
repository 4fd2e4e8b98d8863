"""The display: what it writes without a terminal, on one, and off the main rank."""

import io
from contextlib import suppress
from pathlib import Path

import pytest

from lengthgen.terminal import Board, Progress, share_told


class Terminal(io.StringIO):
    """Text that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_progress_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    show = Progress(is_main=True, file=out, seconds_between_lines=0.0)
    show.say("corpus: [bold] 9.6 MB")
    show.start("train rope", 1000, done=900)  # by an earlier process, which shortens no time left
    now[0] = 10.0
    show.advance(10, loss=5.1234, tokens_per_s=21000.0)
    message, _, line = out.getvalue().splitlines()
    assert message == "corpus: [bold] 9.6 MB"
    for part in ("train rope: 910/1,000 tokens", "loss 5.123", "21,000 tokens/s", "1:30 left"):
        assert part in line


def test_where_a_task_begins_and_stops_is_said_however_rarely_lines_come() -> None:
    out = io.StringIO()
    progress = Progress(is_main=True, file=out, seconds_between_lines=3600.0)
    with suppress(KeyboardInterrupt), progress as show:
        show.start("evaluate", 10, "cells")
        for _ in range(4):
            show.advance(1)
        raise KeyboardInterrupt
    first, last = out.getvalue().splitlines()
    assert (first[:20], last[:20]) == ("evaluate: 0/10 cells", "evaluate: 4/10 cells")


def test_a_terminal_shows_loss_speed_and_messages_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    with Progress(is_main=True, file=out) as show:
        show.start("train rope", 1000)
        show.advance(500, loss=5.1234, tokens_per_s=21000.0)
        show.say("checkpoint at step 100")
    for part in ("50%", "loss 5.123", "21,000 tokens/s", "checkpoint at step 100"):
        assert part in out.getvalue()


@pytest.mark.parametrize("is_notebook", [False, True])
def test_by_default_the_display_is_on_stderr(
    is_notebook: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: is_notebook)
    with Progress(is_main=True) as show:
        show.start("train", 10)
        show.advance(10)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "train: 10/10 tokens" in shown.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_full_display_ends_no_work(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    file, done = Path("/dev/full").open("w", buffering=1), list[int]()  # noqa: SIM115
    monkeypatch.setattr(file, "isatty", lambda: is_terminal, raising=False)
    with Progress(is_main=True, file=file, seconds_between_lines=0.0) as show:
        show.start("train", 3)
        for step in range(3):
            show.advance(1)
            show.say(f"step {step}")
            done.append(step)
    with suppress(OSError):
        file.close()
    assert done == [0, 1, 2]


@pytest.mark.parametrize("unit", ["tokens", ""])
@pytest.mark.parametrize("done", [0, 1234, 5000])
def test_the_share_is_read_from_a_line_of_progress(unit: str, done: int) -> None:
    out = io.StringIO()
    show = Progress(is_main=True, file=out, seconds_between_lines=0.0)
    show.start("train rope", 5000, unit)
    show.advance(done, loss=0.5, at="tail 64")
    told = share_told(out.getvalue().splitlines()[-1])
    assert told == pytest.approx(done / 5000, abs=0 if unit else 0.005)
    assert share_told("corpus: 81 projects, 76 MB") is None


def test_a_board_is_renewed_on_a_terminal_and_cut_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    with Board(file=out) as board:
        board.show(["seed=1: 10%", "a" * 30])
        board.say("seed=2: done")
        board.show(["seed=1: 20%"])
    text = out.getvalue()
    for part in ("seed=1: 10%", "seed=1: 20%", "seed=2: done\n", "a" * 19):
        assert part in text
    assert "a" * 20 not in text
    assert "\x1b[1A" in text  # it goes up to write over its lines


def test_a_board_writes_to_a_log_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    with Board(file=out, seconds_between_lines=60) as board:
        for seconds in range(0, 150, 10):
            now[0] = seconds
            board.show([f"after {seconds}", "total"])
    assert out.getvalue().splitlines() == ["after 60", "total", "after 120", "total"]
