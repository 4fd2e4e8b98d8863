"""Validation of keys by their types: sections of them, and one-line errors."""

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from lengthgen.errors import UserError, shortened, suggestion


class Section(BaseModel):
    """A frozen group of keys that refuses unknown ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@cache
def schema_of(kind: type[Any]) -> type[Section]:
    """Returns the schema of a class's arguments: its keyword-only signature.

    Where its constructor takes **others, also that of the class above.
    """
    parameters = inspect.signature(kind.__init__).parameters.values()
    passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters) and kind.__bases__ != (object,)
    above = schema_of(kind.__bases__[0]) if passes_on else Section
    hints = get_type_hints(kind.__init__, include_extras=True)
    fields: dict[str, Any] = {
        p.name: (hints[p.name], ... if p.default is p.empty else p.default)
        for p in parameters
        if p.kind is p.KEYWORD_ONLY
    }
    return create_model("Arguments", __base__=above, **fields)


def arguments(kind: type[Any], given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Returns the arguments of a class in the types of its signature, with its defaults.

    An integer in YAML becomes a float where the class says so. Raises UserError if one is unknown,
    missing, of another type or outside the bounds of its type (pydantic's Field).
    """
    schema = schema_of(kind)
    try:
        held = schema.model_validate(dict(given))
    except ValidationError as error:
        known = [f"{where}.{name}" for name in schema.model_fields]
        raise UserError(one_line(error, given, known=known, prefix=f"{where}.")) from None
    return {name: getattr(held, name) for name in schema.model_fields}


def one_line(
    error: ValidationError, plain: object, *, known: Iterable[str], prefix: str = ""
) -> str:
    """Returns the first error of pydantic's list with its dotted key and the offending value.

    `plain` is what was validated; `known` are the keys there are, with the prefix.
    """
    errors = error.errors(include_url=False)
    first = min(errors, key=lambda e: e["type"] != "extra_forbidden")
    key = _key(first, plain)
    where = prefix + key
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key; {suggestion(where, {*known} - {where})}"
    if first["type"] == "missing":
        return f"{where}: a value is required; give {where}=VALUE"
    of_key = [e for e in errors if _key(e, plain) == key]  # one of each member of a union
    message = " and ".join(dict.fromkeys(map(_message, of_key)))
    others = len(errors) - len(of_key)
    value = shortened(repr(first["input"]))
    return f"{where}: {value} {message}" + (f" (and {others} more)" if others else "")


def _message(error: ErrorDetails) -> str:
    """Returns pydantic's message as what follows the value: "should be a valid integer"."""
    return re.sub(r"^\w+ (?=should |is )", "", error["msg"])


def _key(error: ErrorDetails, plain: Any) -> str:
    """Returns the dotted key of an error, without the steps that name a member of a union."""
    steps: list[str] = []
    for n_left, step in zip(reversed(range(len(error["loc"]))), error["loc"], strict=True):
        if isinstance(plain, Mapping) and step in plain:
            plain = cast(Mapping[str | int, Any], plain)[step]
        elif isinstance(plain, list) and isinstance(step, int):
            plain = cast(list[Any], plain)[step]
        elif error["type"] != "missing" or n_left:
            continue
        steps.append(str(step))
    return ".".join(steps)
