"""torch's own flash attention for CPUs, by its private names: only they give the log-sum-exp and take it."""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float
from torch import Tensor

#: What is called here, as torch 2.13 has it.
SCHEMAS = {
    "_scaled_dot_product_flash_attention_for_cpu": (
        "(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *,"
        " Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)"
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        "(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p,"
        " bool is_causal, *, Tensor? attn_mask=None, float? scale=None)"
        " -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)"
    ),
}


@functools.cache
def why_not() -> tuple[str, ...]:
    """Why the kernels cannot be used with the installed torch; looked up once."""
    reasons = []
    for name, expected in SCHEMAS.items():
        operator = getattr(torch.ops.aten, name, None)
        if operator is None:
            reasons.append(f"torch {torch.__version__} has no aten::{name}")
        elif str(operator.default._schema) != f"aten::{name}{expected}":
            reasons.append(f"torch {torch.__version__} has another aten::{name} than this version of relpos knows")
    return tuple(reasons)


def forward(
    query: Float[Tensor, "B H Tq D"],
    key: Float[Tensor, "B G Tk D"],
    value: Float[Tensor, "B G Tk D"],
    mask: Float[Tensor, "b h Tq Tk"] | None,
    is_causal: bool,
    scale: float,
) -> tuple[Float[Tensor, "B H Tq D"], Float[Tensor, "B H Tq"]]:
    """Output and log-sum-exp. A row whose mask is all -inf gives zeros and a log-sum-exp of 0."""
    output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    return output, logsumexp


def backward(
    grad_output: Float[Tensor, "B H Tq D"],
    query: Float[Tensor, "B H Tq D"],
    key: Float[Tensor, "B G Tk D"],
    value: Float[Tensor, "B G Tk D"],
    output: Float[Tensor, "B H Tq D"],
    logsumexp: Float[Tensor, "B H Tq"],
    mask: Float[Tensor, "b h Tq Tk"] | None,
    is_causal: bool,
    scale: float,
) -> tuple[Float[Tensor, "B H Tq D"], Float[Tensor, "B G Tk D"], Float[Tensor, "B G Tk D"]]:
    """Gradients of query, key and value."""
    of_query, of_key, of_value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_output, query, key, value, output, logsumexp, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    return of_query, of_key, of_value
