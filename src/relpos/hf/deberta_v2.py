"""DeBERTa v2 and v3: content and distance meet in both directions, through projections of one embedding."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.models.deberta_v2 import modeling_deberta_v2

from relpos import errors
from relpos.hf.attend import attend, split_heads
from relpos.hf.disentangled import DisentangledEmbeddings, DisentangledEncoder, distance_rows, distance_table
from relpos.hf.packing import Packing, longest
from relpos.hf.patched import Patched
from relpos.terms import KeyDistance, QueryDistance, Term


class DisentangledSelfAttention(Patched, modeling_deberta_v2.DisentangledSelfAttention):
    """One layer's attention; each layer projects the shared embedding of distances."""

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B T E"],
        attention_mask: Tensor | None,
        output_attentions: bool = False,
        query_states: Float[Tensor, "B T E"] | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Float[Tensor, "R E"] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As the class that this one replaces."""
        if query_states is not None and query_states.shape[1] != hidden_states.shape[1]:
            queries, keys = query_states.shape[1], hidden_states.shape[1]
            raise errors.value(
                "DisentangledSelfAttention",
                f"query_states of {queries} tokens with {keys} keys",
                "as many queries as keys: nothing says where fewer stand",
                f"relpos.attention takes positions=Positions.arange({queries}, {keys}, query_start=...).",
            )
        query, key, value = (
            split_heads(project(x), self.attention_head_size)
            for project, x in (
                (self.query_proj, hidden_states if query_states is None else query_states),
                (self.key_proj, hidden_states),
                (self.value_proj, hidden_states),
            )
        )
        terms: list[Term] = []
        if self.relative_attention:
            rows = distance_rows(self, hidden_states, relative_pos)
            terms = self._terms(rel_embeddings, rows, longest(hidden_states, attention_mask))
        parts = {"c2p", "p2c"} & set(self.pos_att_type)
        return attend(
            self,
            query,
            key,
            value,
            terms,
            mask=attention_mask,
            scale=1.0 / math.sqrt(self.attention_head_size * (1 + len(parts))),
            dropout_p=self.dropout.p if self.training else 0.0,
            needs_weights=output_attentions,
        )

    def _terms(self: Any, embeddings: Float[Tensor, "R E"], rows: Int[Tensor, " n"], tokens: int) -> list[Term]:
        embeddings, width = self.pos_dropout(embeddings)[: 2 * self.pos_ebd_size], self.attention_head_size
        terms: list[Term] = []
        if "c2p" in self.pos_att_type:
            project = self.key_proj if self.share_att_key else self.pos_key_proj
            terms.append(QueryDistance(*distance_table(project, embeddings, rows, tokens, width)))
        if "p2c" in self.pos_att_type:
            project = self.query_proj if self.share_att_key else self.pos_query_proj
            terms.append(KeyDistance(*distance_table(project, embeddings, rows, tokens, width)))
        return terms


class DebertaV2Embeddings(DisentangledEmbeddings, modeling_deberta_v2.DebertaV2Embeddings):
    """The embeddings below it."""


class ConvLayer(Patched, modeling_deberta_v2.ConvLayer):
    """The convolution after v2's first layer, which does not reach from text to text."""

    def forward(self: Any, hidden_states: Tensor, residual_states: Tensor, input_mask: Tensor) -> Tensor:
        """As the class that this one replaces; `input_mask` may be `cu_seqlens`."""
        if input_mask.dim() != 1:
            return self.replaces.forward(self, hidden_states, residual_states, input_mask)  # type: ignore[no-any-return]
        mask = torch.arange(longest(hidden_states, input_mask)) < input_mask.diff()[:, None]
        packing = Packing.of(mask)
        padded = map(packing.unpack, (hidden_states, residual_states))
        return packing.pack(self.replaces.forward(self, *padded, mask.to(torch.int64)))


class DebertaV2Encoder(DisentangledEncoder, modeling_deberta_v2.DebertaV2Encoder):
    """The stack around it."""
