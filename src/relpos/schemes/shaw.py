"""Shaw's relative position representations: a vector for each clipped distance, on keys and values."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor, nn

from relpos import errors, functional
from relpos.functional.buckets import sides
from relpos.positions import Positions
from relpos.schemes.scheme import Scheme
from relpos.terms import QueryDistance, Term, ValueDistance


class Shaw(Scheme, name="shaw"):
    r"""Adds a learned vector for each distance to keys and to values.

        score_ij = query_i . (key_j + key_table[r]) / sqrt(D)
        output_i = sum_j p_ij (value_j + value_table[r]),     r = clip(key - query, -left, right) + left

    Args:
        num_heads: heads H.
        head_dim: head width D; values must have the same.
        max_distance: k for both sides, or `(left, right)`: how far back and ahead rows reach.
        values: False leaves out the value vectors, as later models do.
        per_head: a table for each head; the paper shares one among all heads.

    State: `key_table` and (with `values`) `value_table`, `[R, D]`, or `[H, R, D]` if `per_head`; R = left + right + 1,
        row 0 the most negative distance. Normal with standard deviation 0.02.
    Cost: `R D` parameters a table; time `O(T R D + T^2)` over plain attention.
    Valid: any length; blind to differences beyond the limits.
    Source: Shaw, Uszkoreit and Vaswani 2018, equations 3 to 5; Wav2Vec2-BERT is `(64, 8)` without values.

    >>> Shaw(num_heads=2, head_dim=4, max_distance=3).key_table.shape
    torch.Size([7, 4])
    """

    encodes = "distance"
    injects_at = "scores and values"

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        max_distance: int | tuple[int, int],
        values: bool = True,
        per_head: bool = False,
    ) -> None:
        super().__init__()
        errors.positive_int("Shaw", num_heads=num_heads, head_dim=head_dim)
        errors.flags("Shaw", values=values, per_head=per_head)
        left, right = sides("Shaw", max_distance)
        self.num_heads, self.head_dim, self.max_distance = num_heads, head_dim, max_distance
        self.values, self.per_head = values, per_head
        shape = (num_heads,) * per_head + (left + right + 1, head_dim)
        self.key_table = nn.Parameter(torch.empty(shape))
        self.value_table = nn.Parameter(torch.empty(shape)) if values else None
        self.head_tables = (("key_table", "value_table") if values else ("key_table",)) if per_head else ()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small random vectors."""
        for table in self.parameters():
            nn.init.normal_(table, std=0.02)

    def terms(self, positions: Positions) -> tuple[Term, ...]:
        """Query x distance, and value x distance."""
        keys = QueryDistance(self.key_table, self._row)
        return (keys,) if self.value_table is None else (keys, ValueDistance(self.value_table, self._row))

    def _row(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        return functional.shaw_index(distance, self.max_distance)
