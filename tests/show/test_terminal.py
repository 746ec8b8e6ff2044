"""The quick look: every scheme, 80 columns, blocks in the order of the numbers, maps that say every distance."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

import relpos
from relpos.views import Line, Lines, Note, Run, Steps, build, views_of
from relpos.views.terminal import BLOCKS, head_of, text_of


def text(*views: object) -> str:
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        for view in views:
            for line in text_of(view):  # type: ignore[arg-type]
                console.print(line, highlight=False)
    return capture.get()


@pytest.mark.parametrize("name", relpos.names())
def test_every_scheme_fits_80_columns_unbroken(name: str) -> None:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        for view in views_of(build("test", name, {})):
            for line in text_of(view):
                console.print(line, highlight=False)
    lines = capture.get().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert len(lines) <= 70


def test_blocks_rise_with_the_numbers_and_share_a_scale() -> None:
    x = tuple(range(8))
    view = Lines("t", "x", "y", (Line("a", x, tuple(map(float, x))), Line("b", x, (7.0,) * 8)))
    a, b = text(view).splitlines()[2:4]
    assert a.startswith(f"a {BLOCKS} 0 to 7")
    assert b.startswith(f"b {BLOCKS[-1] * 8} 7")


def test_numbers_that_are_all_equal_are_a_flat_line() -> None:
    assert "a ──── 0" in text(Lines("t", "x", "y", (Line("a", (0, 1, 2, 3), (0.0,) * 4),)))


def test_a_logarithmic_view_has_equal_steps_for_equal_factors() -> None:
    line = Line("a", tuple(range(8)), tuple(10.0**power for power in range(8)))
    assert BLOCKS in text(Lines("t", "x", "y", (line,), is_log=True))


@pytest.mark.parametrize("name", ["t5", "shaw_bias", "deberta"])
def test_a_map_names_every_distance_of_its_entries(name: str) -> None:
    scheme = build("test", name, {"num_buckets": 8, "max_distance": 16} if name != "shaw_bias" else {"max_distance": 4})
    (steps,) = [view for view in views_of(scheme) if isinstance(view, Steps)]
    want = {d: run.row for run in steps.runs for d in range(run.first, run.last + 1)}
    said: dict[int, int] = {}
    number = r"(-?\d+)"
    shape = rf"(?:{number} )?(…)?(?: ?{number})?  rows? {number}(?: … {number}, one each)?"
    for match in re.finditer(shape, text(steps)):
        first, dots, last, row, end = match.groups()
        low = int(first) if first else (int(last) if dots is None else min(want))
        high = int(last) if last else (int(first) if dots is None else max(want))
        for index, distance in enumerate(range(low, high + 1)):
            said[distance] = int(row) if end is None else int(row) + index * (1 if int(end) > int(row) else -1)
            if end is not None and distance == high:
                assert said[distance] == int(end)
    assert said == want


def test_a_long_map_is_shortened_in_the_middle() -> None:
    runs = tuple(Run(row, 2 * row, 2 * row + 1) for row in range(40))
    lines = text(Steps("t", runs, (False, False))).splitlines()
    assert len(lines) == 2 + 12
    assert "29 more" in lines[8]
    assert lines[2].split() == ["0", "…", "1", "row", "0"]
    assert lines[-1].split() == ["78", "…", "79", "row", "39"]


def test_notes_and_names_are_text_not_markup() -> None:
    assert "[red]x[/red] [/]" in text(Note("[red]x[/red] [/]"))
    (title, *_, origin) = head_of(relpos.ALiBi(2), "[bold]file[/] [/nothing]")
    assert "ALiBi(num_heads=2" in title.plain
    assert origin.plain == "[bold]file[/] [/nothing]"
