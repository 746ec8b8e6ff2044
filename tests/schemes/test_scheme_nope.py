"""No positions: plain attention, and the loops themselves against torch's."""

from __future__ import annotations

import math

import oracle
import pytest
import torch
from oracle import SITUATIONS, Pair, Situation
from torch import Tensor
from torch.nn import functional as F

import relpos


def score(pair: Pair) -> Tensor:
    """Vaswani et al. 2017, equation 1."""
    return pair.query.dot(pair.key) / math.sqrt(len(pair.query))


@pytest.mark.parametrize("is_causal", [False, True])
def test_loops_equal_torch(is_causal: bool) -> None:
    situation = Situation("torch", [range(6)] * 2, [range(6)] * 2, is_causal=is_causal)
    query, key, value = situation.tensors(head_dim=4, value_dim=5)
    loops = oracle.attend(
        query, key, value, score, situation.visible, situation.query_positions, situation.key_positions
    )
    oracle.close(loops, F.scaled_dot_product_attention(query, key, value, is_causal=is_causal), "loops")


@pytest.mark.parametrize("scheme", [None, relpos.NoPE()], ids=["None", "NoPE"])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_equals_plain_attention(situation: Situation, scheme: relpos.NoPE | None) -> None:
    oracle.check_attention(situation, scheme, score)


def test_scale_of_the_call() -> None:
    oracle.check_attention(oracle.CAUSAL_TAIL, relpos.NoPE(), lambda pair: 0.3 * pair.query.dot(pair.key), scale=0.3)


def test_nothing_anchors_unequal_lengths() -> None:
    """Where nothing depends on distance, nobody needs to know where the queries stand."""
    query, key = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    expected = F.scaled_dot_product_attention(query, key, key)
    oracle.close(relpos.attention(query, key, key, relpos.NoPE()), expected, "output", tolerance=1e-6)


def test_heads_and_state() -> None:
    oracle.check_heads(relpos.NoPE())
    assert oracle.state_shapes(relpos.NoPE()) == {}


def test_bias_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^NoPE\.bias: got .* Allowed: .* What to do: "):
        relpos.NoPE().bias(3)
