"""Reading a table by rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from jaxtyping import Float, Int
from torch import Tensor

Numbers = Callable[[Int[Tensor, " n"]], Tensor]


class Kept:
    """What distances -n to n read, for the largest n so far: a decoded token reads what the one before it read.

    Configuration, not state: a plain CPU tensor in no state dict, which copies and pickles leave behind.
    """

    def __init__(self) -> None:
        self._kept: tuple[Hashable, Tensor] = (None, torch.empty(0, device="cpu"))

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()

    def between(self, first: int, end: int, config: Hashable, numbers: Numbers) -> Tensor:
        """`numbers(distance)`, `[..., end - first]`, of distances `first` to `end - 1`, kept for one `config`."""
        reach = max(-first, end - 1)
        if torch.compiler.is_compiling() or reach > 2 * (end - first):
            return numbers(torch.arange(first, end, device="cpu"))
        kept_config, kept = self._kept
        if kept_config != config or reach > kept.shape[-1] // 2:
            most = 1 << reach.bit_length()
            with torch.inference_mode(False), torch.no_grad():
                kept = numbers(torch.arange(-most, most + 1, device="cpu"))
            if type(kept) is Tensor:  # not one of a trace, which means nothing after it
                self._kept = config, kept
        return kept.narrow(-1, first + kept.shape[-1] // 2, end - first)


def lookup(table: Float[Tensor, "H R *D"], row: Int[Tensor, "*shape"]) -> Float[Tensor, "H *shape_and_D"]:
    """`table[:, row]`: for each head, the entries of those rows, `[H, *shape, *D]`.

    Through `index_select`, whose gradient is deterministic and, on a CPU, five times as fast as that of indexing.
    """
    if row.dim() == 1:
        return table.index_select(1, row)
    return table.index_select(1, row.flatten()).reshape(len(table), *row.shape, *table.shape[2:])
