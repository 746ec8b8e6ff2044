"""FIRE: a small network of the distance, interpolated by the query's position."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relpos import errors
from relpos.positions import Positions
from relpos.schemes.scheme import Scheme
from relpos.terms import PairBias, Term


class FIRE(Scheme, name="fire"):
    r"""Adds a two-layer network of the log-distance relative to the query's own position, one output a head.

        b[h, i, j] = sum_w output_weight[h, w] relu(input_weight[w] x_ij + input_bias[w]) + output_bias[h]
        x_ij = psi(i - j) / (psi(max(i, L)) + eps)
        psi(n) = log(1 + abs(c n)),    L = abs(multiplier initial_threshold)

    i and j are the positions of query and key. A query past L sees its whole past, from itself to position 0, in x from
    0 to 1 however long it is; one before L sees plain log-distances.

    Args:
        num_heads: heads H.
        width: hidden units W, 32 in the paper.
        initial_c: first value of the learned c.
        initial_threshold: first value of L; what learns is a factor of it, `multiplier`.
        eps: keeps the quotient finite where L is 0.

    State: `input_weight [W]`, `input_bias [W]`, `output_weight [H, W]`, `output_bias [H]`, `c []`, `multiplier []`. The
        network starts as torch's `nn.Linear` does, `multiplier` at 1. Of the authors' listing: `mlp.0.weight[:, 0]`,
        `mlp.0.bias`, `mlp.2.weight`, `mlp.2.bias`, `c`, `L_multiplier`. Softmax removes `output_bias`.
    Numerics: float32 (float64 for float64 queries) whatever the model's dtype.
    Cost: `2 W + (W + 1) H + 2` parameters; time `O(Tq Tk W H)`, in memory linear in the length by `blocked`.
    Valid: any length; not invariant to shifts past L, so pads on the left want `Positions.from_mask`.
    Source: Li et al. 2024 (arXiv 2310.04418), and the authors' listing, which has the absolute value (for keys ahead),
        `eps` and the multiplier.
    Raises: ValueError for a size, `initial_c`, `initial_threshold` or `eps` that is not positive.

    >>> FIRE(num_heads=2).bias(3).shape
    torch.Size([2, 3, 3])
    """

    encodes = "distance"
    injects_at = "scores"
    head_tables = ("output_weight", "output_bias")

    def __init__(
        self,
        num_heads: int,
        width: int = 32,
        initial_c: float = 0.1,
        initial_threshold: float = 512.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        errors.positive_int("FIRE", num_heads=num_heads, width=width)
        first = {"initial_c": initial_c, "initial_threshold": initial_threshold, "eps": eps}
        errors.finite("FIRE", **first)
        for what, number in first.items():
            if number <= 0:
                raise errors.value("FIRE", f"{what}={number}", f"{what} > 0", f"pass a positive {what}.")
        self.num_heads, self.width = num_heads, width
        self.initial_c, self.initial_threshold, self.eps = initial_c, initial_threshold, eps
        self.input_weight = nn.Parameter(torch.empty(width))
        self.input_bias = nn.Parameter(torch.empty(width))
        self.output_weight = nn.Parameter(torch.empty(num_heads, width))
        self.output_bias = nn.Parameter(torch.empty(num_heads))
        self.c = nn.Parameter(torch.empty(()))
        self.multiplier = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Both layers uniform within `1 / sqrt(inputs)`; c and L at their first values."""
        for inputs, tables in ((1, (self.input_weight, self.input_bias)), (self.width, self._output())):
            for table in tables:
                nn.init.uniform_(table, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))
        nn.init.constant_(self.c, self.initial_c)
        nn.init.ones_(self.multiplier)

    def terms(self, positions: Positions) -> tuple[Term, ...]:
        """One pair bias."""
        tensors = (self.input_weight, self.input_bias, *self._output(), self.c, self.multiplier)
        return (PairBias(self._values, tensors),)

    def _output(self) -> tuple[Tensor, Tensor]:
        return self.output_weight, self.output_bias

    def _values(
        self, query: Int[Tensor, "*b Tq 1"], key: Int[Tensor, "*b 1 Tk"], dtype: torch.dtype, *tensors: Tensor
    ) -> Float[Tensor, "H *b Tq Tk"]:
        input_weight, input_bias, output_weight, output_bias, c, multiplier = (x.to(dtype) for x in tensors)
        limit = torch.maximum(query.to(dtype), (multiplier * self.initial_threshold).abs())
        relative = _psi((key - query).to(dtype), c) / (_psi(limit, c) + self.eps)
        hidden = torch.addcmul(input_bias[:, None], input_weight[:, None], relative.flatten()).relu()
        return torch.addmm(output_bias[:, None], output_weight, hidden).view(len(output_bias), *relative.shape)


def _psi(number: Float[Tensor, "*shape"], c: Float[Tensor, ""]) -> Float[Tensor, "*shape"]:
    return torch.log1p((c * number).abs())
