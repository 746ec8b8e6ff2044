"""DeBERTa's disentangled attention: rows, scale, unequal lengths, low precision."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import relpos
from relpos.terms import KeyDistance, QueryDistance

PRINTED = 5e-5  # half a unit of the last digit that a report prints
EXACT = 1e-12  # float64, scores of at most a few dozen

VERSIONS = [(None, 8), (None, 3), (4, 12), (256, 512)]  # num_buckets, max_distance


def build(
    heads: int, width: int, num_buckets: int | None, max_distance: int, *parts: str, std: float = 1.0
) -> relpos.Disentangled:
    """A float64 scheme with random tables."""
    scheme = relpos.Disentangled(heads, width, num_buckets, max_distance, parts or ("c2p", "p2c")).double()
    for table in scheme.parameters():
        nn.init.normal_(table, std=std)
    return scheme


def random_qkv(heads: int, length: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = torch.randn(3, 2, heads, length, width, dtype=torch.float64).unbind()
    return query, key, value


def row(scheme: relpos.Disentangled, query: int, key: int) -> int:
    """The table row that a pair of positions reads."""
    positions = relpos.Positions.explicit(torch.tensor([query]), torch.tensor([key]))
    rows = set()
    for term in scheme.terms(positions):
        assert isinstance(term, QueryDistance | KeyDistance)
        rows.add(int(term.row(positions.distance())))
    assert len(rows) == 1  # c2p and p2c read the same row
    return rows.pop()


def published_row(query: int, key: int, num_buckets: int | None, max_distance: int) -> int:
    """The rule of the released models, one pair at a time."""
    distance = query - key
    if num_buckets is None:
        return max(0, min(2 * max_distance - 1, max_distance + distance))
    mid = num_buckets // 2
    if abs(distance) > mid:
        ratio = math.log(abs(distance) / mid) / math.log((max_distance - 1) / mid)
        distance = int(math.copysign(mid + math.ceil(ratio * (mid - 1)), distance))
    return max(0, min(2 * num_buckets - 1, num_buckets + distance))


def weights(query: Tensor, key: Tensor, scheme: relpos.Scheme) -> Tensor:
    return relpos.attention_weights(query, key, key, scheme)


def test_c1_position_to_content_reads_the_row_of_content_to_position() -> None:
    """The position-to-content index has the wrong sign, or is gathered without the transpose."""
    scheme = relpos.Disentangled(1, 1, num_buckets=None, max_distance=3, parts=("p2c",)).double()
    assert scheme.p2c_table is not None
    with torch.no_grad():
        scheme.p2c_table[0, :, 0] = torch.tensor([0.0, 10.0, 20.0, 30.0, 40.0, 50.0])
    query, key = torch.zeros(1, 1, 3, 1, dtype=torch.float64), torch.ones(1, 1, 3, 1, dtype=torch.float64)
    scores = torch.tensor([[30, 20, 10], [40, 30, 20], [50, 40, 30]], dtype=torch.float64) / math.sqrt(2)
    got = weights(query, key, scheme)[0, 0].log()
    torch.testing.assert_close(got, scores.log_softmax(-1), rtol=0.0, atol=EXACT)


@pytest.mark.parametrize("part", ["c2p", "p2c"])
@pytest.mark.parametrize(("num_buckets", "max_distance"), VERSIONS)
@pytest.mark.parametrize("length", [1, 5, 20])
def test_c1_every_pair_reads_its_row(length: int, num_buckets: int | None, max_distance: int, part: str) -> None:
    """The same, pair by pair, for both directions and both generations of the model."""
    scheme = build(2, 4, num_buckets, max_distance, part)
    table = scheme.c2p_table if part == "c2p" else scheme.p2c_table
    assert table is not None
    query, key, _ = random_qkv(2, length, 4)
    scores = query @ key.transpose(-1, -2)
    for i in range(length):
        for j in range(length):
            vector = table[:, published_row(i, j, num_buckets, max_distance)]
            content = query[:, :, i] if part == "c2p" else key[:, :, j]
            scores[:, :, i, j] += (content * vector).sum(-1)
    expected = (scores / math.sqrt(2 * 4)).log_softmax(-1)
    torch.testing.assert_close(weights(query, key, scheme).log(), expected, rtol=0.0, atol=EXACT)


@pytest.mark.parametrize(
    ("query", "key", "buckets", "differences"),
    [(129, 0, 385, 641), (200, 0, 425, 712), (300, 0, 463, 812), (0, 300, 49, 212), (5, 9, 252, 508), (0, 9999, 0, 0)],
)
def test_c3_log_buckets_and_plain_differences_are_two_tables(
    query: int, key: int, buckets: int, differences: int
) -> None:
    """v1 (plain differences) and v2/v3 (256 log buckets of 512) are mixed up, and weights do not line up."""
    assert row(relpos.Disentangled(1, 1), query, key) == buckets
    assert row(relpos.Disentangled(1, 1, num_buckets=None), query, key) == differences


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(256, 512), (64, 128), (8, 40)])
def test_c3_near_rows_are_exact_and_far_rows_shared(num_buckets: int, max_distance: int) -> None:
    """The same, for other tables: distances up to half the buckets have a row each, all rows lie in the table."""
    scheme = relpos.Disentangled(1, 1, num_buckets=num_buckets, max_distance=max_distance)
    exact = num_buckets // 2
    assert [row(scheme, i, 0) for i in range(exact + 1)] == list(range(num_buckets, num_buckets + exact + 1))
    assert row(scheme, max_distance - 1, 0) == 2 * num_buckets - 1
    assert row(scheme, 50 * max_distance, 0) == 2 * num_buckets - 1
    assert row(scheme, 0, 50 * max_distance) == 0


@pytest.mark.parametrize(
    ("query", "key", "expected"), [(4, 0, 12), (0, 4, 4), (19, 0, 15), (0, 19, 0), (7, 0, 15), (0, 8, 0), (3, 3, 8)]
)
def test_c5_v1_rows_do_not_depend_on_the_length(query: int, key: int, expected: int) -> None:
    """v1 slices its table by the sequence's length, which is an optimisation and not the meaning."""
    assert row(relpos.Disentangled(1, 1, num_buckets=None, max_distance=8), query, key) == expected


@pytest.mark.parametrize("length", [5, 9, 20])
@pytest.mark.parametrize("max_distance", [8, 16])
def test_c5_a_longer_input_keeps_the_scores_of_a_shorter_one(max_distance: int, length: int) -> None:
    """The same: the first 5 tokens of any longer input score each other as alone."""
    scheme = build(2, 4, None, max_distance)
    query, key, value = random_qkv(2, length, 4)
    first = torch.arange(length) < 5
    mask = first[None, :].expand(length, length)
    alone = relpos.attention(query[:, :, :5], key[:, :, :5], value[:, :, :5], scheme)
    got = relpos.attention(query, key, value, scheme, attn_mask=mask)[:, :, :5]
    torch.testing.assert_close(got, alone, rtol=0.0, atol=EXACT)


@pytest.mark.parametrize(
    ("width", "product", "parts", "expected"),
    [
        (64, 96.0, ("c2p", "p2c"), 6.9282),
        (64, 96.0, ("c2p",), 8.4853),
        (64, 96.0, ("p2c",), 8.4853),
        (64, 96.0, ("c2p", "p2c", "p2p"), 6.0),
        (12, 18.0, ("c2p", "p2c"), 3.0),
    ],
)
def test_c6_every_position_term_counts_in_the_scale(
    width: int, product: float, parts: tuple[str, ...], expected: float
) -> None:
    """Outputs differ from the released model's until the scale is 1 / sqrt(3 d)."""
    scheme = build(1, width, 256, 512, *parts, std=0.0)
    query = torch.full((1, 1, 2, width), product / width, dtype=torch.float64)
    key = torch.stack((torch.ones(width), torch.zeros(width))).double()[None, None]
    odds = -weights(query, key, scheme)[0, 0, 0].log().diff()
    assert odds.item() == pytest.approx(expected, abs=PRINTED)
    assert relpos.explain(query, key, key, scheme).scale == pytest.approx(expected / product, rel=1e-4)


@pytest.mark.parametrize(("start", "stop"), [(3, 5), (0, 1), (1, 4), (4, 5)])
@pytest.mark.parametrize(("num_buckets", "max_distance"), VERSIONS)
def test_c8_some_queries_give_those_rows_of_the_square(
    num_buckets: int | None, max_distance: int, start: int, stop: int
) -> None:
    """The gather fails, or broadcasts in silence, when query and key lengths differ."""
    scheme = build(2, 4, num_buckets, max_distance)
    query, key, value = random_qkv(2, 5, 4)
    square = relpos.attention(query, key, value, scheme)
    some = query[:, :, start:stop]
    positions = relpos.Positions.arange(stop - start, 5, query_start=start)
    got = relpos.attention(some, key, value, scheme, positions=positions)
    torch.testing.assert_close(got, square[:, :, start:stop], rtol=0.0, atol=EXACT)
    with pytest.raises(ValueError, match="query_start"):
        relpos.attention(some, key, value, scheme)


@pytest.mark.parametrize(("width", "size", "exact"), [(64, 40.0, 7390.08), (32, 50.0, 8164.97), (128, -30.0, 5878.78)])
def test_c10_large_float16_products_stay_finite(width: int, size: float, exact: float) -> None:
    """In float16 the product overflows before it is divided: the model learns nothing, or gives NaN."""
    scheme = build(1, width, 256, 512, std=0.0).half()
    offset = relpos.ShawBias(1, max_distance=1)  # takes the expected logit away again, so that odds can show it
    with torch.no_grad():
        offset.table[0, 0] = -exact
    query = torch.full((1, 1, 2, width), size, dtype=torch.float16, requires_grad=True)
    key = torch.cat((torch.full((1, 1, 1, width), size), torch.zeros(1, 1, 1, width)), dim=2).half()
    assert not torch.isfinite((query[0, 0, 0] * key[0, 0, 0]).sum())  # the raw product overflows
    got = relpos.attention_weights(query, key, key, [scheme, offset])[0, 0, 1].double()
    logit = exact - got.log().diff().item()
    assert logit == pytest.approx(exact, abs=0.01)  # float16 odds near 1, and a fourteenth of a float32 ulp
    relpos.attention(query, key, key, [scheme, offset]).sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()


def masked_column(scheme: relpos.Disentangled, query: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    arguments = (query, query, query, scheme)
    return relpos.attention(*arguments, key_mask=mask), relpos.attention_weights(*arguments, key_mask=mask)


@pytest.mark.parametrize("mask", [[1, 1, 1, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("num_buckets", "max_distance"), VERSIONS)
def test_c11_masked_keys_have_no_weight_in_any_dtype(
    num_buckets: int | None, max_distance: int, dtype: torch.dtype, mask: list[int]
) -> None:
    """A hard-coded float32 mask value cannot be cast to bf16 or fp16."""
    scheme = build(2, 8, num_buckets, max_distance).to(dtype)
    query = torch.randn(1, 2, 4, 8).to(dtype)
    keep = torch.tensor([mask], dtype=torch.bool)
    output, got = masked_column(scheme, query, keep)
    assert output.dtype == got.dtype == dtype
    assert (got[..., ~keep[0]] == 0.0).all()
    torch.testing.assert_close(got.float().sum(-1), torch.ones(1, 2, 4), rtol=0.0, atol=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_c11_autocast_with_float32_tables(dtype: torch.dtype) -> None:
    """The same under autocast, where the tables stay in float32."""
    scheme = build(2, 8, 256, 512).float()
    query = torch.randn(1, 2, 4, 8)
    keep = torch.tensor([[True, True, True, False]])
    with torch.autocast("cpu", dtype=dtype):
        output, got = masked_column(scheme, query, keep)
    assert output.dtype == dtype
    assert (got[..., 3] == 0.0).all()
    expected, _ = masked_column(scheme, query.to(dtype).float(), keep)
    torch.testing.assert_close(output.float(), expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
