"""Every loop of the native kernel against its twin in torch, on blocks whose ends fill no vector."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from relpos import functional
from relpos._native import Block, kernel, runs, twin

LOOPS = [b"avx512", b"avx2", b"portable"]


@pytest.fixture(params=LOOPS, ids=[name.decode() for name in LOOPS])
def _loops(request: pytest.FixtureRequest) -> Iterator[None]:
    library = kernel.library()
    if library is None:
        pytest.skip("no kernel was built")
    before = kernel.loops.__wrapped__().encode()
    if library.relpos_choose(ctypes.c_char_p(request.param)) != request.param:
        library.relpos_choose(ctypes.c_char_p(before))
        pytest.skip("this processor has no such loops")
    yield
    library.relpos_choose(ctypes.c_char_p(before))


def block(dtype: torch.dtype, queries: int, keys: int, terms: str, scale: float) -> Block:
    """Random numbers for 2 rows of the batch and 3 heads, by DeBERTa's rows; a third of all scores is hidden."""
    size = queries + keys - 1
    distance = torch.arange(size) - (queries - 1)
    row = functional.deberta_row(distance, num_buckets=16, max_distance=40).int()
    draw = torch.Generator().manual_seed(queries * 1000 + keys)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(dtype)

    scores = numbers(2, 3, queries, keys)
    room = numbers(3 * 32 * 2 * keys + 1)[:-1].view(3, 32, 2, keys)  # and one number after the last, in bfloat16
    query_row, key_row = (row if name in terms else None for name in ("query", "key"))
    bias = torch.randn(3, size, generator=draw).masked_fill(torch.rand(3, size, generator=draw) < 0.3, -torch.inf)
    return Block(
        scores=scores,
        by_query=numbers(3, 2, queries, 32) if query_row is not None else None,
        by_key=room if key_row is not None else None,
        bias=bias if "bias" in terms else None,
        query_row=query_row,
        key_row=key_row,
        runs=runs(query_row, key_row, size),
        number=None,
        scale=scale,
    )


@pytest.mark.usefixtures("_loops")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("terms", ["query key bias", "query key", "query", "key", "bias"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 15), (17, 16), (9, 33), (70, 131)])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_equals_its_twin(dtype: torch.dtype, terms: str, queries: int, keys: int, scale: float) -> None:
    ours, theirs = (block(dtype, queries, keys, terms, scale) for _ in range(2))
    assert kernel.takes(ours)
    # Both round once: they may fall on neighbouring numbers.
    tolerance = {"rtol": 2**-7, "atol": 1e-6} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    for mine, other in zip(kernel.softmax(ours), twin.softmax(theirs), strict=True):
        assert_close(mine, other, rtol=1e-5, atol=1e-5)
    assert_close(ours.scores, theirs.scores, **tolerance)
    ours, theirs = (block(dtype, queries, keys, terms, scale) for _ in range(2))
    kernel.add(ours)
    twin.add(theirs)
    assert_close(ours.scores, theirs.scores, **tolerance | {"atol": 1e-5})
