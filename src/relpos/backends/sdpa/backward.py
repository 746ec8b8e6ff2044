"""Gradients a tile at a time: by torch's kernel, or by hand where a bias needs one too."""

from __future__ import annotations

from torch import Tensor

from relpos.backends.call import wide
from relpos.backends.operators import laid_out
from relpos.backends.sdpa import flash
from relpos.backends.sdpa.bias_backward import bias_backward
from relpos.backends.sdpa.forward import tile_rows
from relpos.backends.sdpa.inputs import Gradients, Inputs, readable
from relpos.backends.sdpa.masks import Masks


def backward(
    grad_output: Tensor, output: Tensor, logsumexp: Tensor, of_table: bool, of_key_bias: bool, inputs: Inputs
) -> Gradients:
    """Gradients from that of the output and from what `forward` gave."""
    grad_output = readable(grad_output)
    query, key, value = (readable(x) for x in inputs[:3])
    inputs = inputs._replace(query=query, key=key, value=value)
    if of_table or of_key_bias:
        return bias_backward(grad_output, output, logsumexp, of_table, of_key_bias, inputs)
    return _without_biases(grad_output, output, logsumexp, inputs)


def _without_biases(grad_output: Tensor, output: Tensor, logsumexp: Tensor, inputs: Inputs) -> Gradients:
    query, key, value = inputs[:3]
    none = query.new_empty(0)
    sums: tuple[Tensor, Tensor, Tensor] | None = None
    masks = Masks(inputs)
    # Every tile adds to the gradients of all its keys, so that few large ones are better than many.
    for whole in inputs.tiles(max(tile_rows(query.dtype), query.shape[2] // 8), whole=True):
        tile, mask = masks.with_tile(whole)
        of_query, of_key, of_value = flash.backward(
            tile.queries(grad_output),
            tile.queries(query),
            tile.keys(key),
            tile.keys(value),
            tile.queries(output),
            tile.queries(logsumexp),
            mask,
            tile.is_causal,
            inputs.scale,
        )
        of_query = tile.turn(of_query)
        if of_query.shape == query.shape and of_key.shape == key.shape:
            return Gradients(of_query, of_key, of_value, none, none)
        sums = _zeros(query, key) if sums is None else sums
        sums[0][tile.rows, :, tile.query_rows] = of_query
        sums[1][tile.rows, :, tile.key_rows] += of_key
        sums[2][tile.rows, :, tile.key_rows] += of_value
    of_query, of_key, of_value = _zeros(query, key) if sums is None else sums
    return Gradients(of_query, of_key.to(key.dtype), of_value.to(key.dtype), none, none)


def _zeros(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For a gradient that is written once, and two that are summed over tiles."""
    of_key, of_value = (laid_out(key, wide(key.dtype)).zero_() for _ in range(2))
    return laid_out(query).zero_(), of_key, of_value
