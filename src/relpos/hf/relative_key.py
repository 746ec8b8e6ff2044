"""BERT's kin with `relative_key`: vectors of distances that transformers 4 trained and transformers 5 leave out.

    score = (query . key + query . E[i - j + M - 1] (+ key . E[i - j + M - 1])) / sqrt(D)

with M = `max_position_embeddings`, query i and key j; the last part for `relative_key_query`. Absolute positions, which
these checkpoints hold too, are not added.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.models.bert import modeling_bert
from transformers.models.camembert import modeling_camembert
from transformers.models.electra import modeling_electra
from transformers.models.roberta import modeling_roberta
from transformers.models.xlm_roberta import modeling_xlm_roberta

from relpos import errors
from relpos.hf.attend import attend, split_heads
from relpos.hf.caches import seen
from relpos.hf.patched import MASKS, Patched
from relpos.terms import KeyDistance, QueryDistance, Term

KINDS = ("relative_key", "relative_key_query")
#: The models that own embeddings, attention and masks.
BODIES = (
    modeling_bert.BertModel,
    modeling_roberta.RobertaModel,
    modeling_xlm_roberta.XLMRobertaModel,
    modeling_camembert.CamembertModel,
    modeling_electra.ElectraModel,
)
MASKS.update(BODIES)


class _Relative(Patched):
    """A module that is taken over where it has transformers 4's `position_embedding_type`, from `load_relative_key`."""

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """Without tables it has absolute positions, or its tables were dropped."""
        if getattr(module, "position_embedding_type", None) in KINDS:
            return None
        kind = getattr(getattr(module, "config", None), "position_embedding_type", None)
        if kind in KINDS:
            return f"its {kind} tables are not loaded: see relpos.hf.load_relative_key"
        return "its positions are absolute"


class _SelfAttention(_Relative):
    """Self-attention of an encoder or a decoder."""

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B T E"],
        attention_mask: Tensor | None = None,
        cache: Any = None,
        output_attentions: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the class that this one replaces."""
        query, key, value = (
            split_heads(project(hidden_states), self.attention_head_size)
            for project in (self.query, self.key, self.value)
        )
        start: int | Tensor = 0
        if cache is not None:
            own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
            start = seen(own, self.layer_idx)
            key, value = own.update(key, value, self.layer_idx, kwargs=options)
        longest = self.config.max_position_embeddings
        if key.shape[2] > longest:
            raise errors.value(
                type(self).__name__,
                f"{key.shape[2]} tokens",
                f"at most {longest}: a table of {2 * longest - 1} distances ends there",
                "cut the input.",
            )
        return attend(
            self,
            query,
            key,
            value,
            self._terms(),
            mask=attention_mask,
            scale=self.scaling,
            is_causal=self.is_causal,
            query_start=start,
            dropout_p=self.dropout.p if self.training else 0.0,
            needs_weights=output_attentions,
        )

    def _terms(self: Any) -> list[Term]:
        table = self.distance_embedding.weight
        terms: list[Term] = [QueryDistance(table, self._row)]
        if self.position_embedding_type == "relative_key_query":
            terms.append(KeyDistance(table, self._row))
        return terms

    def _row(self: Any, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        last = self.config.max_position_embeddings - 1
        row: Tensor = (last - distance).clamp(0, 2 * last)
        return row


class _Embeddings(_Relative):
    """Embeddings of tokens without those of their places."""

    def forward(
        self: Any,
        input_ids: Int[Tensor, "B T"] | None = None,
        token_type_ids: Int[Tensor, "B T"] | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Float[Tensor, "B T E"] | None = None,
        cache_length: int = 0,
    ) -> Float[Tensor, "B T E"]:
        """As the class that this one replaces; `position_ids` and `cache_length` have no part in it."""
        x = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if token_type_ids is None:
            token_type_ids = torch.zeros(x.shape[:-1], dtype=torch.long, device=x.device)
        return self.dropout(self.LayerNorm(x + self.token_type_embeddings(token_type_ids)))  # type: ignore[no-any-return]


class BertSelfAttention(_SelfAttention, modeling_bert.BertSelfAttention):
    """BERT's."""


class BertEmbeddings(_Embeddings, modeling_bert.BertEmbeddings):
    """BERT's."""


class RobertaSelfAttention(_SelfAttention, modeling_roberta.RobertaSelfAttention):
    """RoBERTa's."""


class RobertaEmbeddings(_Embeddings, modeling_roberta.RobertaEmbeddings):
    """RoBERTa's."""


class XLMRobertaSelfAttention(_SelfAttention, modeling_xlm_roberta.XLMRobertaSelfAttention):
    """XLM-RoBERTa's."""


class XLMRobertaEmbeddings(_Embeddings, modeling_xlm_roberta.XLMRobertaEmbeddings):
    """XLM-RoBERTa's."""


class CamembertSelfAttention(_SelfAttention, modeling_camembert.CamembertSelfAttention):
    """CamemBERT's."""


class CamembertEmbeddings(_Embeddings, modeling_camembert.CamembertEmbeddings):
    """CamemBERT's."""


class ElectraSelfAttention(_SelfAttention, modeling_electra.ElectraSelfAttention):
    """ELECTRA's."""


class ElectraEmbeddings(_Embeddings, modeling_electra.ElectraEmbeddings):
    """ELECTRA's."""


#: Their self-attention.
ATTENTION = tuple(cls.replaces for cls in _SelfAttention.__subclasses__())
