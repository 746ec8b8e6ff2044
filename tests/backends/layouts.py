"""Calls of every layout, and how two backends are compared on them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from conformance import HEADS, gradients
from torch import Tensor
from torch.testing import assert_close

import relpos
from relpos import Positions
from relpos.schemes import Scheme
from relpos.terms import KeyBias, Term


class ByKey(Scheme):
    """A learned number for every key, alike in every row of the batch or one each."""

    encodes = "position"
    injects_at = "scores"

    def __init__(self, batch: int, keys: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.randn(batch, HEADS, keys, dtype=dtype))

    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.values)

    def terms(self, positions: Positions) -> tuple[Term, ...]:
        return (KeyBias(self.values),)


def ragged(length: int) -> Tensor:
    """Lengths of two rows, one of them shorter."""
    return torch.tensor([length, length - length // 3])


def padded(length: int) -> Tensor:
    return torch.arange(length) < ragged(length)[:, None]


def holes(length: int) -> Tensor:
    """A mask with gaps, the same in every run, that leaves each row something to see."""
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(5)) > 0.4
    keep[:, length // 2] = True
    return keep


def cut(length: int) -> Tensor:
    """Ends of three documents, the first of which may be empty."""
    return torch.tensor([0, length // 3, length // 3 + (length + 1) // 2, length])


#: Layout -> how many more keys than queries, and the arguments of the call for so many queries.
LAYOUTS: dict[str, tuple[int, Callable[[int], dict[str, object]]]] = {
    "all": (0, lambda n: {}),
    "causal": (0, lambda n: {"is_causal": True}),
    "window": (0, lambda n: {"window": (5, 3)}),
    "causal window": (0, lambda n: {"is_causal": True, "window": 100}),
    "chunk": (9, lambda n: {"is_causal": True}),
    "offset": (9, lambda n: {"positions": Positions.arange(n, n + 9, 3)}),
    "offsets": (9, lambda n: {"positions": Positions.arange(n, n + 9, torch.tensor([2, 11])), "is_causal": True}),
    "ahead of all keys": (9, lambda n: {"positions": Positions.arange(n, n + 9, -4), "is_causal": True}),
    "far": (9, lambda n: {"positions": Positions.explicit(torch.arange(n) + 300, torch.arange(n + 9) + 250)}),
    "packed": (0, lambda n: {"positions": Positions.packed(cut(n))}),
    "packed causal": (0, lambda n: {"positions": Positions.packed(cut(n)), "is_causal": True, "window": (40, 9)}),
    "right padding": (0, lambda n: {"key_mask": padded(n)}),
    "left padding": (0, lambda n: {"key_mask": padded(n).flip(1), "is_causal": True}),
    "counted": (0, lambda n: {"positions": Positions.from_mask(padded(n).flip(1)), "is_causal": True}),
    "lengths": (0, lambda n: {"lengths": ragged(n)}),
    "key lengths": (9, lambda n: {"lengths": ragged(n), "is_causal": True}),
    "holes": (0, lambda n: {"key_mask": holes(n), "is_causal": True, "window": 2}),
    "a blind row": (0, lambda n: {"key_mask": padded(n) & torch.tensor([[True], [False]])}),
}


def wide_hole(length: int) -> dict[str, object]:
    """Queries that see nothing amid others that do: no key within their window is real."""
    keep = (torch.arange(length) < length // 3) | (torch.arange(length) > length // 3 + 6)
    return {"key_mask": keep.expand(2, -1), "is_causal": True, "window": 2}


def run(
    backend: str, inputs: tuple[Tensor, ...], scheme: Scheme | list[Scheme], call: dict[str, object]
) -> list[Tensor]:
    """Output, and the gradients of inputs and tables."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = relpos.attention(*leaves, scheme, backend=backend, **call)
    return [output.detach(), *gradients(output, leaves, torch.nn.ModuleList(_listed(scheme)))]


def _listed(scheme: Scheme | list[Scheme]) -> list[Scheme]:
    return scheme if isinstance(scheme, list) else [scheme]


def compare(got: list[Tensor], expected: list[Tensor], dtype: torch.dtype, ulps: float = 256) -> None:
    """Each tensor within so many units in the last place of its largest number, in the dtype of its computation.

    A number of a table's gradient is a sum over all pairs, whose rounding grows with the root of their number.
    """
    for place, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        terms = theirs.shape[-2] if place < 4 else got[0].numel()
        allowed = ulps * terms**0.5 * torch.finfo(dtype).eps * theirs.abs().max().clamp(min=1).item()
        assert_close(mine.double(), theirs.double(), rtol=0.0, atol=allowed)


def transposed(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def columns_first(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def expanded(x: Tensor) -> Tensor:
    return x[:1, :1, :1].expand_as(x)


def with_garbage(inputs: tuple[Tensor, ...], call: dict[str, object], value: float) -> tuple[Tensor, ...]:
    """`value` in every place that no query of its batch row may see, and in queries that see nothing."""
    weights = relpos.attention_weights(*inputs, relpos.NoPE(), **call)
    blind, unseen = (weights == 0).all(-1), (weights == 0).all(2)
    assert unseen.any()
    query, *others = inputs
    unseen = unseen.unflatten(1, (others[0].shape[1], -1)).all(2)
    return query.masked_fill(blind[..., None], value), *(x.masked_fill(unseen[..., None], value) for x in others)
