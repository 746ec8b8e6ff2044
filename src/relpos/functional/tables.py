"""Reading a table by rows."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor


def lookup(table: Float[Tensor, "H R *D"], row: Int[Tensor, "*shape"]) -> Float[Tensor, "H *shape_and_D"]:
    """`table[:, row]`: for each head, the entries of those rows, `[H, *shape, *D]`.

    Through `index_select`, whose gradient is deterministic and, on a CPU, five times as fast as that of indexing.
    """
    if row.dim() == 1:
        return table.index_select(1, row)
    return table.index_select(1, row.flatten()).reshape(len(table), *row.shape, *table.shape[2:])
