"""T5, MT5 and UMT5: buckets, and self-attention with relative position bias (cases B1, B2, B6, B9, B11, G2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from agreement import (
    additive,
    assert_agree,
    causal,
    inputs,
    leaves_of,
    merge_heads,
    padding,
    randomised,
    split_heads,
    with_tables,
)
from torch import Tensor, nn
from transformers import DynamicCache, MT5Config, T5Config, UMT5Config
from transformers.models.mt5.modeling_mt5 import MT5Attention
from transformers.models.t5.modeling_t5 import T5Attention, T5Stack
from transformers.models.umt5.modeling_umt5 import UMT5Attention

import relpos

HEADS, WIDTH, HEAD_DIM = 3, 10, 4
DTYPES = [torch.float32, torch.float64]


@dataclass(frozen=True)
class Family:
    config: Callable[..., object]
    attention: Callable[..., nn.Module]
    mask: str

    def layer(
        self,
        dtype: torch.dtype,
        *,
        decoder: bool,
        buckets: tuple[int, int],
        kind: str = "eager",
        owns_table: bool = True,
    ) -> nn.Module:
        """Attention with random weights, of a first layer unless it owns no table."""
        config = self.config(
            d_model=WIDTH,
            num_heads=HEADS,
            d_kv=HEAD_DIM,
            relative_attention_num_buckets=buckets[0],
            relative_attention_max_distance=buckets[1],
            is_decoder=decoder,
            attn_implementation=kind,
        )
        layer = self.attention(config, has_relative_attention_bias=owns_table, layer_idx=0, is_causal=decoder)
        return randomised(layer, dtype)

    def run(self, layer: nn.Module, hidden: Tensor, visible: Tensor | None = None, cache: object = None) -> Tensor:
        """The layer's output."""
        mask = None if visible is None else additive(visible, hidden.dtype)
        output: Tensor = layer(hidden, **{self.mask: mask}, cache=cache)[0]
        return output


T5 = Family(T5Config, T5Attention, "mask")
MT5 = Family(MT5Config, MT5Attention, "mask")
UMT5 = Family(UMT5Config, UMT5Attention, "attention_mask")
FAMILIES = [pytest.param(T5, id="t5"), pytest.param(MT5, id="mt5"), pytest.param(UMT5, id="umt5")]
BUCKETS = [(32, 128), (8, 20), (6, 9)]


def bias_of(layer: nn.Module, buckets: tuple[int, int], *, decoder: bool) -> relpos.T5Bias:
    scheme = relpos.T5Bias(HEADS, num_buckets=buckets[0], max_distance=buckets[1], bidirectional=not decoder)
    return with_tables(scheme, table=layer.get_parameter("relative_attention_bias.weight").T)


def heads_of(layer: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (split_heads(layer.get_submodule(name)(hidden), HEADS) for name in "qkv")
    return query, key, value


def output_of(layer: nn.Module, mixed: Tensor) -> Tensor:
    output: Tensor = layer.get_submodule("o")(merge_heads(mixed))
    return output


# Few and many buckets, sides of odd size, far and near ends; the next smaller max_distance has no logarithmic range.
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_buckets", [4, 6, 7, 8, 10, 16, 31, 32, 33, 64, 128, 320])
def test_buckets(bidirectional: bool, num_buckets: int) -> None:
    num_buckets += num_buckets % 2 if bidirectional else 0
    exact = num_buckets // (4 if bidirectional else 2)
    distance = torch.arange(-3000, 3001)
    for max_distance in (exact + 1, exact + 2, 2 * exact + 1, 100 + exact, 128 + exact, 256 + exact, 800, 2500):
        ours = relpos.functional.t5_bucket(
            distance, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance
        )
        for attention in (T5Attention, MT5Attention):
            theirs = attention._relative_position_bucket(distance, bidirectional, num_buckets, max_distance)
            assert torch.equal(ours, theirs), max_distance
        umt5 = UMT5.layer(torch.float32, decoder=not bidirectional, buckets=(num_buckets, max_distance))
        assert torch.equal(ours, umt5._relative_position_bucket(distance)), max_distance  # type: ignore[operator]


def test_released_buckets() -> None:
    """The setting of every released T5, over the whole range and both directions."""
    distance = torch.arange(-20_000, 20_001)
    for bidirectional in (True, False):
        ours = relpos.functional.t5_bucket(distance, bidirectional=bidirectional, num_buckets=32, max_distance=128)
        assert torch.equal(ours, T5Attention._relative_position_bucket(distance, bidirectional, 32, 128))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["eager", "sdpa"])
@pytest.mark.parametrize("buckets", BUCKETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_encoder(family: Family, buckets: tuple[int, int], kind: str, dtype: torch.dtype) -> None:
    layer = family.layer(dtype, decoder=False, buckets=buckets, kind=kind)
    hidden = inputs(2, 23, WIDTH, dtype)
    scheme = bias_of(layer, buckets, decoder=False)

    def ours() -> Tensor:
        return output_of(layer, relpos.attention(*heads_of(layer, hidden), scheme))

    assert_agree(ours, lambda: family.run(layer, hidden), leaves_of(layer, hidden=hidden))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("buckets", BUCKETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_decoder(family: Family, buckets: tuple[int, int], dtype: torch.dtype) -> None:
    layer = family.layer(dtype, decoder=True, buckets=buckets)
    hidden = inputs(2, 23, WIDTH, dtype)
    scheme = bias_of(layer, buckets, decoder=True)

    def ours() -> Tensor:
        return output_of(layer, relpos.attention(*heads_of(layer, hidden), scheme, is_causal=True))

    assert_agree(ours, lambda: family.run(layer, hidden, causal(23)), leaves_of(layer, hidden=hidden))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("buckets", [(32, 128), (6, 9)])
@pytest.mark.parametrize("family", FAMILIES)
def test_decoder_token_by_token(family: Family, buckets: tuple[int, int], dtype: torch.dtype) -> None:
    """Case G2: both walk through the same tokens one at a time, each with its own keys of the past."""
    layer = family.layer(dtype, decoder=True, buckets=buckets)
    hidden = inputs(2, 10, WIDTH, dtype)
    scheme = bias_of(layer, buckets, decoder=True)

    def theirs() -> Tensor:
        cache = DynamicCache()
        steps = [family.run(layer, hidden[:, step : step + 1], cache=cache) for step in range(10)]
        return torch.cat(steps, dim=1)

    def ours() -> Tensor:
        query, key, value = heads_of(layer, hidden)
        steps = [
            relpos.attention(query[:, :, now - 1 : now], key[:, :, :now], value[:, :, :now], scheme, is_causal=True)
            for now in range(1, 11)
        ]
        return output_of(layer, torch.cat(steps, dim=2))

    assert_agree(ours, theirs, leaves_of(layer, hidden=hidden))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_padding(family: Family, decoder: bool, side: str, dtype: torch.dtype) -> None:
    """Rows of real tokens only: a padded row that sees nothing is a uniform average there and zero here."""
    buckets = (8, 20)
    layer = family.layer(dtype, decoder=decoder, buckets=buckets)
    hidden = inputs(3, 17, WIDTH, dtype)
    real = padding([17, 9, 4], 17, side)
    visible = real[:, None, None, :] & causal(17) if decoder else real[:, None, None, :]
    scheme = bias_of(layer, buckets, decoder=decoder)

    def ours() -> Tensor:
        mixed = relpos.attention(*heads_of(layer, hidden), scheme, is_causal=decoder, key_mask=real)
        return output_of(layer, mixed)[real]

    assert_agree(ours, lambda: family.run(layer, hidden, visible)[real], leaves_of(layer, hidden=hidden))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "context"), [(T5, "key_value_states"), (UMT5, "encoder_hidden_states")])
def test_cross_attention_has_no_bias(family: Family, context: str, dtype: torch.dtype) -> None:
    """Cases B8 and B11: attention without a scheme at T5's scale, 5 queries on 9 keys."""
    layer = family.layer(dtype, decoder=True, buckets=(8, 20), owns_table=False)
    hidden, encoded = inputs(2, 5, WIDTH, dtype), inputs(2, 9, WIDTH, dtype)

    def ours() -> Tensor:
        query, (_, key, value) = heads_of(layer, hidden)[0], heads_of(layer, encoded)
        return output_of(layer, relpos.attention(query, key, value, scale=1.0))

    leaves = leaves_of(layer, hidden=hidden, encoded=encoded)
    assert_agree(ours, lambda: layer(hidden, **{context: encoded})[0], leaves)


def test_one_table_serves_every_layer_of_a_stack() -> None:
    """Case B9: layer 0 owns the table, all layers add it, and its gradient is the sum over them."""
    dtype, layers = torch.float32, 3  # T5's layer norm takes its variance in float32
    sizes = {"d_model": WIDTH, "num_heads": HEADS, "d_kv": HEAD_DIM, "d_ff": 7, "num_layers": layers, "vocab_size": 5}
    config = T5Config(**sizes, is_decoder=False, use_cache=False)
    stack = randomised(T5Stack(config), dtype)
    stack.embed_tokens.requires_grad_(False)  # unused: the test starts from embeddings
    hidden = inputs(2, 19, WIDTH, dtype)
    blocks = [stack.get_submodule(f"block.{index}") for index in range(layers)]
    scheme = bias_of(blocks[0].get_submodule("layer.0.SelfAttention"), (32, 128), decoder=False)

    def ours() -> Tensor:
        x = hidden
        for block in blocks:
            layer = block.get_submodule("layer.0.SelfAttention")
            normed = block.get_submodule("layer.0.layer_norm")(x)
            x = x + output_of(layer, relpos.attention(*heads_of(layer, normed), scheme))
            x = block.get_submodule("layer.1")(x)
        final: Tensor = stack.get_submodule("final_layer_norm")(x)
        return final

    leaves = {name: leaf for name, leaf in leaves_of(stack, hidden=hidden).items() if leaf.requires_grad}
    assert_agree(ours, lambda: stack(inputs_embeds=hidden).last_hidden_state, leaves)
