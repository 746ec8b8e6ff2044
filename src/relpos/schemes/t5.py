"""T5's bucketed relative position bias."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relpos import errors, functional
from relpos.functional.buckets import check_t5_buckets
from relpos.functional.tables import Kept, lookup
from relpos.positions import Positions
from relpos.schemes.scheme import Scheme
from relpos.terms import DistanceBias, Term


class T5Bias(Scheme, name="t5"):
    r"""Adds `bias_scale * table[h, t5_bucket(d)]` to a score that T5 does not scale.

        score_ij = scale * (query_i . key_j) + bias_scale * table[h, t5_bucket(key - query)]

    Args:
        num_heads: heads H.
        num_buckets: rows of the table, 32 in T5.
        max_distance: distance from which on keys share the last bucket, 128 in T5.
        bidirectional: True for encoders; False for decoders, where all of the future reads bucket 0.
        bias_scale: factor on the bias; 1 in T5.
        scale: softmax scale that the scheme declares. 1.0 is T5's: its initialisation absorbs `1 / sqrt(D)`. `None`
            takes `1 / sqrt(D)`, which suits networks with ordinary initialisation.

    State: `table [H, num_buckets]` (the transpose of T5's `relative_attention_bias.weight`). Starts at zero; give it a
        larger learning rate than matrices need.
    Numerics: buckets in float32 from int64 distances, whatever the model's dtype.
    Cost: `H num_buckets` parameters.
    Valid: any length; blind to differences beyond `max_distance`.
    Source: Raffel et al. 2020, section 2.1; mesh-tensorflow. T5 shares one table among all layers of a stack: share the
        module. Neither T5 nor its code scales the bias by `sqrt(3 / D)`.
    Raises: ValueError for a `max_distance` inside the exact range.

    >>> T5Bias(num_heads=8)
    T5Bias(num_heads=8, num_buckets=32, max_distance=128, bidirectional=True, bias_scale=1.0, scale=1.0)
    """

    encodes = "distance"
    injects_at = "scores"
    head_tables = ("table",)

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        bias_scale: float = 1.0,
        scale: float | None = 1.0,
    ) -> None:
        super().__init__()
        errors.positive_int("T5Bias", num_heads=num_heads)
        errors.finite("T5Bias", bias_scale=bias_scale, **({} if scale is None else {"scale": scale}))
        check_t5_buckets("T5Bias", bidirectional, num_buckets, max_distance)
        self.num_heads, self.num_buckets, self.max_distance = num_heads, num_buckets, max_distance
        self.bidirectional, self.bias_scale, self.scale = bidirectional, bias_scale, scale
        self._rows = Kept()
        self.table = nn.Parameter(torch.empty(num_heads, num_buckets))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All zero: no preference for any distance."""
        nn.init.zeros_(self.table)

    def terms(self, positions: Positions) -> tuple[Term, ...]:
        """One distance bias."""
        return (DistanceBias.clipped(self.max_distance, self._between, self._bucket),)

    def _between(self, first: int, end: int, dtype: torch.dtype) -> Float[Tensor, "H n"]:
        config = (self.bidirectional, self.num_buckets, self.max_distance)
        table = self.table.to(dtype)
        values = lookup(table, self._rows.between(first, end, config, self._bucket).to(table.device))
        return values if self.bias_scale == 1.0 else self.bias_scale * values

    def _bucket(self, distance: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        return functional.t5_bucket(
            distance,
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
