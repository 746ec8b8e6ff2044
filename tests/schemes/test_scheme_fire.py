"""Li et al. 2024, equations 3 and 4, with the authors' listing for what these leave open, by loops."""

from __future__ import annotations

import oracle
import pytest
import torch
from oracle import SITUATIONS, Score, Situation
from torch import Tensor

import relpos
from relpos.terms import PairBias

EPS = 1e-6


def psi(number: Tensor | float, c: Tensor) -> Tensor:
    return torch.log(torch.abs(c * number) + 1)


def bias(scheme: relpos.FIRE, head: int, i: int, j: int) -> Tensor:
    """One number of the network, unit by unit."""
    limit = torch.maximum(torch.tensor(float(i)), torch.abs(scheme.multiplier * scheme.initial_threshold))
    x = psi(float(i - j), scheme.c) / (psi(limit, scheme.c) + EPS)
    total = scheme.output_bias[head]
    for unit in range(scheme.width):
        total = total + scheme.output_weight[head, unit] * torch.relu(
            scheme.input_weight[unit] * x + scheme.input_bias[unit]
        )
    return total


def score(scheme: relpos.FIRE) -> Score:
    return lambda pair: pair.query.dot(pair.key) / 2 + bias(scheme, pair.head, pair.i, pair.j)


def scheme_of(threshold: float = 3.5, heads: int = 3, width: int = 4) -> relpos.FIRE:
    """Every number drawn anew, but c and L positive and at hand, as they are where they begin."""
    scheme = oracle.randomize(relpos.FIRE(heads, width, initial_threshold=threshold))
    with torch.no_grad():
        scheme.c.fill_(0.3)
        scheme.multiplier.fill_(1.1)
    return scheme


@pytest.mark.parametrize("backend", ["blocked", "reference"])
@pytest.mark.parametrize("threshold", [0.9, 3.5, 512.0])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_equals_the_loops(
    situation: Situation, threshold: float, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*args: object, **call: object) -> Tensor:
        return attention(*args, backend=backend, **call)

    attention = relpos.attention
    monkeypatch.setattr(relpos, "attention", ask)
    scheme = scheme_of(threshold, situation.heads)
    oracle.check_attention(situation, scheme, score(scheme))


@pytest.mark.parametrize("sign", [1, -1])
def test_signs_of_c_and_of_the_multiplier_do_not_matter(sign: int) -> None:
    scheme, other = scheme_of(), scheme_of()
    other.load_state_dict(scheme.state_dict())
    with torch.no_grad():
        other.c.mul_(sign)
        other.multiplier.mul_(-1)
    oracle.close(other.bias(9), scheme.bias(9), "bias", tolerance=0.0)


@pytest.mark.parametrize(("query_len", "key_len", "start"), [(12, None, None), (2, 30, None), (3, 9, 1)])
def test_bias_is_the_dense_picture(query_len: int, key_len: int | None, start: int | None) -> None:
    scheme = scheme_of()
    keys = query_len if key_len is None else key_len
    first = keys - query_len if start is None else start
    expected = oracle.dense(3, range(first, first + query_len), keys, lambda h, i, j: bias(scheme, h, i, j))
    oracle.close(scheme.bias(query_len, key_len, start), expected, "bias", tolerance=1e-14)
    oracle.close(relpos.RelativeBias(2, mode="fire", width=7)(5), torch.zeros(2, 5, 5), "shape", tolerance=9.0)


def test_bias_with_a_start_for_each_row() -> None:
    scheme = scheme_of()
    rows = [scheme.bias(3, 20, start) for start in (11, 0)]
    oracle.close(scheme.bias(3, 20, torch.tensor([11, 0])), torch.stack(rows), "bias", tolerance=1e-14)


def test_a_shift_changes_nothing_before_the_threshold_and_something_past_it() -> None:
    for threshold, shifts in ((40.0, (1, 20)), (3.5, ())):
        scheme = scheme_of(threshold)
        here = scheme.bias(9)
        for shift in (1, 20):
            place = torch.arange(shift, shift + 9)
            there = _values(scheme, place, place)
            assert (shift in shifts) == torch.allclose(there, here, rtol=0.0, atol=1e-12)


def test_past_the_threshold_the_whole_past_is_one() -> None:
    """A query past L sees the key at position 0 in x = 1, wherever it stands itself; its own in x = 0."""
    scheme = scheme_of(3.5)
    place, first = torch.tensor([5, 50, 5000]), torch.tensor([0])
    ends = _values(scheme, place, first)[:, :, 0]
    oracle.close(ends, ends[:, :1].expand(-1, 3).contiguous(), "x = 1", tolerance=1e-5)
    starts = _values(scheme, place, place).diagonal(dim1=1, dim2=2)
    oracle.close(starts, starts[:, :1].expand(-1, 3).contiguous(), "x = 0", tolerance=1e-12)


def _values(scheme: relpos.FIRE, query: Tensor, key: Tensor) -> Tensor:
    (term,) = scheme.terms(relpos.Positions.explicit(query, key))
    assert isinstance(term, PairBias)
    return term.between(query, key, 3, torch.float64).detach()


def test_heads() -> None:
    oracle.check_heads(scheme_of())


def test_state_and_where_it_starts() -> None:
    scheme = relpos.FIRE(4, initial_c=0.2)
    assert oracle.state_shapes(scheme) == {
        "input_weight": (32,),
        "input_bias": (32,),
        "output_weight": (4, 32),
        "output_bias": (4,),
        "c": (),
        "multiplier": (),
    }
    assert (float(scheme.c.detach()), float(scheme.multiplier.detach())) == (pytest.approx(0.2), 1.0)
    assert 0.5 < scheme.input_weight.abs().max() <= 1.0
    assert 0.1 < scheme.output_weight.abs().max() <= 32**-0.5


@pytest.mark.parametrize("bad", [{"initial_c": 0.0}, {"initial_threshold": -1.0}, {"eps": 0.0}, {"width": 0}])
def test_what_it_refuses(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"FIRE: got {next(iter(bad))}"):
        relpos.FIRE(2, **bad)
