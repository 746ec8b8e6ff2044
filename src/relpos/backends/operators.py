"""What the operators of the fast backends share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

import torch
from torch import Tensor


def is_recorded(inputs: Iterable[object]) -> bool:
    """Whether somebody follows the call: a gradient, a graph, or tensors of another kind."""
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    if torch.compiler.is_compiling() or any(type(x) not in (Tensor, torch.nn.Parameter) for x in tensors):
        return True
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def no_second_gradient(backend: str) -> Callable[..., NoReturn]:
    """The gradient of an operator that is a gradient itself."""

    def refuse(*_: object) -> NoReturn:
        raise NotImplementedError(
            f"attention: a gradient of the gradient was asked for, and the {backend!r} backend has the first one only. "
            'What to do: pass backend="reference", which has all of them.'
        )

    return refuse
