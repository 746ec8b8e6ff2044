"""A segment's attention made whole by the native kernel: in float32, with tables and biases of distances alone."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from relpos._native import Attention, attend_whole, kernel
from relpos.backends.blocked.inputs import Inputs
from relpos.backends.blocked.part import Area
from relpos.backends.blocked.scratch import SCRATCH
from relpos.backends.tiles import banded

#: Rows of a table that the kernel multiplies, at least.
FEWEST_ROWS = 16
#: What is no farther hides nothing that has an address.
FAR = 2**40


def takes(inputs: Inputs, area: Area) -> bool:
    """Whether the kernel does all that there is to do."""
    others = (inputs.key_bias, inputs.value_table, inputs.gain, inputs.seed, inputs.pair_bias)
    rows, keys = area.table_rows.of_key, inputs.key.shape[2]
    return (
        kernel.library() is not None
        and inputs.query.dtype == torch.float32
        and all(x is None for x in (*others, area.pairs, area.segment.seen))
        # Products are found by numbers of 32 bits.
        and (rows.stop - rows.start + FEWEST_ROWS) * (keys + 64) < 2**31
    )


def attend(inputs: Inputs, area: Area, output: Float[Tensor, "B H Tq Dv"], logsumexp: Float[Tensor, "B H Tq"]) -> None:
    """Writes what the segment's queries see."""
    segment, tables = area.segment, area.table_rows
    (first, end), (low, high) = segment.queries, segment.keys
    start = segment.offset + low - (end - 1) - inputs.least
    places = slice(start, start + end - first + high - low - 1)
    query, plain_query = _each(inputs.query, inputs.plain_query, segment.rows, slice(first, end))
    key, plain_key = _each(inputs.key, inputs.plain_key, segment.rows, slice(low, high))
    assert tables.runs is not None
    attend_whole(
        Attention(
            query=query,
            plain_query=plain_query,
            key=key,
            plain_key=plain_key,
            value=_rows(inputs.value, segment.rows, slice(low, high)),
            query_table=_table(inputs.query_table, tables.of_query),
            key_table=_table(inputs.key_table, tables.of_key),
            query_row=None if tables.query_row is None else tables.query_row[places],
            key_row=None if tables.key_row is None else tables.key_row[places],
            runs=tables.runs[places],
            bias=_bias(inputs, places),
            distance=segment.offset + low - first,
            back=min(inputs.back, FAR),
            ahead=min(inputs.ahead, FAR),
            scale=inputs.scale,
            output=output[segment.rows, :, first:end],
            logsumexp=logsumexp[segment.rows, :, first:end],
        ),
        lambda size: SCRATCH.take("whole", (size,), torch.float32),
    )


def _each(x: Tensor, plain: Tensor | None, rows: slice, tokens: slice) -> tuple[Tensor, Tensor]:
    x = _rows(x, rows, tokens)
    return x, x if plain is None else _rows(plain, rows, tokens)


def _rows(x: Float[Tensor, "B H T D"], rows: slice, tokens: slice) -> Float[Tensor, "b H t D"]:
    return _side_by_side(x[rows, :, tokens])


def _table(table: Tensor | None, rows: slice) -> Float[Tensor, "some r D"] | None:
    if table is None:
        return None
    table = table[:, rows]
    missing = FEWEST_ROWS - table.shape[1]
    if missing > 0:
        table = F.pad(table, (0, 0, 0, missing))
    return _side_by_side(table.to(torch.float32))


def _side_by_side(x: Tensor) -> Tensor:
    """The numbers of each row next to each other."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _bias(inputs: Inputs, places: slice) -> Float[Tensor, "some n"] | None:
    """The bias of each distance, -inf outside of the band."""
    least, most = inputs.least + places.start, inputs.least + places.stop - 1
    hidden = (max(-inputs.back - least, 0), max(most - inputs.ahead, 0))
    if inputs.bias is not None:
        return _side_by_side(banded(inputs.bias[:, places], hidden))
    return None if hidden == (0, 0) else banded(torch.zeros(1, places.stop - places.start), hidden)
