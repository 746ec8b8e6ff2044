"""Vaswani et al. 2017, section 3.5, by loops: sines and cosines are added to the embedding."""

from __future__ import annotations

from collections.abc import Sequence

import oracle
import pytest
import torch
from torch import Tensor

import relpos

LAYOUTS = ["interleaved", "concatenated"]


def added(x: Tensor, positions: Sequence[Sequence[int]], base: float, layout: str) -> Tensor:
    width = x.shape[-1]
    table = [[[oracle.sinusoid(p, c, width, base, layout) for c in range(width)] for p in row] for row in positions]
    return x + torch.tensor(table, dtype=torch.float64)


def check(scheme: relpos.Sinusoidal, positions: relpos.Positions | None, rows: Sequence[Sequence[int]]) -> None:
    """Compare the output and the gradient of the input."""
    x = torch.randn(len(rows), len(rows[0]), scheme.embed_dim, dtype=torch.float64, requires_grad=True)
    actual, expected = scheme.embed(x, positions), added(x, rows, scheme.base, scheme.layout)
    oracle.close(actual, expected, "embeddings", tolerance=1e-12)
    weight = torch.randn_like(expected)
    oracle.close(torch.autograd.grad(actual, x, weight)[0], weight, "gradient of x", tolerance=0.0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10000.0, 50.0])
@pytest.mark.parametrize("width", [1, 2, 3, 6, 7])
def test_equals_the_loops(width: int, base: float, layout: str) -> None:
    """Odd widths too (case F6)."""
    check(relpos.Sinusoidal(width, base, layout), None, [range(40)] * 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_positions_for_all_rows_or_for_each(layout: str) -> None:
    scheme = relpos.Sinusoidal(5, layout=layout)
    one = torch.tensor([3, 0, -9, 900])
    check(scheme, relpos.Positions.explicit(one, one), [[3, 0, -9, 900]] * 2)
    each = torch.tensor([[3, 0, -9, 900], [1, -1, 2, 0]])
    check(scheme, relpos.Positions.explicit(each, each), each.tolist())
    start = relpos.Positions.arange(4, 8, query_start=torch.tensor([4, 1]))
    check(scheme, start, [range(4, 8), range(1, 5)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_negative_positions_mirror_the_sines_only(layout: str) -> None:
    """Case F5: sine odd, cosine even."""
    positions = torch.tensor([2, -2])
    ahead, back = relpos.Sinusoidal(6, layout=layout).embed(
        torch.zeros(1, 2, 6, dtype=torch.float64), relpos.Positions.explicit(positions, positions)
    )[0]
    sines = [0, 2, 4] if layout == "interleaved" else [0, 1, 2]
    cosines = [1, 3, 5] if layout == "interleaved" else [3, 4, 5]
    assert (ahead[sines] != 0).all()
    oracle.close(back[sines], -ahead[sines], "sines", tolerance=0.0)
    oracle.close(back[cosines], ahead[cosines], "cosines", tolerance=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounded_once_to_the_dtype_of_the_input(dtype: torch.dtype) -> None:
    """Positions in bfloat16 would merge 256 and 257."""
    x, positions = torch.zeros(1, 2, 8, dtype=dtype), torch.tensor([256, 257])
    expected = added(torch.zeros(1, 2, 8, dtype=torch.float64), [[256, 257]], 10000.0, "interleaved").to(dtype)
    embedded = relpos.Sinusoidal(8).embed(x, relpos.Positions.explicit(positions, positions))
    oracle.close(embedded, expected, "embeddings", tolerance=0.0)


@pytest.mark.parametrize("shape", [(3, 6), (1, 3, 7)])
def test_other_inputs_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^Sinusoidal\.embed: got x of shape .* Allowed: .* What to do: "):
        relpos.Sinusoidal(6).embed(torch.zeros(shape))


@pytest.mark.parametrize(
    ("arguments", "given"),
    [({"embed_dim": 0}, "embed_dim=0"), ({"base": -1.0}, "base=-1.0"), ({"layout": "half"}, "layout 'half'")],
)
def test_settings_without_a_table_are_refused(arguments: dict[str, object], given: str) -> None:
    with pytest.raises(ValueError, match=rf"^Sinusoidal: got {given}\. Allowed: .* What to do: "):
        relpos.make("sinusoidal", **({"embed_dim": 6} | arguments))


def test_attention_refuses_it() -> None:
    x = torch.zeros(1, 1, 3, 6)
    with pytest.raises(ValueError, match=r"^attention: got scheme Sinusoidal.* What to do: .*embed"):
        relpos.attention(x, x, x, relpos.Sinusoidal(6))
    with pytest.raises(ValueError, match=r"^Sinusoidal\.terms: got .* What to do: .*embed"):
        relpos.Sinusoidal(6).terms(relpos.Positions.arange(3))


def test_state() -> None:
    assert oracle.state_shapes(relpos.Sinusoidal(6)) == {}
