"""T5: buckets, and the scale that it does not have."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import relpos
from relpos.functional import t5_bucket

TABLES = [(32, 128), (8, 20), (64, 1000), (4, 3), (16, 9)]  # num_buckets, max_distance


def bucket(distance: int, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128) -> int:
    return int(
        t5_bucket(
            torch.tensor(distance), bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance
        )
    )


def numbered(bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> relpos.T5Bias:
    """One head whose table holds the number of each bucket."""
    scheme = relpos.T5Bias(1, num_buckets, max_distance, bidirectional)
    with torch.no_grad():
        scheme.table[0] = torch.arange(num_buckets)
    return scheme


@pytest.mark.parametrize(("distance", "expected"), [(-16, 10), (16, 26), (-7, 7), (7, 23), (0, 0)])
def test_b1_distance_is_key_minus_query(distance: int, expected: int) -> None:
    """Query minus key, or no absolute value, reads the bucket of the other side."""
    assert bucket(distance) == expected
    query, key = max(-distance, 0), max(distance, 0)
    assert numbered(True).bias(query + 1, key + 1, 0)[0, query, key].item() == expected


@pytest.mark.parametrize(("num_buckets", "max_distance"), TABLES)
def test_b1_the_right_side_is_the_left_side_shifted(num_buckets: int, max_distance: int) -> None:
    """The same, for other tables: a key to the right reads the left bucket plus half of the table."""
    ahead = torch.arange(1, 3 * max_distance)
    zero, left, right = (
        t5_bucket(distance, bidirectional=True, num_buckets=num_buckets, max_distance=max_distance)
        for distance in (torch.tensor(0), -ahead, ahead)
    )
    assert torch.equal(right, left + num_buckets // 2)
    exact = min(num_buckets // 4, len(ahead))
    assert left[: exact - 1].tolist() == list(range(1, exact))  # near the query, the distance itself
    assert (left.diff() >= 0).all()
    assert zero.item() == 0


@pytest.mark.parametrize(
    ("distance", "bidirectional", "expected"),
    [(-128, True, 15), (1000, True, 31), (-500, False, 31), (5, False, 0), (-127, True, 15), (-(2**40), False, 31)],
)
def test_b2_far_distances_share_the_last_bucket(distance: int, bidirectional: bool, expected: int) -> None:
    """Far distances ran past the table."""
    assert bucket(distance, bidirectional) == expected


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), TABLES)
def test_b2_every_length_runs(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    """The same, for other tables, far beyond their distance."""
    scheme, length = numbered(bidirectional, num_buckets, max_distance), 10 * max_distance
    past, future = scheme.bias(1, length)[0, 0], scheme.bias(1, length, query_start=0)[0, 0]
    assert past.max().item() == past[0].item() == (num_buckets // 2 - 1 if bidirectional else num_buckets - 1)
    assert future.max().item() == future[-1].item() == (num_buckets - 1 if bidirectional else 0)
    query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, length, 4)
    assert relpos.attention(query, key, key, scheme, is_causal=True).isfinite().all()


BUILDERS: dict[str, Callable[[bool, int, int], object]] = {
    "T5Bias": lambda bidirectional, buckets, distance: relpos.T5Bias(4, buckets, distance, bidirectional),
    "RelativeBias": lambda bidirectional, buckets, distance: relpos.RelativeBias(
        4, mode="t5", num_buckets=buckets, max_distance=distance, bidirectional=bidirectional
    ),
    "t5_bucket": lambda bidirectional, buckets, distance: bucket(1, bidirectional, buckets, distance),
}


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize(
    ("bidirectional", "num_buckets", "max_distance", "names"),
    [
        (True, 32, 8, "max_distance=8"),
        (False, 32, 16, "max_distance=16"),
        (False, 32, 3, "max_distance=3"),
        (True, 2, 128, "num_buckets=2"),
        (False, 1, 128, "num_buckets=1"),
        (True, 31, 128, "num_buckets=31"),
        (True, 32, 0, "max_distance=0"),
        (True, 32, -5, "max_distance=-5"),
    ],
)
def test_b4_a_table_without_room_for_its_logarithm_is_refused(
    bidirectional: bool, num_buckets: int, max_distance: int, names: str, builder: str
) -> None:
    """A max_distance inside the exact range divides by the logarithm of 1, or takes that of 0."""
    with pytest.raises(ValueError, match=names):
        BUILDERS[builder](bidirectional, num_buckets, max_distance)


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize(
    ("bidirectional", "num_buckets", "max_distance"), [(True, 32, 9), (False, 32, 17), (True, 4, 2), (False, 2, 2)]
)
def test_b4_the_smallest_legal_tables_work(
    bidirectional: bool, num_buckets: int, max_distance: int, builder: str
) -> None:
    """The same, on the legal side of the edge."""
    BUILDERS[builder](bidirectional, num_buckets, max_distance)
    reached = numbered(bidirectional, num_buckets, max_distance).bias(50).unique()
    assert reached.max().item() == num_buckets - 1


@pytest.mark.parametrize(("past", "expected"), [(90, 14), (16, 10), (32, 12), (45, 12)])
def test_b6_bucket_edges_are_those_of_float32(past: int, expected: int) -> None:
    """A bucket's logarithm in bf16 crosses an integer, and the neighbouring bucket is read."""
    assert bucket(-past) == expected


def test_b6_bf16_arithmetic_would_read_the_neighbour() -> None:
    """The same: what a cast to bf16 before the logarithm gives at distance 90."""
    past = torch.tensor([90, 90]).bfloat16()
    inside = 8 + (torch.log(past / 8) / torch.tensor(math.log(16)).bfloat16() * 8).long()
    assert inside.tolist() == [15, 15]
    assert bucket(-90) == 14
    with pytest.raises(TypeError, match="bfloat16"):
        t5_bucket(-past, bidirectional=True, num_buckets=32, max_distance=128)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("num_buckets", "max_distance", "reach"), [(32, 128, 300), (16, 40, 300), (64, 4096, 5000)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_b6_buckets_do_not_follow_the_models_dtype(
    bidirectional: bool, num_buckets: int, max_distance: int, reach: int, dtype: torch.dtype
) -> None:
    """The same: the picture of a model in any dtype equals that of the float32 one, to 300 tokens and beyond."""
    expected = numbered(bidirectional, num_buckets, max_distance).bias(1, 2 * reach + 1, query_start=reach)
    got = numbered(bidirectional, num_buckets, max_distance).to(dtype).bias(1, 2 * reach + 1, query_start=reach)
    assert torch.equal(got.float(), expected)  # bucket numbers are exact in every one of these dtypes


def logit(query: Tensor, key: Tensor, scheme: relpos.Scheme | None, scale: float | None = None) -> float:
    """The score of `key` over that of a zero key at the same position, read off the probabilities."""
    pair = torch.stack((key, torch.zeros_like(key)))[None, None]
    positions = relpos.Positions.explicit(torch.tensor([0]), torch.tensor([0, 0]))
    weights = relpos.attention_weights(query[None, None, None], pair, pair, scheme, positions=positions, scale=scale)
    return -weights[0, 0, 0].log().diff().item()


@pytest.mark.parametrize("width", [16, 64, 5])
def test_b11_t5_does_not_divide_by_the_root_of_the_width(width: int) -> None:
    """A fused call applied its default 1 / sqrt(d) to T5, which uses 1; another dropped it for everybody else."""
    query = torch.full((width,), 8.0 / width, dtype=torch.float64)
    key = torch.ones_like(query)  # q . k = 8
    root = math.sqrt(width)
    assert logit(query, key, relpos.T5Bias(1)) == pytest.approx(8.0, rel=1e-12)
    assert logit(query, key, relpos.T5Bias(1, scale=None)) == pytest.approx(8.0 / root, rel=1e-12)
    assert logit(query, key, None) == pytest.approx(8.0 / root, rel=1e-12)  # BERT: 2 for a width of 16
    assert logit(query, key, relpos.ALiBi(1)) == pytest.approx(8.0 / root, rel=1e-12)
    assert logit(query, key, relpos.T5Bias(1), scale=0.5) == pytest.approx(4.0, rel=1e-12)


@pytest.mark.parametrize("heads", [1, 4])
def test_b11_a_module_takes_the_schemes_scale(heads: int) -> None:
    """The same, in a layer, against the products written out."""
    scheme = relpos.T5Bias(heads)
    torch.nn.init.normal_(scheme.table)
    layer = relpos.RelativeAttention(8 * heads, heads, scheme).double()
    x = torch.randn(2, 6, 8 * heads, dtype=torch.float64)

    projections = (layer.query_proj, layer.key_proj, layer.value_proj)
    query, key, value = (project(x).reshape(2, 6, heads, 8).transpose(1, 2) for project in projections)
    scores = query @ key.transpose(-1, -2) + scheme.bias(6)
    mixed = scores.softmax(-1) @ value
    torch.testing.assert_close(layer(x), layer.output_proj(mixed.transpose(1, 2).flatten(2)))
