"""series: which curves are one line, and what it is called."""

from typing import Any

import pytest
from eval_rows import cell

from lengthgen.analysis.curves import curve
from lengthgen.analysis.seed_groups import labels, references, series


def config(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "seed": 1,
        "runtime": {"device": "cpu"},
        "eval": {"targets": 4},
        "scheme": {"name": "rope", "parts": {"rope": {"base": 10000.0}}, "variants": {}},
        "train": {"lr": 0.003, "length": 512},
    }
    for key, value in changes.items():
        *path, last = key.split("__")
        inner = plain
        for step in path:
            inner = inner[step]
        inner[last] = value
    return plain


def test_runs_that_differ_in_the_seed_alone_are_one_series() -> None:
    points = curve([*cell(8.0, run="x"), *cell(16.0, run="y", seed=2)])
    configs = {"x": config(), "y": config(seed=2, runtime__device="cuda", eval__targets=9)}
    (line,) = series(points, labels(points, configs))
    assert (line.label, line.losses()) == ("rope", {1024: 1.5})


def test_a_length_that_one_seed_lacks_has_no_mean() -> None:
    points = curve([*cell(8.0, run="x"), *cell(8.0, run="y"), *cell(8.0, run="y", length=2048)])
    (line,) = series(points, labels(points, {"x": config(), "y": config(seed=2)}))
    assert list(line.losses()) == [1024]


def test_series_of_one_scheme_say_in_which_key_they_differ() -> None:
    points = curve([*cell(8.0, run="x"), *cell(8.0, run="y")])
    configs = {"x": config(), "y": config(scheme__parts={"rope": {"base": 500000.0}})}
    assert labels(points, configs) == {
        ("x", None): "rope (scheme.parts.rope.base=10000)",
        ("y", None): "rope (scheme.parts.rope.base=500000)",
    }


def test_runs_are_one_series_if_the_same_rate_of_the_scheme_is_in_force() -> None:
    points = curve([*cell(8.0, run="x"), *cell(8.0, run="y", seed=2)])
    old, new = config(), config(seed=2, train__scheme_lr_ratio=1.0, scheme__lr_ratio=16.0)
    own = config(seed=2, train__scheme_lr_ratio=None, scheme__lr_ratio=16.0)
    assert set(labels(points, {"x": old, "y": new}).values()) == {"rope"}
    assert labels(points, {"x": old, "y": own}) == {
        ("x", None): "rope (train.scheme_lr_ratio=1)",
        ("y", None): "rope (train.scheme_lr_ratio=16)",
    }


def test_a_label_names_three_keys_and_then_the_hash() -> None:
    points = curve([*cell(8.0, run="x-1111"), *cell(8.0, run="y-2222")])
    other = config(
        train__lr=0.1, train__clip=1.0, train__beta1=0.9, scheme__parts={"rope": {"base": 1.5}}
    )
    named = labels(points, {"x-1111": config(), "y-2222": other})
    assert named["y-2222", None] == (
        "rope (scheme.parts.rope.base=1.5, train.beta1=0.9, train.clip=1, 2222)"
    )


def test_a_key_that_a_series_lacks_is_named_too() -> None:
    points = curve([*cell(8.0, run="x"), *cell(8.0, run="y")])
    named = labels(points, {"x": config(), "y": config(train__clip=1.0)})
    assert named["x", None] == "rope (no train.clip)"


def test_a_run_older_than_an_argument_is_of_the_series_of_its_default() -> None:
    width = {"width": 32, "c": 0.1, "threshold": 1.0, "share_layers": False}
    points = curve([*cell(8.0, run="x", scheme="fire"), *cell(8.0, run="y", scheme="fire", seed=2)])
    old = config(scheme__parts={"fire": width})
    for beyond, same in (("extend", True), ("clamp", False)):
        new = config(seed=2, scheme__parts={"fire": {**width, "beyond": beyond}})
        assert (set(labels(points, {"x": old, "y": new}).values()) == {"fire"}) is same


def test_schemes_of_different_names_need_no_keys() -> None:
    points = curve([*cell(8.0, run="x"), *cell(8.0, run="y", scheme="alibi")])
    named = labels(points, {"x": config(), "y": config(scheme__name="alibi", train__lr=0.1)})
    assert list(named.values()) == ["rope", "alibi"]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("model", "small", "rope (small)"),
        ("train_length", 1024, "rope (T=1024)"),
        ("tokens_seen", 8192, "rope (8,192 tokens)"),
        ("tokens_seen", 12_001_280, "rope (12M tokens)"),
    ],
)
def test_labels_tell_model_T_and_tokens_seen_where_they_vary(
    field: str, value: object, expected: str
) -> None:
    points = curve([*cell(8.0, run="x", scheme="alibi"), *cell(8.0, run="y", **{field: value})])
    named = labels(points, {"x": config(scheme__name="alibi"), "y": config()})
    assert named["y", None] == expected


def test_a_variant_stands_behind_its_scheme() -> None:
    points = curve([*cell(8.0, run="x"), *cell(8.0, run="x", variant="yarn+window")])
    named = labels(points, {"x": config()})
    assert named["x", "yarn+window"] == "rope + yarn + window"


def test_only_a_variants_own_definition_parts_its_series() -> None:
    rows = [r for run in "xy" for v in (None, "yarn") for r in cell(8.0, run=run, variant=v)]
    four, eight = ({"yarn": {"rope": {"factor": n}}} for n in (4, 8))
    configs = {"x": config(scheme__variants=four), "y": config(scheme__variants=eight)}
    assert labels(curve(rows), configs) == {
        ("x", None): "rope",
        ("y", None): "rope",
        ("x", "yarn"): "rope + yarn (scheme.variants.yarn.rope.factor=4)",
        ("y", "yarn"): "rope + yarn (scheme.variants.yarn.rope.factor=8)",
    }


def test_a_reference_is_a_variant_that_its_run_lists() -> None:
    points = curve(r for v in (None, "window", "yarn") for r in cell(8.0, run="x", variant=v))
    configs = {"x": config(eval__reference_variants=["window"])}
    found = series(points, labels(points, configs), references(points, configs))
    assert {line.variant: line.reference for line in found} == {
        **{None: False, "yarn": False},
        "window": True,
    }


def test_a_variant_that_one_of_its_runs_requests_competes() -> None:
    points = curve(r for run in "xy" for r in cell(8.0, run=run, variant="window"))
    configs = {"x": config(eval__reference_variants=["window"]), "y": config(seed=2)}
    (line,) = series(points, labels(points, configs), references(points, configs))
    assert not line.reference


def test_a_configuration_without_references_has_none() -> None:
    points = curve(cell(8.0, run="x", variant="window"))
    assert references(points, {"x": config()}) == set()
