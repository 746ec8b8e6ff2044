"""The pure functions against loops over single numbers, and what they refuse."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import relpos.functional as F

INTEGERS = [torch.int32, torch.int64]
NEAR = range(-300, 301)
FAR = [sign * size for size in (511, 512, 513, 1000, 4095, 4096, 10**5, 2**24 + 1, 2**31 - 1) for sign in (-1, 1)]


@st.composite
def t5_settings(draw: st.DrawFn) -> tuple[bool, int, int]:
    """(bidirectional, num_buckets, max_distance) with a logarithmic range of any size."""
    bidirectional = draw(st.booleans())
    num_buckets = 2 * draw(st.integers(2, 40)) if bidirectional else draw(st.integers(2, 80))
    exact = (num_buckets // 2 if bidirectional else num_buckets) // 2
    return bidirectional, num_buckets, draw(st.integers(exact + 1, 2000))


@st.composite
def deberta_settings(draw: st.DrawFn) -> tuple[int, int]:
    """(num_buckets, max_distance) with a logarithmic range of any size."""
    num_buckets = draw(st.integers(2, 300))
    return num_buckets, draw(st.integers(num_buckets // 2 + 2, 2000))


distances = st.lists(st.one_of(st.integers(-600, 600), st.integers(-(2**31) + 1, 2**31 - 1)), min_size=1, max_size=60)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "setting",
    [(True, 32, 128), (False, 32, 128), (True, 8, 20), (False, 5, 7), (True, 64, 600), (True, 4, 2), (False, 2, 2)],
    ids=str,
)
def test_t5_bucket_over_all_distances(setting: tuple[bool, int, int], dtype: torch.dtype) -> None:
    bidirectional, num_buckets, max_distance = setting
    given = [*NEAR, *FAR]
    actual = F.t5_bucket(
        torch.tensor(given, dtype=dtype),
        bidirectional=bidirectional,
        num_buckets=num_buckets,
        max_distance=max_distance,
    )
    assert actual.dtype == torch.int64
    assert actual.tolist() == [oracle.t5_bucket(distance, *setting) for distance in given]
    assert 0 <= int(actual.min()) <= int(actual.max()) < num_buckets


@given(t5_settings(), distances)
def test_t5_bucket_of_any_setting(setting: tuple[bool, int, int], given: list[int]) -> None:
    bidirectional, num_buckets, max_distance = setting
    actual = F.t5_bucket(
        torch.tensor(given), bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance
    )
    assert actual.tolist() == [oracle.t5_bucket(distance, *setting) for distance in given]


def test_t5_bucket_published_rows() -> None:
    """Cases B1, B2 and B6, written down as numbers."""
    two_way = {-16: 10, 16: 26, -7: 7, 7: 23, 0: 0, -128: 15, 1000: 31, -90: 14, -32: 12, -45: 12}
    rows = F.t5_bucket(torch.tensor(list(two_way)), bidirectional=True, num_buckets=32, max_distance=128)
    assert rows.tolist() == list(two_way.values())
    one_way = F.t5_bucket(torch.tensor([-500, 5]), bidirectional=False, num_buckets=32, max_distance=128)
    assert one_way.tolist() == [31, 0]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("setting", [(256, 512), (2, 3), (4, 9), (7, 30), (32, 128), (256, 130)], ids=str)
def test_deberta_bucket_over_all_distances(setting: tuple[int, int], dtype: torch.dtype) -> None:
    num_buckets, max_distance = setting
    given = [*NEAR, *FAR]
    distance = torch.tensor(given, dtype=dtype)
    actual = F.deberta_bucket(distance, num_buckets=num_buckets, max_distance=max_distance)
    assert actual.dtype == torch.int64
    assert actual.tolist() == [oracle.deberta_bucket(distance, *setting) for distance in given]
    mirrored = F.deberta_bucket(-distance, num_buckets=num_buckets, max_distance=max_distance)
    assert mirrored.tolist() == (-actual).tolist()


@given(deberta_settings(), distances)
def test_deberta_bucket_of_any_setting(setting: tuple[int, int], given: list[int]) -> None:
    num_buckets, max_distance = setting
    distance = torch.tensor(given)
    actual = F.deberta_bucket(distance, num_buckets=num_buckets, max_distance=max_distance)
    assert actual.tolist() == [oracle.deberta_bucket(distance, *setting) for distance in given]
    mirrored = F.deberta_bucket(-distance, num_buckets=num_buckets, max_distance=max_distance)
    assert mirrored.tolist() == (-actual).tolist()


def test_deberta_bucket_published_rows() -> None:
    """Case C3, written down as numbers: query minus key, plus 256."""
    given = {129: 385, 200: 425, 300: 463, -300: 49, 128: 384, -128: 128}
    buckets = F.deberta_bucket(torch.tensor(list(given)), num_buckets=256, max_distance=512)
    assert (buckets + 256).tolist() == list(given.values())


@given(
    st.one_of(
        st.integers(1, 100),
        st.tuples(st.integers(0, 100), st.integers(0, 100)).filter(lambda sides: max(sides) > 0),
    ),
    distances,
    st.sampled_from(INTEGERS),
)
def test_shaw_index(max_distance: int | tuple[int, int], given: list[int], dtype: torch.dtype) -> None:
    left, right = max_distance if isinstance(max_distance, tuple) else (max_distance, max_distance)
    actual = F.shaw_index(torch.tensor(given, dtype=dtype), max_distance)
    assert actual.dtype == torch.int64
    assert actual.tolist() == [oracle.clip(distance, -left, right) + left for distance in given]


@pytest.mark.parametrize(
    "rows_of",
    [
        lambda distance: F.t5_bucket(distance, bidirectional=True, num_buckets=32, max_distance=128),
        lambda distance: F.deberta_bucket(distance, num_buckets=8, max_distance=20),
        lambda distance: F.shaw_index(distance, 4),
    ],
    ids=["t5", "deberta", "shaw"],
)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8])
def test_rows_keep_shapes_and_take_any_integers(rows_of: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """And leave their argument alone; a view in another order changes nothing."""
    distance = torch.arange(0, 120).reshape(2, 5, 12).transpose(0, 2)
    before = distance.clone()
    rows = rows_of(distance)
    assert rows.shape == distance.shape
    assert torch.equal(rows, rows_of(distance.contiguous()))
    assert torch.equal(rows, rows_of(distance.to(dtype)))
    assert torch.equal(distance, before)
    assert rows_of(torch.tensor(3)).shape == ()
    assert rows_of(torch.zeros(0, 4, dtype=torch.int64)).shape == (0, 4)


@pytest.mark.parametrize("max_exponent", [8.0, 16.0, 5.5])
@pytest.mark.parametrize("heads", [*range(1, 41), 64, 71, 96, 112, 128])
def test_alibi_slopes(heads: int, max_exponent: float) -> None:
    expected = torch.tensor(oracle.alibi_slopes(heads, max_exponent), dtype=torch.float64)
    exact = F.alibi_slopes(heads, max_exponent, dtype=torch.float64)
    torch.testing.assert_close(exact, expected, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(F.alibi_slopes(heads, max_exponent), expected.float(), rtol=1e-7, atol=0.0)


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (4, [2, 4, 6, 8]),
        (6, [2, 4, 6, 8, 1, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (10, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_alibi_slopes_as_published(heads: int, exponents: list[float]) -> None:
    """Cases A1 and A3, written down as exponents of 1/2, in their order."""
    expected = torch.tensor([0.5**exponent for exponent in exponents])
    torch.testing.assert_close(F.alibi_slopes(heads), expected, rtol=1e-7, atol=0.0)


positions_lists = st.lists(st.integers(-(10**5), 10**5), min_size=1, max_size=8)
bases = st.sampled_from([2.0, 50.0, 10000.0, 500000.0])


@given(
    positions_lists,
    st.integers(1, 9),
    bases,
    st.sampled_from(["interleaved", "concatenated"]),
    st.sampled_from(INTEGERS),
)
def test_sinusoidal_table(positions: list[int], width: int, base: float, layout: str, dtype: torch.dtype) -> None:
    expected = torch.tensor(
        [[oracle.sinusoid(p, channel, width, base, layout) for channel in range(width)] for p in positions],
        dtype=torch.float64,
    )
    given = torch.tensor(positions, dtype=dtype)
    exact = F.sinusoidal_table(given, width, base, layout, dtype=torch.float64)
    oracle.close(exact, expected, "table")
    # Angles are made in float64 and rounded once: half a unit in the last place of numbers up to 1.
    oracle.close(F.sinusoidal_table(given, width, base, layout), expected.float(), "rounded table", tolerance=6e-8)


def test_sinusoidal_table_odd_widths() -> None:
    """Case F6, written down as numbers."""
    zero = torch.tensor([0])
    assert F.sinusoidal_table(zero, 7).tolist() == [[0, 1, 0, 1, 0, 1, 0]]
    assert F.sinusoidal_table(zero, 7, layout="concatenated").tolist() == [[0, 0, 0, 0, 1, 1, 1]]
    assert F.sinusoidal_table(zero, 1).tolist() == [[0]]


def test_sinusoidal_table_keeps_shapes() -> None:
    positions = torch.arange(6).reshape(2, 3)
    table = F.sinusoidal_table(positions, 5)
    assert table.shape == (2, 3, 5)
    assert torch.equal(table.flatten(0, 1), F.sinusoidal_table(torch.arange(6), 5))
    assert F.sinusoidal_table(torch.tensor(4), 5).shape == (5,)
    assert F.sinusoidal_table(torch.zeros(0, dtype=torch.int64), 5).shape == (0, 5)


@given(st.integers(1, 64), bases)
def test_rope_inv_freq(pairs: int, base: float) -> None:
    expected = torch.tensor([base ** (-2 * m / (2 * pairs)) for m in range(pairs)], dtype=torch.float64)
    exact, factor = F.rope_inv_freq(2 * pairs, base, dtype=torch.float64)
    torch.testing.assert_close(exact, expected, rtol=1e-14, atol=0.0)
    assert factor == 1.0
    rounded, _ = F.rope_inv_freq(2 * pairs, base)
    torch.testing.assert_close(rounded, expected.float(), rtol=1.2e-7, atol=0.0)


@given(
    positions_lists,
    st.integers(1, 3),
    st.integers(0, 3),
    bases,
    st.sampled_from(["half", "interleaved"]),
    st.sampled_from(INTEGERS),
)
def test_apply_rotary(
    positions: list[int], pairs: int, rest: int, base: float, layout: str, dtype: torch.dtype
) -> None:
    """Every token multiplied by its rotation matrix, and the gradient by the transpose of it."""
    width = 2 * pairs + rest
    x = torch.randn(2, len(positions), width, dtype=torch.float64, requires_grad=True)
    inv_freq, _ = F.rope_inv_freq(2 * pairs, base, dtype=torch.float64)
    turned = F.apply_rotary(x, torch.tensor(positions, dtype=dtype), inv_freq, layout)
    matrices = torch.stack([oracle.rotation(p, width, 2 * pairs, base, layout) for p in positions])
    oracle.close(turned, torch.einsum("tij,btj->bti", matrices, x), "rotated")
    weight = torch.randn_like(x)
    expected = torch.einsum("tij,bti->btj", matrices, weight)
    oracle.close(torch.autograd.grad(turned, x, weight)[0], expected, "gradient")


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_apply_rotary_positions_per_row(layout: str) -> None:
    x = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    inv_freq, _ = F.rope_inv_freq(4, dtype=torch.float64)
    positions = torch.tensor([[0, 5, -2, 9], [3, 3, 0, 1]])
    turned = F.apply_rotary(x, positions, inv_freq, layout)
    for b in range(2):
        for t in range(4):
            matrix = oracle.rotation(int(positions[b, t]), 6, 4, 10000.0, layout)
            oracle.close(turned[b, :, t], x[b, :, t] @ matrix.T, f"row {b}, token {t}")


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_apply_rotary_rounds_once(dtype: torch.dtype, layout: str) -> None:
    """Angles do not follow the dtype (case D1): position 1 000 001 turns by the right angle in every one of them."""
    x, position = torch.randn(1, 16).to(dtype), 1_000_001
    inv_freq, _ = F.rope_inv_freq(16, dtype=torch.float64)
    turned = F.apply_rotary(x, torch.tensor([position]), inv_freq, layout)
    expected = (oracle.rotation(position, 16, 16, 10000.0, layout) @ x[0].double())[None]
    assert turned.dtype == dtype
    unit = torch.finfo(dtype).eps / 2
    float32 = 4 * torch.finfo(torch.float32).eps * float(x.abs().max())
    assert ((turned.double() - expected).abs() <= unit * expected.abs() + float32).all()


def test_apply_rotary_published_number() -> None:
    """Case D1: width 16, position 301, pair 1: cosine 0.5924, where bfloat16 angles give 0.7302."""
    x = torch.zeros(1, 16)
    x[0, 2] = 1.0
    turned = F.apply_rotary(x, torch.tensor([301]), F.rope_inv_freq(16)[0], "interleaved")
    assert float(turned[0, 2]) == pytest.approx(0.5924, abs=5e-5)


ONE = torch.tensor([1])
FLOATS = [torch.float32, torch.bfloat16, torch.bool]


def _t5(distance: Tensor = ONE, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128) -> object:
    return F.t5_bucket(distance, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance)


def _deberta(distance: Tensor = ONE, num_buckets: int = 256, max_distance: int = 512) -> object:
    return F.deberta_bucket(distance, num_buckets=num_buckets, max_distance=max_distance)


def _rotary(positions: Tensor = ONE, width: int = 4, pairs: int = 2, layout: str = "half") -> object:
    return F.apply_rotary(torch.zeros(1, width), positions, torch.ones(pairs), layout)


REFUSED: list[tuple[Callable[[], object], type[Exception], str, str, str]] = [
    *((lambda d=d: _t5(ONE.to(d)), TypeError, "t5_bucket", str(d), "integer") for d in FLOATS),
    *((lambda d=d: _deberta(ONE.to(d)), TypeError, "deberta_bucket", str(d), "integer") for d in FLOATS),
    *((lambda d=d: F.shaw_index(ONE.to(d), 3), TypeError, "shaw_index", str(d), "integer") for d in FLOATS),
    *((lambda d=d: F.sinusoidal_table(ONE.to(d), 4), TypeError, "sinusoidal_table", str(d), "integer") for d in FLOATS),
    *((lambda d=d: _rotary(ONE.to(d)), TypeError, "apply_rotary", str(d), "integer") for d in FLOATS),
    # Case B4: the logarithm would have no range.
    (lambda: _t5(max_distance=8), ValueError, "t5_bucket", "max_distance=8", "max_distance > 8"),
    (
        lambda: _t5(bidirectional=False, max_distance=16),
        ValueError,
        "t5_bucket",
        "max_distance=16",
        "max_distance > 16",
    ),
    (lambda: _t5(max_distance=0), ValueError, "t5_bucket", "max_distance=0", "max_distance >= 1"),
    (lambda: _t5(num_buckets=2), ValueError, "t5_bucket", "num_buckets=2", "even and at least 4"),
    (lambda: _t5(num_buckets=7), ValueError, "t5_bucket", "num_buckets=7", "even and at least 4"),
    (lambda: _t5(bidirectional=False, num_buckets=1), ValueError, "t5_bucket", "num_buckets=1", "at least 2"),
    (lambda: _t5(num_buckets=32.0), TypeError, "t5_bucket", "num_buckets=32.0", "int"),  # type: ignore[arg-type]
    (lambda: _deberta(max_distance=129), ValueError, "deberta_bucket", "max_distance=129", "max_distance > 129"),
    (lambda: _deberta(num_buckets=1), ValueError, "deberta_bucket", "num_buckets=1", "num_buckets >= 2"),
    (lambda: _deberta(num_buckets=0), ValueError, "deberta_bucket", "num_buckets=0", "num_buckets >= 1"),
    (lambda: F.shaw_index(ONE, 0), ValueError, "shaw_index", "max_distance=0", ">= 1"),
    (lambda: F.shaw_index(ONE, (0, 0)), ValueError, "shaw_index", "max_distance=(0, 0)", ">= 1"),
    (lambda: F.shaw_index(ONE, (-1, 3)), ValueError, "shaw_index", "max_distance=(-1, 3)", ">= 0"),
    (lambda: F.shaw_index(ONE, (1, 2, 3)), TypeError, "shaw_index", "(1, 2, 3)", "two ints"),  # type: ignore[arg-type]
    (lambda: F.shaw_index(ONE, 2.5), TypeError, "shaw_index", "2.5", "an int"),  # type: ignore[arg-type]
    (lambda: F.alibi_slopes(0), ValueError, "alibi_slopes", "num_heads=0", "num_heads >= 1"),
    (lambda: F.alibi_slopes(4.0), TypeError, "alibi_slopes", "num_heads=4.0", "int"),  # type: ignore[arg-type]
    (lambda: F.alibi_slopes(4, 0.0), ValueError, "alibi_slopes", "max_exponent=0.0", "positive"),
    (lambda: F.alibi_slopes(4, math.inf), ValueError, "alibi_slopes", "max_exponent=inf", "finite"),
    (lambda: F.sinusoidal_table(ONE, 0), ValueError, "sinusoidal_table", "embed_dim=0", "embed_dim >= 1"),
    (lambda: F.sinusoidal_table(ONE, 4, base=0.0), ValueError, "sinusoidal_table", "base=0.0", "positive"),
    (lambda: F.sinusoidal_table(ONE, 4, base=math.nan), ValueError, "sinusoidal_table", "base=nan", "finite"),
    (lambda: F.sinusoidal_table(ONE, 4, layout="half"), ValueError, "sinusoidal_table", "'half'", "'concatenated'"),
    (lambda: F.rope_inv_freq(5), ValueError, "rope_inv_freq", "rotary_dim=5", "even"),
    (lambda: F.rope_inv_freq(0), ValueError, "rope_inv_freq", "rotary_dim=0", "rotary_dim >= 1"),
    (lambda: F.rope_inv_freq(4, base=-1.0), ValueError, "rope_inv_freq", "base=-1.0", "positive"),
    (lambda: F.rope_inv_freq(4, scaling={}), ValueError, "rope_inv_freq", "scaling={}", "None"),  # type: ignore[arg-type]
    (lambda: _rotary(layout="halves"), ValueError, "apply_rotary", "layout 'halves'", "'interleaved'"),
    (lambda: _rotary(width=4, pairs=3), ValueError, "apply_rotary", "3 frequencies for 4 channels", "two channels"),
    (lambda: _rotary(torch.arange(3)), ValueError, "apply_rotary", "positions of shape [3]", "[T], or [B, T]"),
    (
        lambda: _rotary(torch.ones(2, 1).long()),
        ValueError,
        "apply_rotary",
        "positions of shape [2, 1]",
        "[T], or [B, T]",
    ),
    (lambda: _t5(3), TypeError, "t5_bucket", "distance of int", "integer"),  # type: ignore[arg-type]
    (lambda: F.sinusoidal_table([1], 4), TypeError, "sinusoidal_table", "list", "integer"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(
    ("call", "error", "name", "given", "allowed"), REFUSED, ids=[f"{r[2]}-{r[3]}" for r in REFUSED]
)
def test_refusals_say_what_to_do(
    call: Callable[[], object], error: type[Exception], name: str, given: str, allowed: str
) -> None:
    """Every message names the call, what was given, what is allowed and what to do."""
    message = rf"^{name}: got .*{re.escape(given)}.*\. Allowed: .*{re.escape(allowed)}.*\. What to do: \w.*[.?]$"
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("settings", [(256, 512), (16, 64), (32, 128)])
def test_buckets_do_not_depend_on_the_default_dtype(dtype: torch.dtype, settings: tuple[int, int]) -> None:
    distance, (buckets, longest) = torch.arange(-1500, 1501), settings

    def both() -> tuple[Tensor, Tensor]:
        return (
            F.deberta_bucket(distance, num_buckets=buckets, max_distance=longest),
            F.t5_bucket(distance, bidirectional=True, num_buckets=buckets, max_distance=longest),
        )

    expected = both()
    torch.set_default_dtype(dtype)
    try:
        found = both()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
