"""Distance and key biases through torch's own fast attention, in memory linear in the length.

The bias of a call is a table of `Tq + Tk - 1` numbers a head; torch's kernel reads it through a strided view as if it
were the whole matrix (`relpos.backends.tiles`). Scores are computed as torch computes them: the mask in float32
(float64 for float64), the products in the dtype of the query with float32 sums.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from relpos.backends.call import Call
from relpos.backends.sdpa import flash
from relpos.backends.sdpa.direct import direct
from relpos.backends.sdpa.inputs import Inputs
from relpos.backends.sdpa.operator import distance_attention
from relpos.backends.sdpa.table import distance_table
from relpos.terms import DistanceBias, KeyBias, PairBias, Rotation

RUNS = (DistanceBias, KeyBias, Rotation)


def why_not(call: Call) -> list[str]:
    """What torch's kernel does not do, and what no table of distances can hold."""
    reasons = list(flash.why_not())
    if not call.query.is_cpu:
        reasons.append(f"tensors are on {call.query.device}, and its kernels run on the CPU")
    if any(isinstance(term, PairBias) for term in call.terms):
        reasons.append("PairBias depends on both positions, not on their distance or key alone")
    others = {type(term).__name__ for term in call.terms if not isinstance(term, (*RUNS, PairBias))}
    if others:
        reasons.append(f"{' and '.join(sorted(others))} depend on content, not on distance or key alone")
    if call.query.shape[3] != call.value.shape[3]:
        reasons.append(f"values are {call.value.shape[3]} wide and queries {call.query.shape[3]}; its kernels want one")
    if call.dropout_p:
        reasons.append(f"dropout_p={call.dropout_p:g}, and its kernels have no dropout")
    if call.attn_mask is not None:
        reasons.append("attn_mask is a matrix; it hides by position, document, key_mask and lengths")
    if 0 in call.query.shape or 0 in call.key.shape:
        reasons.append("there are no queries or no keys")
    if call.positions.offset is None and (
        call.is_causal or call.window or any(isinstance(term, DistanceBias) for term in call.terms)
    ):
        reasons.append("positions are not known to count up one by one along memory")
    return reasons


def run(call: Call) -> Float[Tensor, "B H Tq D"]:
    """The attention output."""
    query, key = call.rotated()
    # Without a known offset nothing depends on distance, and any will do.
    offset = 0 if call.positions.offset is None else call.positions.offset
    (query_document, key_document), (back, ahead) = call.documents(), call.band()
    inputs = Inputs(
        query=query,
        key=key,
        value=call.value,
        table=distance_table(call, offset),
        key_bias=call.key_bias(),
        query_document=query_document,
        key_document=key_document,
        offsets=offset if isinstance(offset, Tensor) else None,
        offset=0 if isinstance(offset, Tensor) else offset,
        back=back,
        ahead=ahead,
        scale=call.scale,
    )
    output = direct(inputs)
    return distance_attention(inputs) if output is None else output
