"""A learned number for each head and clipped distance: the scalar form of Shaw's edges."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relpos import errors, functional
from relpos.functional.tables import Kept, lookup
from relpos.positions import Positions
from relpos.schemes.scheme import Scheme
from relpos.terms import DistanceBias, Term


class ShawBias(Scheme, name="shaw_bias"):
    r"""Adds `table[h, clip(d, -k, k) + k]` to the score, `d = key - query` and `k = max_distance`.

    Args:
        num_heads: heads H.
        max_distance: k; all keys further away share the last row of their side.
        symmetric: one number for `d` and `-d`: `table[h, min(abs(d), k)]`.

    State: `table [H, 2k + 1]`, row 0 the most negative distance; `[H, k + 1]`, row 0 distance 0, if symmetric.
        Starts at zero, as attention without positions. Give it a larger learning rate than matrices need.
    Numerics: rows in int64; the table is read in float32 or wider.
    Cost: `H (2k + 1)` parameters.
    Valid: any length; blind to differences beyond k.
    Source: Shaw et al. 2018, section 3.2 (clipping), with a scalar in place of the product `x_i W_Q . a_ij`, as in the
        learned biases of Liu et al. 2021 (Swin, section 3.2).

    >>> ShawBias(num_heads=2, max_distance=3).bias(5).shape
    torch.Size([2, 5, 5])
    """

    encodes = "distance"
    injects_at = "scores"
    head_tables = ("table",)

    def __init__(self, num_heads: int, max_distance: int, symmetric: bool = False) -> None:
        super().__init__()
        errors.positive_int("ShawBias", num_heads=num_heads, max_distance=max_distance)
        errors.flags("ShawBias", symmetric=symmetric)
        self.num_heads, self.max_distance, self.symmetric = num_heads, max_distance, symmetric
        self._rows = Kept()
        self.table = nn.Parameter(torch.empty(num_heads, (1 if symmetric else 2) * max_distance + 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All zero: no preference for any distance."""
        nn.init.zeros_(self.table)

    def terms(self, positions: Positions) -> tuple[Term, ...]:
        """One distance bias."""
        return (DistanceBias.clipped(self.max_distance, self._between, self._row),)

    def _between(self, first: int, end: int, dtype: torch.dtype) -> Float[Tensor, "H n"]:
        rows = self._rows.between(first, end, (self.max_distance, self.symmetric), self._row)
        return lookup(self.table.to(dtype), rows.to(self.table.device))

    def _row(self, distance: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        if self.symmetric:
            return functional.shaw_index(distance.abs(), (0, self.max_distance))
        return functional.shaw_index(distance, self.max_distance)
