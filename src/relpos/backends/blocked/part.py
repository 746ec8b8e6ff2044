"""Some batch rows and heads of a call, over one segment: what forward and backward pass both need of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos._native import Block, chosen, numbers
from relpos.backends.blocked import gains
from relpos.backends.blocked.inputs import Inputs
from relpos.backends.blocked.pairs import Pairs
from relpos.backends.blocked.rows import Rows, places
from relpos.backends.blocked.scratch import SCRATCH
from relpos.backends.call import UNBOUNDED, wide
from relpos.backends.segments import Segment, segments
from relpos.backends.tiles import Tile, narrowed, of_rows, tiles

#: Scores held at a time, where several heads or rows of the batch fit: what stays in the caches of two cores.
SCORES = 2**20
#: The same with a pair bias, which is made for all heads at once and for all rows of the batch that it serves.
PAIRED_SCORES = 2**23
#: Queries a block: products of fewer are slow. Less where a head's scores would be more than `MOST`, but `FEWEST`.
ROWS, MOST, FEWEST = 512, 2**22, 128
#: Key heads or rows of the batch at a time, at least: two threads share one sum of values badly.
PLANES = 2
#: Numbers between the rows of `by_key`: rows a power of two apart would share a few places of the caches.
PADDING = 16


class Part:
    """Batch rows `rows` and key heads `shared` over a segment, with products in `dtype`.

    Attributes:
        heads: the query heads that share the key heads.
        tiles: the blocks of queries and the keys that they see, in order.
        query, plain_query: `[b, h, Tq, D]`.
        key, plain_key, value: `[b, g, k, D]`, the segment's keys, 0 where nobody sees them.
        early, late: what multiplies products when they are made, and when they are summed: the scale and 1, but for
            products in bfloat16 1 and the scale, since they are faster without.
    """

    def __init__(self, inputs: Inputs, area: Area, rows: slice, shared: slice, dtype: torch.dtype) -> None:
        self.inputs, self.area, self.rows, self.shared = inputs, area, rows, shared
        self.dtype, self.tiles = dtype, area.tiles
        self.early, self.late = (1.0, inputs.scale) if dtype == torch.bfloat16 else (inputs.scale, 1.0)
        self.groups = inputs.query.shape[1] // inputs.key.shape[1]
        self.heads = slice(shared.start * self.groups, shared.stop * self.groups)
        self.query, self.key = self._queries(inputs.query), self._keys(inputs.key)
        self.plain_query = self.query if inputs.plain_query is None else self._queries(inputs.plain_query)
        self.plain_key = self.key if inputs.plain_key is None else self._keys(inputs.plain_key)
        self.value = self._keys(inputs.value)
        self.batch, self.head_count = self.query.shape[:2]

    @functools.cached_property
    def query_table(self) -> Float[Tensor, "h r D"]:
        """The rows that the segment reads."""
        return self._table(self.inputs.query_table, self.area.table_rows.of_query)

    @functools.cached_property
    def key_table(self) -> Float[Tensor, "h r D"]:
        """The rows that the segment reads."""
        return self._table(self.inputs.key_table, self.area.table_rows.of_key)

    @functools.cached_property
    def value_table(self) -> Float[Tensor, "h r D"]:
        """The rows that the segment reads."""
        return self._table(self.inputs.value_table, self.area.value_rows.of_query)

    @functools.cached_property
    def by_key(self) -> Float[Tensor, "h r b k"]:
        """Product of each row of the key table with each key, scaled."""
        keys, products = self.by_head(self.plain_key), self.room_by_key("by_key")
        multiply(self.key_table, keys.mT, self.early, products.flatten(2))
        return products

    def room_by_key(self, purpose: str) -> Float[Tensor, "h r b k"]:
        """Memory for a number of each row of the key table and each key."""
        shape = (self.head_count, self.key_table.shape[1], self.batch * self.key.shape[2])
        room = SCRATCH.take(purpose, (*shape[:2], shape[2] + PADDING), self.dtype)[..., : shape[2]]
        return room.view(*shape[:2], self.batch, -1)

    def by_head(self, keys: Float[Tensor, "b g k D"]) -> Float[Tensor, "h bk D"]:
        """For each query head, the keys of all batch rows one after the other."""
        flat = keys.transpose(0, 1).flatten(1, 2)
        return flat if self.groups == 1 else flat.repeat_interleave(self.groups, 0)

    def queries(self, x: Float[Tensor, "b h Tq *D"], tile: Tile) -> Float[Tensor, "b h q *D"]:
        """A tile's queries, zero where they see nothing."""
        return tile.without_blind(x[:, :, tile.query_rows])

    def keys(self, x: Float[Tensor, "b g k D"], tile: Tile) -> Float[Tensor, "bg kt D"]:
        """A tile's keys or values."""
        return x[:, :, self.within(tile)].flatten(0, 1)

    def within(self, tile: Tile) -> slice:
        """A tile's keys, among those of the segment."""
        return slice(tile.low - self.area.segment.keys[0], tile.high - self.area.segment.keys[0])

    def by_shared(self, x: Float[Tensor, "b h q D"]) -> Float[Tensor, "bg nq D"]:
        """The queries that share a key head, one after the other; a view of what is contiguous."""
        return x.reshape(-1, self.groups * x.shape[2], x.shape[3])

    def times_table(
        self, x: Float[Tensor, "b h q D"], table: Float[Tensor, "h r D"], scale: float = 1.0
    ) -> Float[Tensor, "h b q r"]:
        """Product of each query's vector with each row of a table."""
        x = self.per_head(x)
        products = SCRATCH.take("by_query", (*x.shape[:2], table.shape[1]), self.dtype)
        return multiply(x, table.mT, scale, products).view(len(x), self.batch, -1, table.shape[1])

    def per_head(self, x: Float[Tensor, "b h q D"]) -> Float[Tensor, "h bq D"]:
        """For each head, the queries of all batch rows one after the other."""
        return x.transpose(0, 1).reshape(self.head_count, -1, x.shape[3])

    def block(self, tile: Tile) -> Block:
        """A tile's products, hidden ones -inf, and what is to be added to them; to be used before the next block."""
        query, inputs, pairs = self.queries(self.query, tile), self.inputs, self.area.pairs
        number = None if pairs is None else pairs.number(self.rows, tile.query_rows, tile.key_rows)
        scores = self.scores(query, self.key, tile, "scores", self.early)
        if inputs.gain is not None:
            gains.products(self.gained(tile, number), scores)
        if inputs.pair_bias is not None:
            inputs.pair_bias.add_to(scores, self.rows, tile.query_rows, tile.key_rows)
        if tile.seen is not None:
            scores.masked_fill_(~tile.seen, -torch.inf)
        hidden = None if pairs is None else pairs.hidden(self.rows, self.heads, tile.query_rows, tile.key_rows)
        if hidden is not None:
            scores.masked_fill_(hidden, -torch.inf)
        if inputs.key_bias is not None:
            scores += of_rows(inputs.key_bias, self.rows)[:, self.heads, None, tile.key_rows]
        return self.area.table_rows.block(
            scores,
            None if inputs.query_table is None else self._by_query(tile, query),
            None if inputs.key_table is None else self.by_key[..., self.within(tile)],
            self._bias(tile, number),
            self.start(tile),
            number,
            self.late,
        )

    def scores(
        self,
        query: Float[Tensor, "b h q D"],
        key: Float[Tensor, "b g k D"],
        tile: Tile,
        purpose: str,
        scale: float = 1.0,
    ) -> Float[Tensor, "b h q kt"]:
        """Products of a tile's queries with its keys."""
        queries, keys = query.shape[2], tile.high - tile.low
        scores = SCRATCH.take(purpose, (self.batch, self.head_count, queries, keys), self.dtype)
        multiply(self.by_shared(query), self.keys(key, tile).mT, scale, self.by_shared(scores))
        return scores

    def weighted(
        self, weights: Float[Tensor, "b h q kt"], value: Float[Tensor, "b g k Dv"], tile: Tile
    ) -> Float[Tensor, "b h q Dv"]:
        """Sums of values."""
        return torch.bmm(self.by_shared(weights), self.keys(value, tile)).view(*weights.shape[:3], -1)

    def weighted_rows(
        self, weights: Float[Tensor, "h b q r"], table: Float[Tensor, "h r D"]
    ) -> Float[Tensor, "b h q D"]:
        """Sums of a table's rows."""
        sums: Tensor = torch.bmm(weights.flatten(1, 2), table).unflatten(1, weights.shape[1:3])
        return sums.transpose(0, 1)

    def by_value_row(
        self, weights: Float[Tensor, "b h q kt"], tile: Tile, number: Int[Tensor, "*b q k"] | None
    ) -> Float[Tensor, "h b q r"]:
        """For each query, the weights of all keys that read one row of the value table, summed."""
        rows, queries = self.area.value_rows, weights.shape[2]
        sums = weights.new_zeros(self.head_count, self.batch, queries, self.value_table.shape[1])
        block = rows.block(weights, None, None, None, self.start(tile), number)
        chosen(block).sum_by_query(block, sums)
        return sums

    def start(self, tile: Tile) -> int:
        """The number of a tile's smallest distance."""
        return tile.distance - self.inputs.least

    def gained(self, tile: Tile, number: Int[Tensor, "*b q k"] | None) -> gains.Gained:
        """What the products of a tile depend on; `number` as that of its block."""
        gain, row = self.inputs.gain, self.inputs.gain_row
        assert gain is not None
        assert row is not None
        if number is None:
            number = self.start(tile) + numbers(tile.end - tile.first, tile.high - tile.low)
        key = self.key[:, :, self.within(tile)].repeat_interleave(self.groups, 1)
        query, gain = self.queries(self.query, tile), gain[self.heads].to(self.dtype)
        return gains.Gained(query, key, self.inputs.scale, gain, row.long()[number])

    def dropout(self, like: Float[Tensor, "b h q k"], number: int) -> Float[Tensor, "b h q k"]:
        """What multiplies the probabilities of block `number`, the same each time it is asked."""
        assert self.inputs.seed is not None
        generator = torch.Generator().manual_seed((int(self.inputs.seed) + number) % 2**63)
        keep = 1.0 - self.inputs.dropout_p
        kept = torch.empty_like(like, dtype=wide(like.dtype)).bernoulli_(keep, generator=generator)
        return kept.div_(keep) if keep else kept

    def _by_query(self, tile: Tile, query: Float[Tensor, "b h q D"]) -> Float[Tensor, "h b q r"]:
        plain = query if self.inputs.plain_query is None else self.queries(self.plain_query, tile)
        return self.times_table(plain, self.query_table, self.early)

    def _bias(self, tile: Tile, number: Tensor | None) -> Float[Tensor, "some n"] | None:
        bias = None if self.inputs.bias is None else self.inputs.bias[self.heads]
        if number is not None or (bias is None and tile.hidden == (0, 0)):
            return bias
        size = tile.end - tile.first + tile.high - tile.low - 1
        if bias is None:
            return tile.banded(torch.zeros(1, size, dtype=wide(self.dtype)))
        return tile.banded(bias[:, self.start(tile) : self.start(tile) + size])

    def _table(self, table: Tensor | None, rows: slice) -> Float[Tensor, "h r D"]:
        assert table is not None
        table = table.expand(self.inputs.query.shape[1], -1, -1)
        return table[self.heads, rows].to(self.dtype)

    def _queries(self, x: Float[Tensor, "B H Tq D"]) -> Float[Tensor, "b h Tq D"]:
        return x[self.rows, self.heads].to(self.dtype)

    def _keys(self, x: Float[Tensor, "B G Tk D"]) -> Float[Tensor, "b g k D"]:
        x = x[self.rows, self.shared, slice(*self.area.segment.keys)].to(self.dtype)
        return x if self.area.segment.seen is None else x.masked_fill(~self.area.segment.seen[:, None], 0.0)


def multiply(x: Float[Tensor, "n i c"], y: Float[Tensor, "n c j"], scale: float, out: Tensor) -> Tensor:
    """`scale x @ y`, in the memory of `out`."""
    return torch.bmm(x, y, out=out) if scale == 1 else torch.baddbmm(out, x, y, beta=0.0, alpha=scale, out=out)


def products(inputs: Inputs) -> torch.dtype:
    """The dtype of products: bfloat16 where the processor has such products and the kernel alone reads them."""
    others = (inputs.gain, inputs.value_table, inputs.key_bias, inputs.pair_bias)
    if inputs.query.dtype != torch.bfloat16 or inputs.has_numbers or any(x is not None for x in others):
        return wide(inputs.query.dtype)
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


class Area:
    """A segment: its tiles, and the rows of the tables that it reads."""

    def __init__(self, inputs: Inputs, segment: Segment, pairs: Pairs | None) -> None:
        self.inputs, self.segment, self.pairs = inputs, segment, pairs
        self.where = slice(None) if pairs is not None else places(inputs, segment)
        self.band = (inputs.back, inputs.ahead) if pairs is None else (UNBOUNDED, UNBOUNDED)
        self.is_paired = inputs.pair_bias is not None

    @functools.cached_property
    def table_rows(self) -> Rows:
        """Of the query table and the key table."""
        inputs = self.inputs
        tables = (inputs.query_table, inputs.key_table)
        return Rows(inputs.query_row, inputs.key_row, tables, inputs.size, self.where)

    @functools.cached_property
    def value_rows(self) -> Rows:
        """Of the value table."""
        inputs = self.inputs
        return Rows(inputs.value_row, None, (inputs.value_table, None), inputs.size, self.where)

    @functools.cached_property
    def tiles(self) -> list[Tile]:
        """Its blocks."""
        keys = self.segment.keys[1] - self.segment.keys[0]
        size = FEWEST if self.is_paired else max(min(MOST // keys, ROWS), FEWEST)
        return list(tiles(self.segment, self.band, size, whole=False, has_table=True, has_key_bias=True))

    @functools.cached_property
    def most_scores(self) -> int:
        """Scores of a head in its largest block."""
        return max((tile.end - tile.first) * (tile.high - tile.low) for tile in self.tiles)


def parts(inputs: Inputs, area: Area, dtype: torch.dtype) -> Iterator[Part]:
    """All of an area, products in `dtype`: as many batch rows and heads at a time as hold about `SCORES` scores."""
    shared, is_paired = inputs.key.shape[1], inputs.pair_bias is not None
    most = PAIRED_SCORES if is_paired else SCORES
    fit = max(most // (area.most_scores * (inputs.query.shape[1] // shared)), shared if is_paired else PLANES)
    rows, some = max(fit // shared, 1), min(fit, shared)
    start, stop = area.segment.rows.start, area.segment.rows.stop
    for row in range(start, stop, rows):
        for head in range(0, shared, some):
            yield Part(inputs, area, slice(row, min(row + rows, stop)), slice(head, min(head + some, shared)), dtype)


def areas(inputs: Inputs) -> Iterator[Area]:
    """All of a call."""
    batch, query_len, key_len = len(inputs.query), inputs.query.shape[2], inputs.key.shape[2]
    if inputs.is_paired:
        offset = 0 if inputs.has_numbers else inputs.offset
        everything = Segment(slice(0, batch), (0, query_len), (0, key_len), offset)
        yield Area(inputs, everything, Pairs(inputs))
        return
    offsets = inputs.offset if inputs.offsets is None else inputs.offsets
    for whole in segments(batch, query_len, key_len, offsets, inputs.query_document, inputs.key_document):
        segment = narrowed(whole, (inputs.back, inputs.ahead))
        if segment is not None:
            yield Area(inputs, segment, None)
