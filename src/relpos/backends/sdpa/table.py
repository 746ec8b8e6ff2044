"""A call's distance biases as one table over places in memory."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos.backends.call import Call, wide
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
                values = term.over(offset + first, offset + first + size, dtype, call.query.device).unsqueeze(0)
            else:
                places = torch.arange(first, first + size, device=offset.device)
                values = term.values(offset[:, None] + places, dtype).transpose(0, 1)
            total = values if total is None else total + values
    return total
