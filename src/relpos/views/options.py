"""From words on a command line to a scheme: its constructor's arguments are the options."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from inspect import Parameter

import relpos
from relpos import errors
from relpos.schemes import SCHEMES, Scheme

#: What a constructor without a default of its own gets where nobody says.
SIZES: dict[str, object] = {
    "num_heads": 8,
    "head_dim": 64,
    "embed_dim": 64,
    "max_len": 64,
    "max_distance": 16,
    "method": 2,
}
_WORDS = {"true": True, "false": False, "none": None}


def build(call: str, name: str, given: Mapping[str, object], sizes: Mapping[str, object] = SIZES) -> Scheme:
    """The scheme `name` with the arguments given, and `sizes` for those that it needs and nobody gave."""
    needed = {key: sizes[key] for key, one in _parameters(call, name).items() if _is_needed(one) and key in sizes}
    missing = [
        key for key, one in _parameters(call, name).items() if _is_needed(one) and key not in {**needed, **given}
    ]
    if missing:
        options = ", ".join(_option(key) for key in missing)
        raise errors.value(call, f"{name} without {options}", f"a value for {options}", f"pass {options}.")
    return relpos.make(name, **{**needed, **given})


def arguments_of(call: str, name: str, words: Sequence[str]) -> dict[str, object]:
    """`["--num-heads", "12", "--symmetric"]` as a constructor's arguments; an option that it does not have is refused.

    `--option` alone is True and `--no-option` False, for those that are flags. A comma makes a tuple.

    >>> arguments_of("relpos show", "shaw", ["--max-distance", "6,2", "--no-values"])
    {'max_distance': (6, 2), 'values': False}
    """
    parameters = _parameters(call, name)
    found: dict[str, object] = {}
    rest = list(words)
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        key = word.removeprefix("--").replace("-", "_")
        is_no = key.removeprefix("no_") in parameters and key not in parameters
        parameter = parameters.get(key.removeprefix("no_") if is_no else key)
        is_flag = parameter is not None and isinstance(parameter.default, bool)
        if not word.startswith("--") or parameter is None or (is_no and (equals or not is_flag)):
            raise _unknown(call, name, word, parameters)
        if not equals and not is_no and rest and not rest[0].startswith("--"):
            equals, value = "=", rest.pop(0)
        if not equals and not is_flag:
            raise errors.value(call, f"{word} without a value", f"{word} VALUE", "write the value after it.")
        found[parameter.name] = _value(value, parameter) if equals else not is_no
    return found


def _parameters(call: str, name: str) -> Mapping[str, Parameter]:
    if name not in SCHEMES:
        raise errors.unknown_name(call, "scheme", name, sorted(SCHEMES))
    return inspect.signature(SCHEMES[name]).parameters


def _unknown(call: str, name: str, word: str, parameters: Mapping[str, Parameter]) -> ValueError:
    allowed = ", ".join(_option(key, one) for key, one in parameters.items())
    return errors.value(
        call, f"{word!r} for {name}", allowed or f"no options: {name} takes none", "see relpos schemes."
    )


def _option(key: str, parameter: Parameter | None = None) -> str:
    option = f"--{key.replace('_', '-')}"
    if parameter is None or _is_needed(parameter):
        return option
    return f"{option} ({parameter.default})"


def _is_needed(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty


def _value(text: str, parameter: Parameter) -> object:
    """A Python literal, `true`, `false`, `none`, or the text itself; a constructor refuses what it cannot use."""
    if "," in text.strip("()[]"):
        return tuple(_one(part) for part in text.strip("()[]").split(",") if part.strip())
    one = _one(text)
    # Of what is a list of values, one value is a list of one.
    is_list = isinstance(parameter.default, tuple) or str(parameter.annotation).startswith(("tuple", "Sequence"))
    return (one,) if is_list and one is not None else one


def _one(text: str) -> object:
    word = text.strip().strip("'\"")
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        literal = ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
    return literal if isinstance(literal, int | float) else word
