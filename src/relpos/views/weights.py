"""A checkpoint's tables in a scheme: read by name, checked by shape, never guessed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from relpos import errors
from relpos.schemes.scheme import Scheme

CALL = "relpos show --weights"
# As many names as a reader looks through.
_LISTED = 12


def fill(scheme: Scheme, path: Path, tensors: Sequence[str] = (), *, transposed: bool = False) -> dict[str, str]:
    """Give the scheme's learned tables the numbers of a safetensors file.

    Args:
        scheme: its settings say which shape each table has.
        path: the file.
        tensors: where names differ: `NAME` for a scheme with one table, `table=NAME` for each of several.
        transposed: the file holds tables with their last two axes exchanged, as Hugging Face's T5: `[buckets, heads]`.

    Returns:
        The name in the file of each table.

    Raises: ValueError for a file that is none, a name that it does not have, another shape, or numbers not finite.
    """
    tables = dict(scheme.named_parameters())
    if not tables:
        raise errors.value(
            CALL, f"{scheme.name} with these settings, which learns nothing", "a learned table", "leave it out."
        )
    names = {key: key for key in tables} | _named(tables, tensors)
    if not path.is_file():
        raise errors.value(CALL, f"{path}, which is no file", "a safetensors file", "check the path.")
    try:
        with safe_open(path, framework="pt") as file:
            known = list(file.keys())
            for key, name in names.items():
                if name not in known:
                    raise _absent(path, key, name, known)
                _copy(tables[key], file.get_tensor(name), f"{name} of {path.name}", transposed)
    except SafetensorError as error:
        raise errors.value(CALL, f"{path} ({error})", "a safetensors file", "convert the checkpoint.") from error
    return names


def settings_in(path: Path) -> dict[str, dict[str, object]]:
    """Constructor arguments by scheme name, of a file that holds `scheme.table` tensors and says so in its metadata."""
    with safe_open(path, framework="pt") as file:
        return {name: json.loads(settings) for name, settings in (file.metadata() or {}).items()}


def _named(tables: Mapping[str, Tensor], tensors: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in tensors:
        key, equals, name = word.partition("=")
        if not equals and len(tables) == 1:
            key, name = next(iter(tables)), word
        if key not in tables or not name:
            allowed = " or ".join(f"{table}=NAME" for table in tables)
            raise errors.value("relpos show --tensor", repr(word), allowed, "say which table it is.")
        found[key] = name
    return found


def _absent(path: Path, key: str, name: str, known: Sequence[str]) -> ValueError:
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return errors.value(
        CALL,
        f"{path.name} without a tensor {name!r}",
        f"{', '.join(known[:_LISTED])}{more}",
        f"name the tensor that holds {key}: --tensor {key}=NAME.",
    )


def _copy(table: Tensor, given: Tensor, what: str, transposed: bool) -> None:
    """Copy a tensor of the file into a table, if it can only be meant so."""
    wanted = list(table.shape)
    if not given.is_floating_point():
        raise errors.value(CALL, f"{what}, {given.dtype}", "floating point numbers", "name another tensor.")
    if transposed and given.dim() > 1:
        given = given.transpose(-1, -2)
    if list(given.shape) != wanted:
        fix = "set the scheme's options to the checkpoint's sizes, or name another tensor."
        if given.dim() > 1 and list(given.transpose(-1, -2).shape) == wanted:
            fix = "leave --transposed out." if transposed else "pass --transposed: its axes are exchanged."
        turned = " (transposed)" if transposed else ""
        raise errors.value(CALL, f"{what} of shape {list(given.shape)}{turned}", f"{wanted}", fix)
    if not bool(given.isfinite().all()):
        raise errors.value(
            CALL, f"{what} with numbers that are not finite", "finite numbers", "look at the checkpoint."
        )
    with torch.no_grad():
        table.copy_(given)
