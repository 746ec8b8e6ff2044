"""The Typer application, to which every command is added by one line."""

import typer

from relpos.cli.bench import bench
from relpos.cli.study import study

app = typer.Typer(
    name="relpos",
    help="Relative positions in Transformers: what schemes do beyond the trained length, and what they cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def relpos() -> None:
    """Relative positions in Transformers: what schemes do beyond the trained length, and what they cost."""


app.command()(study)
app.command()(bench)
