"""Raffel et al. 2020, section 2.1, with the bucket rule of mesh-tensorflow, by loops."""

from __future__ import annotations

import math

import oracle
import pytest
import torch
from oracle import SITUATIONS, Pair, Score, Situation
from torch import Tensor

import relpos

BUCKETS, REACH = 8, 16
"""Small, so that short inputs reach the logarithmic buckets and the last one."""


def score(table: Tensor, bidirectional: bool, bias_scale: float = 1.0, scale: float = 1.0) -> Score:
    def one(pair: Pair) -> Tensor:
        bucket = oracle.t5_bucket(pair.j - pair.i, bidirectional, BUCKETS, REACH)
        return scale * pair.query.dot(pair.key) + bias_scale * table[pair.head, bucket]

    return one


def scheme_of(
    bidirectional: bool = True, heads: int = 3, bias_scale: float = 1.0, scale: float | None = 1.0
) -> relpos.T5Bias:
    return oracle.randomize(relpos.T5Bias(heads, BUCKETS, REACH, bidirectional, bias_scale, scale))


@pytest.mark.parametrize("bidirectional", [True, False], ids=["two-way", "one-way"])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_equals_the_loops(situation: Situation, bidirectional: bool) -> None:
    scheme = scheme_of(bidirectional, situation.heads)
    oracle.check_attention(situation, scheme, score(scheme.table, bidirectional))


@pytest.mark.parametrize("situation", [oracle.CAUSAL_TAIL, oracle.GAPS], ids=lambda one: one.name)
@pytest.mark.parametrize("bias_scale", [1.0, math.sqrt(3 / 4)])
@pytest.mark.parametrize(
    ("declared", "called", "scale"),
    [(1.0, None, 1.0), (None, None, 0.5), (0.7, None, 0.7), (1.0, 0.3, 0.3), (None, 0.3, 0.3)],
)
def test_scales(
    situation: Situation, bias_scale: float, declared: float | None, called: float | None, scale: float
) -> None:
    """Head width 4: `None` is 1/2. The scale acts on the product alone, `bias_scale` on the bias alone."""
    scheme = scheme_of(bias_scale=bias_scale, scale=declared)
    oracle.check_attention(situation, scheme, score(scheme.table, True, bias_scale, scale), head_dim=4, scale=called)


@pytest.mark.parametrize("bidirectional", [True, False], ids=["two-way", "one-way"])
@pytest.mark.parametrize(("query_len", "key_len", "start"), [(40, None, None), (2, 30, None), (3, 20, 1)])
def test_bias_is_the_dense_table(query_len: int, key_len: int | None, start: int | None, bidirectional: bool) -> None:
    scheme = scheme_of(bidirectional, bias_scale=0.5)
    keys = query_len if key_len is None else key_len
    first = keys - query_len if start is None else start

    def bias(h: int, i: int, j: int) -> Tensor:
        return 0.5 * scheme.table[h, oracle.t5_bucket(j - i, bidirectional, BUCKETS, REACH)]

    expected = oracle.dense(3, range(first, first + query_len), keys, bias)
    oracle.close(scheme.bias(query_len, key_len, start), expected, "bias", tolerance=1e-15)


def test_bias_with_a_start_for_each_row() -> None:
    scheme = scheme_of()
    rows = [scheme.bias(3, 20, start) for start in (11, 0)]
    oracle.close(scheme.bias(3, 20, torch.tensor([11, 0])), torch.stack(rows), "bias", tolerance=0.0)


@pytest.mark.parametrize("bidirectional", [True, False], ids=["two-way", "one-way"])
def test_heads(bidirectional: bool) -> None:
    oracle.check_heads(scheme_of(bidirectional))


def test_state() -> None:
    assert oracle.state_shapes(relpos.T5Bias(4)) == {"table": (4, 32)}
    assert oracle.state_shapes(relpos.T5Bias(2, num_buckets=8, max_distance=20)) == {"table": (2, 8)}


@pytest.mark.parametrize("scale", [1.0, None, 0.125])
def test_repr_shows_the_scale(scale: float | None) -> None:
    assert f", scale={scale!r})" in repr(relpos.T5Bias(4, scale=scale))
    assert f", scale={scale!r})" in repr(relpos.T5Bias(4, scale=scale).heads(0, 2))
