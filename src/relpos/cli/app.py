"""The Typer application, to which every command is added by one line."""

import typer

from relpos.cli.bench import bench
from relpos.cli.schemes import schemes
from relpos.cli.show import show
from relpos.cli.study import study

app = typer.Typer(
    name="relpos",
    help="Relative positions in Transformers: how schemes look, what they do beyond the trained length, and cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def relpos() -> None:
    """Relative positions in Transformers: how schemes look, what they do beyond the trained length, and cost."""


app.command()(study)
app.command()(bench)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(show)
app.command()(schemes)
