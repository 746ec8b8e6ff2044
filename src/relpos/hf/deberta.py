"""DeBERTa v1: content and distance meet in both directions, distances counted one by one."""

from __future__ import annotations

import math
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from transformers.models.deberta import modeling_deberta

from relpos import errors
from relpos.hf.attend import attend, split_heads
from relpos.hf.disentangled import DisentangledEmbeddings, DisentangledEncoder, distance_rows, distance_table
from relpos.hf.packing import longest
from relpos.hf.patched import Patched
from relpos.terms import KeyDistance, QueryDistance, Term


class DisentangledSelfAttention(Patched, modeling_deberta.DisentangledSelfAttention):
    """One layer's attention; each layer projects the shared embedding of distances.

    transformers read a slice of that embedding, as long as the input; the rows that distances meet are the same.
    """

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """Talking heads mix the scores of heads, which needs all of them."""
        return "talking_head mixes the scores of heads" if module.talking_head else None

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B T E"],
        attention_mask: Tensor | None,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Float[Tensor, "R E"] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As the class that this one replaces."""
        if query_states is not None:  # which transformers fail on: they transpose a batch
            raise errors.value(
                "DisentangledSelfAttention",
                f"query_states of shape {list(query_states.shape)}",
                "None: queries and keys of the same tokens",
                "pass hidden_states alone.",
            )
        terms: list[Term] = []
        if self.relative_attention:
            rows = distance_rows(self, hidden_states, relative_pos)
            terms = self._terms(rel_embeddings, rows, longest(hidden_states, attention_mask))
        heads = split_heads(self.in_proj(hidden_states), 3 * self.attention_head_size)
        query, key, value = heads.chunk(3, dim=-1)
        return attend(
            self,
            query + self._heads(self.q_bias),
            key,
            value + self._heads(self.v_bias),
            terms,
            mask=attention_mask,
            # one part for every name in the list, also for "p2p", which adds no score
            scale=1.0 / math.sqrt(self.attention_head_size * (1 + len(self.pos_att_type))),
            dropout_p=self.dropout.p if self.training else 0.0,
            needs_weights=output_attentions,
        )

    def _terms(self: Any, embeddings: Float[Tensor, "R E"], rows: Int[Tensor, " n"], tokens: int) -> list[Term]:
        embeddings, width = self.pos_dropout(embeddings), self.attention_head_size
        terms: list[Term] = []
        if "c2p" in self.pos_att_type:
            terms.append(QueryDistance(*distance_table(self.pos_proj, embeddings, rows, tokens, width)))
        if "p2c" in self.pos_att_type:
            terms.append(KeyDistance(*distance_table(self.pos_q_proj, embeddings, rows, tokens, width)))
        return terms

    def _heads(self: Any, x: Float[Tensor, "*R E"]) -> Float[Tensor, "H R D"]:
        return split_heads(x.view(1, -1, self.all_head_size), self.attention_head_size)[0]


class DebertaEmbeddings(DisentangledEmbeddings, modeling_deberta.DebertaEmbeddings):
    """The embeddings below it."""


class DebertaEncoder(DisentangledEncoder, modeling_deberta.DebertaEncoder):
    """The stack around it."""

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """A stack stays with its layers."""
        return DisentangledSelfAttention.why_not(module.layer[0].attention.self)
