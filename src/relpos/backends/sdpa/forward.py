"""Attention a tile at a time, each by one call of torch's kernel over a strided mask."""

from __future__ import annotations

import torch
from torch import Tensor

from relpos.backends.call import wide
from relpos.backends.sdpa import flash
from relpos.backends.sdpa.inputs import Inputs, readable
from relpos.backends.sdpa.masks import Masks


def tile_rows(dtype: torch.dtype) -> int:
    """Queries a tile: larger ones waste scores beyond a causal edge, smaller ones time between calls.

    For bfloat16 and float16 the kernel rearranges all keys and values in every call.
    """
    return 512 if dtype.itemsize == 2 else 256


def forward(inputs: Inputs, keep_sums: bool = True) -> tuple[Tensor, Tensor | None]:
    """Output `[B, H, Tq, D]` and, to be kept for a backward pass, log-sum-exp `[B, H, Tq]`.

    Both are zero where a query sees nothing.
    """
    query, key, value = (readable(x) for x in inputs[:3])
    output = None
    kept = query.new_zeros(query.shape[:3], dtype=wide(query.dtype)) if keep_sums else None
    tiles, masks = list(inputs.tiles(tile_rows(query.dtype), whole=True)), Masks(inputs)
    queries = sum((tile.rows.stop - tile.rows.start) * (tile.end - tile.first) for tile in tiles)
    blank = torch.empty_like if queries == len(query) * query.shape[2] else torch.zeros_like
    for whole in tiles:
        tile, mask = masks.with_tile(whole)
        rows, sums = flash.forward(
            tile.queries(query), tile.keys(key), tile.keys(value), mask, tile.is_causal, inputs.scale
        )
        if kept is not None:
            kept[tile.rows, :, tile.query_rows] = tile.turn(sums)
        if rows.shape == query.shape:
            return tile.turn(rows), kept
        output = blank(query) if output is None else output
        output[tile.rows, :, tile.query_rows] = tile.turn(rows)
    return torch.zeros_like(query) if output is None else output, kept
