"""MPNet: T5's buckets of distances, one table for all layers, in an encoder that has absolute positions too."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.models.mpnet import modeling_mpnet

from relpos import errors
from relpos.functional.tables import lookup
from relpos.hf.absolute import refuse_past_table
from relpos.hf.attend import attend, split_heads
from relpos.hf.packing import PackedStack
from relpos.hf.patched import MASKS, Patched
from relpos.terms import DistanceBias

MASKS.add(modeling_mpnet.MPNetModel)
#: From this distance on the last bucket of a side is all there is: the `max_distance` of transformers' own function.
REACH = 128


class MPNetEmbeddings(Patched, modeling_mpnet.MPNetEmbeddings):
    """Embeddings of tokens and of their places, which are counted without padding."""

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        position_ids: Int[Tensor, "... T"] | None = None,
        inputs_embeds: Float[Tensor, "B T E"] | None = None,
        **options: Any,
    ) -> Float[Tensor, "B T E"]:
        """As the class that this one replaces, up to the end of its table."""
        given = inputs_embeds if input_ids is None else input_ids
        if given is not None:
            refuse_past_table(self, given, position_ids)
        return super().forward(input_ids, position_ids, inputs_embeds, **options)  # type: ignore[no-any-return]


class MPNetSelfAttention(Patched, modeling_mpnet.MPNetSelfAttention):
    """One layer's attention, output projection included."""

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B T E"],
        attention_mask: Tensor | None = None,
        position_bias: Float[Tensor, "H n"] | None = None,
        output_attentions: bool = False,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        """As the class that this one replaces; `position_bias` is the encoder's table of distances."""
        width = self.attention_head_size
        output, weights = attend(
            self,
            split_heads(self.q(hidden_states), width),
            split_heads(self.k(hidden_states), width),
            split_heads(self.v(hidden_states), width),
            [] if position_bias is None else [DistanceBias.of_table(position_bias)],
            mask=attention_mask,
            scale=width**-0.5,
            dropout_p=self.dropout.p if self.training else 0.0,
            needs_weights=output_attentions,
        )
        output = self.o(output)
        return (output,) if weights is None else (output, weights)


class MPNetEncoder(PackedStack, modeling_mpnet.MPNetEncoder):
    """The stack around it, which owns the table."""

    def compute_position_bias(
        self: Any, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = 32
    ) -> Float[Tensor, "H n"]:
        """The bias at distances `-128` to `128` instead of one for each pair."""
        if position_ids is not None:
            raise errors.value(
                "MPNetEncoder.compute_position_bias",
                f"position_ids of shape {list(position_ids.shape)}",
                "None: distances between tokens in their order",
                "restore the model for distances of your own.",
            )
        distance = torch.arange(-REACH, REACH + 1, device=x.device)
        bucket = self.relative_position_bucket(distance, num_buckets=num_buckets, max_distance=REACH)
        return lookup(self.relative_attention_bias.weight.T, bucket)
