"""Which stretch of queries sees which stretch of keys, where padding and documents cut a batch into pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

#: A document's number and where one of its unbroken stretches begins and ends in memory.
Run = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Segment:
    """Queries `queries[0]` to `queries[1] - 1` of batch rows `rows` see keys within `keys` and no others.

    `seen [keys]` says which of these keys, where it is not all of them; `offset` is that of `Positions`.
    """

    rows: slice
    queries: tuple[int, int]
    keys: tuple[int, int]
    offset: int
    seen: Bool[Tensor, " Tk"] | None = None


def segments(
    batch: int,
    query_len: int,
    key_len: int,
    offset: int | Int[Tensor, " rows"],
    query_document: Int[Tensor, "b Tq"] | None,
    key_document: Int[Tensor, "b Tk"] | None,
) -> Iterator[Segment]:
    """The segments of a call; neighbouring rows of one layout share theirs. A query in none of them sees nothing."""
    if query_document is None or key_document is None:
        if isinstance(offset, int):
            yield Segment(slice(0, batch), (0, query_len), (0, key_len), offset)
            return
        layouts: list[tuple[list[Run], list[Run]]] = [([(0, 0, query_len)], [(0, 0, key_len)])]
    else:
        layouts = list(zip(_runs(query_document), _runs(key_document), strict=True))
    offsets = [offset] if isinstance(offset, int) else offset.tolist()
    start = 0
    for row in range(batch):
        here = (layouts[row % len(layouts)], offsets[row % len(offsets)])
        after = (layouts[(row + 1) % len(layouts)], offsets[(row + 1) % len(offsets)])
        if row + 1 < batch and here == after:
            continue
        rows, start = slice(start, row + 1), row + 1
        (query_runs, key_runs), row_offset = here
        spans = _spans(key_runs)
        for document, first, end in query_runs:
            if document not in spans:
                continue
            low, high, count = spans[document]
            seen = None
            if count < high - low:
                assert key_document is not None
                seen = key_document[row % len(key_document), low:high] == document
            yield Segment(rows, (first, end), (low, high), row_offset, seen)


def _runs(document: Int[Tensor, "b T"]) -> list[list[Run]]:
    """The unbroken stretches of every row, without padding."""
    edges = document[:, 1:] != document[:, :-1]
    ends: list[list[int]] = [[] for _ in range(len(document))]
    for row, place in edges.nonzero().tolist():
        ends[row].append(place + 1)
    runs: list[list[Run]] = []
    for row, inner in enumerate(ends):
        bounds = [0, *inner, document.shape[1]]
        numbers = document[row, bounds[:-1]].tolist()
        runs.append([(n, a, b) for n, a, b in zip(numbers, bounds[:-1], bounds[1:], strict=True) if n >= 0])
    return runs


def _spans(runs: list[Run]) -> dict[int, tuple[int, int, int]]:
    """Document -> where its first stretch begins, where its last ends, how many tokens it has."""
    spans: dict[int, tuple[int, int, int]] = {}
    for document, first, end in runs:
        low, _, count = spans.get(document, (first, end, 0))
        spans[document] = (low, end, count + end - first)
    return spans
