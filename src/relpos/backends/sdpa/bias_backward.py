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

from relpos.backends.call import wide
from relpos.backends.operators import add_over_rows
from relpos.backends.sdpa.inputs import Gradients, Inputs, zeros_for
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
    scratch, masks = _Scratch(query, len(grads.table) > 1), Masks(inputs, LOG2_E)
    for whole in inputs.tiles(ROWS, whole=False):
        tile, mask = masks.with_tile(whole)
        assert mask is not None
        _add_tile(tile, inputs, mask, (query, key, value, grad_output, inner, logsumexp), grads, scratch)
    return grads._replace(
        query=_as_input(grads.query, inputs.query),
        key=_as_input(grads.key, inputs.key),
        value=_as_input(grads.value, inputs.value),
    )


def _add_tile(
    tile: Tile, inputs: Inputs, mask: Tensor, given: tuple[Tensor, ...], grads: Gradients, scratch: _Scratch
) -> None:
    """Add what one tile gives to every gradient."""
    query, key, value, grad_output, inner, logsumexp = given
    query, grad_output, inner, logsumexp = (tile.queries(x) for x in (query, grad_output, inner, logsumexp))
    key, value = tile.keys(key), tile.keys(value)
    of_query = torch.empty_like(query)
    of_key, of_value = (x[tile.rows, :, tile.key_rows] for x in (grads.key, grads.value))
    tables, key_biases = (x[tile.rows if len(x) > 1 else slice(None)] for x in (grads.table, grads.key_bias))
    place = tile.distances(inputs.query.shape[2])
    for part in _parts(len(query), query.shape[1], query.shape[2] * key.shape[2]):
        shape = (*query[part].shape[:3], key.shape[2])
        scratch.take(shape, tile.is_reversed)
        scores, of_scores = scratch.scores, scratch.of_scores
        # P, from what the forward pass kept of its sums.
        torch.sub(_some(mask, part), logsumexp[part][..., None], out=scores)
        flat = _flat(scores)
        flat.baddbmm_(_flat(query[part]), _flat(key[part]).mT, alpha=LOG2_E * inputs.scale).exp2_()
        _flat(of_value[part]).baddbmm_(flat.mT, _flat(grad_output[part]))
        # dS
        of_scores.copy_(inner[part][..., None].neg().expand(shape).flatten(0, 1))
        of_scores.baddbmm_(_flat(grad_output[part]), _flat(value[part]).mT).mul_(flat)
        torch.bmm(of_scores, _flat(key[part]), out=_flat(of_query[part]))
        _flat(of_key[part]).baddbmm_(of_scores.mT, _flat(query[part]), alpha=inputs.scale)
        if tables.numel():
            add_over_rows(tables, *part, place, scratch.diagonal_sums())
        if key_biases.numel():
            add_over_rows(key_biases, *part, tile.key_rows, of_scores.unflatten(0, shape[:2]).sum(2))
    grads.query[tile.rows, :, tile.query_rows] = tile.turn(of_query).mul_(inputs.scale)


def _parts(batch: int, heads: int, scores: int) -> Iterator[tuple[slice, slice]]:
    """Batch rows and heads to take together, so that about `SCORES` scores are held."""
    together = max(SCORES // scores, 1)
    rows, some = max(together // heads, 1), min(together, heads)
    for row in range(0, batch, rows):
        for head in range(0, heads, some):
            yield slice(row, row + rows), slice(head, head + some)


class _Scratch:
    """Memory for one part of a tile after the other.

    Attributes:
        scores: `[b, h, q, k]`.
        diagonals: zeros `[b, h, q, q + k - 1]`.
        of_scores: `[b h, q, k]`, a view of those zeros whose diagonals are their columns: what is written through it
            leaves the other zeros alone. With several rows of the batch, plain memory: many small products do not go
            through such a view fast, and their sum over the rows is sheared instead.
    """

    def __init__(self, like: Tensor, has_rows: bool) -> None:
        self.like, self.has_rows = like, has_rows
        self.shape: tuple[int, ...] = ()
        self.is_reversed = False

    def take(self, shape: tuple[int, ...], is_reversed: bool) -> None:
        """Be of this shape, for rows in this order."""
        if (shape, is_reversed) == (self.shape, self.is_reversed):
            return
        batch, heads, queries, keys = self.shape = shape
        self.is_reversed = is_reversed
        self.scores = self.like.new_empty(shape)
        self.is_direct = batch == 1 or self.has_rows
        sheared = (batch if self.is_direct else 1, heads, queries, queries + keys - 1)
        self.diagonals = self.like.new_zeros(sheared)
        # Entry (i, j) in column i + j, or j - i from that of the last row's first key.
        step, start = (1, 0) if is_reversed else (-1, queries - 1)
        strides = (queries * sheared[3], sheared[3] + step, 1)
        self.view = self.diagonals.as_strided((sheared[0] * heads, queries, keys), strides, start)
        self.of_scores = self.view if self.is_direct else self.like.new_empty(batch * heads, queries, keys)

    def diagonal_sums(self) -> Tensor:
        """Of `of_scores`, `[b, h, q + k - 1]`; b is 1 where they were summed over the rows of the batch."""
        if not self.is_direct:
            self.view.copy_(self.of_scores.unflatten(0, self.shape[:2]).sum(0))
        return self.diagonals.sum(2)


def _some(x: Tensor, part: tuple[slice, slice]) -> Tensor:
    """This part of `x [b, h, ...]`, where a size of 1 serves all."""
    return x[tuple(slice(None) if size == 1 else some for size, some in zip(x.shape, part, strict=False))]


def _flat(x: Tensor) -> Tensor:
    """`[b, h, n, c]` as `[b h, n, c]`, never a copy."""
    return x.view(-1, *x.shape[2:])


def _per_query_head(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.shape[1], dim=1).contiguous()


def _as_input(x: Tensor, like: Tensor) -> Tensor:
    """The gradient of a repeated head summed, in the dtype and layout of what it is the gradient of."""
    repeats = x.shape[1] // like.shape[1]
    x = x.unflatten(1, (-1, repeats)).sum(2) if repeats > 1 else x
    return x if x.dtype == like.dtype and x.stride() == like.stride() else torch.empty_like(like).copy_(x)
