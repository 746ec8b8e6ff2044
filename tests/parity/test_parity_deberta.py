"""DeBERTa v1, v2 and v3: log buckets and disentangled self-attention (cases C1, C3, C5, C6, C12).

Our tables are the model's one relative embedding, sent through its projections; gradients are compared at the
embedding and at every weight, through that projection. Query and key lengths are equal: with others the models fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import assert_agree, inputs, leaves_of, merge_heads, padding, randomised, split_heads, with_tables
from torch import Tensor
from transformers import DebertaConfig, DebertaV2Config
from transformers.models.deberta import modeling_deberta as v1
from transformers.models.deberta_v2 import modeling_deberta_v2 as v2

import relpos

HEADS = 2
# The models take the square root of `D (1 + parts)` in float32; these widths make it a whole number, so that float64
# is compared as such: 8 * 2 = 16 and 12 * 3 = 36.
EXACT_WIDTH = {1: 8, 2: 12}
PARTS = [("c2p",), ("p2c",), ("c2p", "p2c")]
Parts = tuple[str, ...]
Layer = Any  # a self-attention of transformers, which has no types


def part_id(parts: Parts) -> str:
    return "+".join(parts)


def v1_layer(parts: Parts, head_dim: int, most: int, dtype: torch.dtype) -> Layer:
    config = DebertaConfig(
        hidden_size=HEADS * head_dim,
        num_attention_heads=HEADS,
        relative_attention=True,
        max_relative_positions=most,
        pos_att_type=list(parts),
        position_biased_input=False,
    )
    return randomised(v1.DisentangledSelfAttention(config), dtype)


def v2_layer(
    parts: Parts, head_dim: int, most: int, dtype: torch.dtype, *, buckets: int = -1, shared: bool = False
) -> Layer:
    config = DebertaV2Config(
        hidden_size=HEADS * head_dim,
        num_attention_heads=HEADS,
        relative_attention=True,
        max_relative_positions=most,
        position_buckets=buckets,
        share_att_key=shared,
        pos_att_type=list(parts),
        position_biased_input=False,
    )
    return randomised(v2.DisentangledSelfAttention(config), dtype)


def embedding(layer: Layer, dtype: torch.dtype) -> Tensor:
    """The relative embedding of the encoder that would hold this layer, `[2 span, E]`."""
    span = getattr(layer, "pos_ebd_size", layer.max_relative_positions)
    return torch.randn(2 * span, HEADS * layer.attention_head_size, dtype=dtype, requires_grad=True)


def theirs_of(layer: Layer, hidden: Tensor, rel_embeddings: Tensor, real: Tensor | None = None) -> Tensor:
    """The layer as its encoder calls it."""
    real = torch.ones(hidden.shape[:2], dtype=torch.bool) if real is None else real
    mask = real[:, None, None, :] & real[:, None, :, None]
    relative_pos = None
    if isinstance(layer, v1.DisentangledSelfAttention):
        relative_pos = v1.build_relative_position(hidden, hidden)
    output: Tensor = layer(hidden, mask, relative_pos=relative_pos, rel_embeddings=rel_embeddings)[0]
    return output


def scheme_of(layer: Layer, rel_embeddings: Tensor, names: dict[str, str]) -> relpos.Disentangled:
    """Our scheme with the embedding projected by the layers that `names` gives for each part."""
    buckets = getattr(layer, "position_buckets", -1)
    scheme = relpos.Disentangled(
        HEADS,
        rel_embeddings.shape[1] // HEADS,
        num_buckets=buckets if buckets > 0 else None,
        max_distance=layer.max_relative_positions,
        parts=tuple(names),
    )
    tables = {
        f"{part}_table": split_heads(layer.get_submodule(name)(rel_embeddings)[None], HEADS)[0]
        for part, name in names.items()
    }
    return with_tables(scheme, **tables)


def v1_ours(layer: Layer, hidden: Tensor, rel_embeddings: Tensor, real: Tensor | None = None) -> Tensor:
    projections = {"c2p": "pos_proj", "p2c": "pos_q_proj"}
    scheme = scheme_of(layer, rel_embeddings, {part: projections[part] for part in layer.pos_att_type})
    query, key, value = split_heads(layer.get_submodule("in_proj")(hidden), HEADS).chunk(3, dim=-1)
    query = query + split_heads(layer.get_parameter("q_bias")[None, None], HEADS)
    value = value + split_heads(layer.get_parameter("v_bias")[None, None], HEADS)
    return merge_heads(relpos.attention(query, key, value, scheme, key_mask=real))


def v2_ours(layer: Layer, hidden: Tensor, rel_embeddings: Tensor, real: Tensor | None = None) -> Tensor:
    if layer.share_att_key:
        projections = {"c2p": "key_proj", "p2c": "query_proj"}
    else:
        projections = {"c2p": "pos_key_proj", "p2c": "pos_query_proj"}
    scheme = scheme_of(layer, rel_embeddings, {part: projections[part] for part in layer.pos_att_type})
    names = ("query_proj", "key_proj", "value_proj")
    query, key, value = (split_heads(layer.get_submodule(name)(hidden), HEADS) for name in names)
    return merge_heads(relpos.attention(query, key, value, scheme, key_mask=real))


Ours = Callable[[Layer, Tensor, Tensor, Tensor | None], Tensor]


def assert_layer(layer: Layer, ours: Ours, length: int, dtype: torch.dtype, real: Tensor | None = None) -> None:
    """The layer and ours agree on hidden states of this length, at the rows of real tokens."""
    batch = 2 if real is None else len(real)
    rel_embeddings = embedding(layer, dtype)
    hidden = inputs(batch, length, rel_embeddings.shape[1], dtype)
    rows = torch.ones(batch, length, dtype=torch.bool) if real is None else real
    assert_agree(
        lambda: ours(layer, hidden, rel_embeddings, real)[rows],
        lambda: theirs_of(layer, hidden, rel_embeddings, real)[rows],
        leaves_of(layer, hidden=hidden, rel_embeddings=rel_embeddings),
    )


@pytest.mark.parametrize(
    ("num_buckets", "max_distance"),
    [(256, 512), (256, 1024), (128, 512), (64, 128), (32, 128), (16, 20), (8, 16), (7, 40), (4, 8), (3, 9), (2, 5)],
)
def test_buckets(num_buckets: int, max_distance: int) -> None:
    """Their distance is query minus key; both functions are odd, so either sign may stand for it."""
    distance = torch.arange(-20_000, 20_001)
    theirs = v2.make_log_bucket_position(distance, num_buckets, max_distance).long()
    ours = relpos.functional.deberta_bucket(distance, num_buckets=num_buckets, max_distance=max_distance)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("length", [1, 5, 7, 25])
@pytest.mark.parametrize("parts", PARTS, ids=part_id)
def test_v1(parts: Parts, length: int) -> None:
    """Case C5: shorter than, equal to and longer than the limit of 6; v1 cuts its table to the length at hand."""
    layer = v1_layer(parts, EXACT_WIDTH[len(parts)], 6, torch.float64)
    assert_layer(layer, v1_ours, length, torch.float64)


@pytest.mark.parametrize("length", [9, 13, 40])
@pytest.mark.parametrize("buckets", [-1, 8])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("parts", PARTS, ids=part_id)
def test_v2(parts: Parts, shared: bool, buckets: int, length: int) -> None:
    """A limit of 12, with 8 log buckets and one by one; up to three times as many tokens."""
    layer = v2_layer(parts, EXACT_WIDTH[len(parts)], 12, torch.float64, buckets=buckets, shared=shared)
    assert_layer(layer, v2_ours, length, torch.float64)


@pytest.mark.parametrize(("buckets", "most"), [(2, 5), (5, 9), (6, 64), (16, 24)])
def test_v2_other_buckets(buckets: int, most: int) -> None:
    """Few buckets, an odd number of them, a wide and a narrow logarithmic range."""
    layer = v2_layer(("c2p", "p2c"), EXACT_WIDTH[2], most, torch.float64, buckets=buckets)
    assert_layer(layer, v2_ours, 70, torch.float64)


@pytest.mark.parametrize("head_dim", [5, 12])
@pytest.mark.parametrize("parts", PARTS, ids=part_id)
def test_float32(parts: Parts, head_dim: int) -> None:
    """Widths whose scale is no whole number, in the models' own precision."""
    assert_layer(v1_layer(parts, head_dim, 6, torch.float32), v1_ours, 13, torch.float32)
    assert_layer(v2_layer(parts, head_dim, 12, torch.float32, buckets=8), v2_ours, 25, torch.float32)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(side: str) -> None:
    """Case C12: a padded batch, at the rows of real tokens; elsewhere they average and we give zero."""
    real = padding([15, 9, 1], 15, side)
    width = EXACT_WIDTH[2]
    assert_layer(v1_layer(("c2p", "p2c"), width, 6, torch.float64), v1_ours, 15, torch.float64, real)
    layer = v2_layer(("c2p", "p2c"), width, 12, torch.float64, buckets=8, shared=True)
    assert_layer(layer, v2_ours, 15, torch.float64, real)


@pytest.mark.parametrize("length", [20, 200])
def test_released_v3(length: int) -> None:
    """The setting of the released v3 models: 256 buckets of 512, shared projections, a limit taken from the config.

    Two heads only. The gradient of an embedding row that no pair of so few tokens reads is zero in both.
    """
    config = DebertaV2Config(
        hidden_size=HEADS * 12,
        num_attention_heads=HEADS,
        relative_attention=True,
        max_relative_positions=-1,
        max_position_embeddings=512,
        position_buckets=256,
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
    )
    layer = randomised(v2.DisentangledSelfAttention(config), torch.float64)
    assert_layer(layer, v2_ours, length, torch.float64)
