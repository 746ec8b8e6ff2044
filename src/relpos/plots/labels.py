"""Placing the names at the ends of lines so that they do not cover one another."""

from collections.abc import Sequence


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions as near as possible to `wanted`, in the same order, with at least `gap` between neighbours.

    Names that would touch form a block whose middle is the mean of their wanted positions; blocks that touch merge.

    >>> spread([0.0, 0.1, 5.0], gap=1.0)
    [-0.45, 0.55, 5.0]
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[list[int]] = []
    for index in order:
        blocks.append([index])
        while len(blocks) > 1 and _start(blocks[-1], wanted, gap) < _end(blocks[-2], wanted, gap) + gap:
            last = blocks.pop()
            blocks[-1] += last
    placed = [0.0] * len(wanted)
    for block in blocks:
        start = _start(block, wanted, gap)
        for rank, index in enumerate(block):
            placed[index] = round(start + rank * gap, 9)
    return placed


def _start(block: Sequence[int], wanted: Sequence[float], gap: float) -> float:
    return sum(wanted[index] for index in block) / len(block) - gap * (len(block) - 1) / 2


def _end(block: Sequence[int], wanted: Sequence[float], gap: float) -> float:
    return _start(block, wanted, gap) + gap * (len(block) - 1)
