"""An error of the library as one line and exit status 2."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def refusals() -> Iterator[None]:
    """Print what the library refused, without a traceback."""
    try:
        yield
    except (ValueError, TypeError, FloatingPointError, OSError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from error
