"""`relpos schemes`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from relpos.cli.extras import needs_extra
from relpos.cli.refusals import refusals

Heads = Annotated[int, typer.Option(help="Heads.")]
HeadDim = Annotated[int, typer.Option(help="Width of a head.")]
EmbedDim = Annotated[int, typer.Option(help="Width of the input embedding.")]
MaxDistance = Annotated[int, typer.Option(help="Farthest distance, for schemes without a published one.")]
MaxLen = Annotated[int, typer.Option(help="Rows of a learned table of positions.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")]
Short = Annotated[bool, typer.Option("--short", help="With --markdown: only what it is and where it acts.")]
Update = Annotated[
    list[Path] | None, typer.Option(help="A page whose marked region gets the table of its marker; may be repeated.")
]


def schemes(
    heads: Heads = 8,
    head_dim: HeadDim = 64,
    embed_dim: EmbedDim = 512,
    max_distance: MaxDistance = 128,
    max_len: MaxLen = 512,
    as_json: Json = False,
    markdown: Markdown = False,
    short: Short = False,
    update: Update = None,
) -> None:
    """List the schemes: what each encodes, where it acts, what it learns at these sizes, who runs it, whose it is.

    The sizes go where a scheme's constructor has no default of its own.
    """
    with refusals():
        with needs_extra("study"):
            from rich.console import Console

            from relpos import errors, files
            from relpos.views import catalogue as tables
        if as_json and markdown:
            raise errors.value("relpos schemes", "--json and --markdown", "one of them", "choose.")
        entries = tables.catalogue(
            {
                "num_heads": heads,
                "head_dim": head_dim,
                "embed_dim": embed_dim,
                "max_distance": max_distance,
                "max_len": max_len,
            }
        )
        if update:
            for path in update:
                files.write_text(path, tables.updated(path.read_text(encoding="utf-8"), entries))
                typer.echo(f"Page: {path}")
        elif as_json:
            typer.echo(json.dumps(tables.as_json(entries), indent=1))
        elif markdown:
            typer.echo(tables.as_markdown(entries, short=short))
        else:
            console = Console() if sys.stdout.isatty() else Console(width=80)
            console.print(tables.as_table(entries))
            console.print(tables.as_sources(entries))
