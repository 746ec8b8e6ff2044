"""Charts in one house style. Only this package imports the charting library."""

from relpos.plots.extrapolation import Curve, Point, draw_extrapolation, extrapolation_chart
from relpos.plots.style import colour_of

__all__ = ["Curve", "Point", "colour_of", "draw_extrapolation", "extrapolation_chart"]
