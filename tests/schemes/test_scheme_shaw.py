"""Shaw, Uszkoreit and Vaswani 2018, equations 3 to 5, by loops."""

from __future__ import annotations

import math

import oracle
import pytest
from oracle import SITUATIONS, Pair, Score, Situation
from torch import Tensor

import relpos

D = 4


def edge(table: Tensor, pair: Pair, left: int, right: int) -> Tensor:
    """`a_ij = w[clip(j - i, -left, right)]`, whose row 0 is distance -left; one table for all heads, or one each."""
    rows = table if table.dim() == 2 else table[pair.head]
    return rows[oracle.clip(pair.j - pair.i, -left, right) + left]


def score(scheme: relpos.Shaw, left: int, right: int, scale: float = 1 / math.sqrt(D)) -> Score:
    """Equation 4: `e_ij = x_i W_Q (x_j W_K + a_ij^K) / sqrt(d)`."""
    return lambda pair: scale * pair.query.dot(pair.key + edge(scheme.key_table, pair, left, right))


def value_vector(scheme: relpos.Shaw, left: int, right: int) -> Score | None:
    """Equation 3: `z_i = sum_j alpha_ij (x_j W_V + a_ij^V)`."""
    table = scheme.value_table
    return None if table is None else lambda pair: edge(table, pair, left, right)


@pytest.mark.parametrize("per_head", [False, True], ids=["shared", "per-head"])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_equals_the_loops(situation: Situation, per_head: bool) -> None:
    scheme = oracle.randomize(relpos.Shaw(situation.heads, D, 2, per_head=per_head))
    oracle.check_attention(situation, scheme, score(scheme, 2, 2), head_dim=D, value_vector=value_vector(scheme, 2, 2))


@pytest.mark.parametrize("situation", [oracle.BIDIRECTIONAL, oracle.CAUSAL_TAIL, oracle.GAPS], ids=lambda one: one.name)
@pytest.mark.parametrize("per_head", [False, True], ids=["shared", "per-head"])
@pytest.mark.parametrize("values", [False, True], ids=["keys", "keys-and-values"])
@pytest.mark.parametrize(("left", "right"), [(3, 1), (0, 2), (2, 0)])
def test_two_limits(situation: Situation, left: int, right: int, values: bool, per_head: bool) -> None:
    scheme = oracle.randomize(relpos.Shaw(3, D, (left, right), values=values, per_head=per_head))
    oracle.check_attention(
        situation,
        scheme,
        score(scheme, left, right),
        head_dim=D,
        value_vector=value_vector(scheme, left, right),
    )


def test_scale_of_the_call_reaches_both_products() -> None:
    scheme = oracle.randomize(relpos.Shaw(3, D, 2))
    oracle.check_attention(
        oracle.BIDIRECTIONAL,
        scheme,
        score(scheme, 2, 2, scale=0.3),
        head_dim=D,
        value_vector=value_vector(scheme, 2, 2),
        scale=0.3,
    )


@pytest.mark.parametrize("per_head", [False, True], ids=["shared", "per-head"])
def test_heads(per_head: bool) -> None:
    oracle.check_heads(oracle.randomize(relpos.Shaw(3, D, 2, per_head=per_head)), head_dim=D)


def test_state() -> None:
    assert oracle.state_shapes(relpos.Shaw(2, 4, 3)) == {"key_table": (7, 4), "value_table": (7, 4)}
    assert oracle.state_shapes(relpos.Shaw(2, 4, (5, 1), values=False)) == {"key_table": (7, 4)}
    assert oracle.state_shapes(relpos.Shaw(2, 4, 1, per_head=True)) == {
        "key_table": (2, 3, 4),
        "value_table": (2, 3, 4),
    }


def test_bias_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Shaw\.bias: got .* Allowed: .* What to do: "):
        relpos.Shaw(2, 4, 3).bias(3)
