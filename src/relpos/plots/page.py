"""Charts for a page that a browser draws: as in print, with values on hover and one scheme singled out by a click.

The page holds Vega once. Each chart is a Vega-Lite specification with a parameter `single`, the scheme that stands out
("" for all), and, where lines have names at their ends, `names`, whether there is room for them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from relpos.plots.extrapolation import Curve, bounds_of, names_of, rows_of, ticks
from relpos.plots.style import mark_of, page_colour, page_config

HEIGHT = 420
_IS_SINGLE = "single === '' || datum.scheme === single"
_FADED = 0.1


@dataclass(frozen=True)
class Stretch:
    """Mean loss of one scheme at positions `first` to `last` of a window; `low` and `high` over the seeds."""

    scheme: str
    first: int
    last: int
    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class Head:
    """The shares of attention that one row of a heat map gives to its bins of distances."""

    name: str
    shares: tuple[float, ...]


def as_script_data(data: Any) -> str:
    """JSON that may stand inside a `<script>` element, whatever text it holds."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def perplexity_page_chart(curves: Sequence[Curve], *, trained_length: int, several_seeds: bool) -> dict[str, Any]:
    """Perplexity against length on logarithmic axes; `curves` in the order of the page's colours."""
    lengths = sorted({point.length for curve in curves for point in curve.points})
    rows = rows_of(curves)
    bounds = bounds_of(rows)
    x = alt.X("length:Q", title="evaluated length in bytes").scale(
        type="log", base=2, domain=[lengths[0] / 1.15, lengths[-1]], nice=False
    )
    labels = f"[format(datum.value, ','), format(datum.value / {trained_length}, '.3~r') + ' x']"
    x = x.axis(values=lengths, grid=False, labelExpr=labels, labelOverlap="greedy", labelFlush=False)
    y = alt.Y("perplexity:Q", title="perplexity per byte").scale(type="log", domain=list(bounds), nice=False)
    y = y.axis(values=ticks(*bounds), format="~r", labelOverlap=True)
    colour = _colour([curve.scheme for curve in curves])
    tooltip = [
        alt.Tooltip("scheme:N"),
        alt.Tooltip("length:Q", title="length", format=","),
        alt.Tooltip("perplexity:Q", format=".3f", title="mean perplexity" if several_seeds else "perplexity"),
    ]
    if several_seeds:
        tooltip += [
            alt.Tooltip("low:Q", title="lowest", format=".3f"),
            alt.Tooltip("high:Q", title="highest", format=".3f"),
        ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, color=colour)
    band = base.mark_area().encode(y=alt.Y("low:Q"), y2="high:Q", opacity=_opacity(0.16, 0.02))
    names = [
        layer.transform_filter("names").encode(opacity=_opacity(1, 0))
        for layer in names_of(curves, lengths[-1], bounds, colour, background="var(--page)")
    ]
    layers = [*([band] if several_seeds else []), *_line_layers(base, [c.scheme for c in curves], tooltip), *names]
    return _specification(alt.LayerChart(layer=layers), height=HEIGHT, names=True)


def position_page_chart(
    stretches: Sequence[Stretch],
    schemes: Sequence[str],
    *,
    window: int,
    trained_length: int,
    bounds: tuple[float, float],
    several_seeds: bool,
) -> dict[str, Any]:
    """Loss against position inside a window of one length, on a logarithmic axis of positions."""
    rows = [
        {
            "scheme": each.scheme,
            "position": (each.first + each.last + 1) / 2,
            "positions": f"{each.first:,} to {each.last:,}",
            "loss": each.loss,
            "low": each.low,
            "high": each.high,
        }
        for each in stretches
    ]
    start = min(((each.first + each.last + 1) / 2 for each in stretches), default=1.0)
    x = alt.X("position:Q", title="position in the window").scale(
        type="log", base=2, domain=[start / 1.15, window * 1.02], nice=False
    )
    powers = [trained_length * 4**power for power in range(-2, 12)]
    x = x.axis(values=[tick for tick in powers if start / 1.15 <= tick <= window], grid=False, format=",")
    y = alt.Y("loss:Q", title="loss, nats per byte").scale(domain=list(bounds), nice=False, zero=False)
    y = y.axis(tickCount=5)
    tooltip = [
        alt.Tooltip("scheme:N"),
        alt.Tooltip("positions:N"),
        alt.Tooltip("loss:Q", format=".3f", title="mean loss"),
    ]
    if several_seeds:
        tooltip += [
            alt.Tooltip("low:Q", title="lowest", format=".3f"),
            alt.Tooltip("high:Q", title="highest", format=".3f"),
        ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, color=_colour(schemes))
    trained = alt.Chart(alt.InlineData(values=[{"at": trained_length}])).encode(x="at:Q")
    rule = trained.mark_rule(color="var(--muted)", strokeDash=[4, 3])
    layers = [*([rule] if window > trained_length else []), *_line_layers(base, schemes, tooltip)]
    multiple = f"{window / trained_length:g} times the trained length" if window != trained_length else "trained"
    chart = alt.LayerChart(layer=layers).properties(title=f"{window:,} bytes ({multiple})")
    return _specification(chart, height=200)


def attention_page_chart(
    heads: Sequence[Head], starts: Sequence[int], *, window: int, has_names: bool
) -> dict[str, Any]:
    """One row a head, one column a bin of distances, the darker the larger the head's share there.

    A chart beside another one with the same heads needs no names of its own.
    """
    ends = [*(start - 1 for start in starts[1:]), window - 1]
    rows = [
        {
            "head": head.name,
            "back": f"{start:,}",
            "distance": f"{start:,}" if start == end else f"{start:,} to {end:,}",
            "share": share,
        }
        for head in heads
        for start, end, share in zip(starts, ends, head.shares, strict=True)
    ]
    small: dict[str, Any] = {"ticks": False, "domain": False, "labelFontSize": 10}
    x = alt.X("back:N", title="bytes back", sort=None).axis(
        labelAngle=0, labelOverlap="greedy", labelSeparation=3, **small
    )
    cells = alt.Chart(alt.InlineData(values=rows), title=f"{window:,} bytes", width=alt.Step(16), height=alt.Step(13))
    cells = cells.mark_rect(color="var(--heat)", stroke="var(--faint)", strokeWidth=0.6).encode(
        x=x,
        y=alt.Y("head:N", title=None, sort=None).axis(labels=has_names, **small),
        # The square root keeps a share of one in a hundred in sight.
        opacity=alt.Opacity("share:Q", legend=None).scale(type="sqrt", domain=[0, 1], range=[0, 1]),
        tooltip=[
            alt.Tooltip("head:N"),
            alt.Tooltip("distance:N", title="bytes back"),
            alt.Tooltip("share:Q", format=".2%", title="share of its attention"),
        ],
    )
    return _finished(cells)


def _line_layers(base: alt.Chart, schemes: Sequence[str], tooltip: list[alt.Tooltip]) -> list[alt.Chart]:
    """Lines, their points, and wider invisible points that a pointer meets."""
    marks = [mark_of(scheme) for scheme in schemes]
    dash = alt.StrokeDash("scheme:N", legend=None).scale(
        domain=list(schemes), range=[list(mark.dash) or [1, 0] for mark in marks]
    )
    shape = alt.Shape("scheme:N", legend=None).scale(domain=list(schemes), range=[mark.shape for mark in marks])
    lines = base.mark_line(strokeWidth=2.2).encode(strokeDash=dash, opacity=_opacity(1, _FADED))
    points = base.mark_point(filled=True, size=50).encode(shape=shape, opacity=_opacity(1, _FADED))
    targets = base.mark_point(filled=True, size=150, opacity=0, cursor="pointer").encode(tooltip=tooltip)
    return [lines, points, targets]


def _colour(schemes: Sequence[str]) -> alt.Color:
    colours = [page_colour(index) for index in range(len(schemes))]
    return alt.Color("scheme:N", legend=None).scale(domain=list(schemes), range=colours)


def _opacity(shown: float, faded: float) -> Any:
    return alt.when(_IS_SINGLE).then(alt.value(shown)).otherwise(alt.value(faded))


def _specification(chart: alt.LayerChart, *, height: int, names: bool = False) -> dict[str, Any]:
    parameters = [alt.param(name="single", value=""), *([alt.param(name="names", value=True)] if names else [])]
    chart = chart.add_params(*parameters).properties(width="container", height=height)
    return _finished(chart) | {"autosize": {"type": "fit-x", "contains": "padding"}}


def _finished(chart: alt.Chart | alt.LayerChart) -> dict[str, Any]:
    specification: dict[str, Any] = chart.to_dict()
    return specification | {"config": page_config()}
