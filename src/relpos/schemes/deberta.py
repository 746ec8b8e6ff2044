"""DeBERTa's disentangled attention: content and distance meet in both directions."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relpos import errors, functional
from relpos.functional.buckets import check_deberta_buckets
from relpos.functional.tables import lookup
from relpos.positions import Positions
from relpos.schemes.scheme import Scheme
from relpos.terms import DistanceBias, KeyDistance, QueryDistance, Term

PARTS = ("c2p", "p2c", "p2p")


class Disentangled(Scheme, name="deberta"):
    r"""Adds the products of content with projected position vectors, and of those with each other.

        score_ij = (query_i . key_j                               content to content
                    + query_i . c2p_table[h, r]                   "c2p"
                    + key_j . p2c_table[h, r]                     "p2c"
                    + c2p_table[h, r] . p2c_table[h, r])          "p2p"
                   / sqrt(D (1 + number of parts))

        r = clamp(span + bucket(query - key), 0, 2 span - 1)

    `bucket` is `functional.deberta_bucket` and `span` is `num_buckets` (v2, v3); with `num_buckets=None` distances are
    counted one by one and `span` is `max_distance` (v1).

    Args:
        num_heads: heads H.
        head_dim: head width D.
        num_buckets: `position_buckets` of the checkpoint, or None for v1.
        max_distance: `max_relative_positions` of the checkpoint.
        parts: which of "c2p", "p2c", "p2p" to add. Released models use the first two.

    State: `c2p_table` (projected keys of positions) and `p2c_table` (projected queries), `[H, 2 span, D]`, where a part
        needs them; "p2p" is the product of the two and has none of its own. Normal with standard deviation 0.02. How a
        DeBERTa model projects its one embedding into these tables is the model's business.
    Numerics: rows in int64 from float32 logarithms; products by the attention backend. "p2p" does not depend on
        content, so it is a distance bias, already scaled; `attention(scale=...)` does not reach it.
    Cost: `2 span H D` parameters a table; time `O(T span D + T^2)` over plain attention.
    Valid: any length; distances past `max_distance` share the end rows.
    Source: He et al. 2021, section 3.1; microsoft/DeBERTa; Hugging Face `deberta` (v1) and `deberta_v2`. Differs from
        the paper: p2c reads row r as c2p does, where the paper writes `delta(j, i)`: the released weights need it.
    Raises: ValueError for unknown parts or a `max_distance` inside the exact range.

    >>> Disentangled(num_heads=2, head_dim=4, num_buckets=8, max_distance=16).c2p_table.shape
    torch.Size([2, 16, 4])
    """

    encodes = "distance"
    injects_at = "scores"

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_buckets: int | None = 256,
        max_distance: int = 512,
        parts: tuple[str, ...] = ("c2p", "p2c"),
    ) -> None:
        super().__init__()
        errors.positive_int("Disentangled", num_heads=num_heads, head_dim=head_dim, max_distance=max_distance)
        if num_buckets is not None:
            check_deberta_buckets("Disentangled", num_buckets, max_distance)
        parts = tuple(parts or ())
        if not parts or len(set(parts)) < len(parts) or not set(parts) <= set(PARTS):
            raise errors.value(
                "Disentangled", f"parts={parts}", "one or more of 'c2p', 'p2c', 'p2p', each once", "released: c2p, p2c."
            )
        self.num_heads, self.head_dim = num_heads, head_dim
        self.num_buckets, self.max_distance, self.parts = num_buckets, max_distance, parts
        self.span = max_distance if num_buckets is None else num_buckets
        self.scale = 1.0 / math.sqrt(head_dim * (1 + len(parts)))
        shape = (num_heads, 2 * self.span, head_dim)
        self.c2p_table = nn.Parameter(torch.empty(shape)) if {"c2p", "p2p"} & set(parts) else None
        self.p2c_table = nn.Parameter(torch.empty(shape)) if {"p2c", "p2p"} & set(parts) else None
        self.head_tables = tuple(name for name, _ in self.named_parameters())
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small random vectors."""
        for table in self.parameters():
            nn.init.normal_(table, std=0.02)

    def terms(self, positions: Positions) -> tuple[Term, ...]:
        """Query x distance for c2p, key x distance for p2c, a distance bias for p2p."""
        terms: list[Term] = []
        if self.c2p_table is not None and "c2p" in self.parts:
            terms.append(QueryDistance(self.c2p_table, self._row))
        if self.p2c_table is not None and "p2c" in self.parts:
            terms.append(KeyDistance(self.p2c_table, self._row))
        if "p2p" in self.parts:
            terms.append(DistanceBias(self._position_to_position, row=self._row))
        return tuple(terms)

    def _row(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        return functional.deberta_row(distance, num_buckets=self.num_buckets, max_distance=self.max_distance)

    def _position_to_position(self, distance: Int[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "H *shape"]:
        assert self.c2p_table is not None
        assert self.p2c_table is not None
        assert self.scale is not None
        products = (self.c2p_table.to(dtype) * self.p2c_table.to(dtype)).sum(-1)
        return self.scale * lookup(products, self._row(distance))
