"""One attention call, checked and complete: what the front door hands to a backend."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relpos.positions import Positions
from relpos.terms import KeyBias, Rotation, Term

#: A side of a window that hides nothing.
UNBOUNDED = torch.iinfo(torch.int64).max


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of biases, log-sum-exps and sums: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


class Call(NamedTuple):
    """Arguments as in `relpos.attention`, on one device, with every default resolved.

    Attributes:
        query, key, value: `[B, H, Tq, D]`, `[B, G, Tk, D]`, `[B, G, Tk, Dv]`, one dtype.
        positions: of Tq queries and Tk keys.
        terms: what the schemes add.
        scale: factor on the products.
        is_causal: hides keys whose position is after the query's.
        window: `(back, ahead)` or None.
        attn_mask: `[Tq, Tk]` or 4-D, bool, or None.
        key_mask: `[B, Tk]`, bool, or None.
        lengths: `[B]` or None.
        dropout_p: on the probabilities.
        backend: the one asked for, or "auto".
    """

    query: Float[Tensor, "B H Tq D"]
    key: Float[Tensor, "B G Tk D"]
    value: Float[Tensor, "B G Tk Dv"]
    positions: Positions
    terms: tuple[Term, ...]
    scale: float
    is_causal: bool
    window: tuple[int, int] | None
    attn_mask: Bool[Tensor, "..."] | None
    key_mask: Bool[Tensor, "B Tk"] | None
    lengths: Int[Tensor, " B"] | None
    dropout_p: float
    backend: str

    def band(self) -> tuple[int, int]:
        """`(back, ahead)`: causality and window hide every pair outside `-back <= key - query <= ahead`."""
        back, ahead = self.window or (UNBOUNDED, UNBOUNDED)
        return back, min(ahead, 0) if self.is_causal else ahead

    def documents(self) -> tuple[Int[Tensor, "b Tq"], Int[Tensor, "b Tk"]] | tuple[None, None]:
        """Documents of queries and keys, padding masks and lengths among them as document -1; None where all see all.

        b is 1 where rows agree.
        """
        query, key = self.positions.query_document, self.positions.key_document
        if query is None or key is None:
            if self.key_mask is None and self.lengths is None:
                return None, None
            query = self.positions.query.new_zeros(1, self.query.shape[2])
            key = self.positions.key.new_zeros(1, self.key.shape[2])
        query, key = query.view(-1, self.query.shape[2]), key.view(-1, self.key.shape[2])
        if self.key_mask is not None:
            key = key.masked_fill(~self.key_mask, -1)
        if self.lengths is not None:
            within = torch.arange(self.key.shape[2], device=key.device) < self.lengths[:, None]
            key = key.masked_fill(~within, -1)
            query = query.masked_fill(~within, -1) if self.query.shape[2] == self.key.shape[2] else query
        rows = max(len(query), len(key))
        return query.expand(rows, -1), key.expand(rows, -1)

    def rotated(self) -> tuple[Float[Tensor, "B H Tq D"], Float[Tensor, "B G Tk D"]]:
        """Query and key after all rotations, each rounded to its dtype once."""
        query, key = self.query, self.key
        for term in self.terms:
            if isinstance(term, Rotation):
                query, key = (
                    term.apply(x.to(wide(x.dtype)), positions).to(x.dtype)
                    for x, positions in ((query, self.positions.query), (key, self.positions.key))
                )
        return query, key

    def key_bias(self) -> Float[Tensor, "b H Tk"] | None:
        """All key biases, summed."""
        biases = [term.values.to(wide(self.query.dtype)) for term in self.terms if isinstance(term, KeyBias)]
        return torch.stack(torch.broadcast_tensors(*biases)).sum(0) if biases else None

    def visible(self) -> Bool[Tensor, "b h Tq Tk"] | None:
        """Which query may attend to which key, all masks combined; dimensions b and h are 1 where rows or heads agree.

        None where every query sees every key.
        """
        parts: list[Tensor] = []
        if self.is_causal or self.window is not None:
            distance, (back, ahead) = _with_batch(self.positions.distance()), self.band()
            parts.append((distance >= -back) & (distance <= ahead))
        query_document, key_document = self.documents()
        shown = Positions(self.positions.query, self.positions.key, query_document, key_document).same_document()
        if shown is not None:
            parts.append(_with_batch(shown))
        if self.attn_mask is not None:
            parts.append(self.attn_mask if self.attn_mask.dim() == 4 else self.attn_mask[None, None])
        if not parts:
            return None
        both = parts[0]
        for part in parts[1:]:
            both = both & part
        return both.expand(*both.shape[:2], self.query.shape[2], self.key.shape[2])


def _with_batch(pairs: Tensor) -> Tensor:
    """`[Tq, Tk]` or `[B, Tq, Tk]` with the axes of a 4-D mask."""
    return pairs[:, None] if pairs.dim() == 3 else pairs[None, None]
