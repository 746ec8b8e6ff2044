"""From a sentence to scores: positions, distances, clipping, lookup, sum, with the numbers of a real example.

The sentence has one word twice. Its two tokens have the same content, so that without positions their scores are
equal; the table, trained to look at the word before, tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import torch
from jaxtyping import Float, Int
from torch import Tensor

import relpos
from relpos import functional
from relpos.plots.style import DIVERGING, INK, styled

SENTENCE = ("the", "cat", "eats", "the", "fish")
MAX_DISTANCE, WIDTH = 2, 4
#: The pair that is followed through the picture: where the distance is clipped.
QUERY, KEY = 4, 0

CELL, HEAD = 40, 62
#: Left edges of the panels of each row, in pixels; the rows stand `ROW` apart.
WORDS, DISTANCES, ROWS, TABLE = 0, 185, 450, 710
BIAS, CONTENT, SCORES = 32, 316, 600
ROW, PAGE_WIDTH = 325, 890


@dataclass(frozen=True)
class Example:
    """Everything that the picture shows: `[T, T]` by query and key, and the table `[2k + 1]`."""

    distance: Int[Tensor, "T T"]
    row: Int[Tensor, "T T"]
    table: Float[Tensor, " R"]
    bias: Float[Tensor, "T T"]
    content: Float[Tensor, "T T"]
    score: Float[Tensor, "T T"]


def example() -> Example:
    """The numbers, each from the library's own call."""
    vectors = _word_vectors()
    positions = relpos.Positions.arange(len(SENTENCE))
    scheme = _trained(vectors)
    bias = scheme.bias(len(SENTENCE))[0].detach()
    content = vectors @ vectors.T / WIDTH**0.5
    distance = positions.distance()
    row = functional.shaw_index(distance, MAX_DISTANCE)
    return Example(distance, row, scheme.table.detach()[0], bias, content, content + bias)


def _word_vectors() -> Float[Tensor, "T D"]:
    """A vector of -1, 0 and 1 for each word; equal words have equal vectors."""
    generator = torch.Generator().manual_seed(8)
    of_word = {word: torch.randint(-1, 2, (WIDTH,), generator=generator).float() for word in dict.fromkeys(SENTENCE)}
    return torch.stack([of_word[word] for word in SENTENCE])


def _trained(vectors: Float[Tensor, "T D"]) -> relpos.ShawBias:
    """A table that has learned to look at the word before, rounded to tenths so that a reader can add."""
    scheme = relpos.ShawBias(num_heads=1, max_distance=MAX_DISTANCE)
    optimizer = torch.optim.SGD(scheme.parameters(), lr=1.0)
    query = vectors[None, None]
    for _ in range(10):
        weights = relpos.attention_weights(query, query, query, scheme)[0, 0]
        loss = -weights.diagonal(-1).log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        scheme.table.copy_((10 * scheme.table).round() / 10)
    return scheme


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
    width, height = PAGE_WIDTH, ROW + HEAD + len(SENTENCE) * CELL + 34
    x = alt.X("x:Q", axis=None).scale(domain=[-10, width - 10], nice=False)
    y = alt.Y("y:Q", axis=None).scale(domain=[0, height], nice=False, reverse=True)
    layers: list[alt.Chart] = []
    most = {
        "distance": len(SENTENCE) - 1.0,
        "bias": float(numbers.table.abs().max()),
        "score": float(numbers.score.abs().max()),
    }
    most |= {"table": most["bias"], "content": most["score"]}
    for panel, limit in most.items():
        layers.append(_cells([box for box in boxes if box["panel"] == panel], x, y, limit))
    layers.append(_cells([box for box in boxes if box["panel"] in ("sentence", "row")], x, y, None))
    texts = alt.Chart(alt.InlineData(values=boxes)).encode(x=x, y=y)
    middle = texts.transform_calculate(mx="(datum.x + datum.x2) / 2", my="(datum.y + datum.y2) / 2")
    # Dark cells at the ends of the colour scale carry white text.
    dark = [{**box, "dark": _is_dark(box, most)} for box in boxes]
    middle.data = alt.InlineData(values=dark)
    layers.append(
        middle.mark_text(fontSize=13).encode(
            x=alt.X("mx:Q", axis=None),
            y=alt.Y("my:Q", axis=None),
            text="text:N",
            color=alt.Color("dark:N", legend=None).scale(domain=[False, True], range=[INK, "white"]),
        )
    )
    styles: dict[str, dict[str, Any]] = {
        "heading": {"align": "left", "fontSize": 15, "fontWeight": "bold"},
        "under": {"align": "left", "fontSize": 12, "color": "#555555"},
        "key": {"align": "center", "fontSize": 11, "color": "#555555"},
        "query": {"align": "right", "fontSize": 11, "color": "#555555"},
        "after": {"align": "left", "fontSize": 11, "color": "#555555"},
        "sign": {"align": "center", "fontSize": 26, "fontWeight": "bold"},
    }
    for style, look in styles.items():
        chosen = [label for label in labels if label["style"] == style]
        layers.append(
            alt.Chart(alt.InlineData(values=chosen))
            .mark_text(baseline="middle", **look)
            .encode(x=x, y=y, text="text:N")
        )
    layers += [_arrows(x, y), _outlines(boxes, numbers, x, y), _caption(numbers, x, y, height)]
    chart = alt.LayerChart(layer=layers).properties(width=width, height=height)
    return styled(chart.resolve_scale(color="independent"))


def _cells(boxes: list[dict[str, Any]], x: alt.X, y: alt.Y, limit: float | None) -> alt.Chart:
    base = alt.Chart(alt.InlineData(values=boxes)).mark_rect(stroke="white", strokeWidth=2)
    if limit is None:
        return base.mark_rect(stroke="white", strokeWidth=2, color="#eeeeee").encode(x=x, y=y, x2="x2:Q", y2="y2:Q")
    domain = [round(step * limit / 4, 6) for step in range(-4, 5)]
    colour = alt.Color("value:Q", legend=None).scale(range=DIVERGING, domain=domain)
    return base.encode(x=x, y=y, x2="x2:Q", y2="y2:Q", color=colour)


def _is_dark(box: dict[str, Any], most: dict[str, float]) -> bool:
    return box["panel"] in most and abs(box["value"]) > 0.6 * most[box["panel"]]


def _arrows(x: alt.X, y: alt.Y) -> alt.Chart:
    middle = HEAD + len(SENTENCE) * CELL / 2
    rows = [{"x": at, "y": middle} for at in (DISTANCES - 57, ROWS - 52, TABLE - 50)]
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_point(shape="triangle-right", filled=True, size=130, color="#888888", opacity=1)
        .encode(x=x, y=y)
    )


def _outlines(boxes: list[dict[str, Any]], numbers: Example, x: alt.X, y: alt.Y) -> alt.Chart:
    """The followed pair, in every panel that it goes through."""
    row = int(numbers.row[QUERY, KEY])
    followed = {("sentence", QUERY, 0), ("sentence", KEY, 0), ("table", row, 0)}
    followed |= {(panel, QUERY, KEY) for panel in ("distance", "row", "bias", "content", "score")}
    chosen = [box for box in boxes if (box["panel"], box["i"], box["j"]) in followed and box["kind"] != "position"]
    return (
        alt.Chart(alt.InlineData(values=chosen))
        .mark_rect(filled=False, stroke=INK, strokeWidth=2.5)
        .encode(x=x, y=y, x2="x2:Q", y2="y2:Q")
    )


def _caption(numbers: Example, x: alt.X, y: alt.Y, height: float) -> alt.Chart:
    """What the outlined cells say, in words."""
    row = int(numbers.row[QUERY, KEY])
    other = max(place for place, word in enumerate(SENTENCE) if word == SENTENCE[KEY])
    text = (
        f"Outlined: \u201c{SENTENCE[QUERY]}\u201d looks at the first \u201c{SENTENCE[KEY]}\u201d, distance "
        f"{int(numbers.distance[QUERY, KEY])}, row {row}, bias {float(numbers.table[row]):.1f}. The second "
        f"\u201c{SENTENCE[other]}\u201d has the same content, {float(numbers.content[QUERY, other]):.1f}, and another score."
    ).replace("-", "\u2212")
    rows = [{"x": 0, "y": height - 10, "text": text}]
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_text(align="left", baseline="middle", fontSize=12, color=INK)
        .encode(x=x, y=y, text="text:N")
    )
