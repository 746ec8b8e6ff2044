"""The tables of a benchmark."""

from __future__ import annotations

from itertools import groupby
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
    """A row for each length and who has a number at any: milliseconds, beside transformers, memory."""
    subject = whole.subject
    title = f"{subject.source}, batch {subject.batch}, {subject.dtype}"
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    drawn.add_column("tokens", justify="right")
    drawn.add_column("", no_wrap=True)
    for name in ("ms", "as fast as transformers", "MiB"):
        drawn.add_column(name, justify="right")
    timed = {row.who for row in whole.rows if row.timing is not None}
    for length, rows in groupby((row for row in whole.rows if row.who in timed), key=lambda row: row.length):
        theirs, *others = rows
        for row in (theirs, *others):
            drawn.add_row(
                str(length) if row is theirs else "",
                row.who,
                "-" if row.timing is None else f"{1000 * row.timing.median:.1f}",
                "" if row is theirs else _times(theirs, row),
                "-" if row.bytes is None else f"{row.bytes / 2**20:.0f}",
            )
    return drawn


def missing(whole: Whole) -> list[str]:
    """Why numbers are missing, each reason once, with the lengths where it does not hold for all."""
    lengths = list(dict.fromkeys(row.length for row in whole.rows))
    found: dict[tuple[str, str], list[int]] = {}
    for row in whole.rows:
        if row.reason is not None:
            found.setdefault((row.who, row.reason), []).append(row.length)
    where = {tuple(at): "" if at == lengths else f", {', '.join(map(str, at))} tokens" for at in found.values()}
    return [f"{who}{where[tuple(at)]}: {reason}" for (who, reason), at in found.items()]


def _times(theirs: Measured, other: Measured) -> str:
    if theirs.timing is None or other.timing is None:
        return "-"
    return f"{theirs.timing.median / other.timing.median:.2f} x"


def _cell(entry: Entry) -> str:
    return "-" if entry.ratio is None else f"{entry.ratio:.2f}"
