"""The house style: one fixed colour per scheme, told apart with any colour vision, and one font for all charts.

The colours are Paul Tol's "muted" scheme (personal.sron.nl/~pault, 2021), which keeps its hues apart under the common
colour vision deficiencies, with its cyan darkened so that names in it can be read on white, and two dark greys. Marks
of neighbouring hues differ in shape too.
"""

from dataclasses import dataclass

import altair as alt

FONT = "Helvetica, Arial, DejaVu Sans, sans-serif"
INK = "#222222"
FAINT = "#dddddd"


@dataclass(frozen=True)
class Mark:
    """How one scheme is drawn: line colour, point shape, and dashes for a control."""

    colour: str
    shape: str
    dash: tuple[int, ...] = ()


_MARKS = {
    "nope": Mark("#222222", "circle"),
    "learned": Mark("#999933", "diamond"),
    "sinusoidal": Mark("#882255", "square"),
    "shaw_bias": Mark("#4AA8D8", "triangle-up"),
    "shaw": Mark("#4AA8D8", "triangle-right"),
    "huang": Mark("#777777", "triangle-left"),
    "t5": Mark("#44AA99", "square"),
    "alibi": Mark("#332288", "circle"),
    "alibi_reversed": Mark("#AA4499", "triangle-down", (5, 3)),
    "deberta": Mark("#117733", "diamond"),
    "rope": Mark("#CC6677", "circle"),
}
_OTHER = Mark("#777777", "cross", (2, 2))


def mark_of(scheme: str) -> Mark:
    """The mark of a scheme; those without one of their own are grey and dotted."""
    return _MARKS.get(scheme, _OTHER)


def colour_of(scheme: str) -> str:
    """The colour of a scheme, the same in every chart."""
    return mark_of(scheme).colour


def styled(chart: alt.LayerChart) -> alt.LayerChart:
    """Give a chart the house's fonts, grid and background."""
    drawn: alt.LayerChart = (
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
