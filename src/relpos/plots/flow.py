"""From a sentence to scores: positions, distances, clipping, lookup, sum, with the numbers of `example`."""

from __future__ import annotations

from typing import Any

import altair as alt
from torch import Tensor

from relpos.plots.example import MAX_DISTANCE, SENTENCE, Example, example
from relpos.plots.style import DIVERGING, INK, styled

#: The pair that is followed through the picture: where the distance is clipped.
QUERY, KEY = 4, 0

CELL, HEAD = 40, 62
#: Left edges of the panels of each row, in pixels; the rows stand `ROW` apart.
WORDS, DISTANCES, ROWS, TABLE = 0, 185, 450, 710
BIAS, CONTENT, SCORES = 32, 316, 600
ROW, PAGE_WIDTH = 325, 890


def flow_chart() -> alt.LayerChart:
    """The picture: two rows of panels, and one pair of words outlined from its distance to its score."""
    numbers = example()
    words = [
        _mark("word", "sentence", index, 0, WORDS + 30, HEAD + index * CELL, word, width=2 * CELL)
        for index, word in enumerate(SENTENCE)
    ] + [
        _mark("position", "sentence", index, 0, WORDS - 5, HEAD + index * CELL, str(index), width=CELL - 5)
        for index in range(len(SENTENCE))
    ]
    grids = [
        *_grid("distance", numbers.distance, DISTANCES, 0, "{:d}"),
        *_grid("row", numbers.row, ROWS, 0, "{:d}"),
        *_grid("bias", numbers.bias, BIAS, ROW, "{:.1f}"),
        *_grid("content", numbers.content, CONTENT, ROW, "{:.1f}"),
        *_grid("score", numbers.score, SCORES, ROW, "{:.1f}"),
    ]
    table = [
        _mark("table", "table", row, 0, TABLE + 45, HEAD + row * CELL, f"{value:.1f}", value=value, width=60)
        for row, value in enumerate(numbers.table.tolist())
    ]
    return _drawn([*words, *grids, *table], _labels(), numbers)


def _mark(
    kind: str,
    panel: str,
    i: int,
    j: int,
    x: float,
    y: float,
    text: str,
    *,
    value: float | None = None,
    width: int = CELL,
) -> dict[str, Any]:
    """One box: its place in pixels, its text, and the number that colours it."""
    return {
        "kind": kind,
        "panel": panel,
        "i": i,
        "j": j,
        "x": x,
        "y": y,
        "x2": x + width,
        "y2": y + CELL,
        "text": text.replace("-", "\u2212"),
        "value": None if value is None else round(value, 6) + 0.0,
    }


def _grid(panel: str, numbers: Tensor, left: float, top: float, form: str) -> list[dict[str, Any]]:
    return [
        _mark(panel, panel, i, j, left + j * CELL, top + HEAD + i * CELL, form.format(value), value=float(value))
        for i, line in enumerate(numbers.tolist())
        for j, value in enumerate(line)
    ]


def _labels() -> list[dict[str, Any]]:
    """Headings above the panels, the words beside the grids, the signs between them."""
    side = len(SENTENCE) * CELL
    k = MAX_DISTANCE
    headings = [
        (WORDS, 0, "1  Positions", "one for each word"),
        (DISTANCES, 0, "2  Distances", "key \u2212 query: the past is negative"),
        (ROWS, 0, "3  Clipped to rows", f"clip(distance, \u2212{k}, {k}) + {k}"),
        (TABLE, 0, "4  Table", "a number for each row"),
        (BIAS, ROW, "5  Bias looked up", "table[row]"),
        (CONTENT, ROW, "6  Content", "query \u00b7 key / \u221aD: no position"),
        (SCORES, ROW, "7  Scores", "content + bias"),
    ]
    found = [{"x": x, "y": y + 10, "text": text, "style": "heading"} for x, y, text, _ in headings]
    found += [{"x": x, "y": y + 29, "text": text, "style": "under"} for x, y, _, text in headings]
    for left, top in ((DISTANCES, 0), (ROWS, 0), (BIAS, ROW), (CONTENT, ROW), (SCORES, ROW)):
        for index, word in enumerate(SENTENCE):
            middle = (index + 0.5) * CELL
            found.append({"x": left + middle, "y": top + HEAD - 9, "text": word, "style": "key"})
            found.append({"x": left - 5, "y": top + HEAD + middle, "text": word, "style": "query"})
    for row in range(2 * k + 1):
        distance = f"{row - k:d}".replace("-", "\u2212")
        words = f"{distance}{' and before' if row == 0 else ' and after' if row == 2 * k else ''}"
        y = HEAD + (row + 0.5) * CELL
        found.append({"x": TABLE + 39, "y": y, "text": f"row {row}", "style": "query"})
        found.append({"x": TABLE + 112, "y": y, "text": words, "style": "after"})
    middle = HEAD + side / 2
    found += [{"x": CONTENT - 59, "y": ROW + middle, "text": "+", "style": "sign"}]
    found += [{"x": SCORES - 59, "y": ROW + middle, "text": "=", "style": "sign"}]
    return found


def _drawn(boxes: list[dict[str, Any]], labels: list[dict[str, Any]], numbers: Example) -> alt.LayerChart:
    height = ROW + HEAD + len(SENTENCE) * CELL + 34
    layers = [
        *_cells(boxes, _limits(numbers)),
        *_texts(labels),
        _layer(_arrows()).mark_point(shape="triangle-right", filled=True, size=130, color="#888888", opacity=1),
        _layer(_followed(boxes, numbers))
        .mark_rect(filled=False, stroke=INK, strokeWidth=2.5)
        .encode(x2="x2:Q", y2="y2:Q"),
        _layer([{"x": 0, "y": height - 10, "text": _caption(numbers)}])
        .mark_text(align="left", baseline="middle", fontSize=12, color=INK)
        .encode(text="text:N"),
    ]
    # One pair of axes, in pixels, for all layers.
    x, y = alt.X("x:Q").scale(domain=[-10, PAGE_WIDTH - 10]), alt.Y("y:Q").scale(domain=[0, height], reverse=True)
    layers.insert(0, _layer([]).mark_point().encode(x=x.axis(None), y=y.axis(None)))
    chart = alt.LayerChart(layer=layers).properties(width=PAGE_WIDTH, height=height).resolve_scale(color="independent")
    drawn: alt.LayerChart = styled(chart)
    return drawn


def _layer(rows: list[dict[str, Any]]) -> alt.Chart:
    x, y = alt.X("x:Q", axis=None).scale(nice=False), alt.Y("y:Q", axis=None).scale(nice=False)
    layer: alt.Chart = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y)
    return layer


def _limits(numbers: Example) -> dict[str, float]:
    """The number at the end of each panel's colour scale; content and scores share one, as table and bias do."""
    table, score = float(numbers.table.abs().max()), float(numbers.score.abs().max())
    return {"distance": len(SENTENCE) - 1.0, "table": table, "bias": table, "content": score, "score": score}


def _cells(boxes: list[dict[str, Any]], limits: dict[str, float]) -> list[alt.Chart]:
    """The boxes in their colours, and the numbers in them, white where the box is dark."""
    layers = []
    for panel in dict.fromkeys(box["panel"] for box in boxes):
        cells = _layer([box for box in boxes if box["panel"] == panel]).encode(x2="x2:Q", y2="y2:Q")
        if panel not in limits:
            layers.append(cells.mark_rect(stroke="white", strokeWidth=2, color="#eeeeee"))
            continue
        domain = [round(step * limits[panel] / 4, 6) for step in range(-4, 5)]
        colour = alt.Color("value:Q", legend=None).scale(range=DIVERGING, domain=domain)
        layers.append(cells.mark_rect(stroke="white", strokeWidth=2).encode(color=colour))
    for dark, ink in ((False, INK), (True, "white")):
        rows = [
            {"x": (box["x"] + box["x2"]) / 2, "y": (box["y"] + box["y2"]) / 2, "text": box["text"]}
            for box in boxes
            if dark == (box["panel"] in limits and abs(box["value"]) > 0.6 * limits[box["panel"]])
        ]
        layers.append(_layer(rows).mark_text(fontSize=13, color=ink).encode(text="text:N"))
    return layers


def _texts(labels: list[dict[str, Any]]) -> list[alt.Chart]:
    styles: dict[str, dict[str, Any]] = {
        "heading": {"align": "left", "fontSize": 15, "fontWeight": "bold"},
        "under": {"align": "left", "fontSize": 12, "color": "#555555"},
        "key": {"align": "center", "fontSize": 11, "color": "#555555"},
        "query": {"align": "right", "fontSize": 11, "color": "#555555"},
        "after": {"align": "left", "fontSize": 11, "color": "#555555"},
        "sign": {"align": "center", "fontSize": 26, "fontWeight": "bold"},
    }
    return [
        _layer([label for label in labels if label["style"] == style])
        .mark_text(baseline="middle", **look)
        .encode(text="text:N")
        for style, look in styles.items()
    ]


def _arrows() -> list[dict[str, Any]]:
    middle = HEAD + len(SENTENCE) * CELL / 2
    return [{"x": at, "y": middle} for at in (DISTANCES - 57, ROWS - 52, TABLE - 50)]


def _followed(boxes: list[dict[str, Any]], numbers: Example) -> list[dict[str, Any]]:
    """The followed pair's box in every panel that it goes through."""
    row = int(numbers.row[QUERY, KEY])
    followed = {("sentence", QUERY, 0), ("sentence", KEY, 0), ("table", row, 0)}
    followed |= {(panel, QUERY, KEY) for panel in ("distance", "row", "bias", "content", "score")}
    return [box for box in boxes if (box["panel"], box["i"], box["j"]) in followed and box["kind"] != "position"]


def _caption(numbers: Example) -> str:
    """What the outlined cells say, in words."""
    row = int(numbers.row[QUERY, KEY])
    other = max(place for place, word in enumerate(SENTENCE) if word == SENTENCE[KEY])
    return (
        f"Outlined: \u201c{SENTENCE[QUERY]}\u201d looks at the first \u201c{SENTENCE[KEY]}\u201d, distance "
        f"{int(numbers.distance[QUERY, KEY])}, row {row}, bias {float(numbers.table[row]):.1f}. "
        f"The second \u201c{SENTENCE[other]}\u201d has the same content, "
        f"{float(numbers.content[QUERY, other]):.1f}, and another score."
    ).replace("-", "\u2212")
