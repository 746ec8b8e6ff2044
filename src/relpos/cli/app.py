"""The Typer application, to which every command is added by one line."""

import typer

from relpos.cli.study import study

app = typer.Typer(
    name="relpos",
    help="Relative positions in Transformers: schemes, and what they do beyond the trained length.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def relpos() -> None:
    """Relative positions in Transformers: schemes, and what they do beyond the trained length."""


app.command()(study)
