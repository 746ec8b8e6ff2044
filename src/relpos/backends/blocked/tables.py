"""A call's terms as one table of each kind, and the row of each that a distance reads."""

from __future__ import annotations

from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos.backends.call import Call, wide
from relpos.functional.tables import lookup
from relpos.terms import DistanceBias, DistanceGain, KeyDistance, QueryDistance, ValueDistance

Vectors = type[QueryDistance] | type[KeyDistance] | type[ValueDistance]


def vectors(
    call: Call, kind: Vectors, distance: Int[Tensor, " N"]
) -> tuple[Float[Tensor, "h R D"] | None, Int[Tensor, " N"] | None]:
    """The table of all terms of one kind, and its rows; several are summed into one table with a row a distance."""
    terms = [term for term in call.terms if isinstance(term, kind)]
    tables = [term.table if term.table.dim() == 3 else term.table[None] for term in terms]
    if len(terms) < 2:
        return (tables[0], terms[0].row(distance).int()) if terms else (None, None)
    each = [
        lookup(table.to(wide(call.query.dtype)), term.row(distance)) for table, term in zip(tables, terms, strict=True)
    ]
    return reduce(torch.add, each), _each(distance)


def gain(call: Call, distance: Int[Tensor, " N"]) -> tuple[Float[Tensor, "H R *D"] | None, Int[Tensor, " N"] | None]:
    """The product of all gains, by channel where one of them is."""
    terms = [term for term in call.terms if isinstance(term, DistanceGain)]
    if len(terms) < 2:
        return (terms[0].table, terms[0].row(distance).int()) if terms else (None, None)
    each = [lookup(term.table.to(wide(call.query.dtype)), term.row(distance)) for term in terms]
    most = max(values.dim() for values in each)
    each = [values if values.dim() == most else values[..., None] for values in each]
    return reduce(torch.mul, each), _each(distance)


def bias(call: Call, least: int, size: int) -> Float[Tensor, "H N"] | None:
    """The sum of all distance biases."""
    dtype, device = wide(call.query.dtype), call.query.device
    each = [term.over(least, least + size, dtype, device) for term in call.terms if isinstance(term, DistanceBias)]
    return reduce(torch.add, each) if each else None


def _each(distance: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    return torch.arange(len(distance), dtype=torch.int32, device=distance.device)
