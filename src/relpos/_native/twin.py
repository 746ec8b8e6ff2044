"""The loops of relpos.c in torch: for other dtypes, for positions with gaps, and where nothing was built."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos._native.block import Block, numbers


def add(block: Block) -> None:
    """Adds `by_query`, `by_key` and `bias` to the scores."""
    block.scores.copy_(_sums(block))


def _sums(block: Block) -> Float[Tensor, "b h q k"]:
    """Scores and what is added to them; where the scores are, unless those are bfloat16."""
    scores, number = block.scores.to(torch.promote_types(block.scores.dtype, torch.float32)), _numbers(block)
    if block.by_query is not None:
        assert block.query_row is not None
        scores += block.by_query.transpose(0, 1).gather(-1, _rows(block.query_row, number, scores))
    if block.by_key is not None:
        assert block.key_row is not None
        scores += block.by_key.permute(2, 0, 1, 3).gather(2, _rows(block.key_row, number, scores))
    scores *= block.scale
    if block.bias is not None:
        values = block.bias[:, number]
        scores += values.transpose(0, 1) if number.dim() == 3 else values
    return scores


def softmax(block: Block) -> tuple[Float[Tensor, "b h q"], Float[Tensor, "b h q"]]:
    """Adds, and makes of each row `exp(score - largest)`; inverse sums and log-sum-exps, both 0 for rows of -inf.

    In bfloat16 it makes the probabilities, so that they are rounded once.
    """
    scores = _sums(block)
    largest = scores.amax(-1, keepdim=True)
    blind = largest == -torch.inf
    scores.sub_(largest.masked_fill_(blind, 0.0)).exp_()
    sums = scores.sum(-1, keepdim=True)
    logsumexp = largest + sums.log().masked_fill_(blind, 0.0)
    inverse = sums.reciprocal().masked_fill_(blind, 0.0)
    if scores is not block.scores:
        block.scores.copy_(scores.mul_(inverse))
    return inverse.squeeze(-1), logsumexp.squeeze(-1)


def weights(block: Block, logsumexp: Float[Tensor, "b h q"]) -> None:
    """Adds, and makes of each score its probability."""
    block.scores.copy_(_sums(block).sub_(logsumexp[..., None]).exp_())


def sum_by_query(block: Block, sums: Float[Tensor, "h b q r"]) -> None:
    """`sums[h, b, i, query_row[n]] += scores[b, h, i, j]`, n being the number of the pair."""
    assert block.query_row is not None
    sums.transpose(0, 1).scatter_add_(-1, _rows(block.query_row, _numbers(block), block.scores), block.scores)


def sum_by_key(block: Block, sums: Float[Tensor, "h s b k"]) -> None:
    """`sums[h, key_row[n], b, j] += scores[b, h, i, j]`, n being the number of the pair."""
    assert block.key_row is not None
    sums.permute(2, 0, 1, 3).scatter_add_(2, _rows(block.key_row, _numbers(block), block.scores), block.scores)


def _numbers(block: Block) -> Int[Tensor, "*b q k"]:
    return numbers(*block.scores.shape[2:]) if block.number is None else block.number


def _rows(
    row: Int[Tensor, " n"], number: Int[Tensor, "*b q k"], like: Float[Tensor, "b h q k"]
) -> Int[Tensor, "b h q k"]:
    rows = row.long()[number]
    return (rows[:, None] if rows.dim() == 3 else rows).expand(like.shape)
