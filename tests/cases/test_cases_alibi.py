"""ALiBi: slopes, sign, precision, and the place of the scale."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import relpos
from relpos.functional import alibi_slopes

PRINTED = 5e-5  # half a unit of the last digit that a report prints


def published_slopes(heads: int) -> list[float]:
    """The recursion in the authors' code."""
    power = 2 ** math.floor(math.log2(heads))
    start = 2.0 ** (-(2.0 ** -(math.log2(power) - 3)))
    slopes = [start ** (head + 1) for head in range(power)]
    return slopes if power == heads else slopes + published_slopes(2 * power)[0::2][: heads - power]


def weights(query: Tensor, key: Tensor, scheme: relpos.Scheme, positions: relpos.Positions | None = None) -> Tensor:
    return relpos.attention_weights(query, key, key, scheme, positions=positions)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
        (1, [1 / 256]),
        (2, [1 / 16, 1 / 256]),
        (3, [1 / 16, 1 / 256, 1 / 4]),
        (4, [1 / 4, 1 / 16, 1 / 64, 1 / 256]),
        (8, [2.0**-exponent for exponent in range(1, 9)]),
    ],
)
def test_a1_slopes_for_any_head_count(heads: int, expected: list[float]) -> None:
    """Plain geometric slopes for every head count, or an exponent that starts at 0."""
    assert alibi_slopes(heads).tolist() == expected
    one_token_apart = relpos.ALiBi(heads).bias(2)[:, 1, 0]
    assert one_token_apart.tolist() == [-slope for slope in expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("heads", [5, 7, 10, 12, 16, 20, 25, 40, 71, 112])
def test_a1_slopes_follow_the_authors_recursion(heads: int, dtype: torch.dtype) -> None:
    """The same, at head counts of released models and others."""
    expected = torch.tensor(published_slopes(heads), dtype=torch.float64)
    # The recursion itself multiplies up to 128 times in float64, so it is not exact there.
    torch.testing.assert_close(
        alibi_slopes(heads, dtype=dtype), expected.to(dtype), rtol=200 * torch.finfo(dtype).eps, atol=0.0
    )


@pytest.mark.parametrize(("heads", "entry", "slope"), [(10, 8, 0.707107), (12, 8, 0.707107), (40, 32, 0.917004)])
def test_a3_slopes_keep_their_published_order(heads: int, entry: int, slope: float) -> None:
    """People take non-monotone slopes for a bug and sort them, which breaks checkpoints."""
    slopes = alibi_slopes(heads)
    assert slopes[entry].item() == pytest.approx(slope, abs=5e-7)
    assert slopes[entry - 1].item() == 2.0**-8  # 0.003906, the last of the power of two
    assert slopes.tolist() != sorted(slopes.tolist(), reverse=True)
    # The order reaches attention: each head has the weights of a scheme made for its slope alone.
    query = torch.zeros(1, heads, 5, 4)
    together = weights(query, query, relpos.ALiBi(heads))
    for head in (entry - 1, entry):
        alone = relpos.ALiBi(1, slopes=[published_slopes(heads)[head]])
        torch.testing.assert_close(together[:, head : head + 1], weights(query[:, :1], query[:, :1], alone))


@pytest.mark.parametrize(("row", "mirrored"), [(0, False), (3, True)])
def test_a4_an_encoder_looks_both_ways_alike(row: int, mirrored: bool) -> None:
    """Bias by key index, a causal shortcut, gives far right tokens the largest weight in an encoder."""
    zeros = torch.zeros(1, 1, 4, 8)
    got = weights(zeros, zeros, relpos.ALiBi(1, slopes=[0.5]))[0, 0, row]
    expected = torch.tensor([0.4551, 0.2760, 0.1674, 0.1015])
    torch.testing.assert_close(got, expected.flip(0) if mirrored else expected, rtol=0.0, atol=PRINTED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("heads", "length"), [(1, 2), (6, 9), (8, 33)])
def test_a4_reading_an_encoder_backwards_changes_nothing(heads: int, length: int, dtype: torch.dtype) -> None:
    """The same: without a mask, a sequence and its reverse give outputs that are each other's reverse."""
    layer = relpos.RelativeAttention(16 * heads, heads, relpos.ALiBi(heads)).to(dtype)
    x = torch.randn(2, length, 16 * heads, dtype=dtype)
    tolerance = 4 * torch.finfo(dtype).eps  # outputs below 1, two roundings each
    torch.testing.assert_close(layer(x.flip(1)).flip(1), layer(x), rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("anchor", [0, 1, -7])
@pytest.mark.parametrize(("heads", "length"), [(2, 5), (6, 17), (8, 64)])
def test_a6_bias_by_key_index_is_the_same_causal_model(
    heads: int, length: int, anchor: int, dtype: torch.dtype
) -> None:
    """Bias by key index, or anchored a step off, is read as a bug although a constant per row cancels."""
    query, key, value = torch.randn(3, 2, heads, length, 16, dtype=dtype).unbind()
    by_index = alibi_slopes(heads, dtype=dtype).view(-1, 1, 1) * (torch.arange(length) + anchor)
    mask = by_index.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    got = relpos.attention(query, key, value, relpos.ALiBi(heads), is_causal=True)
    torch.testing.assert_close(got, expected, rtol=0.0, atol=16 * torch.finfo(dtype).eps)
    raw = relpos.ALiBi(heads).bias(length).to(dtype)
    assert (raw - by_index).tril().abs().max() > 1e-2  # so comparing raw biases would have failed


def test_a7_distance_times_slope_is_rounded_last() -> None:
    """ALiBi in bf16 arithmetic loses accuracy on long prompts."""
    slope = alibi_slopes(16)[0].item()
    bias = relpos.ALiBi(16).bfloat16().bias(1, 258)[0, 0]
    assert bias[0].item() == pytest.approx(-181.7264, abs=5e-5)
    assert bias.bfloat16()[0].item() == -182.0
    # What a model computes that multiplies in bf16 (two elements: one would be promoted).
    rounded_early = -torch.tensor([257, 1]).bfloat16() * torch.tensor([slope, slope]).bfloat16()
    assert rounded_early[0].item() == -181.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("distance", [257, 1025, 4097, 60001])
@pytest.mark.parametrize("heads", [16, 12])
def test_a7_low_precision_tells_far_neighbours_apart(heads: int, distance: int, dtype: torch.dtype) -> None:
    """The same, in the weights of two neighbouring keys far from the query."""
    key = torch.zeros(1, heads, 2, 8, dtype=dtype)
    positions = relpos.Positions.explicit(torch.tensor([distance]), torch.tensor([0, 1]))
    got = weights(key[:, :, :1], key, relpos.ALiBi(heads), positions)[0, :, 0, 1]
    nearer = torch.sigmoid(alibi_slopes(heads, dtype=torch.float64))  # one token less of penalty
    # A float32 score of size |distance| is exact to half an ulp, the weight to a quarter of that; the result to dtype.
    tolerance = torch.finfo(dtype).eps + distance * torch.finfo(torch.float32).eps
    torch.testing.assert_close(got.double(), nearer, rtol=0.0, atol=tolerance)


def biased(kind: str, bias: float, bias_scale: float) -> relpos.Scheme:
    """A scheme of one head whose bias is `bias_scale * bias` one token back and 0 at the token itself."""
    if kind == "alibi":
        return relpos.ALiBi(1, slopes=[-bias], bias_scale=bias_scale)
    if kind == "t5":
        scheme: relpos.T5Bias | relpos.ShawBias = relpos.T5Bias(1, bias_scale=bias_scale)
        back = 1
    else:
        scheme, back = relpos.ShawBias(1, max_distance=1), 0
    with torch.no_grad():
        scheme.table[0, back] = bias
    return scheme


@pytest.mark.parametrize("width", [64, 16, 5])
@pytest.mark.parametrize("scale", [None, 1.0, 0.25])
@pytest.mark.parametrize("kind", ["alibi", "t5", "shaw_bias"])
def test_a9_the_scale_leaves_the_bias_alone(kind: str, scale: float | None, width: int) -> None:
    """A kernel scaled every mask and bias together with the product."""
    zeros = torch.zeros(1, 1, 2, width)
    got = relpos.attention_weights(zeros, zeros, zeros, biased(kind, -4.0, 1.0), scale=scale)[0, 0, 1]
    torch.testing.assert_close(got, torch.tensor([0.0180, 0.9820]), rtol=0.0, atol=PRINTED)


@pytest.mark.parametrize(("width", "expected"), [(64, [0.3775, 0.6225]), (16, [0.2689, 0.7311])])
@pytest.mark.parametrize("kind", ["alibi", "t5"])
def test_a9_a_scaled_bias_is_a_declared_option(kind: str, width: int, expected: list[float]) -> None:
    """Falcon scales ALiBi with the scores; BLOOM and T5 do not."""
    zeros = torch.zeros(1, 1, 2, width)
    got = weights(zeros, zeros, biased(kind, -4.0, width**-0.5))[0, 0, 1]
    torch.testing.assert_close(got, torch.tensor(expected), rtol=0.0, atol=PRINTED)


@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
@pytest.mark.parametrize("heads", [4, 6])
def test_a9_scale_multiplies_the_product_only(heads: int, scale: float | None) -> None:
    """The same, with content: torch's own attention with the bias as its mask."""
    query, key, value = torch.randn(3, 2, heads, 7, 8).unbind()
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=relpos.ALiBi(heads).bias(7), scale=scale)
    torch.testing.assert_close(relpos.attention(query, key, value, relpos.ALiBi(heads), scale=scale), expected)
