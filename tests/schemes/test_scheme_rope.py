"""Su et al. 2021: query and key literally multiplied by the block-diagonal rotation matrix of their positions."""

from __future__ import annotations

import math

import oracle
import pytest
import torch
from oracle import SITUATIONS, Pair, Score, Situation
from torch import Tensor

import relpos

LAYOUTS = ["half", "interleaved"]


def score(head_dim: int, rotary_dim: int, base: float, layout: str, scale: float | None = None) -> Score:
    """Equation 16, `q_m^T k_n = (R_m x_m W_q)^T (R_n x_n W_k)`, over `sqrt(d)`."""
    factor = 1 / math.sqrt(head_dim) if scale is None else scale

    def turn(vector: Tensor, position: int) -> Tensor:
        return oracle.rotation(position, head_dim, rotary_dim, base, layout) @ vector

    return lambda pair: factor * turn(pair.query, pair.i).dot(turn(pair.key, pair.j))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_equals_the_loops(situation: Situation, layout: str) -> None:
    oracle.check_attention(situation, relpos.Rotary(4, layout=layout), score(4, 4, 10000.0, layout), head_dim=4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10000.0, 500000.0, 3.0])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(6, None), (6, 4), (6, 2), (5, 4)])
def test_widths_and_bases(head_dim: int, rotary_dim: int | None, base: float, layout: str) -> None:
    scheme = relpos.Rotary(head_dim, rotary_dim, base=base, layout=layout)
    turned = head_dim if rotary_dim is None else rotary_dim
    oracle.check_attention(oracle.CAUSAL_TAIL, scheme, score(head_dim, turned, base, layout), head_dim=head_dim)
    oracle.check_attention(oracle.GAPS, scheme, score(head_dim, turned, base, layout), head_dim=head_dim)


def test_only_the_distance_matters() -> None:
    """The rotations of a pair reduce to `R_(n - m)` (equation 16)."""

    def by_distance(pair: Pair) -> Tensor:
        return 0.5 * pair.query.dot(oracle.rotation(pair.j - pair.i, 4, 4, 10000.0, "half") @ pair.key)

    oracle.check_attention(oracle.GAPS, relpos.Rotary(4), by_distance, head_dim=4)


def test_scale_of_the_call() -> None:
    oracle.check_attention(
        oracle.BIDIRECTIONAL, relpos.Rotary(4), score(4, 4, 10000.0, "half", scale=0.3), head_dim=4, scale=0.3
    )


def test_layouts_differ_by_a_permutation_of_channels() -> None:
    query, key, value = oracle.BIDIRECTIONAL.tensors(6, 6)
    interleaved = oracle.BIDIRECTIONAL.ask(query, key, value, relpos.Rotary(6, layout="interleaved"))
    order = torch.tensor([0, 2, 4, 1, 3, 5])
    half = oracle.BIDIRECTIONAL.ask(query[..., order], key[..., order], value, relpos.Rotary(6, layout="half"))
    oracle.close(half, interleaved, "output")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_and_state(layout: str) -> None:
    oracle.check_heads(relpos.Rotary(4, layout=layout), head_dim=4)
    assert oracle.state_shapes(relpos.Rotary(4, layout=layout)) == {}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ({"head_dim": 5}, "rotary_dim=5"),
        ({"head_dim": 6, "rotary_dim": 3}, "rotary_dim=3"),
        ({"head_dim": 4, "rotary_dim": 6}, "rotary_dim=6"),
        ({"head_dim": 4, "base": 0.0}, "base=0.0"),
        ({"head_dim": 4, "layout": "halves"}, "layout 'halves'"),
    ],
)
def test_settings_without_a_rotation_are_refused(arguments: dict[str, object], given: str) -> None:
    with pytest.raises(ValueError, match=rf"^Rotary: got {given}\. Allowed: .* What to do: "):
        relpos.make("rope", **arguments)
