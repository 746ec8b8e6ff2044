"""Which pairs see each other, and their distances, where neither follows from places in memory: in blocks."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from relpos.backends.blocked.inputs import Inputs
from relpos.backends.call import UNBOUNDED
from relpos.backends.tiles import of_rows

#: Pairs looked at together.
LOOKED_AT = 2**22


class Pairs:
    """For calls with `attn_mask` or with positions that have gaps."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs

    def number(self, rows: slice, queries: slice, keys: slice) -> Int[Tensor, "*b q k"] | None:
        """Number of each pair's distance; None where it follows from places in memory."""
        return self._distance(rows, queries, keys) - self.inputs.least if self.inputs.has_numbers else None

    def hidden(self, rows: slice, heads: slice, queries: slice, keys: slice) -> Bool[Tensor, "b h q k"] | None:
        """Which pairs do not see each other."""
        inputs = self.inputs
        hidden: Tensor | None = None
        if inputs.back < UNBOUNDED or inputs.ahead < UNBOUNDED:
            distance = self._distance(rows, queries, keys)
            outside = (distance < -inputs.back) | (distance > inputs.ahead)
            hidden = outside[:, None] if outside.dim() == 3 else outside[None, None]
        if inputs.query_document is not None:
            assert inputs.key_document is not None
            document = of_rows(inputs.query_document, rows)[:, queries, None]
            others = ((document != of_rows(inputs.key_document, rows)[:, None, keys]) | (document < 0))[:, None]
            hidden = others if hidden is None else hidden | others
        if inputs.attn_mask is not None:
            mask = of_rows(inputs.attn_mask, rows)
            mask = mask if mask.shape[1] == 1 else mask[:, heads]
            masked = ~mask[:, :, queries, keys]
            hidden = masked if hidden is None else hidden | masked
        return hidden

    def _distance(self, rows: slice, queries: slice, keys: slice) -> Int[Tensor, "*b q k"]:
        inputs = self.inputs
        if inputs.query_position is not None:
            assert inputs.key_position is not None
            query = of_rows(inputs.query_position, rows)[:, queries, None]
            distance = of_rows(inputs.key_position, rows)[:, None, keys] - query
            return distance if len(distance) > 1 else distance[0]
        distance = torch.arange(keys.start, keys.stop) - torch.arange(queries.start, queries.stop)[:, None]
        if inputs.offsets is None:
            return distance + inputs.offset
        return distance + of_rows(inputs.offsets, rows)[:, None, None]


def without_unseen(inputs: Inputs) -> tuple[Inputs, Bool[Tensor, "B H Tq"] | None]:
    """Queries that see nothing and keys that nobody sees made 0, where pairs decide it; and which queries those are.

    Their contents must reach nobody, and 0 * inf would be NaN.
    """
    if not inputs.is_paired:
        return inputs, None
    batch, heads, query_len, _ = inputs.query.shape
    shared, key_len = inputs.key.shape[1:3]
    seen = torch.zeros(batch, heads, key_len, dtype=torch.bool)
    seeing = torch.zeros(batch, heads, query_len, dtype=torch.bool)
    pairs, everything = Pairs(inputs), slice(None)
    size = max(LOOKED_AT // (batch * heads * key_len), 1)
    for first in range(0, query_len, size):
        queries = slice(first, min(first + size, query_len))
        hidden = pairs.hidden(everything, everything, queries, slice(0, key_len))
        if hidden is None:
            return inputs, None
        seen |= ~hidden.all(2)
        seeing[:, :, queries] |= ~hidden.all(3)
    seen = seen.unflatten(1, (shared, -1)).any(2)
    query, plain_query = (None if x is None else x.masked_fill(~seeing[..., None], 0.0) for x in inputs[0:4:3])
    key, value, plain_key = (
        None if x is None else x.masked_fill(~seen[..., None], 0.0) for x in (*inputs[1:3], inputs.plain_key)
    )
    assert query is not None
    assert key is not None
    assert value is not None
    clean = inputs._replace(query=query, key=key, value=value, plain_query=plain_query, plain_key=plain_key)
    return clean, ~seeing
