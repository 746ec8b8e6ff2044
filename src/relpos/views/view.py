"""The four things to look at: a heat map, lines, the rows of a table against distance, and a sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Heat:
    """A heat map, or one a panel, all on one colour scale.

    Attributes:
        title: what it shows.
        x: what stands along it, for example "key - query".
        y: what stands down it, for example "head".
        value: what the colours mean.
        columns: first and last whole number of `x` in each column; several where they share a number.
        panels: a name for each panel; `("",)` where there is one.
        values: `[panel][row][column]`, row 0 on top.
        is_signed: True where 0 is the middle of the colour scale.
    """

    title: str
    x: str
    y: str
    value: str
    columns: tuple[tuple[int, int], ...]
    values: tuple[tuple[tuple[float, ...], ...], ...]
    panels: tuple[str, ...] = ("",)
    is_signed: bool = False


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    name: str
    x: tuple[int, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Lines:
    """Lines on common axes, the second one logarithmic if `is_log`."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    is_log: bool = False


@dataclass(frozen=True)
class Run:
    """Distances `first` to `last` in a row that read one row of a table."""

    row: int
    first: int
    last: int


@dataclass(frozen=True)
class Steps:
    """Which row of its table a distance reads.

    `goes_on` says of the first and of the last run whether all distances beyond it read its row too.
    """

    title: str
    runs: tuple[Run, ...]
    goes_on: tuple[bool, bool]


@dataclass(frozen=True)
class Note:
    """A sentence in place of a picture, or beside one."""

    text: str


View = Heat | Lines | Steps | Note
