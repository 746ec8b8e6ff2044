"""`relpos::blocked_attention`: schema, kernels, shapes for graphs, gradient. Imported once, by the backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relpos.backends.blocked.backward import backward
from relpos.backends.blocked.forward import forward
from relpos.backends.blocked.function import pair_biased_attention
from relpos.backends.blocked.inputs import TENSORS, Gradients, Inputs
from relpos.backends.call import wide
from relpos.backends.operators import is_recorded, keep, laid_out, no_second_gradient

NAME = "relpos::blocked_attention"
_KINDS = {"Tensor": "Tensor", "Tensor | None": "Tensor?", "int": "SymInt", "float": "float"}
ARGUMENTS = ", ".join(
    f"{_KINDS[kind.__forward_arg__]} {name}" for name, kind in list(Inputs.__annotations__.items())[:-1]
)
#: How many of the arguments may have a gradient; they come first.
GRADIENTS = len(Gradients._fields)

torch.library.define(NAME, f"({ARGUMENTS}) -> (Tensor output, Tensor logsumexp)")
torch.library.define(
    f"{NAME}_backward", f"(Tensor grad_output, Tensor output, Tensor logsumexp, {ARGUMENTS}) -> Tensor[]"
)


@torch.library.impl(NAME, "cpu")
def _forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    return forward(Inputs(*inputs))


@torch.library.register_fake(NAME)  # type: ignore[untyped-decorator]
def _forward_shapes(*inputs: Any) -> tuple[Tensor, Tensor]:
    given = Inputs(*inputs)
    sums = given.query.new_empty(given.query.shape[:3], dtype=wide(given.query.dtype))
    return laid_out(given.query, value=given.value), sums


@torch.library.impl(f"{NAME}_backward", "cpu")
def _backward(grad_output: Tensor, output: Tensor, logsumexp: Tensor, *inputs: Any) -> list[Tensor]:
    grads = backward(grad_output, output, logsumexp, Inputs(*inputs))
    return [grad for grad in grads if grad is not None]


@torch.library.register_fake(f"{NAME}_backward")  # type: ignore[untyped-decorator]
def _backward_shapes(grad_output: Tensor, output: Tensor, logsumexp: Tensor, *inputs: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in inputs[:GRADIENTS] if x is not None]


def _gradient(ctx: Any, grad_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad
    if grad_output is None:
        return (None,) * len(needs)
    *tensors, output, logsumexp = ctx.saved_tensors
    grads = iter(torch.ops.relpos.blocked_attention_backward(grad_output, output, logsumexp, *tensors, *ctx.numbers))
    found = [None if x is None else next(grads) for x in tensors[:GRADIENTS]]
    wanted = [grad if needed else None for grad, needed in zip(found, needs, strict=False)]
    return (*wanted, *(None,) * (len(needs) - GRADIENTS))


torch.library.register_autograd(NAME, _gradient, setup_context=keep(TENSORS))
torch.library.register_autograd(f"{NAME}_backward", no_second_gradient("blocked"))


def blocked_attention(inputs: Inputs) -> Tensor:
    """The output, by the operator, or at once where nothing is recorded: no gradient, no graph, no other tensors."""
    if inputs.pair_bias is not None:
        output: Tensor = pair_biased_attention(inputs)
    elif is_recorded(inputs):
        output = torch.ops.relpos.blocked_attention(*inputs[:-1])[0]
    else:
        output = forward(inputs)[0]
    return output
