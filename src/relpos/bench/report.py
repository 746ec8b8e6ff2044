"""The tables of a benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from relpos.bench.run import Entry, Report

if TYPE_CHECKING:  # needs transformers, which these tables do not
    from relpos.bench.whole import Measured, Whole


def times_table(report: Report) -> Table:
    """One row a work: milliseconds of the yardstick, and everybody's time in multiples of it, who has any at all."""
    timed = {entry.contender for _, entries in report.rows for entry in entries if entry.timing is not None}
    names = [entry.contender for entry in report.rows[0][1] if entry.contender in timed]
    drawn = Table(title="Time, as a multiple of attention without a bias", title_justify="left", box=SIMPLE_HEAD)
    drawn.add_column("work", no_wrap=True)
    drawn.add_column(f"{names[0]}, ms", justify="right")
    for name in names[1:]:
        drawn.add_column(name, justify="right", overflow="fold")
    for work, entries in report.rows:
        limit = entries[0].timing
        first = "-" if limit is None else f"{1000 * limit.median:.2f}"
        drawn.add_row(str(work), first, *(_cell(entry) for entry in entries[1:] if entry.contender in timed))
    return drawn


def reasons(report: Report) -> list[str]:
    """Why some have no number, each reason once."""
    found = [
        f"{entry.contender}: {entry.reason}"
        for _, entries in report.rows
        for entry in entries
        if entry.reason is not None
    ]
    found += [f"{peak.contender}: {peak.reason}" for peak in report.peaks if peak.reason is not None]
    return list(dict.fromkeys(found))


def memory_table(report: Report) -> Table:
    """One row a call: the memory that it takes beyond its inputs."""
    drawn = Table(title="Peak memory beyond the inputs, in a process of its own", title_justify="left", box=SIMPLE_HEAD)
    drawn.add_column("work")
    drawn.add_column("contender")
    drawn.add_column("MiB", justify="right")
    for peak in report.peaks:
        drawn.add_row(str(peak.work), peak.contender, "-" if peak.bytes is None else f"{peak.bytes / 2**20:.0f}")
    return drawn


def whole_table(whole: Whole) -> Table:
    """One row a length: milliseconds and memory before and after, and how many times faster."""
    subject = whole.subject
    title = f"{subject.source}, batch {subject.batch}, {subject.dtype}"
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("tokens", "transformers, ms", "relpos, ms", "faster", "transformers, MiB", "relpos, MiB"):
        drawn.add_column(name, justify="right", overflow="fold")
    for theirs, ours in zip(whole.rows[::2], whole.rows[1::2], strict=True):
        times = [
            row.reason or "-" if row.timing is None else f"{1000 * row.timing.median:.1f}" for row in (theirs, ours)
        ]
        sizes = ["-" if row.bytes is None else f"{row.bytes / 2**20:.0f}" for row in (theirs, ours)]
        drawn.add_row(str(theirs.length), *times, _times(theirs, ours), *sizes)
    return drawn


def _times(theirs: Measured, ours: Measured) -> str:
    if theirs.timing is None or ours.timing is None:
        return "-"
    return f"{theirs.timing.median / ours.timing.median:.2f} x"


def _cell(entry: Entry) -> str:
    return "-" if entry.ratio is None else f"{entry.ratio:.2f}"
