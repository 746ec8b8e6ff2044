"""A segment cut into rectangles of scores, and the mask of each as a view of a strip of numbers.

A bias that depends on `key - query` alone is a Toeplitz matrix. With the query rows in reverse it is a Hankel matrix,
whose entry (r, j) stands at `r + j` in one strip of numbers: a view with strides (1, 1), `Tq + Tk - 1` numbers in
memory, which torch's kernels read as they read any mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relpos.backends.segments import Segment

#: torch's kernel takes keys in blocks of this many, and its matrix products sum them in halves. Tiles begin at the edge
#: of a block and end at that of a half, so that sums are made in the order in which they are made without tiles.
KEY_BLOCK = 512
#: Products of so few rows are summed in another order than those of more.
FEW_ROWS = 2


@dataclass(frozen=True, eq=False)
class Tile:
    """Queries `first` to `end - 1` against keys `low` to `high - 1`, for batch rows `rows`.

    Attributes:
        distance: the smallest: of key `low` from query `end - 1`.
        hidden: how many of the tile's distances, from the smallest up and from the largest down, the band hides.
        is_causal: the band is the kernel's own causal triangle, and nothing is added to the scores.
        is_reversed: the query rows are taken last first, because the mask is a view that wants them so.
        seen: which keys somebody sees; None = all.
        seeing: which queries see something; None = all.
    """

    rows: slice
    first: int
    end: int
    low: int
    high: int
    distance: int
    hidden: tuple[int, int]
    is_causal: bool
    is_reversed: bool
    seen: Bool[Tensor, " k"] | None
    seeing: Bool[Tensor, " q"] | None

    @property
    def query_rows(self) -> slice:
        """The tile's queries, in memory."""
        return slice(self.first, self.end)

    @property
    def key_rows(self) -> slice:
        """The tile's keys, in memory."""
        return slice(self.low, self.high)

    def turn(self, x: Tensor) -> Tensor:
        """Rows of this tile, `[B, H, q, ...]`, in the order of the mask, or back in that of memory."""
        return x.flip(2) if self.is_reversed else x

    def queries(self, x: Tensor) -> Tensor:
        """This tile's rows of `x [B, H, Tq, ...]` in the order of the mask, zero where they see nothing."""
        return self.turn(self.without_blind(_cut(x, self.rows, self.query_rows)))

    def without_blind(self, x: Tensor) -> Tensor:
        """This tile's rows, `[B, H, q, ...]` in the order of memory, zero where they see nothing."""
        return x if self.seeing is None else x.masked_fill(~self.seeing.view(-1, *[1] * (x.dim() - 3)), 0.0)

    def banded(self, strip: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """Numbers of this tile's distances, smallest first, -inf where the band hides them."""
        return banded(strip, self.hidden)

    def keys(self, x: Float[Tensor, "B G Tk D"]) -> Float[Tensor, "b G k D"]:
        """This tile's keys or values, zero where nobody may see them: 0 * inf would be NaN."""
        x = _cut(x, self.rows, self.key_rows)
        return x if self.seen is None else x.masked_fill(~self.seen[:, None], 0.0)

    def distances(self, query_len: int) -> slice:
        """Where this tile's distances stand in a table over memory offsets from `-(query_len - 1)` on."""
        start = self.low - self.end + query_len
        return slice(start, start + self.end - self.first + self.high - self.low - 1)

    def shared(self) -> tuple[int, int]:
        """The places, among this tile's distances, of those that each of its queries sees: from, to."""
        below, above = self.hidden
        size = self.end - self.first + self.high - self.low - 1
        return max(self.end - self.first - 1, below), min(self.high - self.low, size - above)


def banded(strip: Float[Tensor, "*b n"], hidden: tuple[int, int]) -> Float[Tensor, "*b n"]:
    """-inf for so many numbers from the first on and from the last back."""
    below, above = hidden
    if hidden == (0, 0):
        return strip
    strip = strip.clone()
    strip[..., :below] = -torch.inf
    strip[..., strip.shape[-1] - above :] = -torch.inf
    return strip


def _cut(x: Tensor, rows: slice, tokens: slice) -> Tensor:
    """`x[rows, :, tokens]`; `x` itself where that is all of it, which spares a short call some time."""
    whole = rows.stop - rows.start == len(x) and tokens.stop - tokens.start == x.shape[2]
    return x if whole else x[rows, :, tokens]


def of_rows(x: Tensor, rows: slice) -> Tensor:
    """These rows of the batch; all of `x` where it holds one row for all."""
    return x if len(x) == 1 else x[rows]


def narrowed(segment: Segment, band: tuple[int, int]) -> Segment | None:
    """The segment without the queries that see nothing and the keys that nobody sees, by the band; None for none."""
    (back, ahead), (low, high), offset = band, segment.keys, segment.offset
    first, end = max(segment.queries[0], low + offset - ahead), min(segment.queries[1], high + offset + back)
    if first >= end:
        return None
    keys = max(low, first - offset - back), min(high, end - offset + ahead)
    seen = None if segment.seen is None else segment.seen[keys[0] - low : keys[1] - low]
    return replace(segment, queries=(first, end), keys=keys, seen=seen)


def tiles(
    segment: Segment, band: tuple[int, int], size: int, whole: bool, has_table: bool, has_key_bias: bool
) -> Iterator[Tile]:
    """The tiles of a segment that see something, `size` queries each.

    `band` is `(back, ahead)`; `whole` leaves a segment uncut where the band hides nothing, or nothing but what the
    kernel can hide by itself; the other two say what there is besides the band.
    """
    within = narrowed(segment, band)
    if within is None:
        return
    (back, ahead), (low, high), offset = band, segment.keys, segment.offset
    (first, end), (seen_from, seen_to) = within.queries, within.keys

    def tile(a: int, b: int, is_causal: bool = False) -> Tile:
        start = max(low, a - offset - back)
        start = low + (start - low) // KEY_BLOCK * KEY_BLOCK
        stop = b - offset + ahead
        stop = min(high, seen_to, low - (low - stop) // (KEY_BLOCK // 2) * (KEY_BLOCK // 2))
        least, most = offset + start - (b - 1), offset + stop - 1 - a
        hidden = (max(-back - least, 0), max(most - ahead, 0))
        seen, seeing = None, None
        if segment.seen is not None:
            seen = segment.seen[start - low : stop - low]
            seeing = _seeing(seen, b - a, a - offset - back - start, a - offset + ahead + 1 - start)
        if start < seen_from:
            is_within = torch.arange(start, stop) >= seen_from
            seen = is_within if seen is None else seen & is_within
        is_reversed = b - a > 1 and not is_causal and (has_table or hidden != (0, 0))
        return Tile(segment.rows, a, b, start, stop, least, hidden, is_causal, is_reversed, seen, seeing)

    has_columns = has_key_bias or segment.seen is not None
    is_plain = not has_table and not has_columns
    # A strip and columns together are no view: their sum is made, tile by tile.
    whole = whole and not (has_table and has_columns)
    if whole and tile(first, end).hidden == (0, 0):
        size = end - first
    if whole and is_plain and ahead == 0 and offset + low == first and back >= end - first - 1:
        yield tile(first, end, is_causal=True)
        return
    for a in range(first, end, size):
        b = min(a + size, end)
        rows = tile(a, b)
        tail = _tail(b - a, segment.queries[1] - segment.queries[0]) if whole and b == end else 0
        if rows.is_reversed and 0 < tail < b - a:
            yield tile(a, b - tail)
            yield tile(b - tail, b)
        else:
            yield rows


def _tail(rows: int, queries: int) -> int:
    """How many of a tile's last rows to take by themselves, so that its rows reversed are multiplied as `queries` are.

    The kernel takes queries in blocks, the last of which may have few rows; reversed, other queries would be in it.
    """
    few = queries % _query_block(queries)
    if 0 < few <= FEW_ROWS:
        return few
    return FEW_ROWS + 1 if 0 < rows % _query_block(rows) <= FEW_ROWS else 0


def _query_block(queries: int) -> int:
    """How many queries torch's kernel takes at a time."""
    return 256 if queries >= 768 else 64 if queries >= 192 else 32


def _seeing(seen: Bool[Tensor, " k"], queries: int, low: int, high: int) -> Bool[Tensor, " q"]:
    """Which of the queries see a key, the first of which looks at keys `low` to `high - 1`, the next one key on."""
    count = torch.nn.functional.pad(seen.cumsum(0), (1, 0))
    step = torch.arange(queries)
    froms, tos = (step + max(min(edge, len(seen)), -queries) for edge in (low, high))
    return count[tos.clamp(0, len(seen))] > count[froms.clamp(0, len(seen))]
