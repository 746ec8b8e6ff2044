"""A clear word where an optional package is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

_PACKAGES = {"typer", "rich", "altair", "vl_convert", "safetensors", "tensorboard", "jinja2"}


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn the missing packages of an extra into a message that says how to get them; leave other errors alone."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise SystemExit(
            f"relpos {extra}: got no package {package}. Allowed: an installation with the {extra} extra. "
            f"What to do: pip install 'relpos[{extra}]'"
        ) from error
