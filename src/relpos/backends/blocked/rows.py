"""Which rows of its tables a segment reads."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from relpos._native import Block, runs
from relpos.backends.blocked.inputs import Inputs
from relpos.backends.segments import Segment

#: Rows are multiplied in multiples of this where there are so many: products of 511 take a sixth longer than of 512.
WHOLE = 16


class Rows:
    """Rows by distance of a query table and a key table, counted from the first that the segment multiplies.

    Attributes:
        of_query, of_key: the rows that the segment reads, and a few more where the tables have them.
    """

    def __init__(
        self,
        query_row: Tensor | None,
        key_row: Tensor | None,
        tables: tuple[Tensor | None, Tensor | None],
        size: int,
        places: slice,
    ) -> None:
        self.query_row, self.of_query = _counted(query_row, tables[0], places)
        self.key_row, self.of_key = _counted(key_row, tables[1], places)
        self.runs = runs(self.query_row, self.key_row, size)

    def block(
        self,
        scores: Float[Tensor, "b h q k"],
        by_query: Float[Tensor, "h b q r"] | None,
        by_key: Float[Tensor, "h s b k"] | None,
        bias: Float[Tensor, "some n"] | None,
        start: int,
        number: Int[Tensor, "*b q k"] | None,
        scale: float = 1.0,
    ) -> Block:
        """A block whose smallest distance has number `start`, unless each pair has a number of its own."""
        size = scores.shape[2] + scores.shape[3] - 1
        here = slice(start, start + size) if number is None else slice(None)
        query_row, key_row, runs = (
            None if row is None else row[here] for row in (self.query_row, self.key_row, self.runs)
        )
        return Block(scores, by_query, by_key, bias, query_row, key_row, runs, number, scale)


def places(inputs: Inputs, segment: Segment) -> slice:
    """The numbers of the distances that a segment sees."""
    (first, end), (low, high) = segment.queries, segment.keys
    least = max(segment.offset + low - end + 1, -inputs.back)
    most = min(segment.offset + high - 1 - first, inputs.ahead)
    return slice(least - inputs.least, most - inputs.least + 1)


def _counted(
    row: Int[Tensor, " N"] | None, table: Float[Tensor, "h R D"] | None, places: slice
) -> tuple[Int[Tensor, " N"] | None, slice]:
    """The rows counted from the first multiplied; those not in `places`, which only hidden pairs read, moved inside."""
    if row is None or table is None:
        return None, slice(0, 0)
    first, last = (int(x) for x in row[places].aminmax())
    start, stop = first // WHOLE * WHOLE, min((last // WHOLE + 1) * WHOLE, table.shape[1])
    return row.clamp(first, last) - start, slice(start, stop)
