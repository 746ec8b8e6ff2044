"""relpos.c, called by ctypes on the data of tensors: no link to any version of torch or Python.

The library leaves OpenMP's names open: they are those that torch has loaded, so its threads are torch's own.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos._native.block import Block

NAME = "librelpos.so"
_ADD, _SOFTMAX, _WEIGHTS = range(3)
#: Queries summed at a time, at most.
_WIDEST = 16
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class _Block(ctypes.Structure):
    """`relpos_block` of relpos.c."""

    _fields_ = (
        *((name, _POINTER) for name in ("x", "by_query", "by_key", "bias", "query_row", "key_row", "runs")),
        *((name, _POINTER) for name in ("inverse", "logsumexp", "room")),
        *((name, _LONG) for name in ("batch", "heads", "queries", "keys", "row", "query_rows")),
        *((name, _LONG) for name in ("by_key_head", "by_key_row", "by_key_batch", "bias_head")),
        *((name, _INT) for name in ("mode", "threads", "is_low")),
        ("scale", ctypes.c_float),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, its fastest loops chosen; None where none was built.

    Raises: ImportError where there is one that does not load.
    """
    # Of an editable installation, Python files stand in one folder of the package and what was built in another.
    folders = (Path(folder) for folder in sys.modules[__package__].__path__)
    path = next((folder / NAME for folder in folders if (folder / NAME).exists()), None)
    if path is None:
        return None
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.relpos_choose.restype, loaded.relpos_room.restype = ctypes.c_char_p, _LONG
        loaded.relpos_fingerprint.restype = ctypes.c_uint64
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"relpos: its native kernel {path} is there and does not load: {error}. "
            "What to do: install relpos again with the compiler and torch of this environment."
        ) from error
    loaded.relpos_choose(None)
    return loaded


@functools.cache
def loops() -> str:
    """Which loops run: "avx512", "avx2" or "portable"; empty where nothing was built."""
    loaded = library()
    return "" if loaded is None else loaded.relpos_choose(None).decode()


def takes(block: Block) -> bool:
    """Whether the kernel takes this block."""
    indexed = 0 if block.by_key is None else block.by_key.shape[1] * block.by_key.stride(1)
    is_placed = block.number is None and block.runs is not None
    return block.scores.dtype in (torch.float32, torch.bfloat16) and is_placed and indexed < 2**31


def add(block: Block) -> None:
    """As `twin.add`."""
    _score(block, mode=_ADD)


def softmax(block: Block) -> tuple[Float[Tensor, "b h q"], Float[Tensor, "b h q"]]:
    """As `twin.softmax`."""
    inverse, logsumexp = block.scores.new_empty(2, *block.scores.shape[:3], dtype=torch.float32)
    _score(block, mode=_SOFTMAX, inverse=inverse.data_ptr(), logsumexp=logsumexp.data_ptr())
    return inverse, logsumexp


def weights(block: Block, logsumexp: Float[Tensor, "b h q"]) -> None:
    """As `twin.weights`."""
    logsumexp = logsumexp.contiguous()
    _score(block, mode=_WEIGHTS, logsumexp=logsumexp.data_ptr())


def sum_by_query(block: Block, sums: Float[Tensor, "h b q r"]) -> None:
    """As `twin.sum_by_query`."""
    _call("relpos_sum_by_query", _filled(block._replace(by_query=sums)))


def sum_by_key(block: Block, sums: Float[Tensor, "h s b k"]) -> None:
    """As `twin.sum_by_key`."""
    _call("relpos_sum_by_key", _filled(block._replace(by_key=sums)))


def runs(query_row: Int[Tensor, " n"] | None, key_row: Int[Tensor, " n"] | None, size: int) -> Int[Tensor, " n"] | None:
    """The runs of `size` numbers, as `Block` describes them; None where nothing was built."""
    loaded = library()
    if loaded is None:
        return None
    counts = torch.empty(size, dtype=torch.int32)
    rows = (_POINTER(address(row)) for row in (query_row, key_row))
    loaded.relpos_runs(*rows, _POINTER(counts.data_ptr()), _LONG(size))
    return counts


def fingerprint(x: Tensor) -> int | None:
    """64 bits that stand for the numbers in `x [..]`, in their order; None where nothing was built.

    Other numbers have another fingerprint: surely if no more than one number changed, else but for one time in 2**64.
    """
    loaded = library()
    if loaded is None:
        return None
    x = x.detach().contiguous()
    size = x.numel() * x.element_size()
    found: int = loaded.relpos_fingerprint(_POINTER(x.data_ptr()), _LONG(size), _INT(torch.get_num_threads()))
    return found


def address(x: Tensor | None) -> int | None:
    """Where its numbers are in memory."""
    return None if x is None else x.data_ptr()


def _score(block: Block, **fields: int) -> None:
    filled = _filled(block, **fields)
    if filled.is_low:  # rows of sums are held in float32
        room = torch.empty(filled.threads, _WIDEST, filled.keys, dtype=torch.float32)
        filled.room = room.data_ptr()
    _call("relpos_score", filled)


def _call(name: str, block: _Block) -> None:
    getattr(library(), name)(ctypes.byref(block))


def _filled(block: Block, **fields: int) -> _Block:
    scores, by_query, by_key, bias, query_row, key_row, runs, _, scale = block
    batch, heads, queries, keys = scores.shape
    filled = _Block(
        x=scores.data_ptr(),
        query_row=address(query_row),
        key_row=address(key_row),
        runs=address(runs),
        batch=batch,
        heads=heads,
        queries=queries,
        keys=keys,
        row=keys,
        threads=torch.get_num_threads(),
        is_low=scores.dtype == torch.bfloat16,
        scale=scale,
        **fields,
    )
    if by_query is not None:
        filled.by_query, filled.query_rows = by_query.data_ptr(), by_query.shape[3]
    if by_key is not None:
        filled.by_key, filled.by_key_batch = by_key.data_ptr(), by_key.stride(2)
        filled.by_key_head, filled.by_key_row = by_key.stride(0), by_key.stride(1)
    if bias is not None:
        filled.bias, filled.bias_head = bias.data_ptr(), bias.stride(0) if len(bias) > 1 else 0
    return filled
