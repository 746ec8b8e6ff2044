"""LongT5: an encoder that sees `local_radius` tokens to either side, with T5's bias by distance; T5's decoder.

Transformers cut the text into blocks, which see themselves and their neighbours, and hide what is farther away than the
radius: a window.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers.models.longt5 import modeling_longt5

from relpos.hf.attend import attend, split_heads
from relpos.hf.patched import MASKS, Patched
from relpos.hf.t5 import BucketedAttention, SharedBiasAttention
from relpos.terms import DistanceBias

#: The decoder; the encoder makes its mask in another way, below.
MASKS.add(modeling_longt5.LongT5Stack)


class LongT5Attention(SharedBiasAttention, modeling_longt5.LongT5Attention):
    """The decoder's, of tokens and of what the encoder gives."""


class LongT5LocalAttention(BucketedAttention, modeling_longt5.LongT5LocalAttention):
    """The encoder's."""

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B T E"],
        mask: Bool[Tensor, "B 1 blocks block three_blocks"] | None = None,
        position_bias: Float[Tensor, "H n"] | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, ...]:
        """As the class that this one replaces; `position_bias` is the table of distances instead of pairs.

        Without a mask all are tokens; transformers then lose the radius and see the zeros that fill up blocks.
        """
        table = self.bias_table() if position_bias is None else position_bias
        query, key, value = (
            split_heads(project(hidden_states), self.key_value_proj_dim) for project in (self.q, self.k, self.v)
        )
        output, weights = attend(
            self,
            query,
            key,
            value,
            [] if table is None else [DistanceBias.of_table(table)],
            mask=None if mask is None else _tokens(mask)[:, : hidden_states.shape[1]],
            scale=1.0,
            window=self.local_radius,
            dropout_p=self.dropout if self.training else 0.0,
            needs_weights=output_attentions,
        )
        output = self.o(output)
        return (output, table) if weights is None else (output, table, _in_blocks(weights, self.block_len))


class LongT5Stack(Patched, modeling_longt5.LongT5Stack):
    """The encoder, which makes its mask for blocks of one token: three numbers for each."""

    block_len = property(lambda self: 1)

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """Only a local encoder cuts its mask into blocks."""
        is_local = not module.is_decoder and module.config.encoder_attention_type == "local"
        return None if is_local else "it makes no mask of blocks"


class LongT5TransientGlobalAttention(Patched, modeling_longt5.LongT5TransientGlobalAttention):
    """Left alone."""

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """Its keys are not tokens alone."""
        return f"its tokens also see sums of {module.global_block_size} tokens, which stand at no position"


def _tokens(mask: Bool[Tensor, "B 1 blocks block three_blocks"]) -> Bool[Tensor, "B T"]:
    """Which are tokens, by a mask for blocks of any length: those that see themselves."""
    tokens: Tensor = mask[:, 0].diagonal(mask.shape[-2], -2, -1)
    return tokens.flatten(1)


def _in_blocks(weights: Float[Tensor, "B H T T"], block: int) -> Float[Tensor, "B blocks H block three_blocks"]:
    """Probabilities as transformers lay them out: of each block of queries, for the keys of three blocks."""
    rest = -weights.shape[-1] % block
    padded = torch.nn.functional.pad(weights, (block, block + rest, 0, rest))
    pairs: Tensor = padded.unflatten(2, (-1, block)).unfold(-1, 3 * block, block)
    return pairs.diagonal(0, 2, 4).permute(0, 4, 1, 2, 3)
