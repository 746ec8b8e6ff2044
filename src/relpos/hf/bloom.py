"""BLOOM: ALiBi by key index, in the dtype of the model."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers.models.bloom import modeling_bloom

from relpos.hf.alibi import bias
from relpos.hf.attend import attend
from relpos.hf.caches import seen
from relpos.hf.patched import MASKS, Patched

MASKS.add(modeling_bloom.BloomModel)


class BloomAttention(Patched, modeling_bloom.BloomAttention):
    """One layer's attention, with dropout and residual after it."""

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """A projection cut in slices is left alone."""
        return "pretraining_tp > 1 with slow_but_exact" if module.pretraining_tp > 1 and module.slow_but_exact else None

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B Tq E"],
        residual: Float[Tensor, "B Tq E"],
        alibi: Float[Tensor, "B_times_H 1 Tk"],
        attention_mask: Tensor | None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the class that this one replaces."""
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        start = seen(layer_past, self.layer_idx)
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        output, weights = attend(
            self,
            query,
            key,
            value,
            [bias(self.relpos_options, alibi, self.num_heads, key, attention_mask)],
            mask=attention_mask,
            scale=self.inv_norm_factor,
            is_causal=True,
            query_start=start,
            dropout_p=self.attention_dropout.p if self.training else 0.0,
            needs_weights=output_attentions,
        )
        output = modeling_bloom.dropout_add(self.dense(output), residual, self.hidden_dropout, self.training)
        return output, weights
