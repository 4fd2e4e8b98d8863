"""Validation of keys by their types: pydantic checks, and its errors become one line."""

import inspect
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from lengthgen.errors import UserError, first_line, shortened, suggestion

T = TypeVar("T")
_adapter: Any = cache(TypeAdapter)  # each takes a millisecond


class Section(BaseModel):
    """A frozen group of keys that refuses unknown ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


SUFFIXES = {"k": 10**3, "m": 10**6, "b": 10**9}


def number(value: object, *, k: int = SUFFIXES["k"]) -> object:
    """Returns the number that 2.5M stands for; refuses true, which Python takes for 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("boolean", "is not a number")
    written = re.fullmatch(r"(\d+\.?\d*)([kmb])", str(value), re.IGNORECASE)
    if written is None:
        return read(value)
    return round(float(written[1]) * {**SUFFIXES, "k": k}[written[2].lower()], 6)


def in_tokens(value: object) -> object:
    """Returns the length that 2k stands for, 2,048: lengths are powers of two, budgets of ten."""
    return number(value, k=1024)


def read(value: object) -> object:
    """Returns the number of a word, as it is typed, where a type is not text."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value) if isinstance(value, str) else value
    return value


def _is_text(hint: Any) -> bool:
    """True for a type that takes a text, or a list of them."""
    return hint in (str, Path) or isinstance(hint, str) or any(map(_is_text, get_args(hint)))


@cache
def schema_of(kind: type[Any], *first: str) -> type[Section]:
    """Returns the schema of a class's keyword-only arguments; **others are those of its base.

    Raises UserError unless those that are given first are all that is positional.
    """
    _, *parameters = inspect.signature(kind.__init__).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    taken = [p for p in positional[: len(first)] if p.default is p.empty]
    takes_all = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if not len(taken) == len(positional) == len(first) and not takes_all:
        keyword_only = [
            p.name for p in parameters if p not in taken and p.kind is not p.VAR_KEYWORD
        ]
        what = ", ".join(["self", *first, *(["*", *keyword_only] if keyword_only else [])])
        why = f"{kind.__name__}.__init__: write ({what}): arguments are keyword-only"
        raise UserError(f"{why} ({inspect.getfile(kind)})")
    passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters) and kind.__bases__ != (object,)
    above = schema_of(kind.__bases__[0], *first) if passes_on else Section

    def typed(hint: Any) -> Any:
        return hint if _is_text(hint) else Annotated[hint, BeforeValidator(read)]

    try:
        hints = get_type_hints(kind.__init__, include_extras=True)
        fields: dict[str, Any] = {
            p.name: (typed(hints.get(p.name, Any)), ... if p.default is p.empty else p.default)
            for p in parameters
            if p.kind is p.KEYWORD_ONLY
        }
        schema = create_model("Arguments", __base__=above, **fields)
        schema.model_rebuild()  # now, where what pydantic cannot read is named
        json.dumps([default for _, default in fields.values() if default is not ...])
    except (NameError, TypeError, ValueError, RuntimeError) as error:  # pydantic's are of the last
        where = f"{kind.__name__}.__init__"
        why = f"{where}: {first_line(error)} ({inspect.getfile(kind)})"
        raise UserError(f"{why}; arguments are text, numbers, lists of them or null") from error
    return schema


def arguments(kind: type[Any], given: Mapping[str, Any], *first: str, where: str) -> dict[str, Any]:
    """Returns the arguments of a class in the types of its signature, with its defaults.

    Raises UserError as `validate` does.
    """
    return dict(iter(validate(schema_of(kind, *first), dict(given), where=f"{where}.")))


def validate(
    kind: type[T], plain: Mapping[str, Any], *, where: str = "", strict: bool = False
) -> T:
    """Returns plain values as a section, or as a dict[str, Section].

    Raises UserError with the first key, which `where` stands before, that is unknown, missing, of
    another type or outside the bounds of its type. Strict: text is no number.
    """
    try:
        return _adapter(kind).validate_python(plain, strict=strict)
    except ValidationError as error:
        known = {*flatten(plain), *_keys_of(kind)}
        raise UserError(
            _one_line(error, plain, known={where + k for k in known}, where=where)
        ) from None


def _keys_of(kind: Any) -> set[str]:
    """Returns the dotted keys of a section's fields, and of those that are sections; else none."""
    fields = getattr(kind, "model_fields", {})
    inner = ({f"{k}.{key}" for key in _keys_of(fields[k].annotation)} for k in fields)
    return {*fields}.union(*inner)


def _one_line(error: ValidationError, plain: object, *, known: set[str], where: str) -> str:
    """Returns pydantic's first error with its dotted key and the offending value."""
    errors = error.errors(include_url=False)
    first = min(errors, key=lambda e: e["type"] != "extra_forbidden")
    key = where + _key(first, plain)
    if first["type"] == "extra_forbidden":
        others = {k for k in known if not f"{key}.".startswith(f"{k}.")}  # nor its sections
        return f"{key}: unknown key; {suggestion(key, others)}"
    if first["type"] == "missing":
        # Arguments are no keys of Hydra's until they are given; all are named at once.
        plus = "+" if where.startswith(("scheme.parts.", "task.", "corpus.")) else ""
        missing = [where + _key(e, plain) for e in errors if plus and e["type"] == "missing"]
        remedy = " ".join(f"{plus}{name}=VALUE" for name in missing or [key])
        return f"{key}: a value is required; give {remedy}"
    of_key = [e for e in errors if where + _key(e, plain) == key]  # one of each member of a union
    # "Input should be a valid integer, unable to parse it" follows the value.
    messages = dict.fromkeys(
        re.sub(r"^\w+ (?=should |is )|, unable to .*", "", e["msg"]) for e in of_key
    )
    others = len(errors) - len(of_key)
    value = shortened(repr(first["input"]))
    more = f" (and {others} more)" if others else ""
    if first["type"] == "list_type" and re.fullmatch(r"[\w.+-]+", str(first["input"])):
        inside = isinstance(first["loc"][-1], int)  # of a list, whose items have no key of Hydra's
        item = "" if first["input"] is None else first["input"]
        more = f"; {'write ' if inside else f'give {key}='}[{item}]"
    if first["type"] == "dict_type":
        items = first["input"] if isinstance(first["input"], list) else []
        names = [name for x in items for name in (x if isinstance(x, dict) else [x])]
        inner = ", ".join(f"{name}: {{}}" for name in names if isinstance(name, str))
        more = f"; write {key.rpartition('.')[2]}: {{{shortened(inner)}}}"
    return f"{key}: {value} {' and '.join(messages)}{more}"


def _key(error: ErrorDetails, plain: Any) -> str:
    """Returns the dotted key of an error, without the steps that name a member of a union."""
    steps: list[str] = []
    for step in error["loc"]:
        values: Any = dict(enumerate(plain)) if isinstance(plain, list) else plain
        if isinstance(values, Mapping) and step in values:
            plain = values[step]
            steps.append(str(step))
    if error["type"] == "missing":
        steps.append(str(error["loc"][-1]))
    return ".".join(steps)


def flatten(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of a nested dict by dotted key; an empty dict is a leaf."""
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
