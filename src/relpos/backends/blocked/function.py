"""Attention with a pair bias, which is a function of Python: no operator's schema holds one, so a graph breaks here."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from relpos.backends.blocked.backward import backward
from relpos.backends.blocked.forward import forward
from relpos.backends.blocked.inputs import TENSORS, Gradients, Inputs
from relpos.backends.blocked.pair_bias import PairBiases, PairGradients
from relpos.backends.call import wide
from relpos.backends.operators import is_recorded, no_second_gradient

WHY = "relpos: the pair bias of a scheme is a Python function, which the operator of 'blocked' cannot hold in a graph"


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(numbers: tuple[Any, ...], biases: PairBiases, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        return forward(_together(numbers, biases, tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.numbers, ctx.biases, *tensors = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        if grad_output is None:
            return (None,) * len(needs)
        found = _Gradient.apply(grad_output, ctx.numbers, ctx.biases, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return (None, None, *(grad if needed else None for grad, needed in zip(found, needs[2:], strict=True)))


class _Gradient(torch.autograd.Function):
    """The gradient, as a function of its own, so that a gradient of it is refused in words."""

    @staticmethod
    def forward(
        ctx: Any, grad_output: Tensor, numbers: tuple[Any, ...], biases: PairBiases, *saved: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *tensors, output, logsumexp = saved
        assert output is not None
        assert logsumexp is not None
        inputs = _together(numbers, biases, tensors)
        assert inputs.pair_bias is not None
        of_pairs = PairGradients(inputs.pair_bias, wide(inputs.query.dtype))
        grads = backward(grad_output, output, logsumexp, inputs, of_pairs)
        return (*grads, *(None,) * (TENSORS - len(Gradients._fields)), *of_pairs.rounded())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> NoReturn:
        no_second_gradient("blocked")()


def _together(numbers: tuple[Any, ...], biases: PairBiases, tensors: Any) -> Inputs:
    return Inputs(*tensors[:TENSORS], *numbers)._replace(pair_bias=biases.of(tensors[TENSORS:]))


@torch.compiler.disable(reason=WHY)  # type: ignore[untyped-decorator]
def pair_biased_attention(inputs: Inputs) -> Tensor:
    """The output, recorded where somebody follows the call."""
    biases = inputs.pair_bias
    assert biases is not None
    if not is_recorded((*inputs, *biases.tensors())):
        return forward(inputs)[0]
    numbers, tensors = inputs[TENSORS:-1], (*inputs[:TENSORS], *biases.tensors())
    output: Tensor = _Attention.apply(numbers, biases, *tensors)[0]  # type: ignore[no-untyped-call]
    return output
