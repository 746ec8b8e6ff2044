"""The front door: masks, anchors, dropout, scales, and what `explain` says."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys

import pytest
import torch
from conformance import HEAD_DIM, build, tensors
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import relpos
from relpos import Positions


@st.composite
def masked_calls(draw: st.DrawFn) -> dict[str, object]:
    """Lengths, positions and masks of every kind at once."""
    batch, query_len = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    self_attention = draw(st.booleans())
    key_len = query_len if self_attention else draw(st.integers(1, 7))
    place = st.lists(st.integers(-5, 12), min_size=key_len, max_size=key_len)
    if draw(st.booleans()):
        query = draw(st.lists(st.integers(-5, 12), min_size=query_len, max_size=query_len))
        positions = Positions.explicit(torch.tensor(query), torch.tensor(draw(place)))
    elif self_attention and draw(st.booleans()):
        cuts = sorted(draw(st.lists(st.integers(0, query_len), max_size=3)))
        positions = Positions.packed(torch.tensor([0, *cuts, query_len]))
    else:
        starts = st.integers(-4, 9)
        start = draw(st.one_of(starts, st.lists(starts, min_size=batch, max_size=batch).map(torch.tensor)))
        positions = Positions.arange(query_len, key_len, start)
    bits = st.booleans()
    heads = draw(st.sampled_from([1, 4]))

    def mask(*shape: int) -> torch.Tensor:
        flat = draw(st.lists(bits, min_size=math.prod(shape), max_size=math.prod(shape)))
        return torch.tensor(flat, dtype=torch.bool).view(shape)

    return {
        "sizes": (batch, query_len, key_len),
        "positions": positions,
        "is_causal": draw(bits),
        "window": draw(st.one_of(st.none(), st.integers(0, 4), st.tuples(st.integers(0, 4), st.integers(0, 4)))),
        "attn_mask": draw(st.sampled_from([None, mask(query_len, key_len), mask(1, heads, query_len, key_len)])),
        "key_mask": mask(batch, key_len) if draw(bits) else None,
        "lengths": torch.tensor([draw(st.integers(0, key_len + 1)) for _ in range(batch)]) if draw(bits) else None,
    }


def may_attend(call: dict[str, object], b: int, h: int, i: int, j: int) -> bool:
    """The contract, pair by pair."""
    positions, window, attn_mask = call["positions"], call["window"], call["attn_mask"]
    key_mask, lengths = call["key_mask"], call["lengths"]
    _, query_len, key_len = call["sizes"]
    assert isinstance(positions, Positions)

    def at(tensor: torch.Tensor, index: int) -> int:
        return int(tensor[index] if tensor.dim() == 1 else tensor[b, index])

    d = at(positions.key, j) - at(positions.query, i)
    if call["is_causal"] and d > 0:
        return False
    if window is not None:
        back, ahead = (window, window) if isinstance(window, int) else window
        if not -back <= d <= ahead:
            return False
    if positions.query_document is not None and positions.key_document is not None:
        document = at(positions.query_document, i)
        if document < 0 or document != at(positions.key_document, j):
            return False
    if isinstance(attn_mask, torch.Tensor):
        full = attn_mask if attn_mask.dim() == 4 else attn_mask[None, None]
        if not full[0, h % full.shape[1], i, j]:
            return False
    if isinstance(key_mask, torch.Tensor) and not key_mask[b, j]:
        return False
    if isinstance(lengths, torch.Tensor):
        return bool(j < lengths[b] and (query_len != key_len or i < lengths[b]))
    return True


@given(call=masked_calls(), scheme=st.sampled_from(["nope", "t5", "shaw", "rope", "deberta", "huang"]))
def test_all_masks_together_are_the_contract_pair_by_pair(call: dict[str, object], scheme: str) -> None:
    batch, query_len, key_len = call["sizes"]
    query, key, value = tensors(batch, query_len, key_len)
    table = torch.tensor(
        [
            [[[may_attend(call, b, h, i, j) for j in range(key_len)] for i in range(query_len)] for h in range(4)]
            for b in range(batch)
        ]
    )
    built = build((scheme, {}))
    options = {name: value for name, value in call.items() if name != "sizes"}
    got = relpos.attention(query, key, value, built, **options)
    bare = call["positions"]
    assert isinstance(bare, Positions)
    weights = relpos.attention_weights(query, key, value, built, positions=Positions(bare.query, bare.key))
    visible = torch.where(table, weights, 0.0)
    total = visible.sum(-1, keepdim=True)
    weights = torch.where(total > 0, visible / total.clamp(min=1e-300), 0.0)
    assert_close(relpos.attention_weights(query, key, value, built, **options), weights)
    if scheme != "shaw":  # whose values move with distance, see its own test
        assert_close(got, weights @ value)
    assert (got[~table.any(-1)] == 0).all()


@given(query_len=st.integers(1, 9), key_len=st.integers(1, 9), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_without_a_scheme_it_is_torchs_attention(query_len: int, key_len: int, dtype: torch.dtype) -> None:
    query, key, value = tensors(query_len=query_len, key_len=key_len, groups=2, dtype=dtype)
    torchs = torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    assert_close(relpos.attention(query, key, value), torchs)
    top_left = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    anchored = Positions.arange(query_len, key_len, query_start=0)
    assert_close(relpos.attention(query, key, value, is_causal=True, positions=anchored), top_left)


def test_a_vector_hidden_from_every_head_that_reads_it_has_no_influence() -> None:
    query, key, value = tensors(batch=1, groups=2)
    mask = torch.ones(1, 4, 6, 6, dtype=torch.bool)
    mask[:, :2, :, 3] = False
    clean = relpos.attention(query, key, value, relpos.ALiBi(4), attn_mask=mask)
    key[:, 0, 3], value[:, 0, 3] = math.nan, math.inf
    assert_close(relpos.attention(query, key, value, relpos.ALiBi(4), attn_mask=mask), clean, rtol=0, atol=0)


def test_a_window_may_be_wider_than_any_number() -> None:
    query, key, value = tensors()
    wide = relpos.attention(query, key, value, window=(10**20, 0))
    assert_close(wide, relpos.attention(query, key, value, is_causal=True))


def test_numbers_may_vary_under_compile() -> None:
    """In a process of its own: the run-time shape checks of these tests cannot be compiled."""
    code = """
import torch, relpos
alibi, x = relpos.ALiBi(4), torch.randn(1, 4, 5, 8)
attend = lambda x, scale: relpos.attention(x, x, x, alibi, scale=scale)
compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
for scale in (0.1, 0.2, 0.3):
    torch.testing.assert_close(compiled(x, scale), attend(x, scale))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_values_may_have_another_width() -> None:
    query, key, _ = tensors()
    value = torch.randn(2, 4, 6, 3, dtype=torch.float64)
    assert relpos.attention(query, key, value, relpos.ALiBi(4)).shape == (2, 4, 6, 3)


def test_strided_and_expanded_inputs() -> None:
    query, key, value = tensors()
    other = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value)]
    scheme = build(("shaw", {}))
    assert_close(relpos.attention(*other, scheme), relpos.attention(query, key, value, scheme), rtol=0, atol=0)
    one = key[:1, :1].expand(2, 4, -1, -1)
    assert_close(relpos.attention(query, one, value, scheme), relpos.attention(query, one.clone(), value, scheme))


def test_empty_sequences() -> None:
    query, key, value = tensors(query_len=3, key_len=0)
    assert (relpos.attention(query, key, value, relpos.ALiBi(4), is_causal=True) == 0).all()
    query, key, value = tensors(query_len=0, key_len=3)
    assert relpos.attention(query, key, value, relpos.ALiBi(4), is_causal=True).shape == (2, 4, 0, HEAD_DIM)


def test_dropout_acts_whenever_it_is_given_and_keeps_the_mean() -> None:
    draws = 4000
    query, key, value = (x.expand(draws, -1, -1, -1) for x in tensors(batch=1, query_len=4, key_len=5))
    scheme = build(("shaw", {}))
    exact = relpos.attention(query[:1], key[:1], value[:1], scheme, is_causal=True)
    runs = relpos.attention(query, key, value, scheme, is_causal=True, dropout_p=0.3)
    assert not torch.equal(runs[0], runs[1])
    error = (runs.mean(0) - exact[0]).abs()
    assert (error <= 5 * runs.std(0) / math.sqrt(draws) + 1e-12).all()
    weights = relpos.attention_weights(query, key, value, scheme, is_causal=True, dropout_p=0.3)
    full = relpos.attention_weights(query, key, value, scheme, is_causal=True)
    kept = weights > 0
    assert_close(weights[kept], full[kept] / 0.7)
    assert kept[full > 0].double().mean().item() == pytest.approx(0.7, abs=0.01)


def test_dropout_of_one_gives_zeros() -> None:
    assert (relpos.attention(*tensors(), relpos.ALiBi(4), dropout_p=1.0) == 0).all()


@pytest.mark.parametrize(
    ("schemes", "scale"),
    [
        (None, 8**-0.5),
        (relpos.ALiBi(4), 8**-0.5),
        (relpos.T5Bias(4), 1.0),
        (relpos.T5Bias(4, scale=None), 8**-0.5),
        (relpos.Disentangled(4, 8, 8, 16), 24**-0.5),
        (relpos.Disentangled(4, 8, 8, 16, parts=("c2p", "p2c", "p2p")), 32**-0.5),
        ([relpos.Rotary(8), relpos.T5Bias(4)], 1.0),
        ([relpos.T5Bias(4), relpos.T5Bias(4)], 1.0),
    ],
)
def test_the_scale_is_the_schemes_unless_it_is_given(schemes: relpos.Scheme, scale: float) -> None:
    query, key, value = tensors()
    assert relpos.explain(query, key, value, schemes).scale == pytest.approx(scale)
    assert relpos.explain(query, key, value, schemes, scale=0.3).scale == 0.3
    assert_close(
        relpos.attention(query, key, value, schemes), relpos.attention(query, key, value, schemes, scale=scale)
    )


def test_explain_names_the_choice_the_scale_and_the_terms() -> None:
    why = relpos.explain(*tensors(), [relpos.Rotary(8), build(("shaw", {}))], is_causal=True)
    assert why.backend == "blocked"
    assert why.terms == ("Rotation", "QueryDistance", "ValueDistance")
    assert why.refused == {
        "sdpa": ["QueryDistance and ValueDistance depend on content, not on distance or key alone"],
        "reference": ["'blocked' was chosen before it"],
    }
    assert "backend  blocked" in str(why)


def test_the_three_doors_have_the_same_arguments() -> None:
    doors = [
        inspect.signature(door).parameters for door in (relpos.attention, relpos.attention_weights, relpos.explain)
    ]
    assert doors[0] == doors[1] == doors[2]


def test_weights_are_the_probabilities_behind_the_output() -> None:
    query, key, value = tensors(key_len=8)
    weights = relpos.attention_weights(query, key, value, relpos.ALiBi(4), is_causal=True)
    assert_close(weights.sum(-1), torch.ones(2, 4, 6, dtype=torch.float64))
    assert_close(weights @ value, relpos.attention(query, key, value, relpos.ALiBi(4), is_causal=True))
