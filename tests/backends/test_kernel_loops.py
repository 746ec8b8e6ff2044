"""Every loop of the native kernel against its twin in torch, on blocks whose ends fill no vector."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from relpos import functional
from relpos._native import Attention, Block, attend_whole, kernel, runs, twin

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


#: Queries, keys, and the widths of keys and of values.
SHAPES = [
    (1, 1, 4, 4),
    (5, 40, 8, 8),
    (17, 31, 5, 3),
    (40, 7, 8, 8),
    (33, 100, 20, 40),
    (64, 257, 64, 64),
    (70, 70, 9, 33),
]
#: How far back and ahead a query sees.
BANDS = {"all": (2**40, 2**40), "causal": (2**40, 0), "window": (9, 4), "few": (-3, 6)}


def whole(queries: int, keys: int, width: int, wide: int, rows: str, terms: str, band: str) -> Attention:
    """Random numbers for 2 rows of the batch and 4 heads that share 2 of keys; in memory, tokens come before heads."""
    draw = torch.Generator().manual_seed(queries * 1000 + keys)
    distance = 3 if band == "few" else -2
    each = torch.arange(distance + 1 - queries, distance + keys)
    row = ROWS[rows](each).int()
    size = max(int(row.max()) + 1, 16)

    def numbers(heads: int, tokens: int, of: int) -> Tensor:
        return torch.randn(2, tokens, heads, of, generator=draw).transpose(1, 2)

    query, key = numbers(4, queries, width), numbers(2, keys, width)
    is_rotated = "rotated" in terms
    bias = torch.randn(4, len(row), generator=draw)
    back, ahead = BANDS[band]
    bias.masked_fill_((each < -back) | (each > ahead), -torch.inf)
    query_row = row if "query" in terms else None
    key_row = None if "key" not in terms else row.max() - row if "other" in terms else row
    return Attention(
        query=query,
        plain_query=numbers(4, queries, width) if is_rotated else query,
        key=key,
        plain_key=numbers(2, keys, width) if is_rotated else key,
        value=numbers(2, keys, wide),
        query_table=None if query_row is None else torch.randn(4, size, width, generator=draw),
        key_table=None if key_row is None else torch.randn(1, size, width, generator=draw),
        query_row=query_row,
        key_row=key_row,
        runs=runs(query_row, key_row, len(row)),
        bias=bias if "bias" in terms or band != "all" else None,
        distance=distance,
        back=back,
        ahead=ahead,
        scale=0.3,
        output=torch.full((2, queries, 4, wide), torch.nan).transpose(1, 2),
        logsumexp=torch.full((2, 4, queries), torch.nan),
    )


def by_pairs(a: Attention) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp in float64, from all pairs at once."""
    query, plain_query = a.query.double(), a.plain_query.double()
    key, plain_key, value = (x.double().repeat_interleave(2, 1) for x in (a.key, a.plain_key, a.value))
    queries, keys = query.shape[2], key.shape[2]
    n = torch.arange(queries - 1, -1, -1)[:, None] + torch.arange(keys)
    scores = torch.einsum("bhid,bhjd->bhij", query, key)
    if a.query_table is not None:
        scores += torch.einsum("bhid,hijd->bhij", plain_query, a.query_table.double()[:, a.query_row.long()[n]])
    if a.key_table is not None:
        table = a.key_table.double().expand(4, -1, -1)
        scores += torch.einsum("bhjd,hijd->bhij", plain_key, table[:, a.key_row.long()[n]])
    scores *= a.scale
    if a.bias is not None:
        scores += a.bias.double()[:, n]
    sees = scores.amax(-1, keepdim=True) > -torch.inf
    weights = scores.softmax(-1).where(sees, 0.0)
    return weights @ value, scores.logsumexp(-1).where(sees[..., 0], 0.0)


@pytest.mark.usefixtures("_loops")
@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_made_whole_equals_all_pairs_at_once(shape: tuple[int, ...], rows: str, band: str) -> None:
    for terms in [*TERMS, "rotated query key", "none"]:
        attention = whole(*shape, rows, terms, band)
        attend_whole(attention, lambda size: torch.full((size,), torch.nan))
        output, logsumexp = by_pairs(attention)
        assert_close(attention.output.double(), output, rtol=1e-5, atol=1e-5)
        assert_close(attention.logsumexp.double(), logsumexp, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(kernel.library() is None, reason="no kernel was built")
@pytest.mark.parametrize("keys", [90, 12000])
def test_attention_made_whole_is_the_same_with_any_threads(keys: int) -> None:
    """Threads share out heads, and where a head takes much memory, the queries of one."""
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        try:
            attention = whole(40, keys, 8, 8, "up", "query key", "all")
            more = torch.randn(1, 700, 8, generator=torch.Generator().manual_seed(0))
            attention = attention._replace(key_table=torch.cat([attention.key_table, more], 1))
            attend_whole(attention, lambda size: torch.full((size,), torch.nan))
            found.append(attention)
        finally:
            torch.set_num_threads(1)
    for other in found[1:]:
        assert torch.equal(other.output, found[0].output)
        assert torch.equal(other.logsumexp, found[0].logsumexp)
    assert_close(found[0].output.double(), by_pairs(found[0])[0], rtol=1e-5, atol=1e-5)
