"""A call's distance biases as one table over places in memory."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos.backends.call import Call
from relpos.backends.sdpa.inputs import wide
from relpos.terms import DistanceBias


def distance_table(call: Call, offset: int | Int[Tensor, " b"]) -> Float[Tensor, "b H N"] | None:
    """`[b, H, Tq + Tk - 1]`: entry n is the bias of a key that stands `n - (Tq - 1)` places after its query.

    b is 1 where all rows have one offset. None for a call without distance biases.
    """
    first, size = 1 - call.query.shape[2], call.query.shape[2] + call.key.shape[2] - 1
    dtype, total = wide(call.query.dtype), None
    for term in call.terms:
        if isinstance(term, DistanceBias):
            if isinstance(offset, int):
                values = _range(term, offset + first, size, call.query.device, dtype).unsqueeze(0)
            else:
                places = torch.arange(first, first + size, device=offset.device)
                values = term.values(offset[:, None] + places, dtype).transpose(0, 1)
            total = values if total is None else total + values
    return total


def _range(term: DistanceBias, first: int, size: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "H N"]:
    """The bias of `size` distances from `first` on; where all far ones count alike, those are repeated."""
    if term.near is None:
        return term.values(torch.arange(first, first + size, device=device), dtype)
    near = term.near(dtype)
    reach = near.shape[1] // 2
    left = min(max(-reach - first, 0), size - 1)
    right = min(max(first + size - 1 - reach, 0), size - 1 - left)
    start = min(max(first, -reach), reach) + reach
    parts = [near[:, :1].expand(-1, left), near[:, start : start + size - left - right], near[:, -1:].expand(-1, right)]
    return torch.cat([part for part in parts if part.shape[1]], dim=1)
