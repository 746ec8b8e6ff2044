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
    """Draw a model's times after `patch`, as fractions of those before it, into a PNG file."""
    before = {row.length: row.timing.median for row in whole.rows[::2] if row.timing is not None}
    ratios = [
        Ratio(f"{row.length} tokens", row.who, row.timing.median / before[row.length])
        for row in whole.rows[1::2]
        if row.timing is not None
    ]
    if ratios:
        unit, where = "transformers' own attention", _where(whole.environment)
        draw_speed(ratios, title=f"{whole.subject.source}, patched", unit=unit, subtitle=where, path=path)


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
    return f"{environment['cpu']}, {environment['threads']} threads, torch {environment['torch']}"
