"""Every loop of the native kernel against its twin in torch, on blocks whose ends fill no vector."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator

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


#: How rows follow from distances: clipped, in steps up and down, one each, in no order, back again, and buckets.
ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "clipped": lambda distance: distance.clamp(-20, 30) + 20,
    "few": lambda distance: distance.clamp(-2, 3) + 2,
    "up": lambda distance: (distance // 3).clamp(-30, 30) + 30,
    "down": lambda distance: 30 - (distance // 3).clamp(-30, 30),
    "each": lambda distance: distance - distance.min(),
    "no order": lambda distance: distance * 7 % 23,
    "back": lambda distance: distance.abs().clamp(max=40),
    "deberta": functools.partial(functional.deberta_row, num_buckets=16, max_distance=40),
}
#: Which tables there are, and whether there is a bias; "other key": the two tables have rows of their own.
TERMS = ["query key bias", "query other key", "query", "key", "bias"]


def block(dtype: torch.dtype, queries: int, keys: int, rows: str, terms: str) -> Block:
    """Random numbers for 2 rows of the batch and 3 heads; a third of all distances is hidden."""
    draw = torch.Generator().manual_seed(queries * 1000 + keys)
    row = ROWS[rows](torch.arange(1 - queries, keys) - 5).int()
    size = int(row.max()) + 1

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(dtype)

    scores, by_query = numbers(2, 3, queries, keys), numbers(3, 2, queries, size)
    by_key = numbers(3, size, 2 * keys + 1)[..., : 2 * keys].unflatten(2, (2, keys))  # one number after the last
    bias = torch.randn(3, len(row), generator=draw)
    bias.masked_fill_(torch.rand(bias.shape, generator=draw) < 0.3, -torch.inf)
    query_row = row if "query" in terms else None
    key_row = None if "key" not in terms else row.max() - row if "other" in terms else row
    return Block(
        scores=scores,
        by_query=None if query_row is None else by_query,
        by_key=None if key_row is None else by_key,
        bias=bias if "bias" in terms else None,
        query_row=query_row,
        key_row=key_row,
        runs=runs(query_row, key_row, len(row)),
        number=None,
        scale=0.3,
    )


@pytest.mark.usefixtures("_loops")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (3, 15), (1, 40), (17, 16), (17, 31), (33, 100), (64, 256), (70, 131)]
)
def test_equals_its_twin(dtype: torch.dtype, rows: str, queries: int, keys: int) -> None:
    # Both round once: they may fall on neighbouring numbers.
    close = {"rtol": 2**-7, "atol": 1e-5} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for terms in TERMS:
        ours, theirs = (block(dtype, queries, keys, rows, terms) for _ in range(2))
        assert kernel.takes(ours)
        for mine, other in zip(kernel.softmax(ours), twin.softmax(theirs), strict=True):
            assert_close(mine, other, rtol=1e-5, atol=1e-5)
        assert_close(ours.scores, theirs.scores, **close)
        ours, theirs = (block(dtype, queries, keys, rows, terms) for _ in range(2))
        kernel.add(ours)
        twin.add(theirs)
        assert_close(ours.scores, theirs.scores, **close)
        for name in ("query", "key") if dtype is torch.float32 else ():
            if name in terms:
                products = getattr(ours, f"by_{name}")
                got, expected = torch.zeros_like(products), torch.zeros_like(products)
                scores = block(dtype, queries, keys, rows, terms)
                getattr(kernel, f"sum_by_{name}")(scores, got)
                getattr(twin, f"sum_by_{name}")(scores, expected)
                assert_close(got, expected, rtol=1e-5, atol=1e-4)
