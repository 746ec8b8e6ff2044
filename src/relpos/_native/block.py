"""A block of scores, and what is added to it by distance."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Block(NamedTuple):
    """Scores of `q` queries and `k` keys, changed in place: float32, float64, or bfloat16 with sums in float32.

    A pair's distance has a number n: `(q - 1) - query + key`, unless `number` gives another for each pair.

    Attributes:
        scores: contiguous.
        by_query: product of each query with each row of a table; a pair reads that of row `query_row[n]`.
        by_key: product of each row of a table with each key; a pair reads that of row `key_row[n]`. In bfloat16 there
            is memory for one number more after the last.
        bias: a pair reads number n; one row where heads agree.
        query_row, key_row: int32 rows; None where there is no table.
        runs: int32; from each n on, how many have the rows of n, where that is long; else minus how many have query
            rows that go on up, or go on down, by one or not at all. The twin needs none.
        number: None, or n of every pair, `[q, k]` or `[b, q, k]`.
        scale: what multiplies `scores`, `by_query` and `by_key`.
    """

    scores: Float[Tensor, "b h q k"]
    by_query: Float[Tensor, "h b q r"] | None
    by_key: Float[Tensor, "h s b k"] | None
    bias: Float[Tensor, "some n"] | None
    query_row: Int[Tensor, " n"] | None
    key_row: Int[Tensor, " n"] | None
    runs: Int[Tensor, " n"] | None
    number: Int[Tensor, "*b q k"] | None
    scale: float = 1.0


def numbers(queries: int, keys: int) -> Int[Tensor, "q k"]:
    """The number of every pair's distance, where it follows from places in memory."""
    return torch.arange(queries - 1, -1, -1)[:, None] + torch.arange(keys)
