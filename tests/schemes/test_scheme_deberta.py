"""He et al. 2021 (DeBERTa), section 3.1, with the index that released weights need, by loops."""

from __future__ import annotations

import itertools
import math

import oracle
import pytest
from oracle import SITUATIONS, Pair, Score, Situation
from torch import Tensor

import relpos

D = 4
V1 = (None, 4)
BUCKETS = (4, 9)
"""(num_buckets, max_distance): four rows a side, counted one by one or up to distance 8 in logarithmic buckets."""

SUBSETS = [parts for size in (1, 2, 3) for parts in itertools.combinations(("c2p", "p2c", "p2p"), size)]


def index(i: int, j: int, num_buckets: int | None, max_distance: int) -> int:
    """`delta(i, j)` of the paper's equation 3, and of version 2: `span + bucket(i - j)` within `[0, 2 span)`."""
    if num_buckets is None:
        return oracle.clip(max_distance + i - j, 0, 2 * max_distance - 1)
    bucket = oracle.deberta_bucket(i - j, num_buckets, max_distance)
    return oracle.clip(num_buckets + bucket, 0, 2 * num_buckets - 1)


def score(
    scheme: relpos.Disentangled, parts: tuple[str, ...], setting: tuple[int | None, int], scale: float | None = None
) -> Score:
    """Equation 4 over `sqrt((1 + parts) d)`; p2p is the product of the two position vectors.

    A `scale` in place of it reaches all but p2p, which does not depend on content.
    """
    declared = 1 / math.sqrt(D * (1 + len(parts)))

    def one(pair: Pair) -> Tensor:
        row = index(pair.i, pair.j, *setting)
        total = pair.query.dot(pair.key)
        if "c2p" in parts:
            assert scheme.c2p_table is not None
            total = total + pair.query.dot(scheme.c2p_table[pair.head, row])
        if "p2c" in parts:
            assert scheme.p2c_table is not None
            total = total + pair.key.dot(scheme.p2c_table[pair.head, row])
        total = (declared if scale is None else scale) * total
        return total + declared * p2p(scheme, pair.head, row) if "p2p" in parts else total

    return one


def p2p(scheme: relpos.Disentangled, head: int, row: int) -> Tensor:
    assert scheme.c2p_table is not None
    assert scheme.p2c_table is not None
    return scheme.c2p_table[head, row].dot(scheme.p2c_table[head, row])


def scheme_of(
    setting: tuple[int | None, int], parts: tuple[str, ...] = ("c2p", "p2c"), heads: int = 3
) -> relpos.Disentangled:
    return oracle.randomize(relpos.Disentangled(heads, D, *setting, parts=parts))


@pytest.mark.parametrize("setting", [V1, BUCKETS], ids=["v1", "buckets"])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_equals_the_loops(situation: Situation, setting: tuple[int | None, int]) -> None:
    scheme = scheme_of(setting, heads=situation.heads)
    oracle.check_attention(situation, scheme, score(scheme, ("c2p", "p2c"), setting), head_dim=D)


@pytest.mark.parametrize("setting", [V1, BUCKETS], ids=["v1", "buckets"])
@pytest.mark.parametrize("parts", SUBSETS, ids="+".join)
@pytest.mark.parametrize("situation", [oracle.CAUSAL_TAIL, oracle.GAPS], ids=lambda one: one.name)
def test_parts(situation: Situation, parts: tuple[str, ...], setting: tuple[int | None, int]) -> None:
    scheme = scheme_of(setting, parts)
    oracle.check_attention(situation, scheme, score(scheme, parts, setting), head_dim=D)


@pytest.mark.parametrize("parts", SUBSETS, ids="+".join)
def test_scale_of_the_call(parts: tuple[str, ...]) -> None:
    scheme = scheme_of(BUCKETS, parts)
    oracle.check_attention(
        oracle.BIDIRECTIONAL, scheme, score(scheme, parts, BUCKETS, scale=0.3), head_dim=D, scale=0.3
    )


@pytest.mark.parametrize("setting", [V1, BUCKETS], ids=["v1", "buckets"])
def test_bias_of_p2p_alone(setting: tuple[int | None, int]) -> None:
    scheme = scheme_of(setting, ("p2p",))
    expected = oracle.dense(3, range(12), 12, lambda h, i, j: p2p(scheme, h, index(i, j, *setting)) / math.sqrt(2 * D))
    oracle.close(scheme.bias(12), expected, "bias", tolerance=1e-14)


def test_bias_of_content_parts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Disentangled\.bias: got .* Allowed: .* What to do: "):
        scheme_of(BUCKETS, ("c2p", "p2p")).bias(3)


@pytest.mark.parametrize("parts", SUBSETS, ids="+".join)
def test_heads(parts: tuple[str, ...]) -> None:
    oracle.check_heads(scheme_of(BUCKETS, parts), head_dim=D)


@pytest.mark.parametrize(
    ("parts", "tables"),
    [
        (("c2p",), {"c2p_table"}),
        (("p2c",), {"p2c_table"}),
        (("p2p",), {"c2p_table", "p2c_table"}),
        (("c2p", "p2c"), {"c2p_table", "p2c_table"}),
        (("c2p", "p2p"), {"c2p_table", "p2c_table"}),
    ],
)
def test_state(parts: tuple[str, ...], tables: set[str]) -> None:
    buckets = relpos.Disentangled(3, D, num_buckets=6, max_distance=20, parts=parts)
    assert oracle.state_shapes(buckets) == dict.fromkeys(tables, (3, 12, D))
    counted = relpos.Disentangled(3, D, num_buckets=None, max_distance=5, parts=parts)
    assert oracle.state_shapes(counted) == dict.fromkeys(tables, (3, 10, D))


@pytest.mark.parametrize("parts", [(), ("c2c",), ("c2p", "c2p"), "c2p"])
def test_other_parts_are_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"^Disentangled: got parts=.* Allowed: .* What to do: "):
        relpos.Disentangled(2, D, 8, 16, parts=parts)
