"""Products of query and key, multiplied by a gain of their distance: one for all channels, or one for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: Numbers held at a time for gains by channel, of which each pair has D.
HELD = 2**22


class Gained(NamedTuple):
    """What the products of a block depend on: `gain` is `[h, R]` or `[h, R, D]`, `row` `[q, k]` or `[b, q, k]`."""

    query: Float[Tensor, "b h q D"]
    key: Float[Tensor, "b h k D"]
    scale: float
    gain: Float[Tensor, "h R *D"]
    row: Int[Tensor, "*b q k"]

    def values(self, queries: slice = slice(None)) -> Float[Tensor, "b h q k *D"]:
        """The gain of each pair."""
        values = self.gain[:, self.row[..., queries, :]]
        return values.transpose(0, 1) if self.row.dim() == 3 else values[None]


def products(given: Gained, content: Float[Tensor, "b h q k"]) -> None:
    """Makes `content`, which holds the plain products, those with gains."""
    if given.gain.dim() == 2:
        content *= given.values()
        return
    for some in _some(given):
        content[:, :, some] = (_by_channel(given, some) * given.values(some)).sum(-1)


def gradients(
    given: Gained, of_content: Float[Tensor, "b h q k"], of_gain: Float[Tensor, "h R *D"]
) -> tuple[Float[Tensor, "b h q D"], Float[Tensor, "b h k D"]]:
    """Gradients of query and key from that of the products; that of the gain is added to `of_gain`."""
    query, key = given.query, given.key
    if given.gain.dim() == 2:
        of_content = of_content * given.scale
        add_by_row(of_gain, given.row, of_content * (query @ key.mT))
        of_content = of_content * given.values()
        return of_content @ key, of_content.mT @ query
    of_query, of_key = torch.zeros_like(query), torch.zeros_like(key)
    for some in _some(given):
        weighted = of_content[:, :, some, :, None]
        gained = weighted * given.values(some) * given.scale
        of_query[:, :, some] = (gained * key[:, :, None]).sum(3)
        of_key += (gained * query[:, :, some, None]).sum(2)
        add_by_row(of_gain, given.row[..., some, :], weighted * _by_channel(given, some))
    return of_query, of_key


def _by_channel(given: Gained, some: slice) -> Float[Tensor, "b h q k D"]:
    return given.query[:, :, some, None] * given.key[:, :, None] * given.scale


def _some(given: Gained) -> Iterator[slice]:
    size = max(HELD // (given.query.shape[0] * given.query.shape[1] * given.key[0, 0].numel()), 1)
    for first in range(0, given.query.shape[2], size):
        yield slice(first, first + size)


def add_by_row(total: Float[Tensor, "h R *D"], row: Int[Tensor, "*b q k"], amount: Float[Tensor, "b h q k *D"]) -> None:
    """`total[h, row of a pair] += amount of the pair`, over all rows of the batch."""
    amount = amount.transpose(0, 1) if row.dim() == 3 else amount.sum(0)
    total.index_add_(1, row.flatten(), amount.flatten(1, row.dim()))
