"""Shaw's clipped distances with one number for each head and distance, by loops."""

from __future__ import annotations

import math

import oracle
import pytest
from oracle import SITUATIONS, Pair, Score, Situation
from torch import Tensor

import relpos

K = 3


def row(i: int, j: int, symmetric: bool) -> int:
    return min(abs(j - i), K) if symmetric else oracle.clip(j - i, -K, K) + K


def score(table: Tensor, symmetric: bool) -> Score:
    def one(pair: Pair) -> Tensor:
        content = pair.query.dot(pair.key) / math.sqrt(len(pair.query))
        return content + table[pair.head, row(pair.i, pair.j, symmetric)]

    return one


def scheme_of(symmetric: bool, heads: int = 3) -> relpos.ShawBias:
    return oracle.randomize(relpos.ShawBias(heads, K, symmetric=symmetric))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_equals_the_loops(situation: Situation, symmetric: bool) -> None:
    scheme = scheme_of(symmetric, situation.heads)
    oracle.check_attention(situation, scheme, score(scheme.table, symmetric))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("query_len", "key_len", "start"), [(6, None, None), (2, 6, None), (3, 6, 1), (3, 2, 7)])
def test_bias_is_the_dense_table(query_len: int, key_len: int | None, start: int | None, symmetric: bool) -> None:
    scheme = scheme_of(symmetric)
    keys = query_len if key_len is None else key_len
    first = keys - query_len if start is None else start
    expected = oracle.dense(
        3, range(first, first + query_len), keys, lambda h, i, j: scheme.table[h, row(i, j, symmetric)]
    )
    oracle.close(scheme.bias(query_len, key_len, start), expected, "bias", tolerance=0.0)


@pytest.mark.parametrize("symmetric", [False, True])
def test_heads(symmetric: bool) -> None:
    oracle.check_heads(scheme_of(symmetric))


def test_state() -> None:
    assert oracle.state_shapes(relpos.ShawBias(2, 3)) == {"table": (2, 7)}
    assert oracle.state_shapes(relpos.ShawBias(2, 3, symmetric=True)) == {"table": (2, 4)}
