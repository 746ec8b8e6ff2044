"""The house style: schemes are told apart by colour or by shape, whatever the colour vision."""

from __future__ import annotations

from itertools import combinations

import pytest

import relpos
from relpos.plots.speed import _MARKS as CONTENDERS
from relpos.plots.style import DIVERGING, SEQUENTIAL, mark_of, ramp

#: Linear RGB as a dichromat sees it: Machado, Oliveira and Fernandes 2009, table 1, severity 1.
VISION = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
#: CIE76 differences: about 2 is just seen; marks of one shape stay at least ten times that apart.
SEEN = 20.0


def lab(colour: str, vision: str = "normal") -> tuple[float, float, float]:
    """CIE Lab (D65) of an sRGB colour as that vision sees it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    seen = [min(max(sum(w * c for w, c in zip(row, linear, strict=True)), 0.0), 1.0) for row in VISION[vision]]
    to_xyz = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
    white = (0.95047, 1.0, 1.08883)
    x, y, z = (
        (lambda t: t ** (1 / 3) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29)(
            sum(w * c for w, c in zip(row, seen, strict=True)) / reference
        )
        for row, reference in zip(to_xyz, white, strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def apart(a: str, b: str, vision: str) -> float:
    return sum((p - q) ** 2 for p, q in zip(lab(a, vision), lab(b, vision), strict=True)) ** 0.5


def test_the_measure_knows_what_is_alike() -> None:
    """Red and a dark green: far apart for most, not for a protanope; black and white: far for all."""
    assert apart("#cc0000", "#5a5a00", "normal") > 60 > SEEN > apart("#cc0000", "#5a5a00", "protanopia")
    assert all(apart("#000000", "#ffffff", vision) == pytest.approx(100, abs=0.1) for vision in VISION)


@pytest.mark.parametrize("vision", VISION)
def test_schemes_differ_in_colour_or_in_shape(vision: str) -> None:
    names = [*relpos.names(), "alibi_reversed"]
    alike = [
        (a, b, round(apart(mark_of(a).colour, mark_of(b).colour, vision), 1))
        for a, b in combinations(names, 2)
        if mark_of(a).shape == mark_of(b).shape and apart(mark_of(a).colour, mark_of(b).colour, vision) < SEEN
    ]
    assert alike == []


@pytest.mark.parametrize("vision", VISION)
def test_contenders_of_the_benchmark_differ_in_colour_or_in_shape(vision: str) -> None:
    marks = CONTENDERS.values()
    assert all(
        shape != other_shape or apart(colour, other, vision) >= SEEN
        for (colour, shape), (other, other_shape) in combinations(marks, 2)
    )


@pytest.mark.parametrize("vision", VISION)
def test_heat_maps_keep_their_order(vision: str) -> None:
    """One way from pale to dark; around 0, lightest in the middle, and ends that are not the same."""
    light = [lab(colour, vision)[0] for colour in SEQUENTIAL]
    assert light == sorted(light, reverse=True)
    low, high = [lab(colour, vision)[0] for colour in DIVERGING[:5]], [lab(c, vision)[0] for c in DIVERGING[4:]]
    assert low == sorted(low)
    assert high == sorted(high, reverse=True)
    for step in range(1, 5):
        assert apart(DIVERGING[4 - step], DIVERGING[4 + step], vision) > SEEN


def test_a_ramp_begins_and_ends_with_its_colours_and_repeats_none() -> None:
    assert (ramp(2), ramp(1)) == ([SEQUENTIAL[2], SEQUENTIAL[-1]], [SEQUENTIAL[2]])
    assert len(set(ramp(24))) == 24
