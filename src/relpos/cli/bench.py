"""`relpos bench`."""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relpos import errors
from relpos.cli.extras import needs_extra
from relpos.cli.lists import names, numbers
from relpos.cli.refusals import refusals

if TYPE_CHECKING:
    from rich.console import Console

    from relpos.bench import Report, Work

Tasks = Annotated[str | None, typer.Option(help="forward, train, decode; comma separated.  (default: forward)")]
Schemes = Annotated[
    str | None, typer.Option(help="t5, alibi, shaw_bias, deberta, shaw; comma separated.  (default: t5)")
]
Lengths = Annotated[str | None, typer.Option(help="Lengths, comma separated.  (default: 2048)")]
Causal = Annotated[bool, typer.Option("--causal", help="Causal attention.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or float64.  (default: float32)")]
Batch = Annotated[int | None, typer.Option(help="Batch size.  (default: 1)")]
Heads = Annotated[int | None, typer.Option(help="Heads.  (default: 8)")]
Width = Annotated[int | None, typer.Option(help="Width of a head.  (default: 64)")]
Model = Annotated[
    str | None,
    typer.Option(
        help="A whole model before and after relpos.hf.patch instead, and in ONNX Runtime and OpenVINO where they are "
        "installed: a folder, a config.json (random weights) or a name. Takes --lengths, --batch and --dtype."
    ),
]
Memory = Annotated[bool | None, typer.Option(help="Peak memory too.  (default: only without other options)")]
Out = Annotated[Path, typer.Option(help="Folder for bench.json and bench.png.")]


def bench(
    tasks: Tasks = None,
    schemes: Schemes = None,
    lengths: Lengths = None,
    causal: Causal = False,
    dtype: Dtype = None,
    batch: Batch = None,
    heads: Heads = None,
    width: Width = None,
    memory: Memory = None,
    model: Model = None,
    out: Out = Path("runs/bench"),
) -> None:
    """Time position biases beside attention without one, and beside what people use today.

    Without options, the default set (benchmarks/README.md). Whoever disagrees with float64 gets no number.
    """
    chosen = (tasks, schemes, lengths, dtype, batch, heads, width)
    is_default = not causal and all(option is None for option in chosen)
    try:
        with refusals():
            if model is not None:
                if causal or memory is not None or any(option is not None for option in (tasks, schemes, heads, width)):
                    raise errors.value(
                        "relpos bench --model",
                        "an option of bare attention",
                        "--lengths, --batch, --dtype, --out",
                        "the model decides the rest.",
                    )
                _run_whole(model, numbers("relpos bench --lengths", lengths) or (128, 512, 2048), batch, dtype, out)
                return
            with needs_extra("study"):
                from relpos.bench import DEFAULT, DEFAULT_MEMORY, Work
            works: tuple[Work, ...] = DEFAULT
            if not is_default:
                shape = {"batch": batch, "heads": heads, "width": width, "dtype": dtype}
                given = {name: value for name, value in shape.items() if value is not None}
                works = tuple(
                    Work(task, scheme, length, causal or task == "decode", **given)  # type: ignore[arg-type]
                    for task, scheme, length in itertools.product(
                        names(tasks) or ("forward",),
                        names(schemes) or ("t5",),
                        numbers("relpos bench --lengths", lengths) or (2048,),
                    )
                )
            pairs = DEFAULT_MEMORY if is_default else tuple((work, _fastest(work)) for work in works)
            _run_and_print(works, pairs if (is_default if memory is None else memory) else (), out)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. {out / 'bench.json'} holds what was measured.", err=True)
        raise typer.Exit(130) from None


def _fastest(work: "Work") -> str:
    """The backend that `attention` takes for it."""
    return "relpos blocked" if work.has_content else "relpos sdpa"


def _run_whole(source: str, lengths: "tuple[int, ...]", batch: int | None, dtype: str | None, out: Path) -> None:
    with needs_extra("study"):
        from relpos.bench.chart import draw_whole
        from relpos.bench.report import missing, whole_table
    with needs_extra("hf"):
        from relpos.bench.whole import Subject, run_whole
    subject = Subject(source, 1 if batch is None else batch, dtype or "float32")
    out.mkdir(parents=True, exist_ok=True)
    with _steps(len(lengths) + 2) as (console, progress):
        whole = run_whole(subject, lengths, out / "model.json", progress)
    draw_whole(whole, out / "model.png")
    console.print(whole_table(whole))
    for reason in missing(whole):
        console.print(f"- {reason}", highlight=False, markup=False)
    console.print(f"{whole.weights}\n{whole.summary}", highlight=False)
    typer.echo(f"Results: {out / 'model.json'}\nChart: {out / 'model.png'}")


def _run_and_print(works: "tuple[Work, ...]", memory: "tuple[tuple[Work, str], ...]", out: Path) -> None:
    with needs_extra("study"):
        from relpos.bench import run_bench
        from relpos.bench.chart import draw
        from relpos.bench.report import memory_table, reasons, times_table
    out.mkdir(parents=True, exist_ok=True)
    with _steps(len(works) + len(memory)) as (console, progress):
        report: Report = run_bench(works, memory, out / "bench.json", progress)
    draw(report, out / "bench.png")
    console.print(times_table(report))
    if report.peaks:
        console.print(memory_table(report))
    for reason in reasons(report):
        console.print(f"- {reason}", highlight=False)
    typer.echo(f"Results: {out / 'bench.json'}\nChart: {out / 'bench.png'}")


@contextmanager
def _steps(total: int) -> "Iterator[tuple[Console, Callable[[str], None]]]":
    """Where to print results, and what to call before each step: a bar with the time left on stderr."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console() if sys.stdout.isatty() else Console(width=200)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True)) as bar:
        step = bar.add_task("", total=total, completed=-1)

        def progress(what: str) -> None:
            bar.update(step, advance=1, description=what)

        yield console, progress
        bar.update(step, advance=1, description="done")
