"""Every term, block by block of queries, in memory linear in the length.

For a block of queries torch makes the products: with the keys, with the rows of a query table, and once for all blocks
those of a key table with the keys. The native kernel (`relpos._native`) adds what each pair's distance reads of them
and makes the softmax. All of it is float32 (float64 for float64), and rounded to the dtype of the query once; but of
bfloat16, products are bfloat16 where only the kernel reads them (`part.products`).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relpos.backends.blocked import tables
from relpos.backends.blocked.inputs import Inputs
from relpos.backends.blocked.operator import blocked_attention
from relpos.backends.blocked.pair_bias import PairBiases
from relpos.backends.call import Call
from relpos.terms import KeyBias, KeyDistance, PairBias, QueryDistance, Rotation, ValueDistance

#: Distances that a table of rows may span.
SPAN = 2**24


def why_not(call: Call) -> list[str]:
    """Other devices, empty inputs, and distances that are unknown or too many for a table."""
    if not call.query.is_cpu:
        return [f"tensors are on {call.query.device}, and its kernel runs on the CPU"]
    if 0 in call.query.shape or 0 in call.key.shape or 0 in call.value.shape:
        return ["there are no queries, no keys or no channels"]
    if _pair_biases(call) and any(type(x) not in (Tensor, torch.nn.Parameter) for x in call[:3]):
        return ["a pair bias is a function, and tensors of another kind want an operator"]
    if isinstance(call.positions.offset, int) or not _needs_distance(call):
        return []
    if torch.compiler.is_compiling():
        return ["positions differ from row to row or have gaps, and a graph does not know how far they reach"]
    span = _distances(call)[1]
    return [f"positions are up to {span} apart, and its tables hold {SPAN} distances"] if span > SPAN else []


def run(call: Call) -> Float[Tensor, "B H Tq Dv"]:
    """The attention output."""
    query, key = call.rotated()
    is_rotated = any(isinstance(term, Rotation) for term in call.terms)
    (query_document, key_document), (back, ahead) = call.documents(), call.band()
    offset, (least, size) = call.positions.offset, _distances(call)
    distance = torch.arange(least, least + size)
    query_table, query_row = tables.vectors(call, QueryDistance, distance)
    key_table, key_row = tables.vectors(call, KeyDistance, distance)
    value_table, value_row = tables.vectors(call, ValueDistance, distance)
    gain, gain_row = tables.gain(call, distance)
    has_gaps = offset is None and _needs_distance(call)
    inputs = Inputs(
        query=query,
        key=key,
        value=call.value,
        plain_query=call.query if is_rotated and query_table is not None else None,
        plain_key=call.key if is_rotated and key_table is not None else None,
        bias=tables.bias(call, least, size),
        key_bias=call.key_bias(),
        query_table=query_table,
        key_table=key_table,
        value_table=value_table,
        gain=gain,
        query_row=query_row,
        key_row=key_row,
        value_row=value_row,
        gain_row=gain_row,
        query_document=query_document,
        key_document=key_document,
        offsets=offset if isinstance(offset, Tensor) else None,
        query_position=_by_row(call.positions.query) if has_gaps else None,
        key_position=_by_row(call.positions.key) if has_gaps else None,
        attn_mask=_four_dimensional(call),
        seed=torch.randint(2**62, ()) if call.dropout_p else None,
        least=least,
        offset=offset if isinstance(offset, int) else 0,
        back=back,
        ahead=ahead,
        scale=call.scale,
        dropout_p=call.dropout_p,
        pair_bias=_pair_bias(call),
    )
    return blocked_attention(inputs)


def _needs_distance(call: Call) -> bool:
    """Whether anything asks how far apart two tokens are, and not only where each is."""
    return (
        call.is_causal
        or call.window is not None
        or any(not isinstance(term, (Rotation, KeyBias, PairBias)) for term in call.terms)
    )


def _distances(call: Call) -> tuple[int, int]:
    """The smallest distance that there may be, and how many there are from it to the largest."""
    query_len, key_len, positions = call.query.shape[2], call.key.shape[2], call.positions
    if positions.offset is None and _needs_distance(call):
        least = int(positions.key.min() - positions.query.max())
        return least, int(positions.key.max() - positions.query.min()) - least + 1
    if isinstance(positions.offset, Tensor):
        low, high = (int(offset) for offset in positions.offset.aminmax())
    else:
        low = high = positions.offset or 0
    return low + 1 - query_len, high - low + query_len + key_len - 1


def _pair_bias(call: Call) -> PairBiases | None:
    terms = _pair_biases(call)
    return PairBiases(terms, _by_row(call.positions.query), _by_row(call.positions.key)) if terms else None


def _pair_biases(call: Call) -> tuple[PairBias, ...]:
    return tuple(term for term in call.terms if isinstance(term, PairBias))


def _by_row(positions: Tensor) -> Tensor:
    return positions if positions.dim() == 2 else positions[None]


def _four_dimensional(call: Call) -> Tensor | None:
    if call.attn_mask is None:
        return None
    mask = call.attn_mask if call.attn_mask.dim() == 4 else call.attn_mask[None, None]
    return mask.expand(-1, -1, call.query.shape[2], call.key.shape[2])
