"""Learned absolute positions, by loops: row `position + offset` of the table is added to the embedding."""

from __future__ import annotations

from collections.abc import Sequence

import oracle
import pytest
import torch
from torch import Tensor

import relpos

E = 5


def added(x: Tensor, table: Tensor, positions: Sequence[Sequence[int]], offset: int) -> Tensor:
    rows = [
        torch.stack([x[b, t] + table[positions[b][t] + offset] for t in range(x.shape[1])]) for b in range(x.shape[0])
    ]
    return torch.stack(rows)


def check(scheme: relpos.LearnedAbsolute, positions: relpos.Positions | None, rows: Sequence[Sequence[int]]) -> None:
    """Compare the output and the gradients of input and table."""
    x = torch.randn(len(rows), len(rows[0]), E, dtype=torch.float64, requires_grad=True)
    actual, expected = scheme.embed(x, positions), added(x, scheme.table, rows, scheme.offset)
    oracle.close(actual, expected, "embeddings", tolerance=0.0)
    weight = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(output, [x, scheme.table], weight) for output in (actual, expected))
    oracle.close(ours[0], theirs[0], "gradient of x")
    oracle.close(ours[1], theirs[1], "gradient of the table")


@pytest.mark.parametrize("offset", [0, 2])
def test_counts_from_zero(offset: int) -> None:
    check(oracle.randomize(relpos.LearnedAbsolute(E, 9, offset)), None, [range(6)] * 2)


@pytest.mark.parametrize("offset", [0, 2])
def test_positions_for_all_rows_or_for_each(offset: int) -> None:
    scheme = oracle.randomize(relpos.LearnedAbsolute(E, 12, offset))
    one = torch.tensor([3, 0, 9, 9])
    check(scheme, relpos.Positions.explicit(one, one), [[3, 0, 9, 9]] * 2)
    each = torch.tensor([[3, 0, 9, 9], [1, 1, 2, 0]])
    check(scheme, relpos.Positions.explicit(each, each), each.tolist())
    start = relpos.Positions.arange(4, 8, query_start=torch.tensor([4, 1]))
    check(scheme, start, [range(4, 8), range(1, 5)])


def test_padding_stands_at_zero() -> None:
    """Case M8: cumulative mask minus one, padding at 0."""
    scheme = oracle.randomize(relpos.LearnedAbsolute(E, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    check(scheme, relpos.Positions.from_mask(mask), [[0, 0, 0, 1, 2], [0, 1, 2, 3, 0]])


def test_offset_reaches_the_rows_before_zero() -> None:
    scheme = oracle.randomize(relpos.LearnedAbsolute(E, 6, offset=2))
    ends = torch.tensor([-2, -1, 3])
    check(scheme, relpos.Positions.explicit(ends, ends), [[-2, -1, 3]])


@pytest.mark.parametrize(
    ("offset", "position", "first", "last"), [(0, 6, 0, 5), (0, -1, 0, 5), (2, 4, -2, 3), (2, -3, -2, 3)]
)
def test_a_position_past_the_table_raises(offset: int, position: int, first: int, last: int) -> None:
    scheme = relpos.LearnedAbsolute(E, 6, offset)
    outside = torch.tensor([0, position])
    message = (
        rf"^LearnedAbsolute\.embed: got position {position} for a table of 6 rows.*"
        rf"Allowed: positions {first} to {last}\. What to do: "
    )
    with pytest.raises(ValueError, match=message):
        scheme.embed(torch.zeros(2, 2, E), relpos.Positions.explicit(outside, outside))


def test_a_longer_input_raises() -> None:
    scheme = relpos.LearnedAbsolute(E, 6)
    assert scheme.embed(torch.zeros(1, 6, E)).shape == (1, 6, E)
    with pytest.raises(ValueError, match=r"got position 6 for a table of 6 rows"):
        scheme.embed(torch.zeros(1, 7, E))


def test_dtype_is_that_of_the_input() -> None:
    scheme = relpos.LearnedAbsolute(E, 6)
    x = torch.randn(1, 3, E).bfloat16()
    expected = x + scheme.table[:3].bfloat16()
    oracle.close(scheme.embed(x).detach(), expected.detach(), "embeddings", tolerance=0.0)


@pytest.mark.parametrize("shape", [(3, E), (1, 3, E + 1)])
def test_other_inputs_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^LearnedAbsolute\.embed: got x of shape .* Allowed: .* What to do: "):
        relpos.LearnedAbsolute(E, 6).embed(torch.zeros(shape))


@pytest.mark.parametrize("rows", [torch.arange(4), torch.zeros(3, 3, dtype=torch.int64)])
def test_other_positions_are_refused(rows: Tensor) -> None:
    with pytest.raises(ValueError, match=r"^LearnedAbsolute\.embed: got positions of shape .* What to do: "):
        relpos.LearnedAbsolute(E, 6).embed(torch.zeros(2, 3, E), relpos.Positions.explicit(rows, rows))


def test_attention_refuses_it() -> None:
    x = torch.zeros(1, 1, 3, E)
    with pytest.raises(ValueError, match=r"^attention: got scheme LearnedAbsolute.* What to do: .*embed"):
        relpos.attention(x, x, x, relpos.LearnedAbsolute(E, 6))
    with pytest.raises(ValueError, match=r"^LearnedAbsolute\.terms: got .* What to do: .*embed"):
        relpos.LearnedAbsolute(E, 6).terms(relpos.Positions.arange(3))


def test_state() -> None:
    assert oracle.state_shapes(relpos.LearnedAbsolute(E, 6, offset=2)) == {"table": (6, E)}
