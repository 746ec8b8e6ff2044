"""From a report to the numbers that its chart draws."""

from __future__ import annotations

from pathlib import Path

from relpos.bench.rivals import LIMIT
from relpos.bench.run import Report
from relpos.plots.speed import Ratio, draw_speed


def draw(report: Report, path: Path) -> None:
    """Draw everybody's ratios to the yardstick into a PNG file."""
    ratios = [
        Ratio(str(work), entry.contender, entry.ratio)
        for work, entries in report.rows
        for entry in entries
        if entry.ratio is not None and entry.contender != LIMIT
    ]
    where = report.environment
    draw_speed(ratios, subtitle=f"{where['cpu']}, {where['threads']} threads, torch {where['torch']}", path=path)
