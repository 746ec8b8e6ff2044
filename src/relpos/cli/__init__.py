"""The command `relpos`: parse, call, print. One file a command; heavy imports stand inside the commands."""

from relpos.cli.extras import needs_extra


def main() -> None:
    """The console script's entry; without typer it says how to get it."""
    with needs_extra("study"):
        from relpos.cli.app import app
    app()
