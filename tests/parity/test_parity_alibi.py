"""ALiBi in BLOOM, MPT and Falcon (cases A1, A6, A7, A9, M7).

All three add a bias by key index, which differs from ours by a constant for each row, so what is compared are
probabilities and outputs. BLOOM and MPT take the softmax in float32 and build slopes by float32 powers whatever the
model's dtype, so they are compared in float32; Falcon keeps float64.
"""

from __future__ import annotations

import math

import pytest
import torch
from agreement import (
    ROUNDINGS,
    additive,
    assert_agree,
    assert_near,
    causal,
    inputs,
    leaves_of,
    merge_heads,
    padding,
    randomised,
    split_heads,
)
from torch import Tensor, nn
from transformers import BloomConfig, DynamicCache, FalconConfig, MptConfig
from transformers.models.bloom.modeling_bloom import BloomAttention, _get_alibi_slopes
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as build_bloom_alibi
from transformers.models.falcon.modeling_falcon import FalconAttention
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as build_falcon_alibi
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor

import relpos

F32 = torch.float32
HEADS = [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 20, 40]  # powers of two and others


def probabilities(scheme: relpos.Scheme, heads: int, length: int, dtype: torch.dtype = F32) -> Tensor:
    """What our bias alone makes of `length` causal tokens, `[1, H, length, length]`."""
    nothing = torch.zeros(1, heads, length, 2, dtype=dtype)
    return relpos.attention_weights(nothing, nothing, nothing, scheme, is_causal=True)


def assert_probabilities(ours: Tensor, theirs: Tensor) -> None:
    """Each probability to its own rounding, not to that of the largest: a shallow slope moves them by little."""
    rtol = ROUNDINGS * torch.finfo(theirs.dtype).eps
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=torch.finfo(theirs.dtype).tiny)


# --- BLOOM ---


@pytest.mark.parametrize("heads", [*HEADS, 112])
def test_bloom_slopes(heads: int) -> None:
    assert_near(relpos.functional.alibi_slopes(heads), _get_alibi_slopes(heads, torch.device("cpu")), "slopes")


@pytest.mark.parametrize("heads", HEADS)
def test_bloom_bias(heads: int) -> None:
    length = 70
    alibi = build_bloom_alibi(torch.ones(1, length, dtype=torch.long), heads, F32)
    theirs = (alibi[None] + additive(causal(length), F32)).softmax(-1)
    assert_probabilities(probabilities(relpos.ALiBi(heads), heads, length), theirs)


def bloom(heads: int) -> nn.Module:
    config = BloomConfig(hidden_size=heads * 4, n_head=heads, n_layer=1, vocab_size=5)
    return randomised(BloomAttention(config, layer_idx=0), F32)


def bloom_output(layer: nn.Module, hidden: Tensor, heads: int, real: Tensor | None = None) -> Tensor:
    """The attention output of a BLOOM layer through `relpos.attention`; padding needs no shifted bias."""
    fused = layer.get_submodule("query_key_value")(hidden).unflatten(-1, (heads, 3, 4))
    query, key, value = (part.transpose(1, 2) for part in fused.unbind(-2))
    mixed = relpos.attention(query, key, value, relpos.ALiBi(heads), is_causal=True, key_mask=real)
    output: Tensor = layer.get_submodule("dense")(merge_heads(mixed))
    return output


@pytest.mark.parametrize("heads", [1, 4, 6, 12])
def test_bloom_attention(heads: int) -> None:
    layer, hidden, residual = bloom(heads), inputs(2, 33, heads * 4, F32), inputs(2, 33, heads * 4, F32)
    alibi = build_bloom_alibi(torch.ones(2, 33, dtype=torch.long), heads, F32)
    mask = additive(causal(33), F32)
    assert_agree(
        lambda: bloom_output(layer, hidden, heads) + residual,
        lambda: layer(hidden, residual, alibi, mask)[0],
        leaves_of(layer, hidden=hidden, residual=residual),
    )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("heads", [4, 6])
def test_bloom_padding(heads: int, side: str) -> None:
    """Case M7: BLOOM shifts its bias for padded rows; ours needs nothing but the mask, being relative."""
    layer, hidden = bloom(heads), inputs(3, 21, heads * 4, F32)
    real = padding([21, 13, 5], 21, side)
    alibi = build_bloom_alibi(real.long(), heads, F32)
    mask = additive(real[:, None, None, :] & causal(21), F32)
    assert_agree(
        lambda: bloom_output(layer, hidden, heads, real)[real],
        lambda: layer(hidden, torch.zeros_like(hidden), alibi, mask)[0][real],
        leaves_of(layer, hidden=hidden),
    )


def test_bloom_left_padding_equals_no_padding() -> None:
    """Case M7 as reported: 5 tokens behind 3 pads, 4 heads; the padded batch here, the unpadded run there."""
    layer, hidden = bloom(4), inputs(1, 8, 16, F32)
    alibi = build_bloom_alibi(torch.ones(1, 5, dtype=torch.long), 4, F32)
    mask = additive(causal(5), F32)
    assert_agree(
        lambda: bloom_output(layer, hidden, 4, padding([5], 8, "left"))[:, 3:],
        lambda: layer(hidden[:, 3:], torch.zeros(1, 5, 16), alibi, mask)[0],
        leaves_of(layer, hidden=hidden),
    )


@pytest.mark.parametrize("heads", [4, 6])
def test_bloom_token_by_token(heads: int) -> None:
    """Case G1: cached steps there, one causal pass here."""
    layer, hidden = bloom(heads), inputs(2, 9, heads * 4, F32)

    def theirs() -> Tensor:
        cache = DynamicCache()
        steps = []
        for now in range(1, 10):
            alibi = build_bloom_alibi(torch.ones(2, now, dtype=torch.long), heads, F32)
            token = hidden[:, now - 1 : now]
            steps.append(layer(token, torch.zeros_like(token), alibi, None, layer_past=cache)[0])
        return torch.cat(steps, dim=1)

    assert_agree(lambda: bloom_output(layer, hidden, heads), theirs, leaves_of(layer, hidden=hidden))


# --- MPT ---


@pytest.mark.parametrize("most", [4, 8, 16])
@pytest.mark.parametrize("heads", HEADS)
def test_mpt_bias(heads: int, most: int) -> None:
    length = 70
    alibi = build_mpt_alibi_tensor(heads, length, alibi_bias_max=most)
    theirs = (alibi[None] + additive(causal(length), F32)).softmax(-1)
    scheme = relpos.ALiBi(heads, max_exponent=float(most))
    assert_probabilities(probabilities(scheme, heads, length), theirs)


@pytest.mark.parametrize("most", [4, 8, 16])
@pytest.mark.parametrize("heads", [1, 4, 5, 12])
def test_mpt_attention(heads: int, most: int) -> None:
    config = MptConfig(d_model=heads * 4, n_heads=heads, n_layers=1, vocab_size=5, attn_config={"alibi_bias_max": most})
    layer, hidden = randomised(MptAttention(config, layer_idx=0), F32), inputs(2, 33, heads * 4, F32)
    scheme = relpos.ALiBi(heads, max_exponent=float(most))
    # As the model calls it: a bias for the longest input, of which the layer takes the last keys.
    alibi = build_mpt_alibi_tensor(heads, 50, alibi_bias_max=most)

    def ours() -> Tensor:
        query, key, value = (split_heads(part, heads) for part in layer.get_submodule("Wqkv")(hidden).chunk(3, dim=-1))
        mixed = relpos.attention(query, key, value, scheme, is_causal=True)
        output: Tensor = layer.get_submodule("out_proj")(merge_heads(mixed))
        return output

    assert_agree(ours, lambda: layer(hidden, alibi, attention_mask=~causal(33))[0], leaves_of(layer, hidden=hidden))


# --- Falcon: the bias is multiplied in bfloat16 and scaled together with the products ---


def falcon_scheme(heads: int, head_dim: int) -> relpos.ALiBi:
    return relpos.ALiBi(heads, bias_scale=1 / math.sqrt(head_dim))


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_falcon_bias_where_bfloat16_is_exact(heads: int) -> None:
    """Slopes that are powers of two and key indices up to 256 lose nothing in bfloat16."""
    length, head_dim = 200, 16
    alibi = build_falcon_alibi(torch.ones(1, length, dtype=torch.long), heads, torch.float64)
    theirs = (alibi[None] / math.sqrt(head_dim) + additive(causal(length), torch.float64)).softmax(-1)
    ours = probabilities(falcon_scheme(heads, head_dim), heads, length, torch.float64)
    assert_probabilities(ours, theirs)


@pytest.mark.parametrize("heads", [3, 6, 12, 16])
def test_falcon_bias_within_its_bfloat16(heads: int) -> None:
    """Other slopes are rounded, and so is their product: half a step each, relative to the bias at the last key.

    Two biases, both off by at most `error`, move a log-probability by at most `2 error`.
    """
    length, head_dim = 40, 16
    alibi = build_falcon_alibi(torch.ones(1, length, dtype=torch.long), heads, torch.float64)
    theirs = (alibi[None] / math.sqrt(head_dim) + additive(causal(length), torch.float64)).softmax(-1)
    ours = probabilities(falcon_scheme(heads, head_dim), heads, length, torch.float64)
    slopes = relpos.functional.alibi_slopes(heads, dtype=torch.float64)
    steepest = float(slopes.max()) * (length - 1) / math.sqrt(head_dim)
    error = steepest * torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(ours, theirs, rtol=math.expm1(2 * error), atol=torch.finfo(torch.float64).tiny)


FALCONS: dict[str, dict[str, int]] = {
    "heads": {"multi_query": False, "new_decoder_architecture": False},
    "multi_query": {"multi_query": True, "new_decoder_architecture": False},
    "groups": {"multi_query": False, "new_decoder_architecture": True, "num_kv_heads": 2},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("heads", [4, 8])
@pytest.mark.parametrize("kind", FALCONS)
def test_falcon_attention(kind: str, heads: int, dtype: torch.dtype) -> None:
    """Case A9: Falcon scales ALiBi with the scores, which is `bias_scale` here."""
    head_dim, length = 6, 33
    config = FalconConfig(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        alibi=True,
        bias=True,
        attn_implementation="eager",
        **FALCONS[kind],
    )
    layer, hidden = randomised(FalconAttention(config, layer_idx=0), dtype), inputs(2, length, heads * head_dim, dtype)
    alibi = build_falcon_alibi(torch.ones(2, length, dtype=torch.long), heads, dtype)
    groups = {"heads": heads, "multi_query": 1, "groups": 2}[kind]

    def ours() -> Tensor:
        fused = layer.get_submodule("query_key_value")(hidden).unflatten(-1, (groups, -1, head_dim))
        # In each group: its queries, one key, one value.
        query = fused[..., :-2, :].flatten(2, 3).transpose(1, 2)
        key, value = fused[..., -2, :].transpose(1, 2), fused[..., -1, :].transpose(1, 2)
        mixed = relpos.attention(query, key, value, falcon_scheme(heads, head_dim), is_causal=True)
        output: Tensor = layer.get_submodule("dense")(merge_heads(mixed))
        return output

    mask = additive(causal(length), dtype)
    assert_agree(ours, lambda: layer(hidden, alibi, mask)[0], leaves_of(layer, hidden=hidden))


def test_falcon_flag() -> None:
    """Case A9 as reported: width 64, zero scores, biases -4 and 0."""
    query = torch.zeros(1, 1, 1, 64)
    keys = torch.zeros(1, 1, 2, 64)
    positions = relpos.Positions.explicit(torch.tensor([4]), torch.tensor([0, 4]))
    for bias_scale, expected in ((1.0, [0.0180, 0.9820]), (1 / 8, [0.3775, 0.6225])):
        scheme = relpos.ALiBi(1, slopes=[1.0], bias_scale=bias_scale)
        found = relpos.attention_weights(query, keys, keys, scheme, is_causal=True, positions=positions)
        torch.testing.assert_close(found[0, 0, 0], torch.tensor(expected), rtol=0.0, atol=5e-5)
