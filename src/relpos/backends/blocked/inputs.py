"""What the operator of this backend takes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relpos.backends.blocked.pair_bias import PairBiases
from relpos.backends.call import wide


class Inputs(NamedTuple):
    """The arguments of `relpos::blocked_attention`, in its order. A distance d has number `d - least`, of N.

    Attributes:
        query, key, value: `[B, H, Tq, D]`, `[B, G, Tk, D]`, `[B, G, Tk, Dv]`; rotated where the scheme rotates.
        plain_query, plain_key: as they were before; None where nothing rotates.
        bias: `[H, N]`, of each distance.
        key_bias: `[b, H, Tk]`.
        query_table, key_table, value_table: `[H or 1, R, D]`, `[.., Dv]` for values.
        gain: `[H, R]` or `[H, R, D]`.
        query_row, key_row, value_row, gain_row: `[N]`, the rows of the distances, int32.
        query_document, key_document: as `Call.documents` gives them.
        offsets: `[b]`, or None for the same `offset` everywhere; as `Positions.offset`.
        query_position, key_position: `[b, T]`, where positions do not count up along memory; else None.
        attn_mask: `[b, h, Tq, Tk]`.
        seed: of dropout, one integer.
        least, offset, back, ahead: whole numbers; the band is `Call.band`.
        scale, dropout_p: as in `attention`.
        pair_bias: of the call's functions; the operator has no such argument.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    plain_query: Tensor | None
    plain_key: Tensor | None
    bias: Tensor | None
    key_bias: Tensor | None
    query_table: Tensor | None
    key_table: Tensor | None
    value_table: Tensor | None
    gain: Tensor | None
    query_row: Tensor | None
    key_row: Tensor | None
    value_row: Tensor | None
    gain_row: Tensor | None
    query_document: Tensor | None
    key_document: Tensor | None
    offsets: Tensor | None
    query_position: Tensor | None
    key_position: Tensor | None
    attn_mask: Tensor | None
    seed: Tensor | None
    least: int
    offset: int
    back: int
    ahead: int
    scale: float
    dropout_p: float
    pair_bias: PairBiases | None = None

    def differentiable(self) -> list[Tensor | None]:
        """What may need a gradient, in the order of `Gradients`."""
        return [getattr(self, name) for name in Gradients._fields]

    @property
    def size(self) -> int:
        """N."""
        rows = (self.bias, self.query_row, self.key_row, self.value_row, self.gain_row)
        return next((row.shape[-1] for row in rows if row is not None), self.query.shape[2] + self.key.shape[2] - 1)

    @property
    def has_numbers(self) -> bool:
        """Whether a pair's distance may follow from something else than its places in memory."""
        return self.query_position is not None or (self.offsets is not None and self.is_paired)

    @property
    def is_paired(self) -> bool:
        """Whether who sees whom has to be looked up pair by pair."""
        return self.query_position is not None or self.attn_mask is not None


class Gradients(NamedTuple):
    """Of the inputs of the same names, None for those that have none; in float32 or float64 while they are summed."""

    query: Tensor
    key: Tensor
    value: Tensor
    plain_query: Tensor | None
    plain_key: Tensor | None
    bias: Tensor | None
    key_bias: Tensor | None
    query_table: Tensor | None
    key_table: Tensor | None
    value_table: Tensor | None
    gain: Tensor | None

    @classmethod
    def zeros(cls, inputs: Inputs) -> Gradients:
        """To be summed, in float32 or float64."""
        dtype = wide(inputs.query.dtype)
        return cls._of([None if x is None else torch.zeros(x.shape, dtype=dtype) for x in inputs.differentiable()])

    def rounded(self, inputs: Inputs) -> Gradients:
        """In the dtypes of the inputs."""
        pairs = zip(self, inputs.differentiable(), strict=True)
        return self._of([None if x is None or like is None else x.to(like.dtype) for x, like in pairs])

    @classmethod
    def _of(cls, values: list[Tensor | None]) -> Gradients:
        query, key, value, *others = values
        assert query is not None
        assert key is not None
        assert value is not None
        return cls(query, key, value, *others)


#: How many of the inputs are tensors; they come first.
TENSORS = Inputs._fields.index("least")
