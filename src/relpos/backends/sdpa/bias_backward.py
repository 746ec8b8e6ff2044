r"""All gradients, where a bias needs one: that of the scores is made a tile at a time and summed along diagonals.

With P the probabilities and O the output of a tile,

    dV += P^T dO        dP = dO V^T        dS = P * (dP - sum_c dO O)
    dQ  = scale dS K    dK += scale dS^T Q    d table[j - i] += dS[i, j]    d key_bias[j] += dS[i, j]

A diagonal of dS is a column once each row is shifted by one more place than the row before. So dS is written through
a view with a row stride one longer than its rows, into zeros, and the plain columns of that memory are summed: no
atomics, the same order every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from relpos.backends.sdpa.inputs import Gradients, Inputs, laid_out, wide, zeros_for
from relpos.backends.sdpa.masks import Masks
from relpos.backends.tiles import Tile

#: Queries a tile, and scores held at a time: what stays in the caches of two cores.
ROWS = 128
SCORES = 2**20
#: exp(x) = exp2(x log2(e)): torch takes 40 times as long over exp where it underflows, and not over exp2.
LOG2_E = math.log2(math.e)


def bias_backward(
    grad_output: Tensor, output: Tensor, logsumexp: Tensor, of_table: bool, of_key_bias: bool, inputs: Inputs
) -> Gradients:
    """As `backward`, in float32 or wider throughout: dS is a difference of near numbers."""
    dtype, heads = wide(inputs.query.dtype), inputs.query.shape[1]
    query, grad_output = (x.to(dtype).contiguous() for x in (inputs.query, grad_output))
    key, value = (_per_query_head(x.to(dtype), heads) for x in inputs[1:3])
    inner, logsumexp = (grad_output * output).sum(-1), logsumexp * LOG2_E
    grads = Gradients(
        query=torch.zeros_like(query),
        key=torch.zeros_like(key),
        value=torch.zeros_like(value),
        table=zeros_for(inputs.table, of_table, query),
        key_bias=zeros_for(inputs.key_bias, of_key_bias, query),
    )
    scratch, masks = _Scratch(query), Masks(inputs, LOG2_E)
    for tile in inputs.tiles(ROWS, whole=False):
        _add_tile(tile, inputs, masks.of(tile), (query, key, value, grad_output, inner, logsumexp), grads, scratch)
    return grads._replace(
        query=_as_input(grads.query, inputs.query),
        key=_as_input(grads.key, inputs.key),
        value=_as_input(grads.value, inputs.value),
    )


def _add_tile(
    tile: Tile, inputs: Inputs, mask: Tensor | None, given: tuple[Tensor, ...], grads: Gradients, scratch: _Scratch
) -> None:
    """Add what one tile gives to every gradient."""
    query, key, value, grad_output, inner, logsumexp = given
    query, grad_output, inner, logsumexp = (tile.queries(x) for x in (query, grad_output, inner, logsumexp))
    key, value = tile.keys(key), tile.keys(value)
    assert mask is not None
    of_query = torch.empty_like(query)
    of_key, of_value = (x[tile.rows, :, tile.key_rows] for x in (grads.key, grads.value))
    tables, key_biases = (x[tile.rows if len(x) > 1 else slice(None)] for x in (grads.table, grads.key_bias))
    place = tile.distances(inputs.query.shape[2])
    for part in _parts(len(query), query.shape[1], query.shape[2] * key.shape[2]):
        shape = (*query[part].shape[:3], key.shape[2])
        scores, diagonals, of_scores = scratch.of(shape)
        # P, from what the forward pass kept of its sums.
        torch.sub(_some(mask, part), logsumexp[part][..., None], out=scores)
        flat = _flat(scores)
        flat.baddbmm_(_flat(query[part]), _flat(key[part]).mT, alpha=LOG2_E * inputs.scale).exp2_()
        _flat(of_value[part]).baddbmm_(flat.mT, _flat(grad_output[part]))
        # dS, each row shifted by one more place.
        of_scores.copy_(inner[part][..., None].neg().expand(shape).flatten(0, 1))
        of_scores.baddbmm_(_flat(grad_output[part]), _flat(value[part]).mT).mul_(flat)
        torch.bmm(of_scores, _flat(key[part]), out=_flat(of_query[part]))
        _flat(of_key[part]).baddbmm_(of_scores.mT, _flat(query[part]), alpha=inputs.scale)
        if tables.numel():
            _add(tables, part, place, diagonals.sum(2))
        if key_biases.numel():
            _add(key_biases, part, tile.key_rows, of_scores.unflatten(0, shape[:2]).sum(2))
    grads.query[tile.rows, :, tile.query_rows] = tile.turn(of_query).mul_(inputs.scale)


def _parts(batch: int, heads: int, scores: int) -> Iterator[tuple[slice, slice]]:
    """Batch rows and heads to take together, so that about `SCORES` scores are held."""
    together = max(SCORES // scores, 1)
    rows, some = max(together // heads, 1), min(together, heads)
    for row in range(0, batch, rows):
        for head in range(0, heads, some):
            yield slice(row, row + rows), slice(head, head + some)


class _Scratch:
    """Memory for one part of a tile after the other."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.shape: tuple[int, ...] = ()

    def of(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Scores `[b, h, q, k]`; zeros `[b, h, q, q + k - 1]`; and a view `[b h, q, k]` of the zeros whose diagonals
        are their columns, so that what is written through it leaves the other zeros alone."""
        if shape != self.shape:
            batch, heads, queries, keys = self.shape = shape
            length = queries + keys - 1
            self.scores = self.like.new_empty(shape)
            self.diagonals = self.like.new_zeros(batch, heads, queries, length)
            strides = (queries * length, length + 1, 1)
            self.of_scores = self.diagonals.as_strided((batch * heads, queries, keys), strides)
        return self.scores, self.diagonals, self.of_scores


def _some(x: Tensor, part: tuple[slice, slice]) -> Tensor:
    """This part of `x [b, h, ...]`, where a size of 1 serves all."""
    return x[tuple(slice(None) if size == 1 else some for size, some in zip(x.shape, part, strict=False))]


def _add(total: Tensor, part: tuple[slice, slice], place: slice, amount: Tensor) -> None:
    """Add `amount [b, h, n]` to these places of `total`, over all rows where it has one for all."""
    if len(total) == 1:
        total[:, part[1], place] += amount.sum(0, keepdim=True)
    else:
        total[(*part, place)] += amount


def _flat(x: Tensor) -> Tensor:
    """`[b, h, n, c]` as `[b h, n, c]`, never a copy."""
    return x.view(-1, *x.shape[2:])


def _per_query_head(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.shape[1], dim=1).contiguous()


def _as_input(x: Tensor, like: Tensor) -> Tensor:
    """The gradient of a repeated head summed, in the dtype and layout of torch's own gradients."""
    repeats = x.shape[1] // like.shape[1]
    x = x.unflatten(1, (-1, repeats)).sum(2) if repeats > 1 else x
    return laid_out(like).copy_(x)
