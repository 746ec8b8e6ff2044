"""Huang's four methods: position that multiplies the content score, and its additive generalisation."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor, nn

from relpos import errors, functional
from relpos.positions import Positions
from relpos.schemes.scheme import Scheme
from relpos.terms import DistanceGain, KeyDistance, QueryDistance, Term


class Huang(Scheme, name="huang"):
    r"""Lets the distance multiply the content score (methods 1 to 3) or meet query and key (method 4).

        method 1:  score_ij = (query_i . key_j) table[h, min(abs(d), k)] / sqrt(D)
        method 2:  score_ij = (query_i . key_j) table[h, r] / sqrt(D)
        method 3:  score_ij = sum_c query_ic key_jc table[h, r, c] / sqrt(D)
        method 4:  score_ij = (query_i . key_j + query_i . table[h, r] + key_j . table[h, r]) / sqrt(D)

    with `d = key - query`, `k = max_distance` and `r = clip(d, -k, k) + k`.

    Args:
        num_heads: heads H.
        head_dim: head width D.
        max_distance: k. The paper counts every distance of its longest input; clipping is Shaw's.
        method: 1 to 4. Method 4 is BERT's `relative_key_query`.

    State: `table`: `[H, k + 1]`, `[H, 2k + 1]`, `[H, 2k + 1, D]`, `[H, 2k + 1, D]` for methods 1 to 4. Gains start at
        1 (attention without positions), method 4 normal with standard deviation 0.02.
    Cost: as many parameters; method 3 costs D times the score matrix in the reference backend.
    Valid: any length; blind to differences beyond k.
    Source: Huang, Liang, Xu and Xiang 2020, section 3.3 (methods 1 to 4). Differs from it: clipped distances.

    >>> Huang(num_heads=2, head_dim=4, max_distance=3, method=2).table.shape
    torch.Size([2, 7])
    """

    encodes = "distance"
    injects_at = "scores"
    head_tables = ("table",)

    def __init__(self, num_heads: int, head_dim: int, max_distance: int, method: int) -> None:
        super().__init__()
        errors.positive_int("Huang", num_heads=num_heads, head_dim=head_dim, max_distance=max_distance)
        errors.whole("Huang", method=method)
        if method not in (1, 2, 3, 4):
            raise errors.value("Huang", f"method={method}", "1, 2, 3 or 4", "see the formulas in its docstring.")
        self.num_heads, self.head_dim, self.max_distance, self.method = num_heads, head_dim, max_distance, method
        rows = max_distance + 1 if method == 1 else 2 * max_distance + 1
        self.table = nn.Parameter(torch.empty((num_heads, rows) + (head_dim,) * (method > 2)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Gains of 1, or small random vectors for method 4."""
        if self.method == 4:
            nn.init.normal_(self.table, std=0.02)
        else:
            nn.init.ones_(self.table)

    def terms(self, positions: Positions) -> tuple[Term, ...]:
        """A gain, or for method 4 query x distance and key x distance with one table."""
        if self.method == 4:
            return QueryDistance(self.table, self._row), KeyDistance(self.table, self._row)
        return (DistanceGain(self.table, self._row),)

    def _row(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        if self.method == 1:
            return distance.abs().clamp(max=self.max_distance)
        return functional.shaw_index(distance, self.max_distance)
