"""Frozen dataclasses as JSON and back: a file is read whole, field by field against the types, or refused by name."""

import math
import types
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from relpos import errors

T = TypeVar("T")

_OTHER_VERSION = "the file was written by another version of relpos, or damaged: run the study again in a new folder"


def plain(value: Any) -> Any:
    """A dataclass as JSON has it: an object, with lists for tuples, and with the numbers that `computed` names."""
    if is_dataclass(value) and not isinstance(value, type):
        entries = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return entries | {name: plain(getattr(value, name)) for name in _computed(type(value))}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def read(cls: type[T], data: Any) -> T:
    """The inverse of `plain`: unknown or missing fields, wrong types, NaN and wrong values raise, naming the place."""
    found: T = _read(cls, data, cls.__name__)
    return found


def _computed(cls: type[Any]) -> tuple[str, ...]:
    """Properties that are written for whoever reads the file, and compared when it is read."""
    return getattr(cls, "computed", ())


def _read(kind: Any, data: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _read_object(kind, data, where)
    if origin in (Union, types.UnionType):
        return None if data is None else _read(next(one for one in inner if one is not type(None)), data, where)
    if origin is tuple and isinstance(data, list):
        return tuple(_read(inner[0], item, f"{where}[{index}]") for index, item in enumerate(data))
    if origin is Literal and isinstance(data, str) and data in inner:
        return data
    if origin is dict and isinstance(data, dict):
        return data
    # bool is an int to isinstance; a whole number may stand for a float, as JSON writers do.
    if kind is float and type(data) in (int, float) and math.isfinite(data):
        return float(data)
    if kind in (int, str, bool) and type(data) is kind:
        return data
    given = repr(data) if len(repr(data)) <= 60 else f"{repr(data)[:60]}..."
    wanted = getattr(kind, "__name__", str(kind)) if origin is None else str(kind)
    raise errors.value(where, given, wanted, f"{_OTHER_VERSION}.")


def _read_object(cls: type[Any], data: Any, where: str) -> Any:
    names = {field.name for field in fields(cls)} | set(_computed(cls))
    if not isinstance(data, dict) or set(data) != names:
        given = f"fields {sorted(map(str, data))}" if isinstance(data, dict) else repr(data)[:60]
        raise errors.value(where, given, f"exactly {sorted(names)}", f"{_OTHER_VERSION}.")
    hints = get_type_hints(cls)
    values = {field.name: _read(hints[field.name], data[field.name], f"{where}.{field.name}") for field in fields(cls)}
    found = cls(**values)
    for name in _computed(cls):
        if not _same(plain(getattr(found, name)), data[name]):
            raise errors.value(
                f"{where}.{name}", repr(data[name])[:60], repr(getattr(found, name))[:60], f"{_OTHER_VERSION}."
            )
    return found


def _same(ours: Any, theirs: Any) -> bool:
    """Equal, up to the last digits of another machine's exp."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-9)
    return bool(ours == theirs)
