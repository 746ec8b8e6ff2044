"""Reading charts: the rows of data below a heading, anywhere in a specification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relpos.plots.views import chart_of
from relpos.schemes import Scheme
from relpos.views import build, views_of


def specification(name: str, **arguments: object) -> dict[str, Any]:
    """The chart of a scheme, as JSON."""
    scheme = build("test", name, arguments)
    return chart_of(scheme, views_of(scheme), "").to_dict()


def specification_of(scheme: Scheme, length: int | None = None, reach: int | None = None) -> dict[str, Any]:
    """The chart of a scheme that is there already."""
    return chart_of(scheme, views_of(scheme, length, reach), "").to_dict()


def headings(chart: dict[str, Any]) -> list[str]:
    return [part["title"]["text"] for part in chart["vconcat"]]


def rows(chart: dict[str, Any], heading: str) -> list[dict[str, Any]]:
    """The rows of the first data set of the view with that heading."""
    (part,) = [part for part in chart["vconcat"] if part["title"]["text"].startswith(heading)]
    return (data_sets(part, chart["datasets"]) or data_sets(chart, chart["datasets"]))[0]


def data_sets(part: object, sets: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """All data sets that a part of a specification draws, outermost first."""
    found: list[list[dict[str, Any]]] = []
    if isinstance(part, dict):
        found += [sets[part["data"]["name"]]] if "data" in part else []
        found += [
            one for key, value in part.items() if key not in ("data", "datasets") for one in data_sets(value, sets)
        ]
    elif isinstance(part, Sequence) and not isinstance(part, str):
        found += [one for value in part for one in data_sets(value, sets)]
    return found
