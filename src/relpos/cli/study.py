"""`relpos study`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relpos import errors
from relpos.cli.extras import needs_extra
from relpos.cli.lists import names, numbers
from relpos.cli.refusals import refusals

if TYPE_CHECKING:
    from relpos.study import StudyConfig, StudyResult

# What --quick changes. Without the tenfold length, segments that every length divides are five times shorter.
QUICK = {"steps": 80, "multiples": (1, 2, 4, 8, 16)}

Schemes = Annotated[str | None, typer.Option(help="Schemes, comma separated.  (default: the nine compared)")]
Length = Annotated[int | None, typer.Option(help="Trained length in bytes.  (default: 64)")]
Multiples = Annotated[str | None, typer.Option(help="Evaluated lengths, in trained ones.  (default: 1,2,4,8,10,16)")]
Steps = Annotated[int | None, typer.Option(help="Training steps, 32 windows each.  (default: 320)")]
Seeds = Annotated[str | None, typer.Option(help="Seeds, comma separated.  (default: 0)")]
Size = Annotated[str | None, typer.Option(help="Network: tiny, small or medium.  (default: small)")]
Text = Annotated[str | None, typer.Option(help="A text file, or a folder of them.  (default: Python's own library)")]
Threads = Annotated[int | None, typer.Option(help="Threads; losses repeat for the same number.  (default: 2)")]
Out = Annotated[Path | None, typer.Option(help="The run's folder.  (default: runs/default, with --quick runs/quick)")]
Quick = Annotated[
    bool, typer.Option("--quick", help="A short look: 80 steps, no tenfold length, a fifth of the text scored.")
]
ReportOnly = Annotated[
    bool, typer.Option("--report-only", help="Draw report.html of the run in --out again, from its results.json alone.")
]


def study(
    schemes: Schemes = None,
    length: Length = None,
    multiples: Multiples = None,
    steps: Steps = None,
    seeds: Seeds = None,
    size: Size = None,
    text: Text = None,
    threads: Threads = None,
    out: Out = None,
    quick: Quick = False,
    report_only: ReportOnly = False,
) -> None:
    """Train small language models at one length, test them at longer ones, and compare position schemes.

    Stopped at any moment, the same command goes on where it stopped.
    """
    folder = out or Path("runs/quick" if quick else "runs/default")
    try:
        with refusals():
            given = _given(
                length=length,
                multiples=numbers("relpos study --multiples", multiples),
                steps=steps,
                size=size,
                text=text,
                threads=threads,
            )
            chosen = _given(schemes=names(schemes), seeds=numbers("relpos study --seeds", seeds))
            if report_only:
                _draw_page(folder, sorted(given | chosen))
                return
            recipe: dict[str, Any] = (QUICK if quick else {}) | given
            with needs_extra("study"):
                from relpos.study import Recipe, StudyConfig
            _run_and_print(replace(StudyConfig(recipe=replace(Recipe(), **recipe)), **chosen), folder)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. {folder} keeps the last checkpoint; the same command goes on from there.", err=True)
        raise typer.Exit(130) from None


def _run_and_print(config: "StudyConfig", folder: Path) -> None:
    with needs_extra("study"):
        from rich.console import Console

        from relpos.study import run_study
        from relpos.study.progress import RichReporter
        from relpos.study.report import cost_table, table

    # A pipe has no width; the table needs this much.
    console = Console() if sys.stdout.isatty() else Console(width=130)
    with RichReporter(config, console) as reporter:
        result: StudyResult = run_study(config, folder, reporter)
    console.print(table(result.trials, "non_overlapping"))
    console.print(table(result.trials, "sliding"))
    console.print(cost_table(result.trials))
    typer.echo(f"Results: {folder / 'results.json'}\nChart: {folder / 'extrapolation.png'}")
    typer.echo(f"Report: {folder / 'report.html'}")


def _draw_page(folder: Path, settings: list[str]) -> None:
    if settings:
        raise errors.value(
            "relpos study --report-only",
            ", ".join(f"--{name}" for name in settings),
            "--out (or --quick) beside it: the run has its configuration",
            "leave the others out.",
        )
    with needs_extra("study"):
        from relpos.study import load_study, write_page
    typer.echo(f"Report: {write_page(load_study(folder), folder)}")


def _given(**options: object) -> dict[str, Any]:
    """The options that stand on the command line."""
    return {name: option for name, option in options.items() if option is not None}
