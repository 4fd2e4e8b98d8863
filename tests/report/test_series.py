# pyright: basic, reportArgumentType=false
"""series: which rows can be compared, and what runs of one recipe are called."""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest
from frames import CONFIG, frame

from lengthgen.errors import UserError
from lengthgen.report.series import select


def config(*, train: Mapping[str, float] | None = None, **scheme: Any) -> dict[str, Any]:
    """Returns CONFIG with other values of train and of scheme."""
    both = {"train": {**CONFIG["train"], **(train or {})}, "scheme": {**CONFIG["scheme"], **scheme}}
    return {**CONFIG, **both}


def names(*tables: pd.DataFrame) -> list[str]:
    (selection,) = select(pd.concat(tables))
    return sorted(selection.rows["series"].unique())


def notes(*tables: pd.DataFrame) -> list[str]:
    return [note for selection in select(pd.concat(tables)) for note in selection.notes]


def test_a_name_holds_four_keys_and_then_the_end_of_the_run() -> None:
    other = config(train={"lr": 0.1, "clip": 1.0, "beta1": 0.9}, parts={"rope": {"base": 1.5}})
    found = names(frame(3.0), frame(3.0, run="other", config=other))
    named = "scheme.parts.rope.base=1.5, train.beta1=0.9, train.clip=1, train.lr=0.1"
    assert f"rope ({named})" in found
    # Five keys that each tell one run from another.
    changed = {"beta1": 0.9, "beta2": 0.8, "clip": 2.0, "lr": 0.1, "weight_decay": 0.2}
    usual = {**dict.fromkeys(changed, 0.5)}
    runs = [{**usual, key: changed[key]} for key in changed] + [usual]
    tables = [
        frame(3.0, run=f"r-{n}", seeds=(n,), config=config(train=x)) for n, x in enumerate(runs)
    ]
    assert all(re.search(r", s\d\)$", name) for name in names(*tables))


def test_of_keys_that_change_together_the_one_of_words_is_named() -> None:
    adamw = {"optimizer": "adamw", "beta1": 0.9, "beta2": 0.95, "clip": 1.0, "schedule": "cosine"}
    muon = {"optimizer": "muon", "beta1": 0.8, "beta2": 0.9, "clip": 2.0, "schedule": "linear"}
    trains = [{**x, "lr": lr} for x in (adamw, muon) for lr in (0.1, 0.2)]
    tables = [frame(3.0, run=f"run{n}", config=config(train=x)) for n, x in enumerate(trains)]
    first, *_, last = sorted(names(*tables), key=lambda name: name.endswith("adamw)"))
    assert "train.lr=0.1, train.optimizer=muon" in first
    assert "train.lr=0.2, train.optimizer=adamw" in last


def test_parts_in_another_order_are_another_series() -> None:
    orders = {"here": {"x": {}, "y": {}}, "there": {"y": {}, "x": {}}}
    runs = [
        frame(3.0, run=name, seeds=(n,), config=config(parts=parts))
        for n, (name, parts) in enumerate(orders.items())
    ]
    assert names(*runs) == ["rope (s0)", "rope (s1)"]


def test_a_variant_that_was_defined_otherwise_is_a_series_of_its_own() -> None:
    configs = {n: config(variants={"yarn": {"rope": {"factor": n}}}) for n in (4, 8)}
    four, eight = (frame(3.0, variant="yarn", run=f"run{n}", config=configs[n]) for n in configs)
    assert names(four, eight) == [
        "rope + yarn (scheme.variants.yarn.rope.factor=4)",
        "rope + yarn (scheme.variants.yarn.rope.factor=8)",
    ]


def test_seeds_are_one_series_variants_stand_behind_it_and_what_is_given_pairs_is_a_bound() -> None:
    abacus = config(parts={"abacus": {}})
    tables = frame(3.0, seeds=(1,)), frame(3.0, seeds=(2,)), frame(3.0, variant="yarn+window")
    found = names(*tables, frame(3.0, scheme="abacus", config=abacus, unit="digits"))
    assert found == ["abacus (upper bound)", "rope", "rope + yarn + window"]


def test_an_imported_model_has_its_own_name_and_not_that_of_its_scheme() -> None:
    imported = config(train={"tokens": 0})
    own = frame(3.0, run="x", model="llama", config=imported)
    assert names(frame(3.0), own) == ["llama", "rope (tiny)"]
    assert names(frame(3.0, variant="yarn", run="x", model="llama", config=imported)) == [
        "llama + yarn"
    ]


def test_runs_on_other_tokens_are_a_selection_of_their_own() -> None:
    other = frame(4.0, scheme="alibi", fingerprint="e" * 64, seeds=(1,))
    packed = frame(4.0, scheme="t5", packed=True, seeds=(1, 2))
    found = select(pd.concat([other, frame(3.0), packed]))
    assert [sorted(set(s.rows["scheme"])) for s in found] == [["rope"], ["t5"], ["alibi"]]
    tokens = [f"toy (tokens {letter * 12})" for letter in "fe"]
    assert [s.text for s in found] == [tokens[0], "toy (packed)", tokens[1]]


def test_texts_of_one_name_are_told_apart_by_what_differs_in_their_corpora() -> None:
    def named(*corpora: tuple[bool, str, str]) -> list[str]:
        """The names of the texts of these bos, path and tokens."""
        runs = [
            frame(3.0, run=f"r{i}", seeds=range(4 - i), fingerprint=tokens * 64, config=config)
            for i, (bos, path, tokens) in enumerate(corpora)
            for config in [{**CONFIG, "corpus": {"bos": bos, "path": path}}]
        ]
        return [selection.text.removeprefix("toy ") for selection in select(pd.concat(runs))]

    found = named((True, "a", "e"), (True, "b", "f"), (False, "a", "e"))
    assert found == ["(bos=true, path=a)", "(bos=true, path=b)", "(bos=false, path=a)"]
    edited = [f"(path=a) (tokens {letter * 12})" for letter in "ef"]
    assert named((True, "a", "e"), (True, "a", "f"), (True, "b", "g")) == [*edited, "(path=b)"]
    assert all(len(text) < 300 for text in named((True, "a" * 999, "e"), (True, "b" * 999, "f")))


def test_a_cell_without_all_its_documents_is_named_and_left_out() -> None:
    rows = frame(3.0)
    cut = rows[~((rows["length"] == 1024) & (rows["document"] == "a") & (rows["seed"] == 1))]
    (selection,) = select(cut)
    left = selection.rows[(selection.rows["length"] == 1024) & (selection.rows["seed"] == 1)]
    assert len(left) == 0
    note = "Not shown: rope-s1 (tail at 1k), evaluated in part: lengthgen eval rope-s1"
    assert any(own.startswith(note) for own in selection.notes)


def settings(**changed: Any) -> str:
    """Returns the settings of rows, with these changed."""
    every = {"targets": 4, "endpoints": 5, "seed": 0, "precision": "fp32", "max_context": 4096}
    return " ".join(f"eval.{key}={value}" for key, value in (every | changed).items())


@pytest.mark.parametrize(
    ("change", "has"),
    [
        ({"precision": "bf16"}, "eval.precision=bf16, shown is eval.precision=fp32"),
        ({"targets": 64}, "eval.targets=64, shown is eval.targets=4"),
        (
            {"endpoints": "other", "settings": settings(endpoints=3, seed=1)},
            "eval.endpoints=3, eval.seed=1, shown is eval.endpoints=5, eval.seed=0",
        ),
    ],
)
def test_what_was_evaluated_otherwise_is_named_with_what_differs_and_the_command(
    change: dict[str, object], has: str
) -> None:
    usual = {"settings": settings()} if "settings" in change else {}
    wanted = {"targets": 4, "seed": 0, "precision": "fp32", "max_context": 4096, "endpoints": 99}
    wanted |= {"lengths": [256, 512, 1024], "protocols": ["swap"], "targets": 8}
    other = {**CONFIG, "eval": wanted}
    tables = frame(3.0, **usual), frame(3.0, scheme="t5", **usual)
    left = frame(4.0, scheme="alibi", config=other, **change)
    assert names(*tables, left) == ["rope", "t5"]
    left_out = [note for note in notes(*tables, left) if "Not shown" in note]
    assert len(left_out) == 3
    assert f"alibi-s1 (tail at 256, 512, 1k, 2k) has {has}: " in left_out[0]
    # What the run itself is not set to, and neither it nor the rows' settings alone.
    _, _, command = left_out[0].partition("lengthgen eval alibi-s1 ")
    given = ["eval.targets=4", *(["eval.endpoints=5"] if usual else [])]
    lists = ["--lengths=256,512,1024,2048", "--protocols=tail"]
    assert sorted(command.split(" ")) == sorted([*given, *lists])


def test_of_a_run_that_has_what_is_shown_too_no_command_is_named() -> None:
    few = frame(3.0, endpoints="other", settings=settings(endpoints=3), lengths=(512, 1024))
    left_out = [n for n in notes(few, frame(3.0, settings=settings())) if "Not shown" in n]
    assert len(left_out) == 3
    assert left_out[0].endswith(" has eval.endpoints=3, shown is eval.endpoints=5")


def test_of_a_deeper_evaluation_the_command_measures_what_is_shown_as_deep() -> None:
    shown = frame(3.0, seeds=(1,), settings=settings())
    config = {**CONFIG, "eval": {"targets": 4, "lengths": [512]}}
    about = {"endpoints": "other", "settings": settings(max_context=6000), "config": config}
    about["seeds"] = (1,)
    (left_out,) = (n for n in notes(frame(3.0, lengths=(6000,), **about), shown) if "Not" in n)
    assert left_out.endswith(" eval.max_context=6000 --lengths=256,512,1024,2048,6000")


@pytest.mark.parametrize("last", [4, 64])
def test_of_settings_with_the_same_tokens_the_last_evaluated_are_shown(last: int) -> None:
    tables = {K: frame(3.0, targets=K) for K in (4, 64)}
    first = 68 - last
    few = frame(3.0, targets=8, lengths=(512,))
    (selection,) = select(pd.concat([tables[first], tables[last], few]))
    assert set(selection.rows["targets"]) == {last}
    assert sum(f"has eval.targets={first}," in note for note in selection.notes) == 3


def test_a_quick_look_hides_no_evaluation_of_more_tokens() -> None:
    whole, quick = frame(3.0, n_tokens=640), frame(3.0, endpoints="quick", n_tokens=64)
    for tables in ([whole, quick], [quick, whole]):
        (selection,) = select(pd.concat(tables))
        assert set(selection.rows["n_tokens"]) == {640}


def test_what_is_left_out_of_all_texts_is_said_where_nothing_or_another_text_is_kept() -> None:
    rows = frame(3.0)
    cut = rows[rows["document"] == "a"]
    said = "Not shown: rope-s1 (tail at "
    with pytest.raises(UserError, match=rf"nothing can be compared: {re.escape(said)}"):
        select(cut)
    (selection,) = select(pd.concat([cut, frame(3.0, fingerprint="other")]))
    assert any(note.startswith(said) for note in selection.notes)
    apart = [frame(3.0, seeds=(1,), lengths=(512,)), frame(3.0, seeds=(2,), lengths=(1024,))]
    with pytest.raises(UserError, match=r"rope-s2 \(tail at 1k\), fewer lengths than other seeds"):
        select(pd.concat(apart))


def test_a_seed_that_lacks_lengths_hides_none_of_them() -> None:
    late = frame(3.0, seeds=(3,), lengths=(512,))
    (selection,) = select(pd.concat([frame(3.0, seeds=(1, 2)), late]))
    assert set(selection.rows["seed"]) == {1, 2}
    [note] = selection.notes
    said = (
        "Not shown: rope-s3 (tail at 512), fewer lengths than other seeds: lengthgen eval rope-s3"
    )
    assert note.startswith(said)


def test_of_runs_of_one_seed_the_first_is_kept_and_the_other_named() -> None:
    again = frame(9.0, seeds=(1,)).assign(run="rope-zz")
    (selection,) = select(pd.concat([frame(3.0), again]))
    assert "rope-zz" not in set(selection.rows["run"])
    assert "Not shown: rope-zz, a second run of one seed" in selection.notes
