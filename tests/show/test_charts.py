"""Every number in a chart's specification, against the formula of its scheme written out here."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from charts import headings, rows, specification, specification_of
from torch import nn

import relpos

# Six significant digits round by 5e-6 at most; the float32 of the tables adds a little.
SIX_DIGITS = 6e-6


def t5_bucket(distance: int, bidirectional: bool, num_buckets: int, max_distance: int) -> int:
    """Raffel et al. 2020 in whole numbers: bucket e + k begins where (a / e)^(n - e) >= (max / e)^k."""
    n = num_buckets // 2 if bidirectional else num_buckets
    a = abs(distance) if bidirectional else max(-distance, 0)
    e = n // 2
    bucket = a
    if a >= e:
        far = [k for k in range(n - e) if a ** (n - e) * e**k >= max_distance**k * e ** (n - e)]
        bucket = e + max(far)
    return bucket + (n if bidirectional and distance > 0 else 0)


def deberta_row(distance: int, num_buckets: int, max_distance: int) -> int:
    """He et al. 2021, as microsoft/DeBERTa computes it, of query - key."""
    back, mid = -distance, num_buckets // 2
    size = abs(back)
    if size > mid:
        size = math.ceil(math.log(size / mid) / math.log((max_distance - 1) / mid) * (mid - 1)) + mid
    bucket = size if back > 0 else -size
    return min(max(num_buckets + bucket, 0), 2 * num_buckets - 1)


def random_tables(scheme: relpos.Scheme) -> relpos.Scheme:
    generator = torch.Generator().manual_seed(3)
    for table in scheme.parameters():
        nn.init.normal_(table, generator=generator)
    return scheme


@pytest.mark.parametrize(("bidirectional", "buckets", "most"), [(True, 32, 128), (False, 32, 128), (True, 12, 40)])
def test_t5_buckets_and_bias(bidirectional: bool, buckets: int, most: int) -> None:
    scheme = random_tables(relpos.T5Bias(3, buckets, most, bidirectional, bias_scale=0.5))
    table = scheme.get_parameter("table").tolist()
    chart = specification_of(scheme)
    steps = rows(chart, "Row of the table")
    reach = most + most // 4
    assert (steps[0]["first"], steps[-1]["last"]) == (-reach, reach)
    read = {d: step["row"] for step in steps for d in range(step["first"], step["last"] + 1)}
    assert read == {d: t5_bucket(d, bidirectional, buckets, most) for d in range(-reach, reach + 1)}
    assert all(a["row"] != b["row"] and a["last"] + 1 == b["first"] for a, b in itertools.pairwise(steps))

    lines = rows(chart, "Bias against distance")
    assert len(lines) == 3 * (2 * reach + 1)
    for point in lines:
        bucket = t5_bucket(point["x"], bidirectional, buckets, most)
        want = 0.5 * table[int(point["line"].removeprefix("head "))][bucket]
        assert point["y"] == pytest.approx(want, rel=SIX_DIGITS)

    cells = rows(chart, "Bias by head")
    assert len(cells) == 3 * 32 * 32
    for cell in cells:
        assert cell["first"] == cell["last"]
        bucket = t5_bucket(cell["first"] - cell["row"], bidirectional, buckets, most)
        want = 0.5 * table[int(cell["panel"].removeprefix("head "))][bucket]
        assert cell["value"] == pytest.approx(want, rel=SIX_DIGITS)


def test_alibi_lines_fall_by_their_slopes() -> None:
    chart = specification("alibi", num_heads=8)
    lines = rows(chart, "Bias against distance")
    assert len(lines) == 8 * 257
    for point in lines:
        slope = 2.0 ** -(int(point["line"].removeprefix("head ")) + 1)
        assert point["y"] == pytest.approx(-slope * abs(point["x"]), rel=SIX_DIGITS)
    cells = rows(chart, "Bias by head")
    for cell in cells:
        slope = 2.0 ** -(int(cell["panel"].removeprefix("head ")) + 1)
        assert cell["value"] == pytest.approx(-slope * abs(cell["first"] - cell["row"]), rel=SIX_DIGITS)


def test_shaw_bias_clips() -> None:
    scheme = random_tables(relpos.ShawBias(2, 3))
    chart = specification_of(scheme, length=9, reach=7)
    table = scheme.get_parameter("table").tolist()
    for point in rows(chart, "Bias against distance"):
        row = min(max(point["x"], -3), 3) + 3
        assert point["y"] == pytest.approx(table[int(point["line"][5:])][row], rel=SIX_DIGITS)
    assert rows(chart, "Row of the table") == [
        {"row": 0, "first": -7, "last": -3},
        *({"row": d + 3, "first": d, "last": d} for d in range(-2, 3)),
        {"row": 6, "first": 3, "last": 7},
    ]
    assert [heading for heading in headings(chart) if heading.endswith("both ends go on")]


def test_shaw_shows_each_channel_of_both_tables() -> None:
    scheme = random_tables(relpos.Shaw(2, 5, (4, 2)))
    chart = specification_of(scheme, reach=6)
    for name in ("key_table", "value_table"):
        table = scheme.get_parameter(name).tolist()
        cells = rows(chart, f"Vectors ({name}")
        assert len(cells) == 5 * 7
        for cell in cells:
            for d in range(cell["first"], cell["last"] + 1):
                assert cell["value"] == pytest.approx(table[min(max(d, -4), 2) + 4][cell["row"]], rel=SIX_DIGITS)


@pytest.mark.parametrize("buckets", [8, None])
def test_deberta_rows_and_lengths(buckets: int | None) -> None:
    scheme = random_tables(relpos.Disentangled(2, 3, buckets, 20, parts=("c2p", "p2c", "p2p")))
    chart = specification_of(scheme)

    def row(d: int) -> int:
        return min(max(20 - d, 0), 39) if buckets is None else deberta_row(d, buckets, 20)

    steps = rows(chart, "Row of the table")
    assert {d: s["row"] for s in steps for d in range(s["first"], s["last"] + 1)} == {d: row(d) for d in range(-25, 26)}
    tables = {name: table.tolist() for name, table in scheme.named_parameters()}
    for name, table in tables.items():
        for cell in rows(chart, f"Length of vectors ({name}"):
            want = math.sqrt(sum(c * c for c in table[cell["row"]][row(cell["first"])]))
            assert cell["value"] == pytest.approx(want, rel=SIX_DIGITS)
    for point in rows(chart, "Bias against distance"):  # p2p, whose scale is 1 / sqrt(3 (1 + 3))
        head, r = int(point["line"][5:]), row(point["x"])
        product = sum(a * b for a, b in zip(tables["c2p_table"][head][r], tables["p2c_table"][head][r], strict=True))
        assert point["y"] == pytest.approx(product / math.sqrt(12), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("head_dim", "rotary_dim", "base"), [(64, 64, 10000.0), (16, 12, 500.0)])
def test_rope_wavelengths_and_decay(layout: str, head_dim: int, rotary_dim: int, base: float) -> None:
    chart = specification("rope", head_dim=head_dim, rotary_dim=rotary_dim, base=base, layout=layout)
    pairs = rotary_dim // 2
    waves = rows(chart, "Wavelength")
    assert [point["x"] for point in waves] == list(range(pairs))
    for point in waves:
        assert point["y"] == pytest.approx(2 * math.pi * base ** (2 * point["x"] / rotary_dim), rel=SIX_DIGITS)
    decay = rows(chart, "Score of a query and a key of equal content")
    assert [point["x"] for point in decay] == list(range(129))
    for point in decay:
        turned = sum(2 * math.cos(point["x"] * base ** (-2 * m / rotary_dim)) for m in range(pairs))
        assert point["y"] == pytest.approx((turned + head_dim - rotary_dim) / head_dim, rel=1e-5, abs=1e-6)
    for cell in rows(chart, "Score of each pair"):
        want = math.cos(cell["first"] * base ** (-2 * cell["row"] / rotary_dim))
        assert cell["value"] == pytest.approx(want, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("method", [1, 2, 3, 4])
def test_huang(method: int) -> None:
    scheme = random_tables(relpos.Huang(2, 3, 4, method))
    chart = specification_of(scheme, reach=6)
    table = scheme.get_parameter("table").tolist()
    if method == 4:
        for cell in rows(chart, "Length of vectors (table, meets queries and meets keys)"):
            vector = table[cell["row"]][min(max(cell["first"], -4), 4) + 4]
            assert cell["value"] == pytest.approx(math.hypot(*vector), rel=SIX_DIGITS)
        assert len(chart["vconcat"]) == 2
        return
    for point in rows(chart, "Gain of the content score"):
        d = point["x"]
        gain = table[int(point["line"][5:])][min(abs(d), 4) if method == 1 else min(max(d, -4), 4) + 4]
        want = sum(gain) / 3 if method == 3 else gain
        assert point["y"] == pytest.approx(want, rel=1e-5, abs=1e-6)


def test_input_tables() -> None:
    for cell in rows(specification("sinusoidal", embed_dim=6), "What is added"):
        angle = cell["first"] / 10000.0 ** (cell["row"] // 2 * 2 / 6)
        want = math.sin(angle) if cell["row"] % 2 == 0 else math.cos(angle)
        assert cell["value"] == pytest.approx(want, rel=1e-5, abs=1e-6)
    scheme = random_tables(relpos.LearnedAbsolute(4, 10, offset=2))
    cells = rows(specification_of(scheme), "What is added")
    table = scheme.get_parameter("table").tolist()
    assert {(c["row"], c["first"]): c["value"] for c in cells} == {
        (channel, position): pytest.approx(table[position + 2][channel], rel=SIX_DIGITS)
        for channel in range(4)
        for position in range(8)
    }


def test_colours_of_a_bias_have_zero_in_the_middle() -> None:
    chart = specification("alibi", num_heads=2)
    scale = chart["vconcat"][0]["spec"]["encoding"]["color"]["scale"]
    assert scale["domain"][0] == -scale["domain"][-1] == pytest.approx(-31 / 16)
    assert scale["domain"][4] == 0
    assert len(scale["domain"]) == len(scale["range"])
