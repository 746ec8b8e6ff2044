"""The benchmark chart: everybody's time at every work, in multiples of attention without a bias."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import vl_convert

from relpos.files import write_bytes
from relpos.plots.style import styled

#: Contenders by the beginning of their names; ours in the strongest colour. Paul Tol's "bright" scheme.
_MARKS = {
    "relpos sdpa": ("#CC3311", "circle"),
    "relpos blocked": ("#CC3311", "diamond"),
    "relpos reference": ("#BBBBBB", "circle"),
    "gather": ("#222222", "triangle-right"),
    "dense": ("#4477AA", "square"),
    "eager": ("#66CCEE", "diamond"),
    "flex": ("#228833", "triangle-up"),
    "transformers": ("#AA3377", "triangle-down"),
    "relpos": ("#CC3311", "square"),
    "x-transformers": ("#CCBB44", "cross"),
    "disentangled-flash": ("#EE7733", "triangle-left"),
    "ONNX Runtime": ("#4477AA", "circle"),
    "OpenVINO": ("#222222", "diamond"),
}
WIDTH, ROW = 560, 24


@dataclass(frozen=True)
class Ratio:
    """The time of one contender at one work, as a multiple of the yardstick's."""

    work: str
    contender: str
    ratio: float


def draw_speed(ratios: Sequence[Ratio], *, title: str, unit: str, subtitle: str, path: Path) -> None:
    """Write the chart as PNG, twice the size in pixels."""
    chart = speed_chart(ratios, title=title, unit=unit, subtitle=subtitle)
    write_bytes(path, vl_convert.vegalite_to_png(chart.to_dict(), scale=2.0))


def speed_chart(ratios: Sequence[Ratio], *, title: str, unit: str, subtitle: str) -> alt.LayerChart:
    """One line a work, one mark a contender, on a logarithmic axis; 1 is the time of `unit`."""
    works = list(dict.fromkeys(ratio.work for ratio in ratios))
    names = list(dict.fromkeys(ratio.contender for ratio in ratios))
    rows = [{"work": ratio.work, "contender": ratio.contender, "ratio": ratio.ratio} for ratio in ratios]
    most = max(1.0, *(ratio.ratio for ratio in ratios))
    ticks = [tick for tick in (0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100) if tick <= most * 1.3]
    x = alt.X("ratio:Q", title=f"Time, as a multiple of that of {unit}").axis(values=ticks, orient="top", format="~r")
    x = x.scale(type="log", domain=[min(0.85, *(ratio.ratio for ratio in ratios)) * 0.95, most * 1.15], nice=False)
    y = alt.Y("work:N", title=None, sort=works).axis(labelLimit=360, grid=True, ticks=False, domain=False)
    marks = [
        next((mark for start, mark in _MARKS.items() if name.startswith(start)), ("#777777", "circle"))
        for name in names
    ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y)
    points = base.mark_point(filled=True, size=95, opacity=0.95).encode(
        color=alt.Color("contender:N", title=None).scale(domain=names, range=[colour for colour, _ in marks]),
        shape=alt.Shape("contender:N", title=None).scale(domain=names, range=[shape for _, shape in marks]),
    )
    one = alt.Chart(alt.InlineData(values=[{"at": 1}])).mark_rule(color="#222222", strokeDash=[4, 3]).encode(x="at:Q")
    heading = alt.TitleParams(title, subtitle=subtitle)
    chart = alt.LayerChart(layer=[one, points]).properties(width=WIDTH, height=max(ROW * len(works), 60), title=heading)
    drawn: alt.LayerChart = styled(chart).configure_legend(
        orient="bottom", columns=math.ceil(len(names) / 2), labelFontSize=12
    )
    return drawn
