"""Shaw's key vectors as Wav2Vec2-BERT and SeamlessM4T-v2 use them: `relative_key`, key minus query (case F1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import (
    additive,
    assert_agree,
    inputs,
    leaves_of,
    merge_heads,
    padding,
    randomised,
    split_heads,
    with_tables,
)
from torch import Tensor, nn
from transformers import SeamlessM4Tv2Config, Wav2Vec2BertConfig
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import SeamlessM4Tv2ConformerSelfAttention
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

import relpos

HEADS, HEAD_DIM = 3, 5
Limits = tuple[int, int]


def wav2vec2_bert(limits: Limits, dtype: torch.dtype, kind: str = "eager") -> nn.Module:
    return layer_of(Wav2Vec2BertSelfAttention, Wav2Vec2BertConfig, limits, dtype, kind, num_attention_heads=HEADS)


def seamless(limits: Limits, dtype: torch.dtype, kind: str = "eager") -> nn.Module:
    heads = {"speech_encoder_attention_heads": HEADS}
    return layer_of(SeamlessM4Tv2ConformerSelfAttention, SeamlessM4Tv2Config, limits, dtype, kind, **heads)


def layer_of(
    attention: Callable[..., nn.Module],
    config: Callable[..., Any],
    limits: Limits,
    dtype: torch.dtype,
    kind: str,
    **heads: int,
) -> nn.Module:
    made = config(
        hidden_size=HEADS * HEAD_DIM,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=limits[0],
        right_max_position_embeddings=limits[1],
        attn_implementation=kind,
        **heads,
    )
    return randomised(attention(made), dtype)


def ours_of(layer: nn.Module, hidden: Tensor, limits: Limits, real: Tensor | None = None) -> Tensor:
    table = layer.get_parameter("distance_embedding.weight")
    scheme = with_tables(relpos.Shaw(HEADS, HEAD_DIM, max_distance=limits, values=False), key_table=table)
    query, key, value = (split_heads(layer.get_submodule(f"linear_{name}")(hidden), HEADS) for name in "qkv")
    output: Tensor = layer.get_submodule("linear_out")(
        merge_heads(relpos.attention(query, key, value, scheme, key_mask=real))
    )
    return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["eager", "sdpa"])
@pytest.mark.parametrize(("limits", "length"), [((64, 8), 80), ((64, 8), 7), ((3, 2), 11), ((2, 5), 11), ((4, 0), 11)])
@pytest.mark.parametrize("make", [wav2vec2_bert, seamless])
def test_relative_key(
    make: Callable[..., nn.Module], limits: Limits, length: int, kind: str, dtype: torch.dtype
) -> None:
    """The released limits 64 and 8, past both of them and short of both; small and lopsided ones."""
    layer, hidden = make(limits, dtype, kind), inputs(2, length, HEADS * HEAD_DIM, dtype)
    assert_agree(lambda: ours_of(layer, hidden, limits), lambda: layer(hidden)[0], leaves_of(layer, hidden=hidden))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("make", [wav2vec2_bert, seamless])
def test_padding(make: Callable[..., nn.Module], side: str) -> None:
    limits, real = (4, 2), padding([13, 8, 1], 13, side)
    layer, hidden = make(limits, torch.float64), inputs(3, 13, HEADS * HEAD_DIM, torch.float64)
    mask = additive(real[:, None, None, :], torch.float64)
    assert_agree(
        lambda: ours_of(layer, hidden, limits, real)[real],
        lambda: layer(hidden, attention_mask=mask)[0][real],
        leaves_of(layer, hidden=hidden),
    )
