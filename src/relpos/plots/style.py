"""The house style: one fixed colour per scheme, told apart with any colour vision, and one font for all charts.

The colours are Paul Tol's "muted" scheme (personal.sron.nl/~pault, 2021), which keeps its hues apart under the common
colour vision deficiencies, with its cyan darkened so that names in it can be read on white, and two dark greys. Marks
of neighbouring hues differ in shape too. On dark pages each hue has a lighter twin.

Pages draw with CSS custom properties in place of colours, so that light and dark are one drawing and a rule of CSS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import altair as alt

Chart = TypeVar("Chart", alt.LayerChart, alt.VConcatChart)

FONT = "Helvetica, Arial, DejaVu Sans, sans-serif"
INK = "#222222"
FAINT = "#dddddd"
#: Heat maps: of numbers around 0, orange over white to purple (ColorBrewer's PuOr); of others, pale to dark
#: (ColorBrewer's YlGnBu). Both keep their order with any colour vision and in grey print.
DIVERGING = ["#7f3b08", "#b35806", "#e08214", "#fdb863", "#f7f7f7", "#b2abd2", "#8073ac", "#542788", "#2d004b"]
SEQUENTIAL = ["#ffffd9", "#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#253494", "#081d58"]


@dataclass(frozen=True)
class Mark:
    """How one scheme is drawn: line colour on white and on dark, point shape, and dashes for a control."""

    colour: str
    dark: str
    shape: str
    dash: tuple[int, ...] = ()


_MARKS = {
    "nope": Mark("#222222", "#E8E8E8", "circle"),
    "learned": Mark("#999933", "#BBBD41", "diamond"),
    "sinusoidal": Mark("#882255", "#C94880", "square"),
    "shaw_bias": Mark("#4AA8D8", "#90D2FF", "triangle-up"),
    "shaw": Mark("#4AA8D8", "#90D2FF", "triangle-right"),
    "huang": Mark("#777777", "#A0A0A0", "triangle-left"),
    "t5": Mark("#44AA99", "#5AB9C6", "square"),
    "alibi": Mark("#332288", "#8864FC", "circle"),
    "alibi_reversed": Mark("#AA4499", "#B569C0", "triangle-down", (5, 3)),
    "deberta": Mark("#117733", "#43A544", "diamond"),
    "fire": Mark("#B5651D", "#E39A55", "cross"),
    "rope": Mark("#CC6677", "#F87B8D", "circle"),
}
_OTHER = Mark("#777777", "#A0A0A0", "cross", (2, 2))


def mark_of(scheme: str) -> Mark:
    """The mark of a scheme; those without one of their own are grey and dotted."""
    return _MARKS.get(scheme, _OTHER)


def colour_of(scheme: str) -> str:
    """The colour of a scheme, the same in every chart."""
    return mark_of(scheme).colour


def ramp(count: int) -> list[str]:
    """Colours for lines that have an order (heads), evenly along the part of SEQUENTIAL that is seen on white."""
    stops = [[int(colour[place : place + 2], 16) for place in (1, 3, 5)] for colour in SEQUENTIAL[2:]]
    colours = []
    for index in range(count):
        whole, part = divmod(index * (len(stops) - 1) / max(count - 1, 1), 1)
        low, high = stops[int(whole)], stops[min(int(whole) + 1, len(stops) - 1)]
        mixed = [round(a + (b - a) * part) for a, b in zip(low, high, strict=True)]
        colours.append("#" + "".join(f"{channel:02x}" for channel in mixed))
    return colours


def page_colours(schemes: Sequence[str]) -> str:
    """CSS custom properties `--mark-0`, `--mark-1` ... for schemes in this order, light and dark."""
    marks = [mark_of(scheme) for scheme in schemes]
    light = "".join(f"--mark-{index}:{mark.colour};" for index, mark in enumerate(marks))
    dark = "".join(f"--mark-{index}:{mark.dark};" for index, mark in enumerate(marks))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def page_colour(index: int) -> str:
    """The colour of the scheme at `index` of the list that `page_colours` was given."""
    return f"var(--mark-{index})"


def page_config() -> dict[str, Any]:
    """The house style for charts of a page, whose colours are CSS custom properties: --ink, --muted, --faint."""
    return {
        "font": FONT,  # by name: text is measured before it is drawn
        "background": "transparent",
        "view": {"stroke": None},
        "axis": {
            "labelFontSize": 12,
            "titleFontSize": 12.5,
            "titleFontWeight": "normal",
            "titleColor": "var(--muted)",
            "labelColor": "var(--ink)",
            "gridColor": "var(--faint)",
            "domainColor": "var(--muted)",
            "tickColor": "var(--muted)",
        },
        "title": {"fontSize": 13, "anchor": "start", "color": "var(--ink)", "fontWeight": 600, "offset": 8},
    }


def styled(chart: Chart) -> Chart:
    """Give a chart the house's fonts, grid and background."""
    drawn: Chart = (
        chart.configure(font=FONT, background="white")
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12,
            titleFontSize=13,
            titleFontWeight="normal",
            titleColor=INK,
            labelColor=INK,
            gridColor=FAINT,
            domainColor=INK,
            tickColor=INK,
        )
        .configure_title(
            fontSize=16,
            subtitleFontSize=12,
            anchor="start",
            color=INK,
            subtitleColor="#555555",
            subtitlePadding=6,
            offset=14,
        )
    )
    return drawn
