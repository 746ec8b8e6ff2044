"""The extrapolation chart: perplexity against evaluated length, one line a scheme."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from relpos.files import write_bytes
from relpos.plots.labels import spread
from relpos.plots.style import mark_of, styled

WIDTH, HEIGHT = 620, 420
# A name is about this high, in pixels of the chart.
LABEL_GAP = 16


@dataclass(frozen=True)
class Point:
    """Perplexity at one length: mean, lowest and highest over the seeds; None where the scheme is undefined."""

    length: int
    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Curve:
    """All points of one scheme, shortest length first."""

    scheme: str
    points: tuple[Point, ...]


def draw_extrapolation(curves: Sequence[Curve], *, trained_length: int, subtitle: str, folder: Path) -> None:
    """Write `extrapolation.svg` and `extrapolation.png` (twice the size in pixels) into `folder`."""
    specification = extrapolation_chart(curves, trained_length=trained_length, subtitle=subtitle).to_dict()
    write_bytes(folder / "extrapolation.svg", vl_convert.vegalite_to_svg(specification).encode("utf-8"))
    write_bytes(folder / "extrapolation.png", vl_convert.vegalite_to_png(specification, scale=2.0))


def extrapolation_chart(curves: Sequence[Curve], *, trained_length: int, subtitle: str) -> alt.LayerChart:
    """Lines on two logarithmic axes, a band between the lowest and highest seed, and each line named at its end.

    A scheme that is undefined beyond some length ends there, and its name says so.
    """
    lengths = sorted({point.length for curve in curves for point in curve.points})
    rows = rows_of(curves)
    bounds = bounds_of(rows)
    # The first length stands clear of the axis; each tick has the length above and the multiple below.
    x = alt.X("length:Q", title="Evaluated length in bytes, and in multiples of the trained length").scale(
        type="log", base=2, domain=[lengths[0] / 1.15, lengths[-1]], nice=False
    )
    labels = f"[datum.value, datum.value / {trained_length} + ' x']"
    x = x.axis(values=lengths, grid=False, labelExpr=labels, labelOverlap=False, labelFlush=False)
    y = alt.Y("perplexity:Q", title="Perplexity per byte").scale(type="log", domain=list(bounds), nice=False)
    y = y.axis(values=ticks(*bounds), format="~r")
    schemes = [curve.scheme for curve in curves]
    colour = alt.Color("scheme:N", legend=None).scale(domain=schemes, range=[mark_of(name).colour for name in schemes])
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, color=colour)
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q"), y2="high:Q")
    lines = [
        base.transform_filter(alt.datum.scheme == name).mark_line(
            strokeWidth=2.2, strokeDash=list(mark_of(name).dash) or alt.Undefined
        )
        for name in schemes
    ]
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        shape=alt.Shape("scheme:N", legend=None).scale(domain=schemes, range=[mark_of(name).shape for name in schemes])
    )
    layers = [band, *lines, points, *names_of(curves, lengths[-1], bounds, colour)]
    title = alt.TitleParams(f"Trained at {trained_length} bytes, tested on longer windows", subtitle=subtitle)
    chart = alt.LayerChart(layer=layers).properties(width=WIDTH, height=HEIGHT, title=title)
    return styled(chart)


def rows_of(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """A row for every point that is defined."""
    return [
        {"scheme": curve.scheme, "length": point.length, "perplexity": point.mean, "low": point.low, "high": point.high}
        for curve in curves
        for point in curve.points
        if point.mean is not None
    ]


def names_of(
    curves: Sequence[Curve], last: int, bounds: tuple[float, float], colour: alt.Color, background: str = "white"
) -> list[alt.Chart]:
    """The lines' names: to the right of those that reach the last length, beside the last point of the others."""
    low, high = (math.log(bound) for bound in bounds)
    ends = {curve.scheme: next((p for p in reversed(curve.points) if p.mean is not None), None) for curve in curves}
    reaching = {name: math.log(p.mean) for name, p in ends.items() if p and p.mean and p.length == last}
    placed = spread(list(reaching.values()), gap=LABEL_GAP / HEIGHT * (high - low))
    rows: list[dict[str, Any]] = [
        {"scheme": name, "end": math.exp(end), "name": math.exp(place)}
        for (name, end), place in zip(reaching.items(), placed, strict=True)
    ]
    right = alt.Chart(alt.InlineData(values=rows)).encode(color=colour)
    join = right.mark_rule(strokeWidth=1, opacity=0.7, clip=False).encode(
        x=alt.value(alt.expr("width + 6")), x2=alt.value(alt.expr("width + 22")), y="end:Q", y2="name:Q"
    )
    name = right.mark_text(align="left", fontSize=13, fontWeight=600).encode(
        x=alt.value(alt.expr("width + 26")), y="name:Q", text="scheme:N"
    )
    short = [
        {"scheme": name, "length": p.length, "perplexity": p.mean, "name": f"{name} (undefined beyond {p.length})"}
        for name, p in ends.items()
        if p and p.length < last
    ]
    beside = alt.Chart(alt.InlineData(values=short)).encode(x="length:Q", y="perplexity:Q", text="name:N")
    # Lines pass behind these names, so each stands on an edge of the background, a little above its point.
    edge = beside.mark_text(align="left", dx=9, dy=-9, fontSize=13, fontWeight=600, stroke=background, strokeWidth=5)
    text = beside.mark_text(align="left", dx=9, dy=-9, fontSize=13, fontWeight=600).encode(color=colour)
    return [join, name, edge, text]


def bounds_of(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """The perplexities that the chart spans, with a little air."""
    if not rows:
        return 1.0, 256.0
    return min(row["low"] for row in rows) / 1.12, max(row["high"] for row in rows) * 1.07


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between the bounds, about as many as a reader wants."""
    steps = (1, 1.5, 2, 3, 4, 5, 6, 8) if high / low < 30 else (1, 2, 5) if high / low < 300 else (1,)
    numbers = [step * 10.0**power for power in range(-2, 12) for step in steps]
    return [number for number in numbers if low <= number <= high]
