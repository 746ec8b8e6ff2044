"""One token that sees all its keys, without gradients: its bias is a row, and torch's attention needs nothing more."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from relpos.backends.sdpa.inputs import Inputs
from relpos.backends.sdpa.operator import is_recorded


def is_step(inputs: Inputs) -> bool:
    """Whether this is such a call. The operator gives the same numbers and takes 0.1 ms longer."""
    key_len = inputs.key.shape[2]
    return (
        inputs.query.shape[2] == 1
        and inputs.offsets is None
        and inputs.query_document is None
        and inputs.key_bias is None
        and -inputs.back <= inputs.offset
        and inputs.offset + key_len - 1 <= inputs.ahead
        and not is_recorded(inputs)
    )


def step(inputs: Inputs) -> Float[Tensor, "B H 1 D"]:
    """The output of such a call."""
    query, key, value, table = inputs[:4]
    mask = None if table is None else table.unsqueeze(2)
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=inputs.scale, enable_gqa=grouped)
