"""Attention whose terms depend on content and distance, in plain torch: products with the tables, then `gather`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

import relpos
from relpos.bench.work import Attend, Work
from relpos.schemes import Scheme
from relpos.terms import KeyDistance, QueryDistance, RowOf, ValueDistance

#: Queries whose bias is made at a time, without gradients and with them. The fastest of 16 to 256 at 2048 and at 1024
#: tokens: larger masks leave the caches, and each block of a backward pass fills a gradient of all products.
BLOCK, TRAIN_BLOCK = 64, 128


@dataclass(frozen=True)
class Tables:
    """Vectors of distances, those of the query already scaled, and where each distance finds its own."""

    query: Tensor
    key: Tensor | None
    value: Tensor | None
    scale: float
    row: RowOf

    def rows(self, work: Work) -> Tensor:
        """Row of the tables for the distances from `1 - length` to `queries - 1`."""
        return self.row(torch.arange(1 - work.length, work.queries))

    def products(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scaled products of queries with rows `[B, H, Tq, R]`, and of rows with keys `[B, H, R, Tk]`."""
        with_query = (query * self.scale) @ self.query.to(query.dtype).mT
        with_key = None if self.key is None else (self.key.to(key.dtype) * self.scale) @ key.mT
        return with_query, with_key


def tables(work: Work, scheme: Scheme) -> Tables:
    """What DeBERTa and Shaw add; all their tables are read at the same row."""
    terms = {type(term): term for term in scheme.terms(relpos.Positions.arange(1))}
    query, key, value = (terms.get(kind) for kind in (QueryDistance, KeyDistance, ValueDistance))
    assert isinstance(query, QueryDistance)
    assert isinstance(key, KeyDistance | None)
    assert isinstance(value, ValueDistance | None)
    scale = 1 / math.sqrt(work.width) if scheme.scale is None else scheme.scale
    return Tables(
        query=query.table,
        key=None if key is None else key.table,
        value=None if value is None else value.table,
        scale=scale,
        row=query.row,
    )


def by_blocks(work: Work, scheme: Scheme, block: int) -> Attend:
    """A block of queries at a time over the keys that it sees: its bias by `gather`, as a mask of torch's attention.

    Where values have vectors too, which that attention does not know, its softmax is written out.
    """
    added, start = tables(work, scheme), work.length - work.queries

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with_query, with_key = added.products(query, key)
        # Window r holds the rows of one query's distances to all keys, the last query's first.
        windows = added.rows(work).unfold(0, work.length, 1)
        outputs = []
        for first in range(0, work.queries, block):
            end = min(first + block, work.queries)
            keys = end + start if work.is_causal else work.length
            rows = windows[work.queries - end : work.queries - first, :keys].flip(0)
            bias = _read(with_query[:, :, first:end], with_key, rows)
            if work.is_causal:
                hidden = torch.arange(keys) > torch.arange(first, end)[:, None] + start
                bias = bias.masked_fill(hidden, -math.inf)
            near = (query[:, :, first:end], key[:, :, :keys], value[:, :, :keys])
            if added.value is None:
                outputs.append(F.scaled_dot_product_attention(*near, attn_mask=bias, scale=added.scale))
            else:
                outputs.append(_with_values(*near, bias, rows, added.scale, added.value))
        return torch.cat(outputs, 2)

    return attend


def whole(work: Work, scheme: Scheme) -> Attend:
    """All pairs at once: scores, gathered bias, softmax, and for Shaw's values a sum of probabilities for each row."""
    added, start = tables(work, scheme), work.length - work.queries

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = added.rows(work).unfold(0, work.length, 1).flip(0)
        bias = _read(*added.products(query, key), rows)
        if work.is_causal:
            hidden = torch.arange(work.length) > torch.arange(work.queries)[:, None] + start
            bias = bias.masked_fill(hidden, -math.inf)
        return _with_values(query, key, value, bias, rows, added.scale, added.value)

    return attend


def _read(with_query: Tensor, with_key: Tensor | None, rows: Tensor) -> Tensor:
    """The bias `[B, H, n, Tk]` that these rows `[n, Tk]` read from the products."""
    shape = (*with_query.shape[:2], *rows.shape)
    bias = with_query.gather(3, rows.expand(shape))
    if with_key is None:
        return bias
    return bias + with_key[..., : rows.shape[1]].gather(2, rows.expand(shape))


def _with_values(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, rows: Tensor, scale: float, table: Tensor | None
) -> Tensor:
    scores = (query * scale) @ key.mT + bias
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    output = weights @ value
    if table is None:
        return output
    by_row = weights.new_zeros(*weights.shape[:3], table.shape[-2])
    return output + by_row.scatter_add(3, rows.expand(weights.shape), weights) @ table.to(query.dtype)
