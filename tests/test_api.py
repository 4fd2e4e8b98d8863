"""The Python API does what the commands do, and gives numbers as data frames."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import SMALL, config_of, refusal
from trained import weights_of

import lengthgen
from lengthgen import api
from lengthgen.errors import UserError
from lengthgen.runs import directory


def test_dir_shows_what_there_is_and_each_has_an_example() -> None:
    public = [name for name in dir(lengthgen) if not name.startswith("_")]
    own = [name for name, of in vars(api).items() if getattr(of, "__module__", "") == api.__name__]
    assert public == sorted(name for name in own if not name.startswith("_"))
    for name in public:
        assert f"lengthgen.{name}(" in (getattr(lengthgen, name).__doc__ or "")
    with pytest.raises(AttributeError, match="nothing"):
        getattr(lengthgen, "nothing")  # noqa: B009


def test_a_run_is_changed_as_by_the_command(run_dir: Path, tmp_path: Path) -> None:
    runtime = {"root": f"{tmp_path}/(mine)"}
    changed = lengthgen.train(base=run_dir, train={"tokens": 256}, runtime=runtime)
    words = [*SMALL, "scheme=rope", f"runtime.root='{tmp_path}/(mine)'", "train.tokens=256"]
    assert changed == config_of(*words).run_dir


def test_values_and_overrides_name_the_same_run(run_dir: Path) -> None:
    assert lengthgen.train(*SMALL, scheme="rope", runtime={"root": str(run_dir.parent)}) == run_dir


def test_an_evaluation_holds_what_was_requested_and_results_hold_all(run_dir: Path) -> None:
    curves = lengthgen.evaluate(run_dir, lengths=[16, 48], variants="ntk")  # as of a list of one
    assert set(curves["length"]) == {16, 48}
    assert set(curves["variant"].dropna()) == {"ntk"}
    everything = lengthgen.results(run_dir.parent)
    assert len(everything) >= len(curves)
    ends = ["ppl", "ppl_low", "ppl_high", "loss", "low", "high"]
    assert [*everything][:9] == ["scheme", "variant", "length", *ends]
    for name, of in zip(ends, ends[3:], strict=False):
        assert everything[name].to_numpy() == pytest.approx(
            np.exp(everything[of].to_numpy()), nan_ok=True
        )
    config = directory.load_config(run_dir)
    of_run = {"model": "tiny", "tokens": config.train.tokens, "lr": config.train.lr}
    assert all((everything[name] == value).all() for name, value in of_run.items())
    assert everything["ppl"].to_numpy() == pytest.approx(np.exp(everything["loss"].to_numpy()))
    assert lengthgen.results([run_dir]).equals(everything)
    key, of_seed = ["series", "protocol", "length"], lengthgen.results(run_dir, per="seed")
    assert {*of_seed["run"], *of_seed["seed"]} == {run_dir.name, 1}
    joined = everything.merge(of_seed, on=key, suffixes=("", "_of_seed"), validate="1:1")
    assert joined["loss_of_seed"].to_numpy() == pytest.approx(joined["loss"].to_numpy())
    each: Any = lengthgen.results(run_dir, per="document")
    assert each.groupby(key)["document"].nunique().min() > 1
    sums = (
        each.assign(nats=each["loss"] * each["n_tokens"]).groupby(key)[["nats", "n_tokens"]].sum()
    )
    mean: Any = joined.set_index(key)["loss"]
    assert (sums["nats"] / sums["n_tokens"])[mean.index].to_numpy() == pytest.approx(
        mean.to_numpy()
    )
    with pytest.raises(UserError, match="per='run'"):
        lengthgen.results(run_dir, per="run")  # pyright: ignore[reportArgumentType]


def test_what_is_not_compared_is_said_once(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengthgen.evaluate(run_dir, lengths=[16, 48], eval={"endpoints": 2})
    capsys.readouterr()
    lengthgen.results(run_dir)
    assert capsys.readouterr().err.count("Not shown: ") == 1


def test_a_loaded_model_is_the_trained_one_and_reads_tokens_of_its_tokenizer(
    run_dir: Path,
) -> None:
    model, tokenizer = lengthgen.load(run_dir)
    torch.testing.assert_close(dict(model.state_dict()), weights_of(run_dir), rtol=0, atol=0)
    tokens = torch.tensor([tokenizer.encode("abcdabcdabcdabcd").ids])
    logits = model.logits(model(tokens))
    assert logits.shape == (1, tokens.shape[1], tokenizer.get_vocab_size())
    assert not model.training


def test_a_wrong_value_is_named_as_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.lenght: unknown key"):
        lengthgen.train(scheme="rope", train={"lenght": 1})
    with pytest.raises(UserError, match="no such run"):
        lengthgen.load(tmp_path / "none")
    with pytest.raises(UserError, match="no such run"):
        lengthgen.results(5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="no run to show in an empty list"):
        lengthgen.results([])
    with pytest.raises(UserError, match=r"^5: not readable as an override"):
        lengthgen.train(5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"^--plugin: missing\.py cannot be read"):
        lengthgen.train(scheme="rope", plugins="missing.py")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train": {"length": 8}}, "train.length: only eval.* and runtime.* can be given here"),
        ({"eval": {"lenghts": [16]}}, "eval.lenghts: unknown key; did you mean eval.lengths?"),
    ],
)
def test_an_evaluation_changes_no_trained_value(
    run_dir: Path, values: dict[str, Any], message: str
) -> None:
    before = (run_dir / "eval.jsonl").read_bytes()
    assert message in refusal(lengthgen.evaluate, run_dir, **values)
    assert (run_dir / "eval.jsonl").read_bytes() == before
