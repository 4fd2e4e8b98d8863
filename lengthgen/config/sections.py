"""Validation of keys by their types: sections of them, and one-line errors."""

import inspect
import re
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from lengthgen.errors import UserError, shortened, suggestion

LARGEST = 10**15  # of all numbers: sums and products of two of them fit in int64 or fp32
LONGEST = 4096  # characters of a text: as many as a path may have


def _refuse_boolean(value: object) -> object:
    """Python takes true for the number 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("boolean", "is not a number")
    return value


def _refuse_unwritable(text: str) -> str:
    """Refuses what no path, URL or column can be."""
    if len(text) > LONGEST:
        raise PydanticCustomError("long", "has more than {most} characters", {"most": LONGEST})
    if re.search("[\0\ud800-\udfff]", text):
        raise PydanticCustomError("unwritable", "holds a character that cannot be written")
    return text


_Bounds = Field(ge=-LARGEST, le=LARGEST)
Integer = Annotated[int, _Bounds, BeforeValidator(_refuse_boolean)]
Number = Annotated[float, _Bounds, BeforeValidator(_refuse_boolean)]
Text = Annotated[str, AfterValidator(_refuse_unwritable)]


class Section(BaseModel):
    """A frozen group of keys that refuses unknown ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def arguments(of: type[Any], given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Returns arguments in the types of a class's schema: its keyword-only signature.

    An integer in YAML becomes a float where the class says so. Raises UserError if one is unknown,
    missing, of another type or outside the bounds of its type (pydantic's Field).
    """
    hints = get_type_hints(of.__init__, include_extras=True)
    fields: dict[str, Any] = {
        name: (
            _refined(hints[name]),
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for name, parameter in inspect.signature(of.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    schema = create_model("Arguments", __base__=Section, **fields)
    try:
        held = schema.model_validate(dict(given))
    except ValidationError as error:
        known = [f"{where}.{name}" for name in fields]
        raise UserError(one_line(error, given, known=known, prefix=f"{where}.")) from None
    return {name: getattr(held, name) for name in fields}


def defaults(of: type[Any]) -> dict[str, Any]:
    """Returns the keyword-only arguments of a class that may be left out, with their defaults."""
    parameters = inspect.signature(of.__init__).parameters.values()
    optional = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]
    return {p.name: p.default for p in optional}


def _refined(hint: Any) -> Any:
    """Returns a type hint with Integer, Number and Text for int, float and str in it."""
    inner = get_args(hint)
    if get_origin(hint) is Annotated:
        return Annotated[_refined(inner[0]), *inner[1:]]
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(_refined, inner))]  # noqa: UP007
    if get_origin(hint) is list:
        return list[_refined(inner[0])]
    return {int: Integer, float: Number, str: Text}.get(hint, hint)


_MESSAGES = {
    "int_parsing": "is not an integer",
    "int_parsing_size": "is too large",
    "int_type": "is not an integer",
    "int_from_float": "is not an integer",
    "float_parsing": "is not a number",
    "float_type": "is not a number",
    "bool_parsing": "is not true or false",
    "bool_type": "is not true or false",
    "string_type": "is not text",
    "string_too_short": "is empty",
    "too_short": "is empty",
    "list_type": "is not a list",
    "dict_type": "is not a mapping",
    "string_pattern_mismatch": "may hold letters, digits, '_' and '.' only, and not begin with '.'",
}


def one_line(
    error: ValidationError, plain: object, *, known: Iterable[str], prefix: str = ""
) -> str:
    """Returns the first error of pydantic's list with its dotted key and the offending value.

    `plain` is what was validated; `known` are the keys there are, with the prefix.
    """
    errors = error.errors(include_url=False, include_context=True)
    first = min(errors, key=lambda e: e["type"] != "extra_forbidden")
    key = _key(first, plain)
    where, about = prefix + key, first.get("ctx", {})
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key; {suggestion(where, known)}"
    if first["type"] == "missing":
        return f"{where}: a value is required; give {where}=VALUE"
    if first["type"] == "union_tag_invalid":
        return f"{where}.source: {_shown(about['tag'])} is not one of {about['expected_tags']}"
    of_key = [e for e in errors if _key(e, plain) == key]  # one of each member of a union
    message = " and ".join(dict.fromkeys(_message(e) for e in of_key))
    others = len(errors) - len(of_key)
    value = _shown(first["input"])
    return f"{where}: {value} {message}" + (f" (and {others} more)" if others else "")


def first_error(error: ValidationError) -> str:
    """Returns the first error of pydantic's list on a file: its key, the value, what is wrong."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if not key:
        return _message(first)
    if first["type"] in ("missing", "extra_forbidden"):
        return f"{key} is {'missing' if first['type'] == 'missing' else 'unknown'}"
    return f"{key} is {_shown(first['input'])}, which {_message(first)}"


def _shown(value: object) -> str:
    """Returns a value as Python writes it, shortened."""
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # an integer of more digits than Python writes
        return f"this {type(value).__name__}"


def _message(error: ErrorDetails) -> str:
    if error["type"] == "literal_error":
        expected = error.get("ctx", {})["expected"]
        return f"is not one of {expected}" if " or " in expected else f"is not {expected}"
    return _MESSAGES.get(error["type"]) or re.sub(r"^Input should", "should", error["msg"])


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
