"""What there is to see of a scheme, as numbers and names: for the charts, for the terminal and for the docs' table."""

from relpos.views.of_scheme import origin_of, views_of
from relpos.views.options import arguments_of, build
from relpos.views.view import Heat, Line, Lines, Note, Run, Steps, View
from relpos.views.weights import fill, settings_in

__all__ = [
    "Heat",
    "Line",
    "Lines",
    "Note",
    "Run",
    "Steps",
    "View",
    "arguments_of",
    "build",
    "fill",
    "origin_of",
    "settings_in",
    "views_of",
]
