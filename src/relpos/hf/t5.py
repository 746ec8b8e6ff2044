"""T5, mT5 and UMT5: a bucketed bias by distance, made by the first layer of a stack (UMT5: by each) and shared."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.models.mt5 import modeling_mt5
from transformers.models.t5 import modeling_t5
from transformers.models.umt5 import modeling_umt5

from relpos import functional
from relpos.functional.tables import lookup
from relpos.hf.attend import attend, split_heads
from relpos.hf.caches import seen
from relpos.hf.packing import PackedTextStack
from relpos.hf.patched import MASKS, Patched
from relpos.terms import DistanceBias


class BucketedAttention(Patched):
    """Self-attention and cross-attention of the T5 family, `forward` aside, whose signatures differ."""

    def bias_table(self: Any) -> Float[Tensor, "H n"] | None:
        """The bias at distances `-max_distance` to `max_distance`; None where the module owns no table."""
        if not self.has_relative_attention_bias:
            return None
        weight = self.relative_attention_bias.weight
        reach = self.relative_attention_max_distance
        bucket = functional.t5_bucket(
            torch.arange(-reach, reach + 1, device=weight.device),
            bidirectional=not self.is_decoder,
            num_buckets=self.relative_attention_num_buckets,
            max_distance=reach,
        )
        return lookup(weight.T, bucket)

    def compute(
        self: Any,
        x: Float[Tensor, "B Tq E"],
        context: Float[Tensor, "B Tk E"] | None,
        cache: Any,
        table: Float[Tensor, "H n"] | None,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        """The module's output and, where they are asked for, its probabilities."""
        start = seen(cache, self.layer_idx)
        key, value = self._keys_and_values(x if context is None else context, context is not None, cache, options)
        output, weights = attend(
            self,
            split_heads(self.q(x), self.key_value_proj_dim),
            key,
            value,
            [] if table is None else [DistanceBias.of_table(table)],
            mask=mask,
            scale=self.scaling,
            is_self=context is None,
            is_causal=self.is_causal and context is None,
            query_start=start,
            dropout_p=self.dropout if self.training else 0.0,
            needs_weights=options.get("output_attentions", False),
        )
        return self.o(output), weights

    def _keys_and_values(
        self: Any, x: Float[Tensor, "B Tk E"], is_cross: bool, cache: Any, options: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Those of `x` after the ones in the cache; for cross-attention once, then from the cache."""
        both = isinstance(cache, EncoderDecoderCache)
        if both and is_cross and cache.is_updated.get(self.layer_idx):
            layer = cache.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        key, value = (split_heads(project(x), self.key_value_proj_dim) for project in (self.k, self.v))
        if cache is None:
            return key, value
        own = cache if not both else cache.cross_attention_cache if is_cross else cache.self_attention_cache
        key, value = own.update(key, value, self.layer_idx, kwargs=options)
        if both and is_cross:
            cache.is_updated[self.layer_idx] = True
        return key, value


class SharedBiasAttention(BucketedAttention):
    """T5, mT5 and LongT5's decoder: the table of the first layer goes from layer to layer."""

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        cache: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """As the class that this one replaces; `position_bias` is the table of distances instead of pairs."""
        table = self.bias_table() if position_bias is None else position_bias
        output, weights = self.compute(hidden_states, key_value_states, cache, table, mask, options)
        return output, table, weights


class T5Attention(SharedBiasAttention, modeling_t5.T5Attention):
    """T5's."""


class MT5Attention(SharedBiasAttention, modeling_mt5.MT5Attention):
    """mT5's."""


class UMT5Attention(BucketedAttention, modeling_umt5.UMT5Attention):
    """UMT5's: every layer has a table."""

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the class that this one replaces."""
        return self.compute(hidden_states, encoder_hidden_states, cache, self.bias_table(), attention_mask, options)


class T5Stack(PackedTextStack, modeling_t5.T5Stack):
    """T5's encoder."""


class MT5Stack(PackedTextStack, modeling_mt5.MT5Stack):
    """mT5's encoder."""


class UMT5Stack(PackedTextStack, modeling_umt5.UMT5Stack):
    """UMT5's encoder."""


#: Encoders and decoders.
MASKS |= {T5Stack, MT5Stack, UMT5Stack, *(stack.replaces for stack in (T5Stack, MT5Stack, UMT5Stack))}
