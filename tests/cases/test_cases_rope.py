"""RoPE: precision, layout, partial rotation, positions by value."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import relpos
from relpos.functional import apply_rotary, rope_inv_freq

PRINTED = 5e-5  # half a unit of the last digit that a report prints
LOW = [torch.bfloat16, torch.float16]


def unit(width: int, channel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """One token of zeros with a one in `channel`."""
    return torch.eye(width, dtype=dtype)[channel : channel + 1]


def rotate(x: Tensor, position: int, rotary_dim: int, base: float, layout: str) -> Tensor:
    """One token, rotated."""
    inv_freq, _ = rope_inv_freq(rotary_dim, base)
    return apply_rotary(x, torch.tensor([position]), inv_freq, layout)[0]


@pytest.mark.parametrize("dtype", [*LOW, torch.float32, torch.float64])
def test_d1_the_angle_is_exact_in_a_low_precision_model(dtype: torch.dtype) -> None:
    """Positions or frequencies in the model's dtype: bf16 cannot tell 256 from 257."""
    got = rotate(unit(16, 2, dtype), 301, 16, 10000.0, "interleaved")
    assert got.dtype == dtype
    assert got[2].item() == pytest.approx(0.5924, abs=PRINTED + torch.finfo(dtype).eps / 4)
    rounded_early = torch.cos(torch.tensor([301.0, 301.0]).bfloat16() * torch.tensor([10000.0**-0.125] * 2).bfloat16())
    assert rounded_early[0].item() == pytest.approx(0.7302, abs=torch.finfo(torch.bfloat16).eps / 4)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("position", [256, 257, 2049, 100_003])
@pytest.mark.parametrize(("width", "base"), [(16, 10000.0), (64, 500000.0)])
def test_d1_every_pair_turns_by_its_angle(
    width: int, base: float, position: int, dtype: torch.dtype, layout: str
) -> None:
    """The same, for every pair, against angles computed one by one."""
    for pair in range(width // 2):
        first, second = (pair, pair + width // 2) if layout == "half" else (2 * pair, 2 * pair + 1)
        angle = position * base ** (-2 * pair / width)
        got = rotate(unit(width, first, dtype), position, width, base, layout)
        # Half an ulp below 1, and the float32 frequencies' own half ulp at this position.
        tolerance = torch.finfo(dtype).eps / 4 + position * torch.finfo(torch.float32).eps
        assert got[first].item() == pytest.approx(math.cos(angle), abs=tolerance)
        assert got[second].item() == pytest.approx(math.sin(angle), abs=tolerance)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("start", [0, 256, 2048, 100_000])
def test_d1_a_cast_model_knows_where_it_stands(start: int, dtype: torch.dtype) -> None:
    """The same, in attention: a shift of all positions by `start` changes nothing beyond the rounding of the result."""
    scheme = relpos.Rotary(16).to(dtype)
    query, key, value = torch.randn(3, 1, 2, 9, 16).to(dtype).unbind()
    positions = torch.arange(9) + start
    where = relpos.Positions.explicit(positions, positions)
    got = relpos.attention(query, key, value, scheme, positions=where, backend="reference")
    exact = relpos.attention(query.double(), key.double(), value.double(), relpos.Rotary(16))
    # A hair beside a rounding edge, the result goes to either side: one ulp instead of half of one.
    torch.testing.assert_close(got.double(), exact, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps / 8)
    # Through torch's kernel: what rounded, rotated inputs cost, and no more at a far position than at a near one.
    fast = relpos.attention(query, key, value, scheme, positions=where, backend="sdpa")
    inv_freq, _ = relpos.functional.rope_inv_freq(16, dtype=torch.float64)
    turned = (relpos.functional.apply_rotary(x.double(), torch.arange(9), inv_freq, "half") for x in (query, key))
    rounded = F.scaled_dot_product_attention(*(x.to(dtype) for x in turned), value)
    error, allowed = (fast.double() - exact).abs().max(), 2 * (rounded.double() - exact).abs().max()
    assert error <= allowed


@pytest.mark.parametrize(
    ("layout", "expected"), [("interleaved", [0.5403, 0.8415, 0.0, 0.0]), ("half", [0.5403, 0.0, 0.8415, 0.0])]
)
def test_d3_the_layout_is_declared(layout: str, expected: list[float]) -> None:
    """Interleaved and half-split pairs are confused."""
    got = rotate(unit(4, 0), 1, 4, 100.0, layout)
    torch.testing.assert_close(got, torch.tensor(expected), rtol=0.0, atol=PRINTED)


@pytest.mark.parametrize(("width", "rotary_dim"), [(4, 4), (64, 64), (64, 16), (10, 6)])
@pytest.mark.parametrize("base", [100.0, 10000.0])
def test_d3_a_fixed_permutation_converts_the_layouts(width: int, rotary_dim: int, base: float) -> None:
    """The same: channels (weights) permuted once give equal attention in the other layout."""
    query, key, value = torch.randn(3, 2, 3, 7, width, dtype=torch.float64).unbind()
    channels = torch.arange(rotary_dim)
    permutation = torch.cat((channels[0::2], channels[1::2], torch.arange(rotary_dim, width)))
    interleaved = relpos.Rotary(width, rotary_dim, base, "interleaved")
    half = relpos.Rotary(width, rotary_dim, base, "half")
    expected = relpos.attention(query, key, value, interleaved)
    got = relpos.attention(query[..., permutation], key[..., permutation], value, half)
    torch.testing.assert_close(got, expected, rtol=0.0, atol=1e-13)
    unconverted = relpos.attention(query, key, value, half)
    assert (unconverted - expected).abs().max() > 1e-3


@pytest.mark.parametrize("layout", ["split", "Half", ""])
def test_d3_an_unknown_layout_is_refused(layout: str) -> None:
    """The same: no layout is guessed."""
    with pytest.raises(ValueError, match="layout"):
        relpos.Rotary(8, layout=layout)


def test_d5_partial_rotation_pairs_within_the_rotary_width() -> None:
    """Partial rotary took frequencies and pair distance from the head's width, and drifts with distance."""
    got = rotate(unit(8, 1), 100, 4, 10000.0, "half")
    expected = torch.tensor([0.0, 0.5403, 0.0, 0.8415, 0.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(got, expected, rtol=0.0, atol=PRINTED)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("width", "rotary_dim"), [(8, 4), (64, 16), (80, 32), (6, 2)])
@pytest.mark.parametrize("position", [0, 1, 100, 5000])
def test_d5_the_rest_passes_through(position: int, width: int, rotary_dim: int, layout: str) -> None:
    """The same: the rotated part equals a head of the rotary width, the rest is untouched."""
    x = torch.randn(1, width, dtype=torch.float64)
    got = rotate(x, position, rotary_dim, 10000.0, layout)
    assert torch.equal(got[:rotary_dim], rotate(x[:, :rotary_dim], position, rotary_dim, 10000.0, layout))
    assert torch.equal(got[rotary_dim:], x[0, rotary_dim:])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("width", "rotary_dim"), [(8, 4), (16, 6)])
def test_d5_attention_rotates_the_same_part(width: int, rotary_dim: int, layout: str) -> None:
    """The same, in attention: frequencies of the rotary width, and no position in the unrotated channels."""
    query, key, value = torch.randn(3, 1, 1, 6, width, dtype=torch.float64).unbind()
    scheme = relpos.Rotary(width, rotary_dim, layout=layout)
    inv_freq = 10000.0 ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    turned = [apply_rotary(x, torch.arange(6), inv_freq, layout) for x in (query, key)]
    expected = relpos.attention(turned[0], turned[1], value)
    torch.testing.assert_close(relpos.attention(query, key, value, scheme), expected, rtol=0.0, atol=1e-13)
    query[..., :rotary_dim] = 0.0
    assert torch.equal(relpos.attention(query, key, value, scheme), relpos.attention(query, key, value))


def fixed_scheme(name: str) -> relpos.Scheme:
    """Schemes whose numbers come from the configuration, so that no checkpoint brings them back."""
    options: dict[str, dict[str, object]] = {
        "rope": {"head_dim": 8},
        "rope_partial": {"head_dim": 8, "rotary_dim": 4, "base": 500.0, "layout": "interleaved"},
        "alibi": {"num_heads": 6},
        "alibi_learned": {"num_heads": 6, "learned": True},
    }
    return relpos.make(name.split("_")[0], **options[name])


@pytest.mark.parametrize("name", ["rope", "rope_partial", "alibi", "alibi_learned"])
def test_d7_a_model_built_on_the_meta_device_is_whole_after_loading(name: str) -> None:
    """A frequency buffer outside the state dict holds garbage after a meta-device load."""
    original = relpos.RelativeAttention(48, 6, fixed_scheme(name), is_causal=True)
    with torch.device("meta"):
        loaded = relpos.RelativeAttention(48, 6, fixed_scheme(name), is_causal=True)
    loaded.to_empty(device="cpu")  # memory full of NaN, by the tests' configuration
    loaded.load_state_dict(original.state_dict())
    x = torch.randn(2, 7, 48)
    assert torch.equal(loaded(x), original(x))


@pytest.mark.parametrize(("rotary_dim", "base"), [(8, 10000.0), (128, 500000.0), (2, 10000.0), (6, 100.0)])
def test_d7_frequencies_made_under_the_meta_device_are_numbers(rotary_dim: int, base: float) -> None:
    """The same: the first frequency is 1 and the list strictly decreases."""
    with torch.device("meta"):
        scheme = relpos.Rotary(rotary_dim, base=base)
        inv_freq, _ = rope_inv_freq(rotary_dim, base)
    (term,) = scheme.terms(relpos.Positions.arange(1))
    assert isinstance(term, relpos.terms.Rotation)
    for frequencies in (inv_freq, term.inv_freq):
        assert frequencies.device.type == "cpu"
        assert frequencies[0].item() == 1.0
        assert (frequencies.diff() < 0).all()
        assert frequencies[-1].item() == pytest.approx(base ** (2 / rotary_dim - 1), rel=1e-6)


@pytest.mark.parametrize("heads", [6, 8])
def test_d7_slopes_made_under_the_meta_device_are_numbers(heads: int) -> None:
    """The same, for ALiBi's slopes."""
    with torch.device("meta"):
        scheme = relpos.ALiBi(heads)
    assert scheme.to_empty(device="cpu").bias(2).tolist() == relpos.ALiBi(heads).bias(2).tolist()
    query = torch.zeros(1, heads, 4, 8)
    expected = relpos.attention_weights(query, query, query, relpos.ALiBi(heads))
    assert torch.equal(relpos.attention_weights(query, query, query, scheme), expected)


EXPLICIT = [[5, 6, 7, 0, 1], [0, 0, 0, 0, 0], [900, 3, 41, 3, 2], [-2, -1, 0, 1, 2]]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rows", EXPLICIT)
def test_d8_positions_are_read_by_value(rows: list[int], layout: str) -> None:
    """position_ids are accepted, but only their length is used."""
    x = torch.randn(5, 16)
    inv_freq, _ = rope_inv_freq(16)
    got = apply_rotary(x, torch.tensor(rows), inv_freq, layout)
    one_by_one = torch.stack([rotate(x[i : i + 1], row, 16, 10000.0, layout) for i, row in enumerate(rows)])
    assert torch.equal(got, one_by_one)
    assert not torch.equal(got, apply_rotary(x, torch.arange(5), inv_freq, layout))


@pytest.mark.parametrize("rows", [[5, 6, 7, 0, 1], [12, 3, 9, 15, 2]])
@pytest.mark.parametrize("scheme", [relpos.Rotary(8), relpos.Rotary(8, 4, layout="interleaved"), relpos.ALiBi(4)])
def test_d8_a_layer_reads_positions_by_value(scheme: relpos.Scheme, rows: list[int]) -> None:
    """The same, through a layer: tokens taken from a long run keep what they said about each other."""
    layer = relpos.RelativeAttention(32, 4, scheme)
    x, taken = torch.randn(2, 16, 32), torch.tensor(rows)
    kept = torch.zeros(2, 16, dtype=torch.bool).index_fill(1, taken, True)
    some = layer(x[:, taken], positions=relpos.Positions.explicit(taken, taken))
    torch.testing.assert_close(some, layer(x, key_mask=kept)[:, taken])
    assert not torch.allclose(some, layer(x[:, taken]), atol=1e-3)


@pytest.mark.parametrize("rows", [[5, 6, 7, 0, 1], [15, 3, 9, 3, 2]])
@pytest.mark.parametrize("scheme", [relpos.LearnedAbsolute(6, 16), relpos.Sinusoidal(6)])
def test_d8_absolute_schemes_read_positions_by_value(
    scheme: relpos.LearnedAbsolute | relpos.Sinusoidal, rows: list[int]
) -> None:
    """The same, for positions that are added to the input."""
    long_run = scheme.embed(torch.zeros(1, 16, 6))
    taken = torch.tensor(rows)
    got = scheme.embed(torch.zeros(1, 5, 6), relpos.Positions.explicit(taken, taken))
    assert torch.equal(got, long_run[:, taken])
