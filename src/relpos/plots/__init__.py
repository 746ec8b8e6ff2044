"""Charts in one house style. Only this package imports the charting library."""

from relpos.plots.extrapolation import Curve, Point, draw_extrapolation, extrapolation_chart
from relpos.plots.page import (
    Head,
    Stretch,
    as_script_data,
    attention_page_chart,
    perplexity_page_chart,
    position_page_chart,
)
from relpos.plots.save import script_bundle
from relpos.plots.style import colour_of, mark_of, page_colour, page_colours

__all__ = [
    "Curve",
    "Head",
    "Point",
    "Stretch",
    "as_script_data",
    "attention_page_chart",
    "colour_of",
    "draw_extrapolation",
    "extrapolation_chart",
    "mark_of",
    "page_colour",
    "page_colours",
    "perplexity_page_chart",
    "position_page_chart",
    "script_bundle",
]
