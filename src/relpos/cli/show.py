"""`relpos show`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relpos.cli.extras import needs_extra
from relpos.cli.refusals import refusals

if TYPE_CHECKING:
    from relpos.schemes import Scheme
    from relpos.views import View

SchemeName = Annotated[str | None, typer.Argument(metavar="SCHEME", help="Its name; `relpos schemes` lists them.")]
Out = Annotated[
    Path | None, typer.Option(help="Picture to write: .png, .svg or .html (works offline).  (default: the terminal)")
]
Weights = Annotated[Path | None, typer.Option(help="A safetensors file with a trained table.")]
Tensor = Annotated[
    list[str] | None,
    typer.Option(help="The table's name in that file; TABLE=NAME, once each, where a scheme has several."),
]
Transposed = Annotated[
    bool, typer.Option("--transposed", help="The file's table is [buckets, heads], as Hugging Face's T5.")
]
Length = Annotated[int | None, typer.Option(help="Tokens of the heat maps.  (default: 32)")]
Reach = Annotated[
    int | None, typer.Option(help="Farthest distance.  (default: a quarter beyond the scheme's own, else 128)")
]
Docs = Annotated[
    Path | None,
    typer.Option(help="Draw the pictures of this library's docs into a folder, with the tables of --weights."),
]
CALL = "relpos show"


def show(
    context: typer.Context,
    scheme: SchemeName = None,
    out: Out = None,
    weights: Weights = None,
    tensor: Tensor = None,
    transposed: Transposed = False,
    length: Length = None,
    reach: Reach = None,
    docs: Docs = None,
) -> None:
    """Look at a scheme: its bias by head and against distance, its table, the rows that distances read.

    The arguments of the scheme's constructor are options too: relpos show t5 --num-heads 12 --no-bidirectional.
    """
    with refusals():
        if docs is not None:
            _draw_docs(docs, weights)
            return
        if scheme is None or scheme.startswith("-"):
            _refuse_no_scheme(scheme)
        else:
            _show(scheme, context.args, out, weights, tensor or (), transposed, length, reach)


def _show(
    name: str,
    words: Sequence[str],
    out: Path | None,
    weights: Path | None,
    tensors: Sequence[str],
    transposed: bool,
    length: int | None,
    reach: int | None,
) -> None:
    with needs_extra("study"):
        from relpos import errors
        from relpos.views import arguments_of, build, fill, origin_of, views_of

        if out is not None:
            from relpos.plots.save import check_ending

            check_ending(CALL, out)
    scheme = build(CALL, name, arguments_of(CALL, name, words))
    names = None
    if weights is not None:
        names = fill(scheme, weights, tensors, transposed=transposed)
    elif tensors or transposed:
        raise errors.value(CALL, "--tensor or --transposed without a file", "--weights FILE", "name the file too.")
    views = views_of(scheme, length, reach)
    origin = origin_of(scheme, names, weights.name if weights else "")
    if out is None:
        _print(scheme, views, origin)
    else:
        _draw(scheme, views, origin, out)


def _print(scheme: "Scheme", views: "Sequence[View]", origin: str) -> None:
    with needs_extra("study"):
        from rich.console import Console

        from relpos.views.terminal import head_of, text_of
    console = Console() if sys.stdout.isatty() else Console(width=80)
    for line in [*head_of(scheme, origin), *(line for view in views for line in text_of(view))]:
        console.print(line, highlight=False)


def _draw(scheme: "Scheme", views: "Sequence[View]", origin: str, out: Path) -> None:
    with needs_extra("study"):
        from relpos import errors
        from relpos.plots.save import save
        from relpos.plots.views import chart_of
        from relpos.views import Note
    notes = [view for view in views if isinstance(view, Note)]
    if len(notes) == len(views):
        said = " ".join(note.text for note in notes)
        raise errors.value(CALL, f"--out for {scheme.name}", "a scheme with something to draw", said)
    save(chart_of(scheme, views, origin).to_dict(), out, title=f"relpos show {scheme.name}")
    typer.echo(f"Picture: {out}")


def _draw_docs(folder: Path, tables: Path | None) -> None:
    with needs_extra("study"):
        from relpos import errors
        from relpos.plots.pictures import draw_pictures
    if tables is None:
        raise errors.value(CALL, "--docs without --weights", "the file of trained tables", "see CONTRIBUTING.md.")
    for path in draw_pictures(folder, tables):
        typer.echo(f"Picture: {path}")


def _refuse_no_scheme(given: str | None) -> None:
    with needs_extra("study"):
        import relpos
        from relpos import errors
    what = "no scheme" if given is None else f"{given} in place of a scheme"
    raise errors.value(CALL, what, ", ".join(relpos.names()), "write the scheme first: relpos show t5.")
