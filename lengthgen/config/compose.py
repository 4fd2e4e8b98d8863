"""YAML groups and overrides become one plain dict, by Hydra.

Hydra is imported inside functions: most mistakes are found without it.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from lengthgen.config import conf
from lengthgen.config.overrides import (
    PLAIN,
    as_override,
    as_typed,
    keys,
    overrides_of,
    parse_words,
    points_of,
    several_values,
    shell_words,
)
from lengthgen.config.user import sent_defaults, shipped_defaults, user_defaults
from lengthgen.errors import UserError, shortened, suggestion


def beneath(
    lower: Sequence[str], overrides: Sequence[str], *, config_dir: Path | None
) -> list[str]:
    """Returns the lower overrides that the upper ones leave in force."""
    replaced = _replaced_by(overrides, config_dir=config_dir)
    if replaced & {"corpus", "task"}:  # a task makes its own text
        replaced |= {"corpus", "task"}
    keys_below = [override.key_or_group for override in parse_words(lower)]
    kept = [not {key, key.partition(".")[0]} & replaced for key in keys_below]
    return [*itertools.compress(lower, kept)]


def _replaced_by(overrides: Sequence[str], *, config_dir: Path | None) -> set[str]:
    """Returns the keys and groups that overrides set.

    A group that is chosen replaces all that is said of it; a task or study, which sets keys of
    several groups, replaces these.
    """
    replaced, folders = set[str](), conf.folders(config_dir)
    for override in parse_words(overrides):
        group = override.key_or_group
        replaced.add(group)
        files = {} if override.is_interval_sweep() else folders.get(group, {})
        if files:
            names = [word.partition("=")[2] for word in points_of(override, files)]
            for file in filter(None, map(files.get, names)):
                replaced |= {*conf.settings_of(group, file)}
    budgets = {"train.steps", "train.tokens"}  # one budget in two units
    rates, tuned = {"train.lr", "train.scheme_lr_ratio"}, {"train.tuned"}  # given, or in a file
    for given, same in ((budgets, budgets), (tuned, rates), (rates, tuned)):
        if replaced & given:
            replaced |= same
    return replaced


def compose(overrides: Sequence[str], *, config_dir: Path | None) -> dict[str, Any]:
    """Returns the composed configuration as a plain dict, interpolations resolved.

    Raises UserError for an override that cannot be read or holds several values, an unknown choice
    or key, a missing mandatory value, or a YAML file that is not valid.
    """
    folders = conf.folders(config_dir)  # refuses what Hydra would warn of
    overrides = [word for given in overrides for word in _spelled_out(given)]
    for word in overrides:  # most mistakes, before Hydra is imported
        group, _, name = word.partition("=")
        if PLAIN.fullmatch(name):
            _refuse_unknown_choice(group, name, folders, config_dir)
    parsed = parse_words(overrides)
    for override in parsed:
        if override.is_sweep_override():
            raise several_values(override, f"lengthgen sweep {shlex.join(overrides)}")
        if override.key_or_group.startswith("hydra"):
            raise UserError(
                f"{override.input_line}: only the syntax is Hydra's; runs are in runtime.root=DIR, "
                "and lengthgen sweep takes --jobs N and --slurm"
            )
    of_user = overrides_of(user_defaults(shipped_defaults()))
    of_user = beneath(of_user, overrides, config_dir=config_dir)
    every = parse_words([*of_user, *overrides])
    none = ("study", None)  # the default, which Hydra takes from its own file alone
    every = [override for override in every if (override.key_or_group, override.value()) != none]
    for override in every:
        if not override.is_delete() and not isinstance(override.value(), dict):
            name = override.get_value_element_as_str()
            _refuse_unknown_choice(override.key_or_group, name, folders, config_dir)
    plain = _composed([as_typed(override) for override in every], config_dir)
    plain.pop(conf.GRID, None)
    if config_dir is not None and (config_dir.resolve().parent / "config.yaml").is_file():  # a run
        given = {override.key_or_group for override in parsed}
        others = {key: value for key, value in sent_defaults().items() if key not in given}
        plain["runtime"] |= {k.removeprefix("runtime."): value for k, value in others.items()}
    if "task" in plain:
        task = plain.pop("task")
        for override in parsed:
            group, word = override.key_or_group, str(override.input_line)
            chosen = group in ("corpus", "study")
            if chosen and "corpus" in _replaced_by([word], config_dir=config_dir):
                name = task.get("name")
                raise UserError(f"{word}: task={name} makes its own text; drop one of them")
        if plain["corpus"].get("source") != "task":
            raise UserError("task: its keys need a task; choose one with task=NAME")
        plain["corpus"]["task"] = task
    return plain


def _spelled_out(word: str) -> list[str]:
    """Returns what corpus=OWNER/NAME is short for: a dataset of the Hugging Face Hub."""
    short = re.fullmatch(r"corpus=(\w[\w.-]*/[\w.-]+)", word)
    if short is None or Path(short[1]).exists():
        return [word]
    return ["corpus=hub", f"corpus.repo={short[1]}"]


def _refuse_unknown_choice(
    group: str, name: str, folders: Mapping[str, dict[str, Path]], config_dir: Path | None
) -> None:
    """Raises UserError with the choice that is spelled so, a word more or less.

    DAPEv2 is dape_v2_kerple, T5-bias is t5; rotary is the first word of what describes rope.
    """
    known = folders.get(group, {})
    file = known.get(name) if group in ("task", "study") else None
    if file is not None and not conf.is_global(file):
        raise UserError(
            f"{file}: its first line must be {conf.GLOBAL}: it sets keys of other groups"
        )
    if not known or group == conf.VARIANT or name in known:
        return
    variants = folders[conf.VARIANT] if group == "scheme" else {}
    asked, letters = _letters(name), {_letters(word): word for word in [*variants, *known]}
    near = [n for n in letters if asked and (n.startswith(asked) or asked.startswith(n))]
    titled = {
        _letters(conf.describe(file).partition(" ")[0]): choice for choice, file in known.items()
    }
    nearest = min(near, key=lambda n: abs(len(n) - len(asked)), default=asked)
    spelled = letters.get(nearest) or titled.get(asked, name)
    if spelled in variants:
        remedy = f"{spelled} is a variant of a trained scheme: give eval.variants=[{spelled}]"
    elif group == "corpus" and Path(name).exists():
        remedy = f"for files here, give corpus=files {shell_words({'corpus.path': name})}"
    else:
        where = f"is {config_dir}/{group}/NAME.yaml" if config_dir else "needs --config-dir"
        remedy = f"{suggestion(spelled, known)} (a custom {group} {where})"
    raise UserError(f"{group}={shortened(name)}: no such {group}; {remedy}")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _composed(overrides: Sequence[str], config_dir: Path | None) -> dict[str, Any]:
    """Returns what Hydra makes of the overrides, as plain values; its errors become one line."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    words = list(overrides)
    if config_dir is not None:
        words.append(f"hydra.searchpath={as_override([f'file://{config_dir.resolve()}'])}")
    # Hydra 1.4 deprecates version_base; before it, leaving it out warns.
    version = {} if hydra.__version__.startswith("1.4") else {"version_base": "1.3"}
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(conf.conf_dir()), **version):
            composed = hydra.compose("config", overrides=words)
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        return cast("dict[str, Any]", plain)
    except (
        *(HydraException, OmegaConfBaseException, yaml.YAMLError),
        *(ValueError, OSError, RecursionError),
    ) as error:
        for file in config_dir.glob("*/*.yaml") if config_dir is not None else []:
            conf.read_yaml(file)  # names one that is not valid
        unknown = re.match(r"Could not override '(.+)'", str(error))
        if unknown is not None:
            raise _unknown_key(unknown[1], config_dir) from None
        where = getattr(error, "full_key", None) or shortened(" ".join(overrides))
        if isinstance(error, MissingMandatoryValue):
            raise UserError(f"{where}: a value is required; give {where}=VALUE") from None
        if isinstance(error, RecursionError):
            error = "a YAML file lists itself among its defaults, or brackets are nested too deeply"
        raise UserError(f"{where}: {error}") from None


def _unknown_key(key: str, config_dir: Path | None) -> UserError:
    known = keys(config_dir=config_dir)
    group, *below = key.split(".")
    part = ".".join([group, *below, "NAME"][:3])
    is_known = any(f"{k}.".startswith(f"{part}.") for k in known)
    if group == "scheme" and below[:1] == ["parts"] and not is_known:
        added = f"{key}=VALUE" if below[1:] else f"{part}={{}}"
        return UserError(
            f"{key}: the chosen scheme has no such part; with a plus it adds one: +{added}"
        )
    having = {
        name: settings
        for name, file in conf.choices(group, config_dir=config_dir).items()
        if key in (settings := conf.settings_of(group, file))
    }
    if having:  # the choice that a part is named by, or else the plainest
        name = min(having, key=lambda name: (name not in below, len(having[name])))
        return UserError(f"{key}: the chosen {group} has no such key, but {group}={name} has")
    return UserError(f"{key}: unknown key; {suggestion(key, known)}")
