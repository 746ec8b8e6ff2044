"""Huang, Liang, Xu and Xiang 2020, section 3.3, methods 1 to 4, by loops."""

from __future__ import annotations

import math

import oracle
import pytest
from oracle import SITUATIONS, Pair, Score, Situation
from torch import Tensor

import relpos

D, K = 4, 3


def score(table: Tensor, method: int, scale: float = 1 / math.sqrt(D)) -> Score:
    """The four methods, with distances clipped at K."""

    def one(pair: Pair) -> Tensor:
        distance = pair.j - pair.i
        if method == 1:
            return scale * pair.query.dot(pair.key) * table[pair.head, min(abs(distance), K)]
        a = table[pair.head, oracle.clip(distance, -K, K) + K]
        if method == 2:
            return scale * pair.query.dot(pair.key) * a
        if method == 3:
            return scale * torch_sum([pair.query[c] * pair.key[c] * a[c] for c in range(D)])
        return scale * (pair.query.dot(pair.key) + pair.query.dot(a) + pair.key.dot(a))

    return one


def torch_sum(numbers: list[Tensor]) -> Tensor:
    total = numbers[0]
    for number in numbers[1:]:
        total = total + number
    return total


def scheme_of(method: int, heads: int = 3) -> relpos.Huang:
    return oracle.randomize(relpos.Huang(heads, D, K, method=method))


@pytest.mark.parametrize("method", [1, 2, 3, 4])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_equals_the_loops(situation: Situation, method: int) -> None:
    scheme = scheme_of(method, situation.heads)
    oracle.check_attention(situation, scheme, score(scheme.table, method), head_dim=D)


@pytest.mark.parametrize("method", [1, 2, 3, 4])
def test_scale_of_the_call(method: int) -> None:
    scheme = scheme_of(method)
    oracle.check_attention(oracle.BIDIRECTIONAL, scheme, score(scheme.table, method, scale=0.3), head_dim=D, scale=0.3)


@pytest.mark.parametrize("method", [1, 2, 3])
def test_fresh_gains_leave_attention_as_it_is(method: int) -> None:
    scheme = relpos.Huang(3, D, K, method=method).double()
    query, key, value = oracle.BIDIRECTIONAL.tensors(D, D)
    plain = oracle.BIDIRECTIONAL.ask(query, key, value, None)
    oracle.close(oracle.BIDIRECTIONAL.ask(query, key, value, scheme), plain, "output")


@pytest.mark.parametrize("method", [1, 2, 3, 4])
def test_heads(method: int) -> None:
    oracle.check_heads(scheme_of(method), head_dim=D)


@pytest.mark.parametrize(("method", "shape"), [(1, (2, 4)), (2, (2, 7)), (3, (2, 7, 4)), (4, (2, 7, 4))])
def test_state(method: int, shape: tuple[int, ...]) -> None:
    assert oracle.state_shapes(relpos.Huang(2, 4, 3, method=method)) == {"table": shape}


@pytest.mark.parametrize("method", [0, 5, -1])
def test_unknown_method_is_refused(method: int) -> None:
    with pytest.raises(ValueError, match=r"^Huang: got method=.* Allowed: 1, 2, 3 or 4\. What to do: "):
        relpos.Huang(2, 4, 3, method=method)
