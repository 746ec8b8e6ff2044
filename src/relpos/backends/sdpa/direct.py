"""Calls that torch's own attention computes as it is, its gradients included: short ones, and those without a bias."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from relpos.backends.operators import is_traced
from relpos.backends.sdpa.forward import tile_rows
from relpos.backends.sdpa.inputs import Inputs, readable
from relpos.backends.sdpa.masks import Masks


def direct(inputs: Inputs) -> Float[Tensor, "B H Tq D"] | None:
    """The output of such a call, without the operator's 0.1 to 0.3 ms; None for any other.

    One token has a row for a mask. More are one tile whose queries stand in the order of memory, where everybody sees
    something and everything is seen by somebody, and no bias needs a gradient.
    """
    query, key, value, table = inputs[:4]
    if inputs.key_bias is not None or inputs.query_document is not None or inputs.offsets is not None:
        return None
    if table is not None and table.requires_grad and torch.is_grad_enabled():
        return None
    query_len, key_len = query.shape[2], key.shape[2]
    is_causal = False
    if query_len == 1 and -inputs.back <= inputs.offset and inputs.offset + key_len - 1 <= inputs.ahead:
        mask = None if table is None else table.unsqueeze(2)
    elif is_traced((query, key, value)):
        return None
    else:
        tiles = list(inputs.tiles(tile_rows(query.dtype), whole=True))
        if len(tiles) != 1:
            return None
        tile = tiles[0]
        if (tile.first, tile.end, tile.low, tile.high, tile.seen) != (0, query_len, 0, key_len, None):
            return None
        masks = Masks(inputs)
        if tile.is_reversed and not masks.is_turned(tile):
            return None
        tile, mask = masks.with_tile(tile)
        is_causal = tile.is_causal
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        readable(query),
        readable(key),
        readable(value),
        attn_mask=mask,
        is_causal=is_causal,
        scale=inputs.scale,
        enable_gqa=grouped,
    )
