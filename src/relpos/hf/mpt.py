"""MPT: ALiBi in float32 at any precision of the model, so that "model" and "exact" are one; of any length here."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers.models.mpt import modeling_mpt

from relpos.hf import alibi
from relpos.hf.attend import attend, split_heads
from relpos.hf.caches import seen
from relpos.hf.patched import MASKS, Patched

MASKS.add(modeling_mpt.MptModel)


class MptAttention(Patched, modeling_mpt.MptAttention):
    """One layer's attention.

    As the one that this replaces, it reads neither `attn_config.alibi` nor `alibi_bias_max`: there is a bias always,
    and 2^-8 is its last slope.
    """

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B Tq E"],
        position_bias: Float[Tensor, "H 1 n"] | None,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the class that this one replaces; of `position_bias`, which ends at `max_seq_len`, only whether it is."""
        mixed = self.Wqkv(hidden_states)
        if self.clip_qkv:
            mixed = mixed.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        query, key, value = (split_heads(x, self.head_dim) for x in mixed.chunk(3, dim=2))
        start = seen(cache, self.layer_idx)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx, kwargs=options)
        is_matrix = attention_mask is not None and attention_mask.dim() == 4
        bias = alibi.exact(self.n_heads, attention_mask, key.shape[2], key.device)
        output, weights = attend(
            self,
            query,
            key,
            value,
            [] if position_bias is None else [bias],
            # The model reads a matrix of pairs with True = hidden.
            mask=attention_mask.logical_not() if attention_mask is not None and is_matrix else attention_mask,
            scale=self.softmax_scale,
            is_causal=True,
            query_start=start,
            dropout_p=self.attn_dropout_p if self.training else 0.0,
            needs_weights=options.get("output_attentions", False),
        )
        return self.out_proj(output), weights


class MptBlock(Patched, modeling_mpt.MptBlock):
    """The layer around it, which tells its attention whether probabilities are asked for."""

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B Tq E"],
        position_bias: Tensor,
        attention_mask: Tensor,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the class that this one replaces."""
        attended, weights = self.attn(
            self.norm_1(hidden_states),
            position_bias=position_bias,
            attention_mask=attention_mask,
            cache=layer_past,
            output_attentions=output_attentions,
        )
        hidden_states = self.resid_attn_dropout(attended) + hidden_states
        return self.ffn(self.norm_2(hidden_states), hidden_states), weights
