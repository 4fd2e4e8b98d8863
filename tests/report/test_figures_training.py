"""Figures of what a longer training or a longer T changes."""

import math
from pathlib import Path

import pytest
import yaml
from eval_rows import Runs, gathered
from matplotlib.figure import Figure

from lengthgen.report import pictures
from lengthgen.report.figures import training

NATS = {1_000_000: (5.0, 5.5), 2_000_000: (4.0, 5.25), 4_000_000: (3.0, 5.0)}  # at 512 and 16k


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def trained(
    runs: Runs, scheme: str, tokens: int, seed: int = 1, noise: float = 0.0, **train: float
) -> Path:
    """Writes a run of a budget, with its losses of NATS."""
    losses = [nats + noise for nats in NATS[tokens]]
    T = int(train.get("length", 512))
    path = runs.write(
        *(scheme, losses),
        lengths=(T, 16384),
        seed=seed,
        tokens_seen=tokens,
        train_length=T,
        suffix=f"{tokens:08x}{''.join(f'{n:g}' for n in train.values())}"[-8:],
    )
    config = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(
        yaml.safe_dump({**config, "train": train | {"tokens": tokens}})
    )
    return path


def over_tokens(*paths: Path) -> Figure | None:
    found = gathered(*paths)
    return training.over(training.TOKENS, found.findings, found.configs)


def lines(figure: Figure, panel: int) -> dict[str, list[tuple[float, float]]]:
    """The ends of what is drawn of each scheme, by its name."""
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in line.get_xydata()]  # pyright: ignore
        for line in figure.axes[panel].lines
        if not str(line.get_label()).startswith("_")
    }


def test_a_line_has_the_mean_over_seeds_of_each_budget(runs: Runs) -> None:
    paths = [
        trained(runs, scheme, tokens, seed, noise=0.1 * seed)
        for scheme in ("rope", "alibi")
        for tokens in NATS
        for seed in (1, 2, 3)
    ]
    figure = over_tokens(*paths)
    assert figure is not None
    at_T, at_longest, gain = (lines(figure, panel)["rope"] for panel in range(3))
    assert at_T == [(n, pytest.approx(math.exp(of[0] + 0.2))) for n, of in NATS.items()]
    assert at_longest == [(n, pytest.approx(math.exp(of[1] + 0.2))) for n, of in NATS.items()]
    assert gain == [(n, pytest.approx(of[0] - of[1])) for n, of in NATS.items()]


def test_two_budgets_are_no_line(runs: Runs) -> None:
    first, second, third = NATS
    paths = [trained(runs, "rope", tokens) for tokens in (first, second)]
    assert over_tokens(*paths) is None
    assert over_tokens(*paths, trained(runs, "alibi", third)) is None
    assert over_tokens(*paths, trained(runs, "rope", third)) is not None


def test_runs_that_differ_in_more_than_the_budget_are_two_lines(runs: Runs) -> None:
    paths = [trained(runs, "rope", tokens, lr=lr) for tokens in NATS for lr in (0.1, 0.2)]
    paths.append(trained(runs, "alibi", 1_000_000, lr=0.1))
    figure = over_tokens(*paths)
    assert figure is not None
    assert {*lines(figure, 0)} == {"rope (train.lr=0.1)", "rope (train.lr=0.2)"}


def test_of_each_T_there_is_a_line_over_the_budget_and_of_each_budget_one_over_T(
    runs: Runs,
) -> None:
    paths = [trained(runs, "rope", n, length=T) for n in NATS for T in (128, 256, 512)]
    found = gathered(*paths)
    by_budget = training.over(training.TOKENS, found.findings, found.configs)
    by_T = training.over(training.LENGTH, found.findings, found.configs)
    assert by_budget is not None
    assert by_T is not None
    assert {*lines(by_budget, 0)} == {f"rope (T={T})" for T in (128, 256, 512)}
    drawn = lines(by_T, 1)
    assert {*drawn} == {f"rope ({n}M tokens)" for n in (1, 2, 4)}
    assert drawn["rope (2M tokens)"] == [
        (T, pytest.approx(math.exp(5.25))) for T in (128, 256, 512)
    ]


def test_a_report_has_the_figures_that_its_runs_allow(runs: Runs) -> None:
    paths = [trained(runs, "rope", tokens) for tokens in NATS]
    assert {*pictures.overview(gathered(*paths))} == {"by-tokens.png", "by-tokens.svg"}
    assert pictures.overview(gathered(paths[0])) == {}
