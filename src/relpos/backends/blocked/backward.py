r"""All gradients, a block of queries at a time.

With P the probabilities, M what dropout multiplies them by, O the output of a block, and r the row of a pair,

    dV += (M P)^T dO               d value_table[r] += (M P)_ij dO_i
    dP  = M * (dO V^T + dO_i . value_table[r])
    dS  = P * (dP - sum_c dO O)    d bias[j - i] += dS_ij       d key_bias[j] += dS_ij
    dQ  = scale dS K               dK += scale dS^T Q           (both through the gain, where there is one)
    dQ_i += scale dS_ij query_table[r]     d query_table[r] += scale dS_ij Q_i, and the same for keys

What is summed over the pairs of a row is first summed into one number for each query and row (or row and key), and then
multiplied: products stay products of matrices.

Products are in float32, or in float64 of float64. Where those of the forward pass were in bfloat16, its log-sum-exp is
not that of the scores made here: P and the sum of dO O, which is that of P dP, are then made from these.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relpos._native import Block, chosen
from relpos.backends.blocked import gains
from relpos.backends.blocked.inputs import Gradients, Inputs
from relpos.backends.blocked.pair_bias import PairGradients
from relpos.backends.blocked.pairs import without_unseen
from relpos.backends.blocked.part import Part, areas, multiply, parts, products
from relpos.backends.blocked.scratch import SCRATCH
from relpos.backends.call import wide
from relpos.backends.operators import add_over_rows
from relpos.backends.tiles import Tile


def backward(
    grad_output: Float[Tensor, "B H Tq Dv"],
    output: Float[Tensor, "B H Tq Dv"],
    logsumexp: Float[Tensor, "B H Tq"],
    inputs: Inputs,
    of_pairs: PairGradients | None = None,
) -> Gradients:
    """Gradients of everything that may have one, in the dtypes of the inputs; those of a pair bias in `of_pairs`."""
    given = inputs
    inputs, blind = without_unseen(inputs)
    if blind is not None:
        grad_output = grad_output.masked_fill(blind[..., None], 0.0)
    dtype = wide(inputs.query.dtype)
    inner = None
    if products(inputs) == dtype:
        inner = (grad_output.to(dtype) * output.to(dtype)).sum(-1)
    grads = Gradients.zeros(given)
    number = 0
    for part in (part for area in areas(inputs) for part in parts(inputs, area, dtype)):
        sums = _Sums(part, grads, of_pairs)
        of_output = grad_output[part.rows, part.heads].to(dtype)
        for tile in part.tiles:
            places = (part.rows, part.heads, tile.query_rows)
            known = None if inner is None else (inner[places], logsumexp[places])
            _add_tile(part, tile, sums, of_output, known, number)
            number += 1
        sums.finish()
    return grads.rounded(given)


class _Sums:
    """What the blocks of a part add up, before it is written to where it belongs."""

    def __init__(self, part: Part, grads: Gradients, of_pairs: PairGradients | None) -> None:
        self.part, self.grads, self.of_pairs = part, grads, of_pairs
        self.key, self.value = (torch.zeros(x.shape, dtype=part.dtype) for x in (part.key, part.value))
        self.by_key = None if grads.key_table is None else part.room_by_key("of_by_key").zero_()

    def add_query(self, tile: Tile, amount: Float[Tensor, "b h q D"], is_plain: bool = False) -> None:
        """To the gradient of the query, or of the query as it was before rotation."""
        plain = self.grads.plain_query if is_plain else None
        total = self.grads.query if plain is None else plain
        total[self.part.rows, self.part.heads, tile.query_rows] += amount

    def add_table(self, total: Tensor, rows: slice, amount: Float[Tensor, "h r D"]) -> None:
        """To the gradient of a table; heads share one of one head."""
        if len(total) == 1:
            total[0, rows] += amount.sum(0)
        else:
            total[self.part.heads, rows] += amount

    def finish(self) -> None:
        """Write the gradients of keys and values, and of what was multiplied with keys."""
        part, grads = self.part, self.grads
        keys = (part.rows, part.shared, slice(*part.area.segment.keys))
        grads.key[keys] += self.key
        grads.value[keys] += self.value
        if self.by_key is None:
            return
        assert grads.key_table is not None
        of_products = self.by_key.flatten(2).mul_(part.inputs.scale)
        of_table = torch.bmm(of_products, part.by_head(part.plain_key))
        self.add_table(grads.key_table, part.area.table_rows.of_key, of_table)
        of_keys = torch.bmm(of_products.mT, part.key_table)
        of_keys = of_keys.unflatten(1, (part.batch, -1)).unflatten(0, (-1, part.groups)).sum(1)
        (grads.key if grads.plain_key is None else grads.plain_key)[keys] += of_keys.transpose(0, 1)


def _add_tile(
    part: Part,
    tile: Tile,
    sums: _Sums,
    of_output: Float[Tensor, "b h Tq Dv"],
    known: tuple[Float[Tensor, "b h q"], Float[Tensor, "b h q"]] | None,
    number: int,
) -> None:
    """Add what one block gives to every gradient; `known` are the sum of dO O and the log-sum-exp of each query."""
    grads, inputs, area = sums.grads, part.inputs, part.area
    of_output, query = part.queries(of_output, tile), part.queries(part.query, tile)
    block = part.block(tile)
    if known is None:
        inverse, _ = chosen(block).softmax(block)
        block.scores.mul_(inverse[..., None])
    else:
        chosen(block).weights(block, known[1])
    weights = kept = block.scores
    dropout = None if inputs.seed is None else part.dropout(weights, number)
    if dropout is not None:
        kept = weights * dropout
    flat = part.by_shared(of_output)
    sums.value[:, :, part.within(tile)].flatten(0, 1).baddbmm_(part.by_shared(kept).mT, flat)
    of_scores = part.scores(of_output, part.value, tile, "of_scores")
    if grads.value_table is not None:
        by_row = part.by_value_row(kept, tile, block.number)
        of_table = torch.bmm(by_row.flatten(1, 2).mT, part.per_head(of_output))
        sums.add_table(grads.value_table, area.value_rows.of_query, of_table)
        of_rows = part.times_table(of_output, part.value_table)
        added = area.value_rows.block(of_scores, of_rows, None, None, part.start(tile), block.number)
        chosen(added).add(added)
    if dropout is not None:
        of_scores *= dropout
    inner = torch.linalg.vecdot(of_scores, weights) if known is None else known[0]
    of_scores.sub_(inner[..., None]).mul_(weights)
    _add_biases(part, tile, sums, block._replace(scores=of_scores))
    if inputs.gain is None:
        flat = part.by_shared(of_scores)
        of_query = torch.empty_like(query, memory_format=torch.contiguous_format)
        multiply(flat, part.keys(part.key, tile), inputs.scale, part.by_shared(of_query))
        sums.add_query(tile, of_query)
        to = sums.key[:, :, part.within(tile)].flatten(0, 1)
        to.baddbmm_(flat.mT, part.by_shared(query), alpha=inputs.scale)
    else:
        assert grads.gain is not None
        of_query, of_key = gains.gradients(part.gained(tile, block.number), of_scores, grads.gain[part.heads])
        sums.add_query(tile, of_query)
        sums.key[:, :, part.within(tile)] += of_key.unflatten(1, (-1, part.groups)).sum(2)


def _add_biases(part: Part, tile: Tile, sums: _Sums, block: Block) -> None:
    """Add what the gradient of the scores, in `block`, gives to everything that is read by distance or by key."""
    grads, rows, of_scores = sums.grads, part.area.table_rows, block.scores
    if grads.key_bias is not None:
        add_over_rows(grads.key_bias, part.rows, part.heads, tile.key_rows, of_scores.sum(2))
    if sums.of_pairs is not None:
        sums.of_pairs.add(of_scores, part.rows, tile.query_rows, tile.key_rows)
    if grads.bias is not None:
        _add_bias(grads.bias[part.heads], block, part.start(tile))
    if grads.query_table is not None:
        assert block.by_query is not None
        by_row = SCRATCH.take("of_by_query", block.by_query.shape, block.by_query.dtype).zero_()
        chosen(block).sum_by_query(block, by_row)
        by_row.mul_(part.inputs.scale)
        query = part.queries(part.plain_query, tile)
        amount = torch.bmm(by_row.flatten(1, 2).mT, part.per_head(query))
        sums.add_table(grads.query_table, rows.of_query, amount)
        sums.add_query(tile, part.weighted_rows(by_row, part.query_table), is_plain=True)
    if sums.by_key is not None:
        chosen(block).sum_by_key(block, sums.by_key[..., part.within(tile)])


def _add_bias(total: Float[Tensor, "h N"], block: Block, start: int) -> None:
    """Add every pair to the number of its distance."""
    scores, number = block.scores, block.number
    if number is not None:
        gains.add_by_row(total, number, scores)
        return
    size = scores.shape[2] + scores.shape[3] - 1
    by_number = scores.new_zeros(scores.shape[1], scores.shape[0], scores.shape[2], size)
    each = torch.arange(size, dtype=torch.int32)
    placed = Block(scores, None, None, None, each, None, torch.ones_like(each), None)
    chosen(placed).sum_by_query(placed, by_number)
    total[:, start : start + size] += by_number.sum((1, 2))
