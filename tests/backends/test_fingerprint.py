"""64 bits that stand for a tensor: those of the formula, and others after any change that weights may undergo."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from relpos._native import fingerprint, kernel

pytestmark = pytest.mark.skipif(kernel.library() is None, reason="no kernel was built")
BITS = 2**64 - 1


def mixed(x: int) -> int:
    """splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & BITS
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & BITS
    x = (x ^ x >> 27) * 0x94D049BB133111EB & BITS
    return x ^ x >> 31


def formula(data: bytes) -> int:
    """Pieces of 64 blocks of 16 stripes of 8 lanes of 8 bytes."""
    key, found = [mixed(i) for i in range(128)], 0
    for number, start in enumerate(range(0, len(data), 65536)):
        sums, products = ([key[lane] ^ number for lane in range(8)] for _ in range(2))
        piece = data[start : start + 65536]
        for first in range(0, len(piece), 1024):
            words = struct.unpack("<128Q", piece[first : first + 1024].ljust(1024, b"\0"))
            for place, word in enumerate(words):
                keyed = word ^ key[place]
                sums[place % 8] += word
                products[place % 8] += (keyed % 2**32) * (keyed >> 32)
            sums = [((x & BITS) ^ (x & BITS) >> 47) * 0x9E3779B97F4A7C15 & BITS for x in sums]
            products = [((x & BITS) ^ (x & BITS) >> 47) * 0xBF58476D1CE4E5B9 & BITS for x in products]
        of_piece = number
        for x, y in zip(sums, products, strict=True):
            of_piece = mixed(mixed(of_piece ^ x) ^ y)
        found ^= of_piece
    return mixed(found ^ len(data))


def data(size: int) -> Tensor:
    return torch.randint(256, (size,), generator=torch.Generator().manual_seed(size), dtype=torch.uint8)


@pytest.mark.usefixtures("_loops")
@pytest.mark.parametrize("size", [0, 1, 7, 8, 1023, 1024, 1025, 65536, 65537, 200_000])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_it_is_that_of_the_formula(size: int, threads: int) -> None:
    """By any loops, any number of threads, and wherever the bytes lie."""
    x, before = data(size + 3)[3:], torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert fingerprint(x) == formula(x.numpy().tobytes())
    finally:
        torch.set_num_threads(before)


def test_strides_do_not_count() -> None:
    x = torch.randn(33, 65)
    assert fingerprint(x.T) == fingerprint(x.T.contiguous()) != fingerprint(x)
    assert fingerprint(x) == fingerprint(x.clone())


def changes() -> Iterator[Tensor]:
    """Of 600 numbers: every bit, every pair of signs, every pair of neighbours swapped, all of them scaled or moved."""
    x = torch.randn(600, generator=torch.Generator().manual_seed(0))
    yield x
    bits = x.view(torch.int32)
    for place, bit in itertools.product(range(600), range(32)):
        changed = bits.clone()
        changed[place] ^= torch.tensor(1 << bit).int()
        yield changed
    for first, second in itertools.combinations(range(0, 600, 8), 2):
        changed = x.clone()
        changed[[first, second]] *= -1
        yield changed
    for place in range(599):
        changed = x.clone()
        changed[[place, place + 1]] = x[[place + 1, place]]
        yield changed
    yield from (x * factor for factor in (-1, 2, 0.5, 1 + 2**-22))
    yield from (x.roll(places) for places in (1, 2, 16, 256))
    yield from (x[:count] for count in range(600))


def test_no_two_changes_are_alike() -> None:
    found = [fingerprint(x) for x in changes()]
    assert None not in found
    assert len(set(found)) == len(found) > 20_000
