"""Biases of pairs of positions, which a function makes: for some pairs at a time, and again for their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos.backends.tiles import of_rows
from relpos.terms import PairBias

#: Pairs whose biases are made together. On its way to one number a function may need many, 32 in FIRE.
PAIRS = 2**15


class PairBiases(NamedTuple):
    """What all pair biases of a call add, and who stands where; a row of positions serves all rows of the batch."""

    terms: tuple[PairBias, ...]
    query: Int[Tensor, "b Tq"]
    key: Int[Tensor, "c Tk"]

    def tensors(self) -> list[Tensor]:
        """What the functions learn."""
        return [tensor for term in self.terms for tensor in term.tensors]

    def of(self, tensors: Sequence[Tensor]) -> PairBiases:
        """The same functions of other tensors, in the order of `tensors()`."""
        left = iter(tensors)
        terms = (PairBias(term.values, tuple(next(left) for _ in term.tensors)) for term in self.terms)
        return self._replace(terms=tuple(terms))

    def add_to(self, scores: Float[Tensor, "b H q k"], rows: slice, queries: slice, keys: slice) -> None:
        """Add the biases of these queries and keys to their scores."""
        for some, values in self.each(scores, rows, queries, keys):
            scores[:, :, some] += values.transpose(0, 1)

    def each(
        self, scores: Float[Tensor, "b H q k"], rows: slice, queries: slice, keys: slice
    ) -> Iterator[tuple[slice, Float[Tensor, "H b q k"]]]:
        """Which of the queries, and the biases of those, few enough pairs at a time."""
        query, key = of_rows(self.query, rows)[:, queries], of_rows(self.key, rows)[:, keys]
        size = max(PAIRS // (key.shape[1] * max(len(query), len(key))), 1)
        for first in range(0, query.shape[1], size):
            some = slice(first, first + size)
            each = [term.between(query[:, some], key, scores.shape[1], scores.dtype) for term in self.terms]
            yield some, each[0] if len(each) == 1 else torch.stack(each).sum(0)


class PairGradients:
    """What the blocks of a backward pass add up for the tensors of pair biases, in the dtype of their sums."""

    def __init__(self, biases: PairBiases, dtype: torch.dtype) -> None:
        self.given = biases.tensors()
        self.leaves = [x.detach().to(dtype) if x.is_floating_point() else x for x in self.given]
        self.wanted = [leaf for leaf, x in zip(self.leaves, self.given, strict=True) if x.requires_grad]
        self.sums = [torch.zeros_like(leaf, memory_format=torch.contiguous_format) for leaf in self.wanted]
        for leaf in self.wanted:
            leaf.requires_grad_()
        self.biases = biases.of(self.leaves)

    def add(self, of_scores: Float[Tensor, "b H q k"], rows: slice, queries: slice, keys: slice) -> None:
        """Add what the gradient of these scores gives."""
        if not self.wanted:
            return
        with torch.enable_grad():
            for some, values in self.biases.each(of_scores, rows, queries, keys):
                amount = of_scores[:, :, some].transpose(0, 1)
                amount = amount.sum(1, keepdim=True) if values.shape[1] == 1 else amount
                grads = torch.autograd.grad(values, self.wanted, amount, allow_unused=True)
                for total, grad in zip(self.sums, grads, strict=True):
                    if grad is not None:
                        total += grad

    def rounded(self) -> list[Tensor | None]:
        """For each tensor, in its dtype."""
        sums = iter(self.sums)
        return [next(sums).to(x.dtype) if x.requires_grad else None for x in self.given]
