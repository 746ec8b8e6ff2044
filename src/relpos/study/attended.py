"""How far back each head of a trained model looks: its attention weights, summed over distances."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

import relpos
from relpos.schemes import Scheme
from relpos.study.model import ByteLM
from relpos.study.results import AttendedDistances
from relpos.study.windows import distance_bins

# Queries per length: a mean over a thousand is steady, and weights are dense here.
QUERIES = 1024

# Dense weights: batch * heads * (window / 4) * window numbers at a time.
TOKENS_PER_PASS = 2048


@torch.no_grad()
def attended_distances(model: ByteLM, segments: Int64[Tensor, "K N1"], window: int) -> AttendedDistances:
    """The share of its attention that each head of each layer gives to each bin of distances.

    The mean over about a thousand queries, those in the last quarter of windows spread evenly over the segments: each
    query has at least three quarters of a window before it, as in the sliding score.
    """
    limit = model.max_length()
    starts = distance_bins(window)
    if limit is not None and window > limit:
        reason = f"position {limit} of a window of {window} lies past the table's {limit} rows"
        return AttendedDistances(window, starts, None, reason)
    model.eval()
    windows = segments[:, :-1].unfold(1, window, window).flatten(0, 1)
    used = min(len(windows), max(1, QUERIES // (window // 4)))
    windows = windows[torch.arange(used) * len(windows) // used]
    batches = windows.split(max(1, TOKENS_PER_PASS // window))
    total = sum(torch.stack([_by_bin(weights) for weights in _weights(model, batch)]) for batch in batches)
    assert isinstance(total, Tensor)
    queries = len(windows) * (window // 4)
    shares: tuple[tuple[tuple[float, ...], ...], ...] = tuple(
        tuple(tuple(head) for head in layer) for layer in (total / queries).tolist()
    )
    return AttendedDistances(window, starts, shares)


def _weights(model: ByteLM, tokens: Int64[Tensor, "B T"]) -> Iterator[Float[Tensor, "B H Tq T"]]:
    """The weights of the last quarter of the queries, layer after layer."""
    queries = tokens.shape[1] // 4
    for layer, x in model.attention_inputs(tokens):
        query = layer.query_proj(x[:, -queries:]).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
        key = layer.key_proj(x).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
        scheme = layer.scheme if isinstance(layer.scheme, Scheme) else None
        yield relpos.attention_weights(query, key, key, scheme, is_causal=True)  # weights do not depend on values


def _by_bin(weights: Float[Tensor, "B H Tq T"]) -> Float64[Tensor, "H bins"]:
    """The sum over batch, queries and the keys of each bin."""
    heads, queries, keys = weights.shape[1:]
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    # frexp's exponent is 1 + floor(log2(distance)), and 0 for 0, without rounding; keys ahead have no weight.
    index = torch.frexp(distance.clamp(min=0).double()).exponent.long()
    total = torch.zeros(heads, len(distance_bins(keys)), dtype=torch.float64)
    return total.index_add_(1, index.flatten(), weights.double().sum(0).flatten(1))
