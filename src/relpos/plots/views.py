"""The views of one scheme as one chart: heat maps, lines and bucket maps, one below the other."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt

from relpos.plots.labels import spread
from relpos.plots.style import DIVERGING, INK, SEQUENTIAL, colour_of, ramp, styled
from relpos.schemes.scheme import Scheme
from relpos.views import Heat, Line, Lines, Note, Steps, View

WIDTH, HEIGHT = 600, 200
#: Pixels that a name at the end of a line needs.
NAME_HEIGHT = 13
#: Space between panels, and the side that a panel has at most.
GAP, SIDE = 14, 190


def chart_of(scheme: Scheme, views: Sequence[View], origin: str) -> alt.VConcatChart:
    """One chart of all views; sentences stand below the scheme's settings. `origin` says where its table is from."""
    notes = [view.text for view in views if isinstance(view, Note)]
    drawn = [_DRAW[type(view)](view, colour_of(scheme.name)) for view in views if not isinstance(view, Note)]
    lines = [line for text in (repr(scheme), origin, *notes) for line in textwrap.wrap(text, 100)]
    title = alt.TitleParams(
        f"{scheme.name}: encodes {scheme.encodes}, acts on {scheme.injects_at}",
        subtitle=lines,
        color=colour_of(scheme.name),
    )
    chart = alt.VConcatChart(vconcat=drawn, spacing=28, title=title)
    # Each view has colours of its own meaning.
    drawn_together: alt.VConcatChart = styled(chart.resolve_scale(color="independent"))
    return drawn_together


def _heat(view: Heat, _: str) -> alt.Chart | alt.FacetChart:
    rows = [
        {"panel": panel, "row": row, "first": first, "last": last, "value": _rounded(value)}
        for panel, grid in zip(view.panels, view.values, strict=True)
        for row, line in enumerate(grid)
        for (first, last), value in zip(view.columns, line, strict=True)
    ]
    width, height, columns = _size(view)
    x = alt.X("left:Q", title=view.x).scale(domain=[view.columns[0][0] - 0.5, view.columns[-1][1] + 0.5], nice=False)
    y = alt.Y("top:Q", title=view.y).scale(domain=[-0.5, len(view.values[0]) - 0.5], nice=False, reverse=True)
    axis = alt.Axis(grid=False, tickMinStep=1, format="d", tickCount=max(2, width // 45), offset=2, domain=False)
    y_axis = alt.Axis(grid=False, tickMinStep=1, format="d", tickCount=max(2, height // 22), offset=2, domain=False)
    colour = alt.Color("value:Q", title=view.value).scale(**_colours(view))
    # Each cell reaches under the next by half a pixel: no hairline shows between them.
    across = 0.5 / width * (view.columns[-1][1] - view.columns[0][0] + 1)
    down = 0.5 / height * len(view.values[0])
    cells = (
        alt.Chart(alt.InlineData(values=rows))
        .transform_calculate(
            left="datum.first - 0.5",
            right=f"datum.last + {0.5 + across:.6g}",
            top="datum.row - 0.5",
            bottom=f"datum.row + {0.5 + down:.6g}",
        )
        .mark_rect(clip=True)
        .encode(
            x=x.axis(axis),
            x2="right:Q",
            y=y.axis(y_axis),
            y2="bottom:Q",
            color=colour.legend(gradientLength=min(120, height), titleFontWeight="normal", tickCount=5),
            tooltip=[
                alt.Tooltip("row:Q", title=view.y),
                alt.Tooltip("first:Q", title=f"first {view.x}"),
                alt.Tooltip("last:Q", title=f"last {view.x}"),
                alt.Tooltip("value:Q", title=view.value),
            ],
        )
        .properties(width=width, height=height)
    )
    drawn: alt.Chart | alt.FacetChart = cells
    if len(view.panels) > 1:
        header = alt.Header(title=None, labelFontSize=12, labelColor=INK, labelPadding=3)
        facet = alt.Facet("panel:N", sort=list(view.panels), header=header)
        drawn = cells.facet(facet, columns=columns, spacing=GAP)
    drawn.title = _heading(view.title)
    return drawn


def _size(view: Heat) -> tuple[int, int, int]:
    """Width and height of a panel in whole pixels a cell where there is room for them, and panels in a row."""
    if len(view.panels) == 1:
        rows = len(view.values[0])
        return WIDTH, max(60, rows * max(1, min(18, 220 // rows))), 1
    columns = min(len(view.panels), 4 if len(view.panels) <= 12 else 6)
    side = min(SIDE, (WIDTH + 40) // columns - GAP)
    cells = len(view.columns)
    side = cells * max(1, side // cells)
    return side, side, columns


def _colours(view: Heat) -> dict[str, Any]:
    values = [value for grid in view.values for line in grid for value in line]
    if not view.is_signed:
        low, high = min(values), max(values)
        return {"range": SEQUENTIAL, "domain": [_rounded(low), _rounded(high if high > low else low + 1)]}
    most = max(abs(value) for value in values) or 1.0
    return {"range": DIVERGING, "domain": [_rounded(step * most / 4) for step in range(-4, 5)]}


def _lines(view: Lines, colour: str) -> alt.LayerChart:
    rows = [
        {"line": line.name, "x": x, "y": _rounded(y)}
        for line in view.lines
        for x, y in zip(line.x, line.y, strict=True)
    ]
    names = [line.name for line in view.lines]
    first, last = view.lines[0].x[0], view.lines[0].x[-1]
    low, high = _bounds(view)
    y = alt.Y("y:Q", title=view.y)
    if view.is_log:
        powers = [10.0**power for power in range(-9, 19) if low <= 10.0**power <= high]
        y = y.scale(type="log", domain=[low, high], nice=False).axis(values=powers)
    else:
        y = y.scale(domain=[low, high], nice=False).axis(tickCount=6)
    x = alt.X("x:Q", title=view.x).axis(tickMinStep=1, grid=False)
    x = x.scale(domain=[first - 0.5, last + 0.5] if view.is_log else [first, last], nice=False)
    stroke = alt.Color("line:N", legend=None).scale(domain=names, range=_shades(len(names), colour))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, color=stroke)
    if view.is_log:
        drawn: list[alt.Chart] = [base.mark_point(filled=True, size=28, opacity=1)]
    else:
        drawn = [base.mark_line(strokeWidth=1.8, clip=True)]
    if len(names) > 1:
        drawn += _line_names(view.lines, low, high, stroke)
    return alt.LayerChart(layer=drawn).properties(width=WIDTH, height=_height(view), title=_heading(view.title))


def _height(view: Lines) -> int:
    """High enough for all names, which stand one above the other at the right."""
    return max(HEIGHT if len(view.lines) > 1 else 130, NAME_HEIGHT * len(view.lines))


def _line_names(lines: Sequence[Line], low: float, high: float, stroke: alt.Color) -> list[alt.Chart]:
    ends = [line.y[-1] for line in lines]
    gap = NAME_HEIGHT / max(HEIGHT, NAME_HEIGHT * len(lines)) * (high - low)
    rows = [
        {"line": line.name, "end": _rounded(end), "name": _rounded(-place)}
        for line, end, place in zip(lines, ends, spread([-end for end in ends], gap), strict=True)
    ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(color=stroke)
    join = base.mark_rule(strokeWidth=1, opacity=0.7).encode(
        x=alt.value(WIDTH + 4), x2=alt.value(WIDTH + 16), y="end:Q", y2="name:Q"
    )
    name = base.mark_text(align="left", fontSize=11).encode(x=alt.value(WIDTH + 19), y="name:Q", text="line:N")
    return [join, name]


def _bounds(view: Lines) -> tuple[float, float]:
    values = [y for line in view.lines for y in line.y]
    low, high = min(values), max(values)
    if view.is_log:
        return low / 1.5, high * 1.5
    air = (high - low) * 0.04 or 1.0
    return low - air, high + air


def _shades(count: int, colour: str) -> list[str]:
    """One line in the scheme's colour; two with a neutral one; heads in the order of a ramp."""
    if count <= 2:
        return [colour, "#888888"][:count]
    return ramp(count)


def _steps(view: Steps, colour: str) -> alt.LayerChart:
    rows = [{"row": run.row, "first": run.first, "last": run.last} for run in view.runs]
    first, last = view.runs[0].first, view.runs[-1].last
    x = alt.X("left:Q", title="distance (key - query)").scale(domain=[first - 0.5, last + 0.5], nice=False)
    y = alt.Y("row:Q", title="row").axis(tickMinStep=1, format="d")
    base = alt.Chart(alt.InlineData(values=rows)).transform_calculate(
        left="datum.first - 0.5", right="datum.last + 0.5"
    )
    bars = base.mark_rule(strokeWidth=3, color=colour).encode(
        x=x.axis(tickMinStep=1, grid=False),
        x2="right:Q",
        y=y,
        tooltip=["row:Q", "first:Q", "last:Q"],
    )
    ends = {(False, False): "", (True, False): ": its left end goes on", (False, True): ": its right end goes on"}
    said = ends.get(view.goes_on, ": both ends go on")
    return alt.LayerChart(layer=[bars]).properties(width=WIDTH, height=130, title=_heading(f"{view.title}{said}"))


def _heading(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, fontSize=13, fontWeight="bold", offset=8, anchor="start", frame="group", color=INK)


def _rounded(value: float) -> float:
    """Six significant digits: more than a picture shows, and the same on every machine."""
    return float(f"{value:.6g}")


_DRAW: dict[type[View], Any] = {Heat: _heat, Lines: _lines, Steps: _steps}
