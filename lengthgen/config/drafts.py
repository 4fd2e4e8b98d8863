"""Words, or what a run folder holds, become a configuration; and that becomes words again."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from lengthgen.config import compose, conf, study
from lengthgen.config.overrides import overrides_of
from lengthgen.config.schema import Config, Draft, InitFrom, PositiveFloat, expanded, to_plain
from lengthgen.config.sections import Section, flatten, validate
from lengthgen.errors import UserError


def drafted(
    overrides: Sequence[str], *, config_dir: Path | None = None, plugins: Sequence[str] = ()
) -> Draft:
    """Composes what a command line says; the plugins are digests.

    Raises UserError as `from_plain` does.
    """
    overrides = study.first_point(overrides, config_dir=config_dir)
    plain = compose.compose(overrides, config_dir=config_dir) | {"plugins": [*plugins]}
    keys = {word.partition("=")[0].lstrip("+") for word in overrides}
    if {"train.steps", "train.tokens"} <= keys:
        raise UserError("train.steps and train.tokens are two budgets; drop one of them")
    if "train.tokens" in keys and isinstance(plain["train"], dict):
        plain["train"]["steps"] = None  # of a file
    if "scheme.name" not in keys and isinstance(plain["scheme"], dict):
        _name_by_parts(plain["scheme"], config_dir)
    _apply_tuned(plain, keys)
    return from_plain(plain, config_dir=config_dir)


def _name_by_parts(scheme: dict[str, Any], config_dir: Path | None) -> None:
    """Adds to a scheme's name which parts it has more, or fewer, than the file of that name."""
    name, parts = scheme.get("name"), scheme.get("parts")
    file = conf.choices("scheme", config_dir=config_dir).get(str(name))
    if file is not None and isinstance(parts, dict):
        given = conf.settings_of("scheme", file)
        usual = {key.split(".")[2] for key in given if key.startswith("scheme.parts.")}
        more, fewer = sorted({*parts} - usual), sorted(usual - {*parts})
        words = [f"with_{part}" for part in more] + [f"without_{part}" for part in fewer]
        scheme["name"] = ".".join([str(name), *words])


class Rates(Section):
    """What a scheme takes of the tuned.yaml that lengthgen tune writes."""

    model_config = ConfigDict(extra="ignore")

    lr: PositiveFloat
    scheme_lr_ratio: PositiveFloat | None = None


def _apply_tuned(plain: dict[str, Any], given: set[str]) -> None:
    """Sets the rates that train.tuned=FILE holds for the scheme, unless a rate is given."""
    train: Any = plain.get("train")
    path = train.get("tuned") if isinstance(train, dict) else None
    if not path:
        return
    where, scheme = f"train.tuned: {path}: ", plain["scheme"]["name"]
    tuned = expanded(str(path)).absolute()
    if not tuned.exists():
        raise UserError(f"{where}does not exist; lengthgen tune writes it")
    known = validate(dict[str, Rates], conf.read_yaml(tuned), where=where)
    if scheme not in known:
        raise UserError(
            f"{where}has no rate for scheme {scheme}, only for {', '.join(known)}; "
            "run lengthgen tune for it too, or give train.lr instead of train.tuned"
        )
    for key in ("train.lr", "train.scheme_lr_ratio"):
        if key in given:
            raise UserError(f"{key}: train.tuned={path} sets it for each scheme; drop one of them")
    train |= known[scheme].model_dump(exclude_none=True)


def from_plain(plain: Mapping[str, Any], *, config_dir: Path | None = None) -> Draft:
    """Builds the configuration from composed YAML, and adds the variants that eval names.

    Whether a model, task or protocol can be built is not checked, and no plugin is run. Raises
    UserError with the dotted key of the first mistake.
    """
    try:
        config = validate(Draft, plain)
    except UserError as error:
        raise UserError(str(error).replace("corpus.task.", "task.")) from None  # as it is typed
    _check(config)
    wanted = config.eval
    named = {n for names in wanted.variants + wanted.reference_variants for n in names.split("+")}
    missing = sorted(named - {*config.variants, *config.scheme.variants})
    held = {name: config.changes_of(name, config_dir=config_dir) for name in missing}
    update = {
        "variants": config.variants | held,
        "eval": wanted.model_copy(
            update={
                "lengths": wanted.lengths or _lengths(config.train.length, wanted.max_context),
                "protocols": wanted.protocols or [_protocol(config)],
            }
        ),
    }
    return config.model_copy(update=update)


def from_stored(plain: Mapping[str, Any], *, config_dir: Path | None = None) -> Config:
    """Returns the configuration that a run folder holds; what is changed of it names no argument.

    Raises UserError as `from_plain` does.
    """
    return Config.model_validate(dict(from_plain(plain, config_dir=config_dir)))


def _protocol(config: Draft) -> str:
    return "spans" if config.model.arch == "encoder_decoder" else "tail"


def _lengths(T: int, max_context: int) -> list[int]:
    """Returns T/8, T/4 ... 32T, up to eval.max_context.

    Without lengths below T a flat curve shows nothing: the model may have read a few tokens only.
    """
    lengths = {max(1, T // 8), max(1, T // 4), max(1, T // 2), *(T << n for n in range(6))}
    return sorted(n for n in lengths if n <= max(T, max_context))


def _check(config: Draft) -> None:
    """Cross-field checks."""
    model, train = config.model, config.train
    _divides("train.length", train.length, "train.batch_tokens", train.batch_tokens)
    _divides("model.n_kv_heads", model.n_kv_heads or 1, "model.n_heads", model.n_heads)
    if model.d_head is None:
        _divides("model.n_heads", model.n_heads, "model.d_model", model.d_model)
    if model.norm == "rms" and "norm" in model.biases:
        raise UserError("model.biases: model.norm=rms has no bias; leave out norm")


def _divides(key: str, n: int, larger_key: str, larger: int) -> None:
    if larger % n:
        near = 2 * n * max(1, round(larger / n / 2))  # heads of an odd width cannot be rotated
        raise UserError(
            f"{larger_key}={larger} is not a multiple of {key}={n}; try {larger_key}={near}"
        )


def overrides_giving(config: Config) -> list[str]:
    """Returns the overrides that give a configuration, but for its plugins: groups first."""
    plain = _as_given(config)
    groups = {group: plain[group] for group in ("scheme", "model", "corpus")}
    if task := plain["corpus"].pop("task", None):
        groups["task"] = plain["task"] = task
        del groups["corpus"]
    flat, words = flatten(plain), list[str]()
    for group, section in groups.items():
        if file := conf.choices(group, config_dir=None).get(section["name"]):
            words.append(f"{group}={section['name']}")
            given = flatten(conf.read_yaml(file), "" if group == "task" else f"{group}.")
            words += overrides_of({k: flat[k] for k, v in given.items() if v == "???"})
    default = _as_given(drafted(words))
    default["task"] = default["corpus"].pop("task", {})
    known, scheme = flatten(default), plain["scheme"]
    for section in ("parts", "variants"):
        fewer = sorted(default["scheme"][section].keys() - scheme[section].keys())
        words += [f"~scheme.{section}.{name}" for name in fewer]
        flat.pop(f"scheme.{section}", None)  # an empty one
    for key, value in flat.items():
        if key not in known or known[key] != value:
            (word,) = overrides_of({key: value})
            words.append(word if key in known else f"+{word}")
    return words


def _as_given(config: Draft) -> dict[str, Any]:
    """Returns plain values as `to_plain`, without plugins and what other values choose."""
    plain = to_plain(config)
    if plain["eval"]["lengths"] == _lengths(config.train.length, config.eval.max_context):
        plain["eval"]["lengths"] = []
    if plain["eval"]["protocols"] == [_protocol(config)]:
        plain["eval"]["protocols"] = []
    plain["train"] |= {"steps": None, "tuned": None}  # tokens and rates are there
    init = config.train.init_from
    if isinstance(config, Config) and isinstance(init, InitFrom):  # an imported one has its own
        plain["train"]["init_from"] = str(config.run_dir) if config.is_imported else init.path
    plain["scheme"]["name"] = re.sub(r"\.with(out)?_.*", "", config.scheme.name)
    files = conf.choices(conf.VARIANT, config_dir=None)
    for name in files.keys() & plain["variants"].keys():
        if plain["variants"][name] == conf.read_yaml(files[name]):
            del plain["variants"][name]
    del plain["plugins"]
    return plain
