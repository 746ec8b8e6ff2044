"""Attention a block of queries at a time."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relpos._native import chosen
from relpos.backends.blocked import whole
from relpos.backends.blocked.inputs import Inputs
from relpos.backends.blocked.pairs import without_unseen
from relpos.backends.blocked.part import Part, areas, parts, products
from relpos.backends.call import wide
from relpos.backends.operators import laid_out
from relpos.backends.tiles import Tile


def forward(inputs: Inputs) -> tuple[Float[Tensor, "B H Tq Dv"], Float[Tensor, "B H Tq"]]:
    """Output, and the log-sum-exp of each query's scores for the backward pass; both zero where it sees nothing."""
    inputs, _ = without_unseen(inputs)
    output = laid_out(inputs.query, value=inputs.value).zero_()
    logsumexp = inputs.query.new_zeros(inputs.query.shape[:3], dtype=wide(inputs.query.dtype))
    number = 0
    for area in areas(inputs):
        if whole.takes(inputs, area):
            whole.attend(inputs, area, output, logsumexp)
            continue
        for part in parts(inputs, area, products(inputs)):
            for tile in part.tiles:
                rows, inverse, sums = _attend(part, tile, number)
                to = output[part.rows, part.heads, tile.query_rows]
                if inverse is None:
                    to.copy_(rows)
                else:
                    torch.mul(rows, inverse[..., None], out=to)
                logsumexp[part.rows, part.heads, tile.query_rows] = sums
                number += 1
    return output, logsumexp


def _attend(
    part: Part, tile: Tile, number: int
) -> tuple[Float[Tensor, "b h q Dv"], Float[Tensor, "b h q"] | None, Float[Tensor, "b h q"]]:
    """Output, what it is still to be multiplied by, and the log-sum-exp; in bfloat16 it is whole."""
    block = part.block(tile)
    inverse, logsumexp = chosen(block).softmax(block)
    if part.inputs.seed is not None:
        block.scores.mul_(part.dropout(block.scores, number))
    output = part.weighted(block.scores, part.value, tile)
    if part.inputs.value_table is not None:
        output += part.weighted_rows(part.by_value_row(block.scores, tile, block.number), part.value_table)
    return output, None if part.dtype == torch.bfloat16 else inverse, logsumexp
