"""What the operator of this backend takes, and the rectangles of scores that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from relpos.backends.segments import segments
from relpos.backends.tiles import Tile, tiles


class Inputs(NamedTuple):
    """The arguments of `relpos::distance_attention`, in its order.

    Attributes:
        query, key, value: `[B, H, Tq, D]`, `[B, G, Tk, D]`, `[B, G, Tk, D]`.
        table: `[b, H, Tq + Tk - 1]`, entry n for keys that stand `n - (Tq - 1)` places after the query in memory.
        key_bias: `[b, H, Tk]`; like the table float32, or float64 for a float64 query; b is 1 where rows agree.
        query_document, key_document: `[b, Tq]` and `[b, Tk]`, as `Call.documents` gives them.
        offsets: `[b]`, or None for the same `offset` everywhere; as `Positions.offset`.
        back, ahead: the band, as `Call.band` gives it.
        scale: factor on the products.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    table: Tensor | None
    key_bias: Tensor | None
    query_document: Tensor | None
    key_document: Tensor | None
    offsets: Tensor | None
    offset: int
    back: int
    ahead: int
    scale: float

    def tiles(self, size: int, whole: bool) -> Iterator[Tile]:
        """All rectangles of scores that somebody sees, `size` queries each; larger ones where `whole` allows it."""
        offset = self.offset if self.offsets is None else self.offsets
        lengths = (len(self.query), self.query.shape[2], self.key.shape[2])
        has = (self.table is not None, self.key_bias is not None)
        for segment in segments(*lengths, offset, self.query_document, self.key_document):
            yield from tiles(segment, (self.back, self.ahead), size, whole, *has)


class Gradients(NamedTuple):
    """Of the inputs of the same names; a bias that needs none has an empty one."""

    query: Tensor
    key: Tensor
    value: Tensor
    table: Tensor
    key_bias: Tensor


def readable(x: Tensor) -> Tensor:
    """`x`, copied where torch's kernels cannot read it: channels not side by side, or tokens on top of each other."""
    return x if x.stride(-1) == 1 and x.stride(2) >= x.shape[3] else x.contiguous()


def zeros_for(bias: Tensor | None, needed: bool, like: Tensor) -> Tensor:
    """Where to sum the gradient of a bias; empty where none is needed."""
    return torch.zeros_like(bias) if needed and bias is not None else like.new_empty(0)
