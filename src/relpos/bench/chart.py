"""From a report to the numbers that its chart draws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from relpos.bench.rivals import LIMIT
from relpos.bench.run import Report
from relpos.plots.speed import Ratio, draw_speed

if TYPE_CHECKING:  # needs transformers, which these charts do not
    from relpos.bench.whole import Whole


def draw_whole(whole: Whole, path: Path) -> None:
    """Draw a model's times, as fractions of transformers' own, into a PNG file."""
    theirs = whole.rows[0].who
    before = {row.length: row.timing.median for row in whole.rows if row.who == theirs and row.timing is not None}
    ratios = [
        Ratio(f"{row.length} tokens", row.who, row.timing.median / before[row.length])
        for row in whole.rows
        if row.who != theirs and row.timing is not None
    ]
    if ratios:
        subject, where = whole.subject, _where(whole.environment)
        title = f"{subject.source}, batch {subject.batch}, {subject.dtype}"
        draw_speed(ratios, title=title, unit=theirs, subtitle=where, path=path)


def draw(report: Report, path: Path) -> None:
    """Draw everybody's ratios to the yardstick into a PNG file."""
    ratios = [
        Ratio(str(work), entry.contender, entry.ratio)
        for work, entries in report.rows
        for entry in entries
        if entry.ratio is not None and entry.contender != LIMIT
    ]
    title, unit = "What a position bias costs", "attention without a bias"
    draw_speed(ratios, title=title, unit=unit, subtitle=_where(report.environment), path=path)


def _where(environment: dict[str, Any]) -> str:
    threads = environment["threads"]
    return f"{environment['cpu']}, {threads} thread{'s' * (threads != 1)}, torch {environment['torch']}"
