"""Masks of transformers without their matrix of pairs: causality is the attention's business, padding one bit a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import masking_utils

#: The name under which transformers finds these masks: `config._attn_implementation`.
IMPLEMENTATION = "relpos"
PLAIN = (masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function)


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Bool[Tensor, "B Tk"] | Bool[Tensor, "B 1 Tq Tk"] | Int[Tensor, " n_plus_1"]:
    """The padding mask `[B, Tk]`, where nothing but causality and padding hides keys; else the matrix asked for.

    The signature is that of transformers' mask functions. `cu_seqlens`, of a stack without padding, stay as they are.
    """
    if attention_mask is not None and attention_mask.dim() == 1:
        return attention_mask
    if mask_function not in PLAIN:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        dense: Tensor = masking_utils.sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function,
            attention_mask,
            device=device,
            **options,
        )
        return dense
    padding: Tensor | None = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is None:
        return torch.ones(batch_size, kv_length, dtype=torch.bool, device=device)
    return padding[:, kv_offset : kv_offset + kv_length].expand(batch_size, -1)


masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, make_mask)
