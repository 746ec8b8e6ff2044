"""Dense, eager, any dtype, every term: the meaning of the library, and the yardstick of every other backend.

Everything is computed in float32 (float64 for float64 inputs) and rounded to the dtype of the query once, at the end.
Memory is `B H Tq Tk`.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from relpos.backends.call import Call, wide
from relpos.functional.tables import lookup
from relpos.terms import (
    DistanceBias,
    DistanceGain,
    KeyBias,
    KeyDistance,
    PairBias,
    QueryDistance,
    Rotation,
    ValueDistance,
)


def why_not(call: Call) -> list[str]:
    """No reason ever: every call is valid here."""
    return []


def run(call: Call) -> Float[Tensor, "B H Tq Dv"]:
    """The attention output."""
    dtype = wide(call.query.dtype)
    visible = call.visible()
    probabilities = _probabilities(call, visible, dtype)
    value = _per_query_head(_hide_unseen(call.value.to(dtype), visible), call)
    output = probabilities @ value
    for term in call.terms:
        if isinstance(term, ValueDistance):
            output = output + _value_distance(probabilities, term, call.positions.distance())
    return output.to(call.query.dtype)


def weights(call: Call) -> Float[Tensor, "B H Tq Tk"]:
    """The probabilities, dropout included."""
    dtype = wide(call.query.dtype)
    return _probabilities(call, call.visible(), dtype).to(call.query.dtype)


def _probabilities(
    call: Call, visible: Bool[Tensor, "b h Tq Tk"] | None, dtype: torch.dtype
) -> Float[Tensor, "B H Tq Tk"]:
    scores = _scores(call, visible, dtype)
    if visible is None:
        probabilities = scores.softmax(-1)
    else:
        # Rows that see nothing keep finite scores until after the softmax, so that neither values nor gradients of
        # the other rows ever meet a NaN.
        blind = ~visible.any(-1, keepdim=True)
        probabilities = scores.masked_fill(~(visible | blind), -torch.inf).softmax(-1).masked_fill(blind, 0.0)
    return F.dropout(probabilities, call.dropout_p) if call.dropout_p else probabilities


def _scores(call: Call, visible: Bool[Tensor, "b h Tq Tk"] | None, dtype: torch.dtype) -> Float[Tensor, "B H Tq Tk"]:
    # The scale goes onto the query before any product, which keeps large float16 inputs finite.
    query = _hide_blind(call.query.to(dtype), visible) * call.scale
    key = _per_query_head(_hide_unseen(call.key.to(dtype), visible), call)
    distance = call.positions.distance()
    products = _content(query, key, call, distance)
    for term in call.terms:
        if isinstance(term, QueryDistance):
            products = products + _query_distance(query, term, distance)
        elif isinstance(term, KeyDistance):
            products = products + call.scale * _key_distance(key, term, distance)
    for term in call.terms:
        if isinstance(term, KeyBias):
            products = products + _key_bias(term, query, visible)
        elif isinstance(term, (DistanceBias, PairBias)):
            if isinstance(term, DistanceBias):
                values = term.values(distance, dtype)
            else:
                values = term.between(call.positions.query, call.positions.key, query.shape[1], dtype)
            products = products + (values if values.dim() == 3 else values.transpose(0, 1))
    return products


def _content(
    query: Float[Tensor, "B H Tq D"], key: Float[Tensor, "B H Tk D"], call: Call, distance: Int[Tensor, "*b Tq Tk"]
) -> Float[Tensor, "B H Tq Tk"]:
    """Products of rotated query and key, times the gains of their distances."""
    gains: list[Tensor] = []
    for term in call.terms:
        if isinstance(term, Rotation):
            query = term.apply(query, call.positions.query)
            key = term.apply(key, call.positions.key)
        elif isinstance(term, DistanceGain):
            gains.append(_gain(term, distance, query.dtype))
    if any(gain.dim() == 5 for gain in gains):
        pairs = query[:, :, :, None, :] * key[:, :, None, :, :]
        for gain in gains:
            pairs = pairs * (gain if gain.dim() == 5 else gain[..., None])
        return pairs.sum(-1)
    content = query @ key.transpose(-1, -2)
    for gain in gains:
        content = content * gain
    return content


def _gain(term: DistanceGain, distance: Int[Tensor, "*b Tq Tk"], dtype: torch.dtype) -> Float[Tensor, "b H Tq Tk *D"]:
    gain = lookup(term.table.to(dtype), term.row(distance))
    return gain.transpose(0, 1) if distance.dim() == 3 else gain[None]


def _key_bias(
    term: KeyBias, query: Float[Tensor, "B H Tq D"], visible: Bool[Tensor, "b h Tq Tk"] | None
) -> Float[Tensor, "B H 1 Tk"]:
    values = term.values.to(query.dtype).expand(len(query), -1, -1)
    return _hide_unseen(values[..., None], visible).mT


def _query_distance(
    query: Float[Tensor, "B H Tq D"], term: QueryDistance, distance: Int[Tensor, "*b Tq Tk"]
) -> Float[Tensor, "B H Tq Tk"]:
    by_row = query @ term.table.to(query.dtype).transpose(-1, -2)
    return by_row.gather(-1, _pairs_per_head(term.row(distance), by_row))


def _key_distance(
    key: Float[Tensor, "B H Tk D"], term: KeyDistance, distance: Int[Tensor, "*b Tq Tk"]
) -> Float[Tensor, "B H Tq Tk"]:
    by_row = key @ term.table.to(key.dtype).transpose(-1, -2)
    return by_row.gather(-1, _pairs_per_head(term.row(distance).transpose(-1, -2), by_row)).transpose(-1, -2)


def _value_distance(
    probabilities: Float[Tensor, "B H Tq Tk"], term: ValueDistance, distance: Int[Tensor, "*b Tq Tk"]
) -> Float[Tensor, "B H Tq D"]:
    table = term.table.to(probabilities.dtype)
    by_row = probabilities.new_zeros(*probabilities.shape[:3], table.shape[-2])
    return by_row.scatter_add(-1, _pairs_per_head(term.row(distance), probabilities), probabilities) @ table


def _pairs_per_head(row: Int[Tensor, "*b T1 T2"], like: Float[Tensor, "B H T1 R"]) -> Int[Tensor, "B H T1 T2"]:
    """Table rows of pairs, repeated for every batch row and head."""
    row = row[:, None] if row.dim() == 3 else row[None, None]
    return row.expand(*like.shape[:2], *row.shape[-2:])


def _per_query_head(x: Float[Tensor, "B G Tk D"], call: Call) -> Float[Tensor, "B H Tk D"]:
    groups = call.query.shape[1] // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def _hide_unseen(x: Float[Tensor, "B G Tk D"], visible: Bool[Tensor, "b h Tq Tk"] | None) -> Float[Tensor, "B G Tk D"]:
    """Zero keys or values that no query of their batch row and head may see: 0 * inf would be NaN."""
    if visible is None:
        return x
    seen = visible.any(-2)
    if seen.shape[1] > 1:
        seen = seen.unflatten(1, (x.shape[1], -1)).any(2)
    return x.masked_fill(~seen[..., None], 0.0)


def _hide_blind(x: Float[Tensor, "B H Tq D"], visible: Bool[Tensor, "b h Tq Tk"] | None) -> Float[Tensor, "B H Tq D"]:
    """Zero queries that see no key, whose contents must not reach the gradient of any key."""
    return x if visible is None else x.masked_fill(~visible.any(-1, keepdim=True), 0.0)
