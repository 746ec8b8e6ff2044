"""Falcon with ALiBi: slopes times index, in bfloat16 whatever the dtype of the model, scaled as the scores are."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.models.falcon import modeling_falcon

from relpos.hf.alibi import bias
from relpos.hf.attend import attend
from relpos.hf.caches import seen
from relpos.hf.patched import MASKS, Patched

MASKS.add(modeling_falcon.FalconModel)


class FalconAttention(Patched, modeling_falcon.FalconAttention):
    """One layer's attention, with as many key heads as the module has.

    The bias counts once, as in transformers' sdpa attention; their eager attention, which also computes what
    `output_attentions` asks for, adds it twice.
    """

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """Rotary Falcon is left alone."""
        return None if module.config.alibi else "rotary positions, which transformers' own sdpa attention computes"

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B Tq E"],
        alibi: Float[Tensor, "... 1 n"],
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        position_embeddings: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the class that this one replaces."""
        query, key, value = (x.transpose(1, 2) for x in self._split_heads(self.query_key_value(hidden_states)))
        start = seen(layer_past, self.layer_idx)
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        is_matrix = attention_mask is not None and attention_mask.dim() == 4
        output, weights = attend(
            self,
            query,
            key,
            value,
            [bias(self.relpos_options, alibi, self.num_heads, key, attention_mask, self.inv_norm_factor)],
            mask=_shown(attention_mask) if attention_mask is not None and is_matrix else attention_mask,
            scale=self.inv_norm_factor,
            is_causal=True,
            query_start=start,
            dropout_p=self.attention_dropout.p if self.training else 0.0,
            needs_weights=output_attentions,
        )
        return self.dense(output), weights


def _shown(mask: Float[Tensor, "B H Tq Tk"]) -> Tensor:
    """Who sees whom: a model of packed documents gives a matrix that also holds its bias, which is not negative."""
    return mask > torch.finfo(mask.dtype).min / 2
