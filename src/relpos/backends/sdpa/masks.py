"""What each tile adds to its scores, as a view of few numbers."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from relpos.backends.call import wide
from relpos.backends.sdpa.inputs import Inputs
from relpos.backends.tiles import Tile, of_rows

#: Weights below this part of a row's largest change no sum of theirs, in float32 or float64.
NEGLIGIBLE = 2.0**-60, 2.0**-120
#: Queries from which on it pays to look for them.
MANY = 16
#: Queries up to which a mask may be turned, so that it stays small beside a sequence.
SHORT = 256


class Masks:
    """The masks of a call's tiles, -inf where a tile's query may not see, or where a bias leaves no weight to see by.

    ALiBi gives far keys weights like 1e-40. They change nothing, but a processor takes a hundred times as long over
    each number below 1.2e-38: 1.5 times the forward pass and 5 times the backward pass of 2048 tokens. So distances
    are dropped whose weight is below 2^-60 of the largest in every row, whatever the content, by the bound
    `abs(scale q . k) <= scale abs(q) abs(k)`.

    `unit` is a factor on all of it, for scores that are to be taken to another base than e.
    """

    def __init__(self, inputs: Inputs, unit: float = 1.0) -> None:
        self.dtype = wide(inputs.query.dtype)
        self.floor = unit * math.log(NEGLIGIBLE[self.dtype == torch.float64])
        if unit != 1.0:
            table, key_bias = (None if x is None else x * unit for x in (inputs.table, inputs.key_bias))
            inputs = inputs._replace(table=table, key_bias=key_bias, scale=inputs.scale * unit)
        self.inputs = inputs

    def with_tile(self, tile: Tile) -> tuple[Tile, Float[Tensor, "b H q k"] | None]:
        """The tile with its mask, which is turned in place of the queries where they are more than it is.

        A short tile of many batch rows has a small mask for all of them, and many queries, outputs and gradients.
        """
        mask = self.of(tile)
        if mask is None or not self.is_turned(tile):
            return tile, mask
        return replace(tile, is_reversed=False), mask.flip(2)

    def is_turned(self, tile: Tile) -> bool:
        """Whether `with_tile` turns the mask of this tile."""
        rows, width = tile.rows.stop - tile.rows.start, self.inputs.query.shape[3]
        is_shared = all(bias is None or len(bias) == 1 for bias in (self.inputs.table, self.inputs.key_bias))
        is_short = tile.end - tile.first <= SHORT and tile.high - tile.low <= 2 * rows * width
        return tile.is_reversed and rows > 1 and is_shared and is_short

    def of(self, tile: Tile) -> Float[Tensor, "b H q k"] | None:
        """What to add to the scores of the tile's turned rows; None for nothing."""
        if tile.is_causal:
            return None
        strip, columns = self._strip(tile), self._columns(tile)
        mask = None if strip is None else strip.unfold(-1, tile.high - tile.low, 1)
        if columns is None:
            return mask
        return columns.expand(-1, -1, tile.end - tile.first, -1) if mask is None else mask + columns

    def _strip(self, tile: Tile) -> Float[Tensor, "b H n"] | None:
        """The tile's distances, smallest first."""
        place = tile.distances(self.inputs.query.shape[2])
        if self.inputs.table is None:
            if tile.hidden == (0, 0):
                return None
            strip = torch.zeros(1, 1, place.stop - place.start, dtype=self.dtype)
        else:
            strip = self._without_negligible(of_rows(self.inputs.table, tile.rows)[..., place], tile)
        return tile.banded(strip)

    def _without_negligible(self, strip: Float[Tensor, "b H n"], tile: Tile) -> Float[Tensor, "b H n"]:
        first, end = tile.shared()
        if not self._is_steep or first >= end or tile.seen is not None:
            return strip
        most = strip[..., first:end].amax(-1, keepdim=True)
        content = of_rows(self._content, tile.rows)
        content = content if len(strip) > 1 else content.amax(0, keepdim=True)
        return strip.masked_fill(strip < most + self.floor - 2 * content[..., None], -torch.inf)

    @functools.cached_property
    def _is_steep(self) -> bool:
        """Whether there may be anything to drop."""
        table = self.inputs.table
        if table is None or self.inputs.key_bias is not None or self.inputs.query.shape[2] < MANY:
            return False
        return bool(table.amin() < self.floor)

    @functools.cached_property
    def _content(self) -> Float[Tensor, "B H"]:
        """The largest product of a query and a key that there can be."""
        query, key = (torch.linalg.vector_norm(x, dim=-1, dtype=self.dtype).amax(-1) for x in self.inputs[:2])
        most: Tensor = query * key.repeat_interleave(query.shape[1] // key.shape[1], dim=1) * abs(self.inputs.scale)
        return most

    def _columns(self, tile: Tile) -> Float[Tensor, "b h 1 k"] | None:
        key_bias = self.inputs.key_bias
        if key_bias is None and tile.seen is None:
            return None
        if key_bias is None:
            columns = torch.zeros(1, 1, 1, tile.high - tile.low, dtype=self.dtype)
        else:
            columns = of_rows(key_bias, tile.rows)[:, :, None, tile.key_rows]
        if tile.seen is None:
            return columns
        return columns.masked_fill(~tile.seen, -torch.inf)
