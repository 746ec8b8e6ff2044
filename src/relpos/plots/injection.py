"""Where each scheme enters an attention block: its name at every place that its `injects_at` says."""

from __future__ import annotations

from typing import Any

import altair as alt

from relpos.plots.style import INK, mark_of, styled
from relpos.schemes import SCHEMES

WIDTH, HEIGHT, STEP = 800, 500, 22
#: The block from the input below to the output above: name, left, top, right, bottom.
BOXES = (
    ("input embedding", 230, 430, 640, 466),
    ("query", 190, 320, 300, 356),
    ("key", 340, 320, 450, 356),
    ("value", 560, 320, 660, 356),
    ("scores", 190, 190, 450, 226),
    ("softmax", 250, 110, 390, 146),
    ("weighted sum of values", 250, 24, 660, 60),
)
#: From the top of a box to the bottom of another: x, y, y above.
STREAMS = (
    (260, 430, 356),
    (395, 430, 356),
    (610, 430, 356),
    (260, 320, 226),
    (395, 320, 226),
    (320, 190, 146),
    (320, 110, 60),
    (610, 320, 60),
)
#: The words of `injects_at`: left edge of the names, middle of their list, and the arrow's two ends, if any.
PLACES: dict[str, tuple[int, int, tuple[int, int] | None]] = {
    "input": (85, 448, (188, 227)),
    "query": (100, 338, (160, 187)),
    "key": (485, 338, (478, 453)),
    "values": (702, 338, (694, 663)),
    "scores": (50, 208, (150, 187)),
    "nowhere": (702, 448, None),
}


def names_at_places() -> list[dict[str, Any]]:
    """Each scheme at each of its places, from its own `injects_at` and `encodes`, below one another."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, scheme in SCHEMES.items():
        mark = mark_of(name)
        for place in scheme.injects_at.split(" and "):
            known = place in PLACES
            entry: dict[str, Any] = {
                "scheme": name,
                "text": name if known else f"{name} ({place})",
                "place": place if known else "nowhere",
                "encodes": scheme.encodes,
                "colour": mark.colour,
                "fill": mark.colour if scheme.encodes == "distance" else "white",
                "shape": mark.shape,
            }
            found.setdefault(str(entry["place"]), []).append(entry)
    for place, entries in found.items():
        left, middle, _ = PLACES[place]
        for index, entry in enumerate(entries):
            entry |= {"x": left, "y": middle + STEP * (index - (len(entries) - 1) / 2)}
    return [entry for entries in found.values() for entry in entries]


def injection_chart() -> alt.LayerChart:
    """An attention block, and at each of its places the schemes that enter there."""
    x = alt.X("x:Q", axis=None).scale(domain=[40, 40 + WIDTH], nice=False)
    y = alt.Y("y:Q", axis=None).scale(domain=[0, HEIGHT], nice=False, reverse=True)
    entries = names_at_places()
    boxes = [
        {
            "text": text,
            "x": left,
            "y": top,
            "x2": right,
            "y2": bottom,
            "mx": (left + right) / 2,
            "my": (top + bottom) / 2,
        }
        for text, left, top, right, bottom in BOXES
    ]
    streams = [{"x": at, "y": below, "y2": above + 9, "tip": above + 8} for at, below, above in STREAMS]
    used = [PLACES[place] for place in dict.fromkeys(entry["place"] for entry in entries)]
    sides = [
        {"x": start, "y": middle, "x2": end, "right": end > start}
        for _, middle, arrow in used
        if arrow
        for start, end in [arrow]
    ]
    legend = [
        {"x": 640, "y": 108 + STEP * index, "fill": fill, "text": text}
        for index, (fill, text) in enumerate([(INK, "encodes a distance"), ("white", "encodes a position, or nothing")])
    ]
    nowhere = [
        {"x": 695, "y": 448 - STEP * (1 + sum(e["place"] == "nowhere" for e in entries)) / 2, "text": "nowhere:"}
    ]

    def chart(rows: list[dict[str, Any]]) -> alt.Chart:
        return alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y)

    colour = alt.Color("colour:N", scale=None, legend=None)
    shape = alt.Shape("shape:N", scale=None, legend=None)
    fill = alt.Fill("fill:N", scale=None, legend=None)
    grey = "#888888"
    layers = [
        chart(streams).mark_rule(color=grey, strokeWidth=1.5).encode(y2="y2:Q"),
        chart(streams)
        .mark_point(shape="triangle-up", filled=True, color=grey, size=70, opacity=1)
        .encode(y=alt.Y("tip:Q", axis=None)),
        chart(boxes).mark_rect(fill="#f2f2f2", stroke="#999999", cornerRadius=5).encode(x2="x2:Q", y2="y2:Q"),
        chart(boxes)
        .mark_text(fontSize=14, color=INK)
        .encode(x=alt.X("mx:Q", axis=None), y=alt.Y("my:Q", axis=None), text="text:N"),
        chart(sides).mark_rule(color=INK, strokeWidth=1.5).encode(x2="x2:Q"),
        *(
            chart([side for side in sides if side["right"] is right])
            .mark_point(shape=f"triangle-{'right' if right else 'left'}", filled=True, color=INK, size=70, opacity=1)
            .encode(x=alt.X("x2:Q", axis=None))
            for right in (True, False)
        ),
        # The scheme's colour stands around its shape, filled or not.
        chart(entries)
        .mark_point(size=80, opacity=1, strokeWidth=2)
        .encode(stroke=alt.Stroke("colour:N", scale=None, legend=None), fill=fill, shape=shape),
        chart(entries).mark_text(align="left", dx=11, fontSize=14, fontWeight=600).encode(text="text:N", color=colour),
        chart(legend).mark_point(size=80, opacity=1, strokeWidth=2, stroke=INK).encode(fill=fill),
        chart(legend).mark_text(align="left", dx=11, fontSize=12, color=INK).encode(text="text:N"),
        chart(nowhere).mark_text(align="left", fontSize=12, color=grey).encode(text="text:N"),
    ]
    title = alt.TitleParams("Where each scheme enters attention")
    return styled(alt.LayerChart(layer=layers).properties(width=WIDTH, height=HEIGHT, title=title))
