"""The chart: every number in it, one colour a scheme, names that do not cover one another."""

import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import relpos
from relpos.plots import Curve, Point, colour_of, draw_extrapolation
from relpos.plots.labels import spread

CURVES = [
    Curve("rope", (Point(64, 5.0, 4.9, 5.1), Point(1024, 19.0, 18.0, 20.0))),
    Curve("alibi", (Point(64, 6.0, 6.0, 6.0), Point(1024, 6.1, 6.1, 6.1))),
    Curve("t5", (Point(64, 6.1, 6.1, 6.1), Point(1024, 6.1, 6.1, 6.1))),
    Curve("learned", (Point(64, 7.0, 7.0, 7.0), Point(1024, None, None, None))),
]


def test_files(tmp_path: Path) -> None:
    draw_extrapolation(CURVES, trained_length=64, subtitle="a subtitle", folder=tmp_path)
    png = (tmp_path / "extrapolation.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") > 1200
    svg = (tmp_path / "extrapolation.svg").read_text()
    for text in ("rope", "alibi", "learned (undefined beyond 64)", ">64<", ">1 x<", ">1024<", ">16 x<", "a subtitle"):
        assert text in svg
    assert {path.name for path in tmp_path.iterdir()} == {"extrapolation.png", "extrapolation.svg"}


def test_every_defined_number_is_drawn(tmp_path: Path) -> None:
    draw_extrapolation(CURVES, trained_length=64, subtitle="", folder=tmp_path)
    svg = (tmp_path / "extrapolation.svg").read_text()
    points = re.findall(r"trained length: ([\d,]+); Perplexity per byte: ([\d.]+); scheme: (\w+)", svg)
    drawn = {(scheme, int(length.replace(",", "")), float(mean)) for length, mean, scheme in points}
    assert drawn == {(c.scheme, p.length, p.mean) for c in CURVES for p in c.points if p.mean is not None}


def test_colours_are_fixed_and_differ() -> None:
    schemes = ["nope", "learned", "sinusoidal", "shaw_bias", "t5", "alibi", "alibi_reversed", "deberta", "rope"]
    assert all(colour_of(a) != colour_of(b) for a, b in combinations(schemes, 2))
    assert all(colour_of(name).startswith("#") for name in [*relpos.names(), "not a scheme"])


@given(st.lists(st.floats(0, 10), max_size=12), st.floats(0.1, 2))
def test_labels_keep_their_order_and_their_distance(wanted: list[float], gap: float) -> None:
    placed = spread(wanted, gap)
    assert len(placed) == len(wanted)
    for (a, to_a), (b, to_b) in combinations(zip(wanted, placed, strict=True), 2):
        assert abs(to_a - to_b) >= gap - 1e-6
        assert a == b or (a < b) == (to_a < to_b)


def test_labels_with_room_stay_where_they_are() -> None:
    assert spread([5.0, 0.0, 2.0], 1.0) == [5.0, 0.0, 2.0]
    assert spread([0.0, 0.0], 1.0) == pytest.approx([-0.5, 0.5])
