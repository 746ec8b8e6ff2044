"""What the DeBERTa families share: embeddings, tables by distance, and a stack that makes no matrix of pairs."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relpos import errors, functional
from relpos.hf import kept
from relpos.hf.absolute import refuse_past_table
from relpos.hf.attend import split_heads
from relpos.hf.packing import PackedStack
from relpos.hf.patched import Patched
from relpos.terms import RowOf


class DisentangledEmbeddings(Patched):
    """Embeddings of tokens and, by `position_biased_input`, of their places."""

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """What has no end is left as it is; what `talking_head` leaves alone stays whole."""
        if module.position_embeddings is None:
            return "it adds no positions"
        return "talking_head mixes the scores of heads" if getattr(module.config, "talking_head", False) else None

    def forward(
        self: Any,
        input_ids: Int[Tensor, "B T"] | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Int[Tensor, "... T"] | None = None,
        mask: Tensor | None = None,
        inputs_embeds: Float[Tensor, "B T E"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """As the class that this one replaces, up to the end of its table."""
        given = inputs_embeds if input_ids is None else input_ids
        if given is not None:
            refuse_past_table(self, given, position_ids)
        return self.replaces.forward(self, input_ids, token_type_ids, position_ids, mask, inputs_embeds)  # type: ignore[no-any-return]


class DisentangledEncoder(PackedStack):
    """The stack around the attention."""

    def get_rel_embedding(self: Any) -> Float[Tensor, "R E"] | None:
        """The embedding of distances that all layers project."""
        embedding = self.replaces.get_rel_embedding(self)
        return None if embedding is None else kept.shared(self, embedding)

    def get_attention_mask(self, attention_mask: Tensor) -> Tensor:
        """The padding mask or `cu_seqlens` as they are; pairs with an axis for the heads, 0 = hidden."""
        if attention_mask.dim() < 3:
            return attention_mask
        pairs = attention_mask.bool()
        return pairs.unsqueeze(1) if pairs.dim() == 3 else pairs

    def get_rel_pos(
        self: Any, hidden_states: Float[Tensor, "B T E"], query_states: Any = None, relative_pos: Any = None
    ) -> Any:
        """The row that each distance between tokens in their order reads, for all layers: `[2 T - 1]`."""
        if not self.relative_attention:
            return relative_pos
        return distance_rows(self, hidden_states, relative_pos)


def distance_rows(module: Any, x: Float[Tensor, "B T E"], relative_pos: Tensor | None) -> Int[Tensor, " n"]:
    """The row that each distance reads, at distances `1 - T` to `T - 1`: those that the stack has found, or new ones.

    Distances of the caller's own, which have more dimensions, are refused.
    """
    if relative_pos is None:
        buckets = getattr(module, "position_buckets", -1)
        return functional.deberta_row(
            torch.arange(1 - x.shape[1], x.shape[1], device=x.device),
            num_buckets=buckets if buckets > 0 else None,
            max_distance=module.max_relative_positions,
        )
    if relative_pos.dim() != 1:
        raise errors.value(
            "DisentangledSelfAttention",
            f"relative_pos of shape {list(relative_pos.shape)}",
            "None: distances between tokens in their order",
            "patch the encoder together with its layers, or restore the model for distances of your own.",
        )
    return relative_pos


def distance_table(
    projection: nn.Module, embeddings: Float[Tensor, "R E"], rows: Int[Tensor, " n"], tokens: int, width: int
) -> tuple[Float[Tensor, "H R D"], RowOf]:
    """The projected embedding of distances, of the rows that `tokens` tokens can meet, and its row function.

    Of 512 rows 128 tokens meet 255, and projecting all takes half as long as everything else in the layer. Where the
    product of all is kept, or a graph is recorded for other lengths too, none is left out.
    """
    zero, last = len(rows) // 2, tokens - 1
    if kept.keeps(projection):
        table = kept.project(projection, embeddings)
    elif torch.compiler.is_compiling():
        table = projection(embeddings)
    else:
        most, least = rows[[zero - last, zero + last]].tolist()
        table, rows = projection(embeddings[least : most + 1]), rows.clamp(least, most) - least
    return split_heads(table[None], width)[0], lambda distance: rows[distance + zero]
