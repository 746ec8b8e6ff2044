"""Shaw's clipped distances, and absolute positions: sinusoids and learned tables."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import relpos
from relpos.functional import shaw_index, sinusoidal_table

Limits = int | tuple[int, int]


def clipping_scheme(name: str, limits: Limits) -> relpos.Scheme:
    """A scheme of two heads, 8 wide, with random tables; `name` may end in the method of Huang's."""
    sizes: dict[str, object] = {"num_heads": 2, "max_distance": limits}
    if name != "shaw_bias":
        sizes["head_dim"] = 8
    if name.startswith("huang"):
        sizes["method"] = int(name[-1])
    scheme = relpos.make(name.rstrip("1234"), **sizes).double()
    for table in scheme.parameters():
        nn.init.normal_(table)
    return scheme


def random_qkv(length: int, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = torch.randn(3, batch, 2, length, 8, dtype=torch.float64).unbind()
    return query, key, value


@pytest.mark.parametrize(
    ("limits", "query", "length", "expected"),
    [
        (3, 0, 6, [3, 4, 5, 6, 6, 6]),
        (3, 5, 6, [0, 0, 0, 1, 2, 3]),
        (1, 2, 5, [0, 0, 1, 2, 2]),
        ((2, 1), 3, 6, [0, 0, 1, 2, 3, 3]),
        ((4, 0), 1, 4, [3, 4, 4, 4]),
    ],
)
def test_f1_distances_are_clipped(limits: Limits, query: int, length: int, expected: list[int]) -> None:
    """A relative model fails beyond its trained length because distances are not clipped."""
    assert shaw_index(torch.arange(length) - query, limits).tolist() == expected


@pytest.mark.parametrize("length", [6, 40])
@pytest.mark.parametrize("limits", [3, 1, (64, 8), (2, 5)])
@pytest.mark.parametrize("values", [True, False])
def test_f1_every_length_runs(values: bool, limits: Limits, length: int) -> None:
    """The same, through attention, against the vectors of every pair written out."""
    scheme = relpos.Shaw(2, 8, limits, values=values).double()
    for table in scheme.parameters():
        nn.init.normal_(table)
    query, key, value = random_qkv(length)
    left, right = limits if isinstance(limits, tuple) else (limits, limits)
    rows = [[max(-left, min(right, j - i)) + left for j in range(length)] for i in range(length)]
    keys = key[:, :, None] + scheme.key_table[torch.tensor(rows)]
    probabilities = (torch.einsum("bhid,bhijd->bhij", query, keys) / math.sqrt(8)).softmax(-1)
    vectors = value[:, :, None]
    if scheme.value_table is not None:
        vectors = vectors + scheme.value_table[torch.tensor(rows)]
    expected = (probabilities[..., None] * vectors).sum(-2)
    torch.testing.assert_close(relpos.attention(query, key, value, scheme), expected, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("name", ["shaw", "shaw_bias", "huang1", "huang2", "huang3", "huang4"])
@pytest.mark.parametrize("limit", [2, 5])
def test_f1_beyond_the_limit_distances_are_one(limit: int, name: str) -> None:
    """The same, for every scheme that clips: keys past the limit could swap places, nearer ones could not."""
    scheme = clipping_scheme(name, limit)
    query, key, value = random_qkv(40)

    def last_query(order: Tensor) -> Tensor:
        positions = relpos.Positions.explicit(torch.tensor([39]), torch.arange(40))
        return relpos.attention(query[:, :, 39:], key[:, :, order], value[:, :, order], scheme, positions=positions)

    there, far, near = torch.arange(40), torch.arange(40), torch.arange(40)
    far[[0, 39 - limit]] = far[[39 - limit, 0]]
    near[[39, 39 - limit]] = near[[39 - limit, 39]]
    torch.testing.assert_close(last_query(far), last_query(there), rtol=0.0, atol=1e-12)
    assert (last_query(near) - last_query(there)).abs().max() > 1e-3


@pytest.mark.parametrize("length", [4, 9])
def test_f1_a_table_that_counts_query_minus_key_is_flipped_once(length: int) -> None:
    """The same: BERT's relative_key counts the other way, unclipped, in 2 * max_position - 1 rows."""
    bert = torch.randn(2 * 9 - 1, 8, dtype=torch.float64)
    scheme = relpos.Shaw(2, 8, 9 - 1, values=False).double()
    with torch.no_grad():
        scheme.key_table.copy_(bert.flip(0))
    query, key, value = random_qkv(length)
    by_query_minus_key = torch.arange(length)[:, None] - torch.arange(length) + 9 - 1
    position = torch.einsum("bhid,ijd->bhij", query, bert[by_query_minus_key])
    expected = ((query @ key.transpose(-1, -2) + position) / math.sqrt(8)).softmax(-1) @ value
    torch.testing.assert_close(relpos.attention(query, key, value, scheme), expected, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize(("cached", "new"), [(4, 1), (0, 3), (7, 2)])
def test_f3_distances_count_the_cached_tokens(cached: int, new: int) -> None:
    """With a cache, the distance is computed from the current chunk: always 0."""
    distance = relpos.Positions.arange(new, cached + new).distance()
    assert distance.tolist() == [[key - cached - query for key in range(cached + new)] for query in range(new)]
    if (cached, new) == (4, 1):
        assert distance.tolist() == [[-4, -3, -2, -1, 0]]


@pytest.mark.parametrize("name", ["shaw", "shaw_bias", "huang1", "huang2", "huang3", "huang4"])
@pytest.mark.parametrize(("cached", "limit"), [(4, 16), (4, 2), (9, 3)])
def test_f3_a_cached_step_equals_the_full_run(cached: int, limit: int, name: str) -> None:
    """The same, for every scheme that counts clipped distances."""
    layer = relpos.RelativeAttention(16, 2, clipping_scheme(name, limit), is_causal=True).double()
    x = torch.randn(2, cached + 1, 16, dtype=torch.float64)
    _, cache = layer(x[:, :cached], cache=relpos.KVCache())
    step, cache = layer(x[:, cached:], cache=cache)
    assert cache.length == cached + 1
    torch.testing.assert_close(step, layer(x)[:, cached:], rtol=0.0, atol=1e-12)
    alone, _ = layer(x[:, cached:], cache=relpos.KVCache())
    assert (step - alone).abs().max() > 1e-3  # a step that saw only itself would differ


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
@pytest.mark.parametrize("width", [2, 6, 7, 64])
def test_f5_sines_are_odd_and_cosines_even(width: int, layout: str) -> None:
    """Sines not negated for negative offsets: left and right cannot be told apart."""
    ahead = torch.arange(-5, 6)
    right = sinusoidal_table(ahead, width, layout=layout, dtype=torch.float64)
    left = sinusoidal_table(-ahead, width, layout=layout, dtype=torch.float64)
    channel = torch.arange(width)
    is_sine = channel % 2 == 0 if layout == "interleaved" else channel < (width + 1) // 2
    assert torch.equal(left[:, is_sine], -right[:, is_sine])
    assert torch.equal(left[:, ~is_sine], right[:, ~is_sine])
    at_two = right[ahead == 2][0]
    assert at_two[0].item() == pytest.approx(math.sin(2.0), abs=1e-12)
    assert not torch.equal(left[ahead == 2][0], at_two)


@pytest.mark.parametrize("width", [6, 8])
def test_f5_a_query_tells_left_from_right(width: int) -> None:
    """The same, with constant content of length 6: scores at +2 and -2 differ by the sign of their sines."""
    distance = torch.arange(6) - torch.arange(6)[:, None]
    vectors = sinusoidal_table(distance, width, dtype=torch.float64)
    content = torch.arange(1, width + 1, dtype=torch.float64)
    scores = vectors @ content
    sines = (vectors[..., 0::2] * content[0::2]).sum(-1)
    assert scores[2, 4].item() - scores[2, 0].item() == pytest.approx(2 * sines[2, 4].item(), abs=1e-12)
    assert abs(sines[2, 4].item()) > 0.1


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
@pytest.mark.parametrize("width", [7, 1, 3, 129])
def test_f6_odd_widths_have_one_sine_more(width: int, layout: str) -> None:
    """An odd width crashes at construction."""
    sines, cosines = [0.0] * ((width + 1) // 2), [1.0] * (width // 2)
    expected = [*sines, *cosines]
    if layout == "interleaved":
        expected = [float(channel % 2) for channel in range(width)]  # 0, 1, 0, 1, 0, 1, 0 for a width of 7
    assert sinusoidal_table(torch.arange(1), width, layout=layout)[0].tolist() == expected
    out = relpos.Sinusoidal(width, layout=layout).embed(torch.zeros(1, 3, width))
    assert out[0, 0].tolist() == expected
    first = sinusoidal_table(torch.arange(3), width + 1 if layout == "interleaved" else width, layout=layout)[:, 0]
    torch.testing.assert_close(out[0, :, 0], first)


def numbered(max_len: int, offset: int) -> relpos.LearnedAbsolute:
    """A table one wide that holds the number of each row."""
    scheme = relpos.LearnedAbsolute(1, max_len, offset)
    with torch.no_grad():
        scheme.table.copy_(torch.arange(max_len)[:, None])
    return scheme


def rows(scheme: relpos.LearnedAbsolute, positions: Tensor) -> list[int]:
    """The rows that explicit positions read."""
    out = scheme.embed(torch.zeros(len(positions), positions.shape[1], 1), relpos.Positions.explicit(*[positions] * 2))
    return [int(number) for number in out[0, :, 0]]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [([0, 0, 1, 1, 1], [1, 1, 2, 3, 4]), ([1, 1, 1, 0], [2, 3, 4, 4]), ([1, 1, 1, 1], [2, 3, 4, 5])],
)
def test_f8_opt_counts_tokens_from_row_2(mask: list[int], expected: list[int]) -> None:
    """OPT's table begins at row 2 and counts unpadded tokens: wrong row, or an index error."""
    counted = torch.tensor([mask]).cumsum(-1) - 1
    assert rows(numbered(8, 2), counted) == expected
    # Positions from the mask agree wherever there is a token, and keep padding out of sight.
    positions = relpos.Positions.from_mask(torch.tensor([mask]))
    out = numbered(8, 2).embed(torch.zeros(1, len(mask), 1), positions)[0, :, 0]
    real = [row for row, kept in zip(expected, mask, strict=True) if kept]
    assert out[torch.tensor(mask) == 1].tolist() == real


@pytest.mark.parametrize(
    ("ids", "pad", "expected"), [([8, 9, 1], 1, [2, 3, 1]), ([1, 1, 7, 5], 1, [1, 1, 2, 3]), ([5, 0], 0, [1, 0])]
)
def test_f8_roberta_counts_from_the_padding_id(ids: list[int], pad: int, expected: list[int]) -> None:
    """RoBERTa counts from its padding id plus 1, and puts padding on the padding row."""
    valid = torch.tensor([ids]) != pad
    counted = (valid.cumsum(-1) * valid) - 1  # padding at -1: the row before that of position 0
    assert rows(numbered(8, pad + 1), counted) == expected


@pytest.mark.parametrize(("offset", "expected"), [(2, [2, 3, 4]), (0, [0, 1, 2]), (5, [5, 6, 7])])
def test_f8_bart_adds_its_offset_to_the_index(offset: int, expected: list[int]) -> None:
    """BART adds 2 to the index, whatever is padding."""
    out = numbered(8, offset).embed(torch.zeros(1, 3, 1))
    assert out[0, :, 0].tolist() == expected


@pytest.mark.parametrize(
    ("max_len", "offset", "position", "fits"),
    [
        (16, 0, 15, True),
        (16, 0, 16, False),
        (16, 0, 400, False),
        (16, 0, -1, False),
        (16, 2, 13, True),
        (16, 2, 14, False),
        (16, 2, -2, True),
        (16, 2, -3, False),
        (1, 0, 0, True),
        (1, 0, 1, False),
    ],
)
def test_f10_a_position_past_the_table_is_named(max_len: int, offset: int, position: int, fits: bool) -> None:
    """A length past the table fails obscurely, far from the cause, or is wrapped in silence."""
    scheme = numbered(max_len, offset)
    at = torch.tensor([[position]])
    if fits:
        assert rows(scheme, at) == [position + offset]
        return
    with pytest.raises(ValueError, match=rf"position {position} for a table of {max_len} rows"):
        rows(scheme, at)


@pytest.mark.parametrize("max_len", [16, 5])
def test_f10_a_long_input_is_refused_where_it_enters(max_len: int) -> None:
    """The same, for an input one token too long."""
    scheme = relpos.LearnedAbsolute(4, max_len)
    assert scheme.embed(torch.zeros(2, max_len, 4)).shape == (2, max_len, 4)
    with pytest.raises(ValueError, match=rf"position {max_len} for a table of {max_len} rows"):
        scheme.embed(torch.zeros(2, max_len + 1, 4))
