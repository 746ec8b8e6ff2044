"""What the operators of the fast backends share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor


def is_recorded(inputs: Iterable[object]) -> bool:
    """Whether somebody follows the call: a gradient, a graph, or tensors of another kind."""
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    return is_traced(tensors) or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


def is_traced(tensors: Iterable[Tensor]) -> bool:
    """Whether a graph is being made, or tensors are of another kind: what depends on data must stay in the operator."""
    return torch.compiler.is_compiling() or any(type(x) not in (Tensor, torch.nn.Parameter) for x in tensors)


def keep(tensors: int) -> Callable[[Any, tuple[Any, ...], tuple[Tensor, Tensor]], None]:
    """What an operator keeps for its gradient: its inputs, of which so many come first as tensors, and its output."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:tensors], *output)
        ctx.numbers = inputs[tensors:]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    return setup


def no_second_gradient(backend: str) -> Callable[..., NoReturn]:
    """The gradient of an operator that is a gradient itself."""

    def refuse(*_: object) -> NoReturn:
        raise NotImplementedError(
            f"attention: a gradient of the gradient was asked for, and the {backend!r} backend has the first one only. "
            'What to do: pass backend="reference", which has all of them.'
        )

    return refuse


def laid_out(x: Tensor, dtype: torch.dtype | None = None, value: Tensor | None = None) -> Tensor:
    """Empty, as `x [B, H, T, D]`, or as wide as `value`; heads side by side within a token, as torch's kernels do."""
    batch, heads, length, _ = x.shape
    width = (x if value is None else value).shape[3]
    return x.new_empty(batch, length, heads, width, dtype=dtype).transpose(1, 2)


def add_over_rows(total: Tensor, rows: slice, heads: slice, places: slice, amount: Tensor) -> None:
    """Add `amount [b, h, n]` to these rows, heads and places of `total`, over all rows where it has one for all."""
    if len(total) == 1:
        total[:, heads, places] += amount.sum(0, keepdim=True)
    else:
        total[rows, heads, places] += amount
