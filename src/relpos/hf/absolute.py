"""Learned absolute positions beside relative ones: where their table ends, a patched model says so."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from relpos import errors


def refuse_past_table(module: Any, given: Tensor, position_ids: Int[Tensor, "... T"] | None) -> None:
    """Refuse positions that the table of a module of embeddings has no row for. A recorded graph sees only lengths.

    Args:
        module: it adds a vector for each position; where it has a padding row, the first token reads the row after it.
        given: `[B, T]` tokens, or `[B, T, E]` vectors.
        position_ids: the rows to read; None where the module counts, tokens of padding not among them.
    """
    rows, first = module.position_embeddings.num_embeddings, getattr(module, "padding_idx", -1) + 1
    last: int | Tensor = first + given.shape[1] - 1
    if position_ids is not None:
        last = position_ids
    elif last < rows:
        return
    elif first > 0 and given.dim() == 2:
        last = first - 1 + (given != first - 1).sum(-1)
    if isinstance(last, Tensor):
        if torch.compiler.is_compiling() or last.numel() == 0:
            return
        last = int(last.max())
    if last >= rows:
        raise errors.value(
            type(module).__name__,
            f"{given.shape[1]} tokens, of which one has position {last}",
            f"{first} to {rows - 1}: the table of absolute positions ends at max_position_embeddings",
            f"cut the input to {rows - first} tokens.",
        )
