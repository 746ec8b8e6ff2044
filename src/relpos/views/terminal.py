"""Views as text, 80 columns wide: a row of blocks for each line, bucket maps as lists of distances."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.table import Table
from rich.text import Text

from relpos.schemes.scheme import Scheme
from relpos.views.view import Heat, Line, Lines, Note, Run, Steps, View

BLOCKS = "▁▂▃▄▅▆▇█"
# An odd number, so that distance 0 has the middle.
COLUMNS = 43
# Rows of one view; of a longer one, evenly chosen ones.
MOST_ROWS = 16
# Entries of one side of a bucket map.
MOST_ENTRIES = 12


def head_of(scheme: Scheme, origin: str) -> Iterator[Text]:
    """What stands above the views: name, settings, what it encodes, what it learns."""
    yield Text(scheme.name, style="bold cyan").append(f"  {scheme!r}", style="not bold default")
    tables = ", ".join(f"{name} {list(table.shape)}" for name, table in scheme.named_parameters())
    count = sum(table.numel() for table in scheme.parameters())
    learned = f"learns {tables}: {count:,} numbers" if tables else "learns nothing"
    yield Text(f"encodes {scheme.encodes}, acts on {scheme.injects_at}, {learned}", style="dim")
    if origin:
        yield Text(origin, style="dim")


def text_of(view: View) -> Iterator[Text | Table]:
    """A view as lines of text."""
    if isinstance(view, Note):
        yield Text(view.text)
        return
    yield Text()
    if isinstance(view, Lines):
        yield _title(view.title, view.y)
        yield from _sparks(view)
    elif isinstance(view, Steps):
        yield _title(view.title)
        yield _map(view)
    elif len(view.panels) > 1:
        size = f"{len(view.panels)} of {len(view.values[0])} x {len(view.columns)}"
        yield Text(f"{view.title}: {size} cells; --out FILE.png, .svg or .html draws them.", style="dim")
    else:
        yield _title(view.title, view.value)
        yield from _sparks(_lines_of(view))


def _title(title: str, value: str = "") -> Text:
    said = not value or value in title.lower()
    return Text(title, style="bold").append("" if said else f"  {value}", style="not bold dim")


def _lines_of(heat: Heat) -> Lines:
    """The rows of a heat map as lines; of many, evenly chosen ones."""
    (rows,) = heat.values
    first, last = heat.columns[0][0], heat.columns[-1][1]
    places = tuple(range(first, last + 1))
    columns = [index for index, (low, high) in enumerate(heat.columns) for _ in range(low, high + 1)]
    chosen = _evenly(len(rows), MOST_ROWS)
    lines = (Line(f"{heat.y} {row}", places, tuple(rows[row][column] for column in columns)) for row in chosen)
    return Lines(heat.title, heat.x, heat.value, tuple(lines))


def _evenly(count: int, most: int) -> list[int]:
    """At most `most` of the numbers 0 to `count - 1`, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(step * (count - 1) / (most - 1)) for step in range(most)]


def _sparks(view: Lines) -> Iterator[Text]:
    """Rows of blocks on one common scale, each with the numbers between which it lies, and the axis below."""
    chosen = _evenly(len(view.lines[0].x), COLUMNS)
    height = math.log if view.is_log else float
    low = min(height(min(line.y)) for line in view.lines)
    high = max(height(max(line.y)) for line in view.lines)
    width = max(len(line.name) for line in view.lines)
    for line in view.lines:
        least, most = f"{min(line.y):.3g}", f"{max(line.y):.3g}"
        row = "".join(_block(height(line.y[index]), low, high) for index in chosen)
        span = least if least == most else f"{least} to {most}"
        yield Text(f"{line.name:<{width}} ").append(row, style="cyan").append(f" {span}", style="dim")
    x = view.lines[0].x
    start, middle, end = (str(x[index]) for index in (0, len(x) // 2, -1))
    left = (len(chosen) - len(middle)) // 2 - len(start)
    right = len(chosen) - len(start) - left - len(middle) - len(end)
    marks = f"{start}{' ' * left}{middle}{' ' * right}{end}" if min(left, right) > 0 else f"{start} to {end}"
    yield Text(f"{'':<{width}} {marks}  {view.x}", style="dim")


def _block(height: float, low: float, high: float) -> str:
    if low == high:
        return "─"
    return BLOCKS[min(int((height - low) / (high - low) * len(BLOCKS)), len(BLOCKS) - 1)]


def _map(steps: Steps) -> Table:
    """Distances and their rows, the nearest first: the past on the left, the future on the right."""
    spans = list(_spans(steps))
    past = [words for first, last, words in reversed(spans) if first < 0]
    future = [words for first, last, words in spans if first >= 0]
    drawn = Table.grid(padding=(0, 4, 0, 0))
    sides = [_shortened(side) for side in (past, future) if side]
    for _ in sides:
        drawn.add_column(no_wrap=True)
    for lines in zip_longest(*sides, fillvalue=""):
        drawn.add_row(*lines)
    return drawn


def _spans(steps: Steps) -> Iterator[tuple[int, int, str]]:
    """First and last distance of each entry, and its words: runs of one distance each make one entry."""
    for group in _grouped(steps.runs):
        first, last = group[0].first, group[-1].last
        distances = str(first) if first == last else f"{first} … {last}"
        if steps.goes_on[0] and group[0] is steps.runs[0]:
            distances = f"… {last}"
        elif steps.goes_on[1] and group[-1] is steps.runs[-1]:
            distances = f"{first} …"
        rows = f"row {group[0].row}" if len(group) == 1 else f"rows {group[0].row} … {group[-1].row}, one each"
        yield first, last, f"{distances:>13}  {rows}"


def _grouped(runs: Sequence[Run]) -> list[list[Run]]:
    groups: list[list[Run]] = []
    for run in runs:
        last = groups[-1][-1] if groups else None
        follows = last is not None and run.first == run.last and last.first == last.last
        step = run.row - last.row if last else 0
        steady = len(groups[-1]) < 2 or step == groups[-1][-1].row - groups[-1][-2].row if groups else False
        if follows and abs(step) == 1 and steady:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def _shortened(lines: Sequence[str]) -> list[str]:
    """The nearest and the farthest entries of a long list."""
    if len(lines) <= MOST_ENTRIES:
        return list(lines)
    half = MOST_ENTRIES // 2
    left_out = f"{'…':>13}  {len(lines) - 2 * half + 1} more"
    return [*lines[:half], left_out, *lines[-half + 1 :]]
