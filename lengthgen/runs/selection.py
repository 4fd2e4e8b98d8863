"""Which runs conditions such as seed=1,2 choose."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from lengthgen.config.overrides import as_override, parse_words, plain_values, points_of
from lengthgen.config.sections import flatten, in_tokens, number
from lengthgen.errors import UserError, suggestion

IN_TOKENS = ("train.length", "eval.max_context")  # k is 1,024 in these


def runs_matching(configs: Mapping[str, Mapping[str, Any]], conditions: Sequence[str]) -> set[str]:
    """Returns the runs, of plain configurations by run, that meet conditions such as seed=1,2.

    The value of a group, such as scheme or task, is the name of its choice. Raises UserError for a
    key or value that no run has, and where no run meets all conditions.
    """
    settings: dict[str, dict[str, Any]] = {}
    for run, config in configs.items():
        groups = {**config, "task": config.get("corpus", {}).get("task")}
        named = {k: v["name"] for k, v in groups.items() if isinstance(v, dict) and "name" in v}
        settings[run] = flatten(config) | named
    kept = set(settings)
    for condition in conditions:
        (override,) = parse_words([condition])
        key = override.key_or_group
        known = {run: plain[key] for run, plain in settings.items() if key in plain}
        if not known:
            every = set().union(*settings.values())
            raise UserError(f"{key}: no run here has this key; {suggestion(key, every)}")
        names = dict.fromkeys(x for x in known.values() if isinstance(x, str))
        words = list[Any]()
        for word in points_of(override, names):
            value = plain_values([word])[key]
            words += (fnmatch.filter(names, value) if isinstance(value, str) else []) or [value]
        read = in_tokens if key in IN_TOKENS else number
        chosen = [x if isinstance(x, bool) or x in known.values() else read(x) for x in words]
        for value in chosen:
            if value not in known.values():
                given = as_override(value)
                remedy = suggestion(given, {*map(as_override, known.values())})
                raise UserError(f"{key}={given}: no run here has this value; {remedy}")
        kept &= {run for run, value in known.items() if value in chosen}
    if not kept:
        raise UserError(f"no run here has all of {' '.join(conditions)}; name fewer")
    return kept
