"""Attention made whole by relpos.c, where all that it needs is float32 and follows from places in memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos._native import kernel

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class Attention(NamedTuple):
    """Float32 tensors, the numbers of each row side by side; queries and keys of one segment.

    Attributes:
        query, key: rotated, where something rotates; `plain_query` and `plain_key` as they were.
        query_table, key_table: of 16 rows at least; None where there is none.
        query_row, key_row, runs, bias: as those of a `Block` of all queries and keys.
        distance: of the first key from the first query.
        back, ahead: the band, as `Call.band`.
        scale: what multiplies all products.
        output, logsumexp: what is written; both 0 where a query sees nothing.
    """

    query: Float[Tensor, "b h q D"]
    plain_query: Float[Tensor, "b h q D"]
    key: Float[Tensor, "b g k D"]
    plain_key: Float[Tensor, "b g k D"]
    value: Float[Tensor, "b g k Dv"]
    query_table: Float[Tensor, "some r D"] | None
    key_table: Float[Tensor, "some s D"] | None
    query_row: Int[Tensor, " n"] | None
    key_row: Int[Tensor, " n"] | None
    runs: Int[Tensor, " n"]
    bias: Float[Tensor, "some n"] | None
    distance: int
    back: int
    ahead: int
    scale: float
    output: Float[Tensor, "b h q Dv"]
    logsumexp: Float[Tensor, "b h q"]


class _Tensor(ctypes.Structure):
    """`relpos_tensor` of relpos.c."""

    _fields_ = (("data", _POINTER), ("batch", _LONG), ("head", _LONG), ("row", _LONG))


class _Attention(ctypes.Structure):
    """`relpos_attention` of relpos.c."""

    _fields_ = (
        *((name, _Tensor) for name in ("query", "plain_query", "key", "plain_key", "value")),
        *((name, _Tensor) for name in ("query_table", "key_table", "output", "logsumexp")),
        *((name, _POINTER) for name in ("bias", "query_row", "key_row", "runs", "room")),
        *((name, _LONG) for name in ("batch", "heads", "groups", "queries", "keys", "depth", "value_depth")),
        *((name, _LONG) for name in ("query_rows", "key_rows", "bias_head", "distance", "back", "ahead")),
        ("threads", _INT),
        ("scale", ctypes.c_float),
    )


def attend_whole(attention: Attention, memory: Callable[[int], Float[Tensor, " n"]]) -> None:
    """Writes the output and the log-sum-exp of all queries; `memory` gives so many float32 numbers of any value."""
    loaded = kernel.library()
    assert loaded is not None
    filled = _filled(attention)
    room = memory(loaded.relpos_room(ctypes.byref(filled)))
    filled.room = room.data_ptr()
    loaded.relpos_attend(ctypes.byref(filled))


def _filled(attention: Attention) -> _Attention:
    query, key, value, bias = attention.query, attention.key, attention.value, attention.bias
    filled = _Attention(
        query_row=kernel.address(attention.query_row),
        key_row=kernel.address(attention.key_row),
        runs=kernel.address(attention.runs),
        bias=kernel.address(bias),
        batch=query.shape[0],
        heads=query.shape[1],
        groups=query.shape[1] // key.shape[1],
        queries=query.shape[2],
        keys=key.shape[2],
        depth=query.shape[3],
        value_depth=value.shape[3],
        distance=attention.distance,
        back=attention.back,
        ahead=attention.ahead,
        threads=torch.get_num_threads(),
        scale=attention.scale,
    )
    for name in ("query", "plain_query", "key", "plain_key", "value", "output"):
        setattr(filled, name, _tensor(getattr(attention, name)))
    filled.logsumexp = _tensor(attention.logsumexp[..., None])
    if bias is not None:
        filled.bias_head = _step(bias, 0)
    if attention.query_table is not None:
        filled.query_table, filled.query_rows = _tensor(attention.query_table[None]), attention.query_table.shape[1]
    if attention.key_table is not None:
        filled.key_table, filled.key_rows = _tensor(attention.key_table[None]), attention.key_table.shape[1]
    return filled


def _tensor(x: Tensor) -> _Tensor:
    return _Tensor(x.data_ptr(), _step(x, 0), _step(x, 1), x.stride(2))


def _step(x: Tensor, dim: int) -> int:
    return x.stride(dim) if x.shape[dim] > 1 else 0
