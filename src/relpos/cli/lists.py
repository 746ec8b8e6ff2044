"""Lists on the command line: values with commas between."""

from relpos import errors


def names(text: str | None) -> tuple[str, ...] | None:
    """The names of an option, or None where it was not given."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    """The whole numbers of an option, or None where it was not given."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise errors.value(
            option, repr(text), "whole numbers with commas between", "write for example 1,2,4."
        ) from error
