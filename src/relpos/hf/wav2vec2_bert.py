"""Wav2Vec2-BERT: Shaw's vectors of clipped distances, shared by the heads of a layer, against the query."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert

from relpos.hf.attend import attend, split_heads
from relpos.hf.patched import MASKS, Patched
from relpos.terms import QueryDistance

#: It encloses all that make masks (the encoder, the layers of the adapter), which share its configuration.
MASKS.add(modeling_wav2vec2_bert.Wav2Vec2BertModel)


class Wav2Vec2BertSelfAttention(Patched, modeling_wav2vec2_bert.Wav2Vec2BertSelfAttention):
    """The attention of a layer; in an adapter it has no positions."""

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """The adapter goes with the encoder, whose configuration it reads."""
        kind = module.config.position_embeddings_type
        return None if kind == "relative_key" else f"position_embeddings_type is {kind!r}, not 'relative_key'"

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B T E"],
        attention_mask: Tensor | None = None,
        relative_position_embeddings: Tensor | None = None,
        output_attentions: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the class that this one replaces."""
        query, key, value = (
            split_heads(project(hidden_states), self.head_size)
            for project in (self.linear_q, self.linear_k, self.linear_v)
        )
        has_positions = self.position_embeddings_type is not None
        output, weights = attend(
            self,
            query,
            key,
            value,
            [QueryDistance(self.distance_embedding.weight, self._row)] if has_positions else [],
            mask=attention_mask,
            scale=self.scaling,
            dropout_p=self.dropout.p if self.training else 0.0,
            needs_weights=output_attentions,
        )
        return self.linear_out(output), weights

    def _row(self: Any, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        left, right = self.left_max_position_embeddings, self.right_max_position_embeddings
        row: Tensor = distance.clamp(-left, right) + left
        return row
