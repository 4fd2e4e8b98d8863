"""A row of a table keeps the rules of the others, and is better only where it is shown to be."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from commands import Shell
from frames import CONFIG, LENGTHS, frame, write_run
from small import config_of

from lengthgen.report import leaderboard

TRAIN: dict[str, Any] = {"lr": 0.003, "length": 512, "tokens": 4096, "batch_tokens": 512}


def row_of(scheme: str, loss: float, **columns: Any) -> pd.DataFrame:
    """Returns three seeds of a scheme, which vary by less than 0.01 nats."""

    def of(seed: int, document: str, length: int) -> float:
        return loss + (3 * seed + ord(document) * len(scheme) + length) % 7 / 1000

    train = TRAIN | columns.pop("train", {})
    about = {"name": scheme, "parts": {scheme: {}}, "variants": {}}
    config = CONFIG | {"scheme": about, "train": train, "model": {"d_model": 8}}
    config |= columns.pop("config", {})
    return frame(of, scheme=scheme, config=config, weights=scheme, **columns)


TABLE = [row_of("rope", 4.0), row_of("alibi", 3.0), row_of("t5", 3.0005)]


def broken(mine: pd.DataFrame) -> list[str]:
    rows = pd.concat([*TABLE, mine], ignore_index=True)
    return leaderboard.broken_rules(rows, {*mine["run"]})


def mine(**changed: Any) -> pd.DataFrame:
    return row_of("mine", 2.5, **changed)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (mine(train={"tokens": 8192}), "train.tokens=8192, and 4096 in"),
        (mine(train={"optimizer": "muon"}), ""),  # which no other says
        (mine(config={"model": {"d_model": 16}}), "model.d_model=16, and 8 in"),
        (mine(fingerprint="e" * 64), "fingerprint=eeeeeeeeeeee, and ffffffffffff in"),
        (mine(endpoints="4567"), "endpoints=4567, and 0123 in"),
        (mine(seeds=(1, 2)), "2 seeds, and at least 3"),
        (mine(lengths=LENGTHS[:-1]), "mine-s1 lacks the lengths 2k"),
        (mine(state="stopped"), "mine-s1 is stopped"),
        (mine(protocol="kerple"), "no loss under tail"),
        (mine().query("document != 'a' or length != 2048 or seed != 1"), "mine-s1 lacks"),
    ],
)
def test_a_broken_rule_is_named_with_what_the_others_have(row: pd.DataFrame, told: str) -> None:
    lines = broken(row)
    assert [line for line in lines if told in line and line.startswith("mine: ")] == lines[:1]
    assert bool(told) == bool(lines)


def test_learning_rates_and_what_decides_no_weights_are_free() -> None:
    free = {"lr": 0.1, "scheme_lr_ratio": 4.0, "checkpoint_every": 7, "keep_checkpoints": 3}
    assert broken(mine(train=free)) == []
    assert broken(mine(lengths=(*LENGTHS, 600))) == []


def test_better_is_what_all_pairs_of_the_table_allow() -> None:
    rows = pd.concat([*TABLE, mine(), row_of("two", 1.0, seeds=(1, 2))], ignore_index=True)
    shown = leaderboard.better(rows, {*rows["run"]})
    by_name = {cells[0].text: [cell.text for cell in cells[3:]] for cells in shown.rows}
    assert by_name == {
        "two": ["-", "-"],  # seeds
        "mine": ["alibi, t5, rope", "-"],
        "alibi": ["rope", "mine"],
        "t5": ["rope", "mine"],
        "rope": ["-", "mine, alibi, t5"],
    }
    assert " 6 pairs" in shown.notes[0]


def test_a_table_keeps_its_rules_and_a_run_of_one_seed_not(shell: Shell, tmp_path: Path) -> None:
    def row(scheme: str, seed: int, length: int) -> str:
        losses = dict.fromkeys((length, 2 * length), 3.0 + seed / 100)
        run_dir = write_run(tmp_path / "runs", scheme, seed=seed, losses=losses)
        (run_dir / "DONE").touch()
        return str(run_dir)

    T = config_of().train.length
    table = [row(scheme, seed, T) for scheme in ("rope", "alibi") for seed in (1, 2, 3)]
    folder = str(tmp_path / "table")
    assert shell.run("report", *table, "--out", folder).code == 0
    ran = shell.run("report", folder, "--check")
    assert (ran.code, ran.err) == (0, "")
    assert not Path("report").exists()
    beside = row("nope", 1, T)
    ran = shell.run("report", folder, beside, "--check")
    assert (ran.code, ran.out) == (2, "")
    recipe = Path(beside).name.replace("-s1", "")
    assert all(line.startswith(f"{recipe}: ") for line in ran.err.splitlines()[:-1])
    assert f"{recipe}: 1 seed, and at least 3" in ran.err
    assert shell.run("report", folder, beside).code == 0
    assert Path("report/report.html").exists()
