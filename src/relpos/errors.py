"""Every refusal reads the same: which call, what was given, what is allowed, what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches

import torch
from torch import Tensor, nn

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class BackendRefused(ValueError):
    """A backend that was asked for by name cannot run this call; the message lists its reasons."""


def value(call: str, given: str, allowed: str, fix: str) -> ValueError:
    """A `ValueError` for an argument of the right type whose value cannot be used."""
    return ValueError(_message(call, given, allowed, fix))


def wrong_type(call: str, given: str, allowed: str, fix: str) -> TypeError:
    """A `TypeError` for an argument of the wrong type, a tensor of the wrong dtype included."""
    return TypeError(_message(call, given, allowed, fix))


def unknown_name(call: str, what: str, given: object, known: Iterable[str]) -> ValueError | TypeError:
    """A `ValueError` for a name that is not in a list, with the nearest one that is; a `TypeError` for no name."""
    known = list(known)
    if not isinstance(given, str):
        return wrong_type(call, f"{what} {given!r}", ", ".join(map(repr, known)), f"pass a {what} by its name.")
    nearest = get_close_matches(given.lower(), known, n=1, cutoff=0.0)[0]
    return value(call, f"{what} {given!r}", ", ".join(map(repr, known)), f"did you mean {nearest!r}?")


def whole(call: str, **arguments: object) -> None:
    """Refuse any argument that is not a whole number."""
    for name, number in arguments.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise wrong_type(call, f"{name}={number!r}", f"{name} is an int", f"pass a whole number as {name}.")


def positive_int(call: str, **arguments: int) -> None:
    """Refuse any argument that is not a whole number of at least 1."""
    whole(call, **arguments)
    for name, number in arguments.items():
        if number < 1:
            raise value(call, f"{name}={number}", f"{name} >= 1", f"pass a positive {name}.")


def finite(call: str, **arguments: object) -> None:
    """Refuse any argument that is not a finite number."""
    for name, number in arguments.items():
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise wrong_type(call, f"{name}={number!r}", f"{name} is a number", f"pass a float as {name}.")
        if not abs(number) < math.inf:  # also where torch.compile makes it symbolic, which math.isfinite refuses
            raise value(call, f"{name}={number}", f"a finite {name}", f"pass a finite number as {name}.")


def flags(call: str, **arguments: object) -> None:
    """Refuse any argument that is not True or False."""
    for name, flag in arguments.items():
        if not isinstance(flag, bool):
            raise wrong_type(call, f"{name}={flag!r}", "True or False", f"pass a bool as {name}.")


def floats(call: str, **tensors: object) -> None:
    """Refuse anything but tensors of floating point numbers."""
    for name, tensor in tensors.items():
        given = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise wrong_type(call, f"{name} of {given}", "a floating point tensor", f"cast {name}.")


def integers(call: str, **tensors: object) -> None:
    """Refuse anything but tensors of whole numbers: bfloat16 merges whole numbers above 256, float16 above 2048."""
    for name, tensor in tensors.items():
        given = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
        if not isinstance(tensor, Tensor) or tensor.dtype not in INTEGERS:
            raise wrong_type(call, f"{name} of {given}", "an integer tensor", f"compute {name} as int64.")


def module(call: str, model: object) -> None:
    """Refuse anything but a module."""
    if not isinstance(model, nn.Module):
        raise wrong_type(call, f"model of {type(model).__name__}", "a torch.nn.Module", "pass the model itself.")


def _message(call: str, given: str, allowed: str, fix: str) -> str:
    return f"{call}: got {given}. Allowed: {allowed}. What to do: {fix}"
