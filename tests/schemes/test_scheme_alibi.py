"""Press, Smith and Lewis 2022, section 3, by loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import oracle
import pytest
import torch
from oracle import SITUATIONS, Pair, Score, Situation
from torch import Tensor

import relpos


def score(slopes: Sequence[float] | Tensor, bias_scale: float = 1.0, scale: float = 0.5) -> Score:
    """`q_i k_j / sqrt(d) - m (i - j)`; keys after the query, which the paper never sees, at `-m (j - i)`."""

    def one(pair: Pair) -> Tensor:
        return scale * pair.query.dot(pair.key) - bias_scale * slopes[pair.head] * abs(pair.i - pair.j)

    return one


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_equals_the_loops(situation: Situation) -> None:
    scheme = relpos.ALiBi(situation.heads)
    oracle.check_attention(situation, scheme, score(oracle.alibi_slopes(situation.heads)))


@pytest.mark.parametrize("situation", [oracle.BIDIRECTIONAL, oracle.CAUSAL_TAIL, oracle.GAPS], ids=lambda one: one.name)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["list", "tensor"])
def test_custom_slopes(situation: Situation, as_tensor: bool) -> None:
    slopes = [0.7, 0.3, -0.1]
    scheme = relpos.ALiBi(3, slopes=torch.tensor(slopes, dtype=torch.float64) if as_tensor else slopes)
    oracle.check_attention(situation, scheme, score(slopes))


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_learned_slopes_and_their_gradient(situation: Situation) -> None:
    scheme = oracle.randomize(relpos.ALiBi(situation.heads, learned=True, bias_scale=0.5))
    assert isinstance(scheme.slopes, torch.nn.Parameter)
    oracle.check_attention(situation, scheme, score(scheme.slopes, bias_scale=0.5))


@pytest.mark.parametrize("max_exponent", [8.0, 4.0])
def test_learned_slopes_start_as_published(max_exponent: float) -> None:
    scheme = relpos.ALiBi(6, learned=True, max_exponent=max_exponent)
    expected = torch.tensor(oracle.alibi_slopes(6, max_exponent))
    oracle.close(scheme.slopes.detach(), expected, "slopes", tolerance=1e-7)


@pytest.mark.parametrize("situation", [oracle.BIDIRECTIONAL, oracle.CAUSAL_TAIL], ids=lambda one: one.name)
@pytest.mark.parametrize("bias_scale", [1.0, 0.25])
@pytest.mark.parametrize("max_exponent", [8.0, 3.0])
@pytest.mark.parametrize(("called", "scale"), [(None, 0.5), (0.3, 0.3)])
def test_scales(
    situation: Situation, bias_scale: float, max_exponent: float, called: float | None, scale: float
) -> None:
    """Head width 4, so the default is 1/2; the scale of the call does not reach the bias."""
    scheme = relpos.ALiBi(3, max_exponent=max_exponent, bias_scale=bias_scale)
    slopes = oracle.alibi_slopes(3, max_exponent)
    oracle.check_attention(situation, scheme, score(slopes, bias_scale, scale), head_dim=4, scale=called)


@pytest.mark.parametrize("situation", [oracle.CAUSAL_TAIL, oracle.BIDIRECTIONAL], ids=lambda one: one.name)
def test_bias_by_key_index_is_the_same_model_only_if_causal(situation: Situation) -> None:
    """The released form `m * j` differs by a constant for each row where keys lie in the past (case A6)."""
    slopes = oracle.alibi_slopes(3)

    def by_key_index(pair: Pair) -> Tensor:
        return 0.5 * pair.query.dot(pair.key) + slopes[pair.head] * pair.j

    def check() -> None:
        oracle.check_attention(situation, relpos.ALiBi(3), by_key_index, head_dim=4)

    if situation.is_causal:
        check()
    else:
        with pytest.raises(AssertionError, match="output"):
            check()


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(("query_len", "key_len", "start"), [(6, None, None), (2, 6, None), (3, 6, 1)])
def test_bias_is_the_dense_picture(query_len: int, key_len: int | None, start: int | None, learned: bool) -> None:
    slopes = [0.5, math.sqrt(2), 0.1]
    scheme = relpos.ALiBi(3, slopes=slopes, learned=learned, bias_scale=0.5)
    keys = query_len if key_len is None else key_len
    first = keys - query_len if start is None else start
    expected = oracle.dense(
        3, range(first, first + query_len), keys, lambda h, i, j: torch.tensor(-0.5 * slopes[h] * abs(i - j))
    )
    oracle.close(scheme.bias(query_len, key_len, start), expected, "bias", tolerance=5e-7)


@pytest.mark.parametrize("learned", [False, True])
def test_heads(learned: bool) -> None:
    scheme = relpos.ALiBi(3, slopes=[0.7, 0.3, 0.1], learned=learned)
    oracle.check_heads(scheme.double())
    # A slice starts again from its own slopes.
    part = scheme.heads(1, 3)
    part.reset_parameters()
    oracle.close(part.bias(2)[:, 0, 1].detach().double(), torch.tensor([-0.3, -0.1]).double(), "bias", tolerance=1e-7)


def test_state() -> None:
    assert oracle.state_shapes(relpos.ALiBi(4)) == {}
    assert oracle.state_shapes(relpos.ALiBi(4, learned=True)) == {"slopes": (4,)}


@pytest.mark.parametrize("slopes", [[0.5], [0.5, 0.1, 0.2, 0.3], [[0.5, 0.1, 0.2]], [0.5, math.nan, 0.1]])
def test_other_than_one_finite_slope_a_head_is_refused(slopes: list[float]) -> None:
    with pytest.raises(ValueError, match=r"^ALiBi: got slopes.* Allowed: .*finite.* What to do: "):
        relpos.ALiBi(3, slopes=slopes)
