"""What all parity tests share: comparing two computations in values and gradients, random weights, head shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

import relpos

AnyScheme = TypeVar("AnyScheme", bound=relpos.Scheme)

#: Rounding steps allowed, each of the dtype's epsilon at the largest magnitude of the expected tensor (or at 1, where
#: all of it is smaller: a key's bias has the gradient 0 by cancellation): 6e-14 in float64, 3e-5 in float32. Sums over
#: the few dozen terms of these tests in another order were seen to need 20, slopes made by float32 powers 60.
ROUNDINGS = 256


def assert_near(ours: Tensor, theirs: Tensor, what: str) -> None:
    """Equal but for rounding in their dtype."""
    magnitude = max(1.0, float(theirs.detach().abs().max()))
    tolerance = ROUNDINGS * torch.finfo(theirs.dtype).eps * magnitude
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=tolerance, msg=lambda text: f"{what}: {text}")


def assert_agree(ours: Callable[[], Tensor], theirs: Callable[[], Tensor], leaves: Mapping[str, Tensor]) -> None:
    """Both compute the same tensor, and the same gradient for each of the leaves, which both of them must use."""
    expected, actual = theirs(), ours()
    assert_near(actual, expected, "output")
    upstream = torch.randn_like(expected)
    want = torch.autograd.grad(expected, list(leaves.values()), upstream)
    have = torch.autograd.grad(actual, list(leaves.values()), upstream)
    for name, ours_one, theirs_one in zip(leaves, have, want, strict=True):
        assert_near(ours_one, theirs_one, f"gradient of {name}")


def randomised(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module in evaluation mode with random weights everywhere, also where it starts at zero."""
    module.to(dtype).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            # Scores of a few units: no softmax that is flat, none that is saturated.
            parameter.normal_(std=0.5 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5)
    return module


def leaves_of(module: nn.Module, **more: Tensor) -> dict[str, Tensor]:
    """All parameters of the module, and more, by name."""
    return {**dict(module.named_parameters()), **more}


def inputs(batch: int, length: int, width: int, dtype: torch.dtype) -> Tensor:
    """Random hidden states that want a gradient."""
    return torch.randn(batch, length, width, dtype=dtype, requires_grad=True)


def with_tables(scheme: AnyScheme, **tables: Tensor) -> AnyScheme:
    """The scheme reading these tensors in place of its own parameters, so that gradients reach what made them."""
    for name, table in tables.items():
        assert getattr(scheme, name).shape == table.shape, (name, getattr(scheme, name).shape, table.shape)
        delattr(scheme, name)
        setattr(scheme, name, table)
    return scheme


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`[B, T, heads * D]` to `[B, heads, T, D]`."""
    parts: Tensor = x.unflatten(-1, (heads, -1))
    return parts.transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """`[B, H, T, D]` to `[B, T, H * D]`."""
    return x.transpose(1, 2).flatten(2)


def padding(lengths: list[int], length: int, side: str) -> Tensor:
    """Bool `[B, length]`, True = a real token."""
    steps = torch.arange(length)
    counts = torch.tensor(lengths)[:, None]
    return steps < counts if side == "right" else steps >= length - counts


def causal(length: int) -> Tensor:
    """Bool `[1, 1, length, length]`, True = visible."""
    return torch.ones(length, length, dtype=torch.bool).tril()[None, None]


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as Hugging Face's eager attention takes it: 0 where visible, else the dtype's minimum."""
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
