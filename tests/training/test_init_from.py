"""train.init_from: a run begins with the weights of another, and is bound to these weights."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small import close, create, small_config, smaller, valid
from small_corpora import load_tokens
from trained import rows_of, train, weights_of

from lengthgen.config.schema import Config, InitFrom
from lengthgen.errors import UserError
from lengthgen.experiment import of_run
from lengthgen.runs import status
from lengthgen.training import init_from


@pytest.fixture
def base(own: Callable[..., Path]) -> Path:
    """A trained run of t5, whose scheme has parameters."""
    return own("scheme=t5")


def config_of(base: Path, *more: str) -> Config:
    return small_config(f"train.init_from={base}", f"runtime.root={base.parent}", *more)


def begun(config: Config) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Returns the weights that training begins with, and what was said."""
    said: list[str] = []
    corpus = load_tokens(config.corpus, cache_dir=config.runtime.cache_dir, say=said.append)
    model = create(config, vocab_size=corpus.vocab_size)
    assert isinstance(config.train.init_from, InitFrom)
    init_from.load_weights(model, config.train.init_from, corpus, say=said.append)
    return dict(model.state_dict()), said


def test_the_same_scheme_begins_with_all_weights(base: Path) -> None:
    weights, _ = begun(config_of(base, "scheme=t5", "train.length=64", "train.lr=1e-3", "seed=7"))
    torch.testing.assert_close(weights, weights_of(base), rtol=0, atol=0)


def test_another_scheme_begins_with_the_network_alone(base: Path) -> None:
    config = config_of(base, "scheme=kerple")
    weights, said = begun(config)
    fresh = create(config, vocab_size=len(weights["embedding.weight"])).state_dict()
    for name, tensor in weights.items():
        source = fresh if name.startswith("scheme.") else weights_of(base)
        close(tensor, source[name], atol=0)
    assert any("initialised: scheme.parts.kerple" in line for line in said)
    assert any("not used: scheme.parts.t5" in line for line in said)


def test_training_goes_on_from_the_loss_reached_and_needs_the_base_no_more(base: Path) -> None:
    losses = [row["train/loss"] for row in rows_of(base / "train.jsonl")]
    config = config_of(base, "scheme=t5", "train.lr=1e-6", "train.length=32")
    run_dir = train(config)
    assert rows_of(run_dir / "train.jsonl")[0]["train/loss"] < losses[-1] + 0.2
    assert losses[0] > losses[-1] + 0.4  # of random weights
    shutil.rmtree(base)
    again = of_run(run_dir, {"eval.lengths": [32, 64, 128]})
    assert again.run_id == run_dir.name


def test_a_run_is_named_by_its_first_weights_not_by_their_place(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    there = shutil.copytree(base, tmp_path / base.name)
    here, moved = (config_of(path, "scheme=t5") for path in (base, there))
    assert here.run_id == moved.run_id != small_config("scheme=t5").run_id
    root = f"runtime.root={base.parent}"
    for name in (base.name, f"'~/{there.name}'"):
        assert small_config("scheme=t5", f"train.init_from={name}", root).run_id == here.run_id


def test_a_run_is_found_by_the_words_that_trained_it(base: Path, tmp_path: Path) -> None:
    begin = f"train.init_from='{' '.join(smaller('scheme=t5'))}'"
    second = small_config("scheme=t5", "seed=2")  # a beginning of the run's name would find both
    shutil.copytree(base, base.parent / second.run_id)
    there, empty = (f"runtime.root={root}" for root in (base.parent, tmp_path / "empty"))
    config = valid(smaller("scheme=kerple", begin, there))
    assert config.run_id == small_config("scheme=kerple", f"train.init_from={base}", there).run_id
    with pytest.raises(UserError, match=f"has no {base.name}; first lengthgen train model."):
        valid(smaller("scheme=kerple", begin, empty))
    with pytest.raises(UserError, match=r"train.init_from: scheme=rop: .*did you mean rope"):
        valid(smaller("scheme=kerple", "train.init_from='scheme=rop'"))


def test_seeds_that_began_with_seeds_of_one_recipe_are_one_series(base: Path) -> None:
    root = f"runtime.root={base.parent}"
    second = train(small_config("scheme=t5", "seed=2", "eval.lengths=[16]", root))
    first, other = (config_of(r, "scheme=t5", f"seed={n}") for n, r in ((1, base), (2, second)))
    assert first.run_id.split("-")[-1] != other.run_id.split("-")[-1]
    assert first.recipe == other.recipe != small_config("scheme=t5").recipe


def test_keys_that_describe_the_same_model_are_no_difference(base: Path) -> None:
    same = config_of(base, "scheme=t5")
    other = config_of(base, "scheme=t5", "model.n_kv_heads=4", "model.d_head=8")
    assert other.model != same.model
    assert other.run_id == same.run_id


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["model.d_model=64"], r"has model.d_model=32; give model.d_model=32"),
        (
            ["model.norm=rms", "model.biases=[qkv]"],
            r"(model.norm=layer model.biases=.*); give \1",
        ),
        (["train.init_from=absent"], r"train.init_from: absent: no such run in"),
        (["train.init_from=3"], r"train.init_from"),
    ],
)
def test_what_a_run_cannot_begin_with_is_refused(base: Path, more: list[str], text: str) -> None:
    with pytest.raises(UserError, match=text):
        config_of(base, "scheme=t5", *more)


def test_a_run_that_is_unfinished_or_of_other_tokens_or_has_changed_is_refused(base: Path) -> None:
    config = config_of(base, "scheme=t5", "corpus.alphabet=17")
    with pytest.raises(UserError, match=r"was trained on other tokens than this corpus .*; give"):
        train(config)
    assert not config.run_dir.exists()
    config = config_of(base, "scheme=t5")
    shutil.rmtree(status.checkpoint_folders(base)[-1])
    with pytest.raises(UserError, match=r"does not hold the weights .* any more"):
        begun(config)
    (base / "DONE").unlink()
    with pytest.raises(UserError, match="is not trained to its end; repeat its lengthgen train"):
        config_of(base, "scheme=t5")
