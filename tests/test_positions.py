"""Who stands where."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relpos import Positions


def test_arange_anchors_at_the_end_unless_told() -> None:
    assert Positions.arange(2, 5).query.tolist() == [3, 4]
    assert Positions.arange(5, 2).query.tolist() == [-3, -2, -1, 0, 1]
    assert Positions.arange(2, 5, query_start=0).query.tolist() == [0, 1]
    assert Positions.arange(2, 5, query_start=torch.tensor(1)).query.tolist() == [1, 2]
    assert Positions.arange(2, 5, query_start=torch.tensor([1, 3])).query.tolist() == [[1, 2], [3, 4]]


def test_only_equal_lengths_or_a_start_make_an_anchor() -> None:
    assert Positions.arange(3).anchored
    assert Positions.arange(3, 5, query_start=2).anchored
    assert not Positions.arange(3, 5).anchored


def test_distance_is_key_minus_query() -> None:
    assert Positions.arange(2, 3).distance().tolist() == [[-1, 0, 1], [-2, -1, 0]]
    batch = Positions.arange(1, 3, query_start=torch.tensor([0, 2])).distance()
    assert batch.tolist() == [[[0, 1, 2]], [[-2, -1, 0]]]


@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_packed_counts_each_document_from_zero(lengths: list[int]) -> None:
    positions = Positions.packed(torch.tensor([0, *lengths]).cumsum(0))
    assert positions.query.tolist() == [step for length in lengths for step in range(length)]
    documents = [number for number, length in enumerate(lengths) for _ in range(length)]
    same = positions.same_document()
    assert same is not None
    assert same.tolist() == [[a == b for b in documents] for a in documents]


@given(rows=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=3))
def test_from_mask_counts_valid_tokens(rows: list[list[bool]]) -> None:
    for mask in (torch.tensor(rows), torch.tensor(rows).long()):
        positions = Positions.from_mask(mask)
        same = positions.same_document()
        assert same is not None
        for b, row in enumerate(rows):
            count = -1
            for t, valid in enumerate(row):
                count += valid
                assert positions.query[b, t] == (count if valid else 0)
                assert same[b, t].tolist() == [valid and other for other in row]


def test_from_position_ids_finds_restarts_and_ignores_the_masked_tail() -> None:
    ids = torch.tensor([[0, 1, 2, 0, 1, 0], [5, 6, 7, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    positions = Positions.from_position_ids(ids, mask)
    assert positions.query_document is not None
    assert positions.query_document.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, -1, -1, -1]]
    assert positions.query.tolist() == ids.tolist()
    one_token_documents = Positions.from_position_ids(torch.tensor([0, 0, 0])).query_document
    assert one_token_documents is not None
    assert one_token_documents.tolist() == [0, 1, 2]


def test_positions_are_int64_whatever_they_came_from() -> None:
    small = torch.tensor([0, 2], dtype=torch.int16)
    for positions in (
        Positions.packed(small),
        Positions.explicit(small, small),
        Positions.from_position_ids(small),
        Positions.from_mask(small[None].bool()),
        Positions.arange(2, 2, small[0]),
    ):
        assert positions.query.dtype == positions.key.dtype == torch.int64


def test_to_moves_everything() -> None:
    moved = Positions.packed(torch.tensor([0, 2, 3])).to(torch.device("meta"))
    assert moved.query_document is not None
    assert {x.device.type for x in (moved.query, moved.key, moved.query_document)} == {"meta"}


CONSTRUCTED = {
    "square": Positions.arange(4),
    "cached": Positions.arange(2, 5),
    "started": Positions.arange(3, 5, -2),
    "one start": Positions.arange(3, 5, torch.tensor(7)),
    "starts": Positions.arange(3, 5, torch.tensor([1, 8])),
    "packed": Positions.packed(torch.tensor([0, 2, 2, 5])),
    "explicit": Positions.explicit(torch.tensor([7, 8]), torch.tensor([5, 6, 7])),
    "explicit rows": Positions.explicit(torch.tensor([[7, 8], [0, 1]]), torch.tensor([[5, 6], [5, 6]])),
    "left padded": Positions.from_mask(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])),
    "ids": Positions.from_position_ids(torch.tensor([0, 1, 2, 0, 1, 5, 6])),
    "masked ids": Positions.from_position_ids(torch.tensor([[0, 1, 2, 3]]), torch.tensor([[1, 1, 0, 1]])),
}


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_an_offset_makes_a_distance_a_place_in_memory(name: str) -> None:
    positions = CONSTRUCTED[name]
    offset = positions.offset
    assert offset is not None
    places = torch.arange(positions.key_len) - torch.arange(positions.query_len)[:, None]
    expected = places + (offset if isinstance(offset, int) else offset[:, None, None])
    distance, same = positions.distance(), positions.same_document()
    agree = distance == expected
    assert agree.all() if same is None else agree[same].all()
    moved = positions.to(torch.device("meta")).offset
    assert moved == offset if isinstance(offset, int) else moved is not None and moved.is_meta


@pytest.mark.parametrize(
    "positions",
    [
        Positions.explicit(torch.tensor([0, 2]), torch.tensor([0, 1])),
        Positions.explicit(torch.tensor([1, 0]), torch.tensor([0, 1])),
        Positions.explicit(torch.tensor([[0, 1]]), torch.tensor([[0, 1], [4, 4]])),
        Positions.from_mask(torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]])),
        Positions(torch.arange(3), torch.arange(3)),
    ],
)
def test_no_offset_where_there_is_none_or_nobody_looked(positions: Positions) -> None:
    assert positions.offset is None
