"""What a scheme may add to attention. A scheme returns terms; a backend computes them; neither knows the other.

    score  = scale * (content + query x distance + key x distance) + distance bias + key bias + pair bias
    output = softmax(score) @ (value + value x distance)

where content is the product of rotated query and key, times the gain of their distance. `d = key - query`
everywhere, and `row` maps distances to rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos import errors, functional
from relpos.functional.tables import lookup

RowOf = Callable[[Int[Tensor, "*shape"]], Int[Tensor, "*shape"]]


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotates query and key by their own positions before the product.

    `inv_freq` in radians per token, one for each pair of channels; `layout` as in `functional.apply_rotary`.
    """

    inv_freq: Float[Tensor, " pairs"]
    layout: str

    def apply(self, x: Float[Tensor, "B H T D"], positions: Int[Tensor, "*b T"]) -> Float[Tensor, "B H T D"]:
        """`x` rotated by `positions` (`[T]` or `[B, T]`)."""
        return functional.apply_rotary(x, positions, self.inv_freq, self.layout)


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """Adds `b[h, d]` to the score, unscaled.

    `values(distance, dtype)` takes int64 of any shape and returns `[H, *shape]`, computed in `dtype`.
    `between(first, end, dtype)` gives `[H, end - first]`, those of distances `first` to `end - 1`, where a scheme has
    a faster way to them. `row` says which row of its table a distance reads, where it has a table: no backend needs
    it, who looks at the scheme does.
    """

    values: Callable[[Int[Tensor, "*shape"], torch.dtype], Float[Tensor, "H *shape"]]
    between: Callable[[int, int, torch.dtype], Float[Tensor, "H n"]] | None = None
    row: RowOf | None = None

    def over(self, first: int, end: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "H n"]:
        """The values at distances `first` to `end - 1`."""
        if self.between is not None:
            return self.between(first, end, dtype)
        return self.values(torch.arange(first, end, device=device), dtype)

    @classmethod
    def clipped(
        cls, reach: int, between: Callable[[int, int, torch.dtype], Float[Tensor, "H n"]], row: RowOf | None = None
    ) -> DistanceBias:
        """A bias whose value at distance d is that at `clip(d, -reach, reach)`."""

        def values(distance: Int[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "H *shape"]:
            return lookup(between(-reach, reach + 1, dtype), distance.clamp(-reach, reach) + reach)

        return cls(values, between, row)

    @classmethod
    def of_table(cls, table: Float[Tensor, "H n"]) -> DistanceBias:
        """The values at distances `-n // 2` to `n // 2`, n odd; those farther away share the end columns."""
        reach = table.shape[1] // 2

        def between(first: int, end: int, dtype: torch.dtype) -> Float[Tensor, "H n"]:
            column = torch.arange(first, end, device=table.device).clamp(-reach, reach) + reach
            return lookup(table.to(dtype), column)

        return cls.clipped(reach, between)


@dataclass(frozen=True, eq=False)
class KeyBias:
    """Adds `values[b, h, j]` to every score of key j, unscaled; B is 1 where rows of the batch agree."""

    values: Float[Tensor, "B H Tk"]


@dataclass(frozen=True, eq=False)
class PairBias:
    """Adds `b[h, i, j]` to the score, a number for each head and pair of positions i and j, unscaled.

    `values(query, key, dtype, *tensors)` takes int64 positions whose shapes broadcast to that of the pairs
    (`[*b, Tq, 1]` and `[*b, 1, Tk]`) and returns `[H, *b, Tq, Tk]`, computed in `dtype`. It is called for some queries
    and keys at a time, again in the backward pass, and for pairs that are hidden, so it is the same function each time
    and finite everywhere. Whatever of it learns stands in `tensors`: it has no other gradient.
    """

    values: Callable[..., Float[Tensor, "H *pairs"]]
    tensors: tuple[Tensor, ...] = ()

    def between(
        self, query: Int[Tensor, "*b Tq"], key: Int[Tensor, "*c Tk"], heads: int, dtype: torch.dtype
    ) -> Float[Tensor, "H *d Tq Tk"]:
        """The numbers of all pairs of these positions."""
        query, key = query[..., :, None], key[..., None, :]
        values = self.values(query, key, dtype, *self.tensors)
        shape = (heads, *torch.broadcast_shapes(query.shape, key.shape))
        if values.shape != shape:
            raise errors.value(
                "attention",
                f"PairBias whose values have shape {list(values.shape)}",
                f"{list(shape)}: heads, then the pairs",
                f"return one number for each of {heads} heads and each pair of positions.",
            )
        return values


@dataclass(frozen=True, eq=False)
class QueryDistance:
    """Adds `query_i . table[h, row(d)]` to the product, before the scale."""

    table: Float[Tensor, "*H R D"]
    row: RowOf


@dataclass(frozen=True, eq=False)
class KeyDistance:
    """Adds `key_j . table[h, row(d)]` to the product, before the scale."""

    table: Float[Tensor, "*H R D"]
    row: RowOf


@dataclass(frozen=True, eq=False)
class DistanceGain:
    """Multiplies the content product: by `table[h, row(d)]` where the table is `[H, R]`, or channel by channel,
    `sum_c query_ic key_jc table[h, row(d), c]`, where it is `[H, R, D]`."""

    table: Float[Tensor, "H R *D"]
    row: RowOf


@dataclass(frozen=True, eq=False)
class ValueDistance:
    """Adds `sum_j p_ij table[h, row(d)]` to the output, p being the probabilities."""

    table: Float[Tensor, "*H R D"]
    row: RowOf


Term = Rotation | DistanceBias | KeyBias | PairBias | QueryDistance | KeyDistance | DistanceGain | ValueDistance
