"""`relpos::distance_attention`: schema, kernels, shapes for graphs, gradient. Imported once, by the backend.

The loops over padding and documents depend on data, so they live inside: a graph sees one operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relpos.backends.call import wide
from relpos.backends.operators import is_recorded, keep, laid_out, no_second_gradient
from relpos.backends.sdpa.backward import backward
from relpos.backends.sdpa.forward import forward
from relpos.backends.sdpa.inputs import Inputs, readable, zeros_for

NAME = "relpos::distance_attention"
ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? table, Tensor? key_bias, Tensor? query_document,"
    " Tensor? key_document, Tensor? offsets, SymInt offset, SymInt back, SymInt ahead, float scale"
)

torch.library.define(NAME, f"({ARGUMENTS}) -> (Tensor output, Tensor logsumexp)")
torch.library.define(
    f"{NAME}_backward",
    "(Tensor grad_output, Tensor output, Tensor logsumexp, bool of_table, bool of_key_bias, "
    f"{ARGUMENTS}) -> (Tensor query, Tensor key, Tensor value, Tensor table, Tensor key_bias)",
)


@torch.library.impl(NAME, "cpu")
def _forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    output, logsumexp = forward(Inputs(*inputs))
    assert logsumexp is not None
    return output, logsumexp


@torch.library.register_fake(NAME)  # type: ignore[untyped-decorator]
def _forward_shapes(*inputs: Any) -> tuple[Tensor, Tensor]:
    query = Inputs(*inputs).query
    return torch.empty_like(readable(query)), query.new_empty(query.shape[:3], dtype=wide(query.dtype))


@torch.library.impl(f"{NAME}_backward", "cpu")
def _backward(
    grad_output: Tensor, output: Tensor, logsumexp: Tensor, of_table: bool, of_key_bias: bool, *inputs: Any
) -> tuple[Tensor, ...]:
    return tuple(backward(grad_output, output, logsumexp, of_table, of_key_bias, Inputs(*inputs)))


@torch.library.register_fake(f"{NAME}_backward")  # type: ignore[untyped-decorator]
def _backward_shapes(
    grad_output: Tensor, output: Tensor, logsumexp: Tensor, of_table: bool, of_key_bias: bool, *inputs: Any
) -> tuple[Tensor, ...]:
    given = Inputs(*inputs)
    return (
        *(torch.empty_like(readable(x)) if of_table or of_key_bias else laid_out(x) for x in given[:3]),
        zeros_for(given.table, of_table, given.query),
        zeros_for(given.key_bias, of_key_bias, given.query),
    )


def _gradient(ctx: Any, grad_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad
    if grad_output is None:
        return (None,) * len(needs)
    *tensors, output, logsumexp = ctx.saved_tensors
    grads = torch.ops.relpos.distance_attention_backward(
        grad_output, output, logsumexp, needs[3], needs[4], *tensors, *ctx.numbers
    )
    wanted = [grad if needed else None for grad, needed in zip(grads, needs[:5], strict=True)]
    return (*wanted, *(None,) * (len(needs) - 5))


torch.library.register_autograd(NAME, _gradient, setup_context=keep(8))
torch.library.register_autograd(f"{NAME}_backward", no_second_gradient("sdpa"))


def distance_attention(inputs: Inputs) -> Tensor:
    """The output, by the operator, or at once where nothing is recorded: no gradient, no graph, no other tensors."""
    if is_recorded(inputs):
        output: Tensor = torch.ops.relpos.distance_attention(*inputs)[0]
        return output
    return forward(inputs, keep_sums=False)[0]
