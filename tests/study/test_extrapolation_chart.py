"""The chart: every number in it, one colour a scheme, names that do not cover one another."""

import re
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import relpos
from relpos.plots import Curve, Point, colour_of, draw_extrapolation, mark_of
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


# Machado, Oliveira and Fernandes (2009), severity 1: what linear sRGB becomes without one kind of cone.
VISION = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# Linear sRGB to Oklab (Ottosson 2020): to cones, cube root, to lightness and two opponent axes.
CONES = [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.68069955, 0.10739696], [0.08830246, 0.28171884, 0.6299787]]
AXES = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.9779985, -2.42859221, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]


def linear(colour: str) -> torch.Tensor:
    coded = torch.tensor([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)], dtype=torch.float64)
    return torch.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)


def oklab(colour: str, vision: str) -> torch.Tensor:
    seen, cones, axes = (torch.tensor(each, dtype=torch.float64) for each in (VISION[vision], CONES, AXES))
    return axes @ (cones @ (seen @ linear(colour)).clamp(min=0)).pow(1 / 3)


@pytest.mark.parametrize("vision", VISION)
def test_marks_are_told_apart_with_any_vision(vision: str) -> None:
    """By colour, and where two colours come near, by shape or dashes too; 0.02 in Oklab is just noticeable."""
    schemes = ["nope", "learned", "sinusoidal", "shaw_bias", "t5", "alibi", "alibi_reversed", "deberta", "rope"]
    for a, b in combinations(map(mark_of, schemes), 2):
        light, dark = (
            float((oklab(one, vision) - oklab(other, vision)).norm())
            for one, other in ((a.colour, b.colour), (a.dark, b.dark))
        )
        assert light > 0.03
        assert dark > 0.09
        assert light > 0.08 or (a.shape, a.dash) != (b.shape, b.dash)


def test_dark_colours_can_be_read_on_the_dark_page() -> None:
    style = (Path(relpos.__file__).parent / "study/page/report.css").read_text()
    light_page, dark_page = re.findall(r"--page: (#\w{6})", style)

    def luminance(colour: str) -> float:
        return float(linear(colour) @ torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64))

    assert luminance(light_page) == pytest.approx(1)
    for name in [*relpos.names(), "alibi_reversed"]:
        assert (luminance(mark_of(name).dark) + 0.05) / (luminance(dark_page) + 0.05) > 4


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
