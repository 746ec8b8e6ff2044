"""From a distance to a table row: T5's and DeBERTa's logarithmic buckets and Shaw's clipping.

Every function takes `distance = key - query` (the past is negative) as integers and returns int64 of the same
shape on the same device. Logarithms are taken in float32 whatever dtype the model has, because the edges of the
trained buckets are those of float32: bfloat16 moves distance 90 of a 32/128 T5 table into the next bucket.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Int
from torch import Tensor

from relpos import errors


def t5_bucket(
    distance: Int[Tensor, "*shape"], *, bidirectional: bool, num_buckets: int, max_distance: int
) -> Int[Tensor, "*shape"]:
    r"""Bucket of T5's relative position bias.

    Let `n` be the number of buckets of one side (`num_buckets / 2` if `bidirectional`, else `num_buckets`),
    `e = n // 2` the exact range, and `a` the distance into the past (`abs(distance)` if `bidirectional`,
    else `max(-distance, 0)`). The bucket of that side is

        a                                                       if a < e
        min(e + floor(log(a / e) / log(max_distance / e) * (n - e)), n - 1)   otherwise

    and, if `bidirectional`, keys to the right of the query (`distance > 0`) add `n`.

    Args:
        distance: key minus query, any integer dtype, any shape.
        bidirectional: True for encoders; False reads all of the future as distance 0.
        num_buckets: rows of the table; at least 4 if `bidirectional`, else at least 2.
        max_distance: distance from which on all keys share the last bucket; larger than the exact range.

    Returns:
        int64 in `[0, num_buckets)`, same shape. With `bidirectional`, row `num_buckets / 2` is never used.

    Source: mesh-tensorflow `transformer_layers.py`, `_relative_position_bucket`; Raffel et al. 2020, section 2.1.
    Raises: TypeError for distances that are not integers; ValueError for a `max_distance` inside the exact range.

    >>> t5_bucket(torch.tensor([-16, 16, 0]), bidirectional=True, num_buckets=32, max_distance=128)
    tensor([10, 26,  0])
    """
    check_t5_buckets("t5_bucket", bidirectional, num_buckets, max_distance)
    errors.integers("t5_bucket", distance=distance)
    distance = distance.long()
    side = num_buckets // 2 if bidirectional else num_buckets
    past = distance.abs() if bidirectional else (-distance).clamp(min=0)
    exact = side // 2
    # The order of these float32 operations is that of the source: it decides on which side an edge falls.
    ratio = torch.log(past.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (side - exact)).long()).clamp(max=side - 1)
    bucket = torch.where(past < exact, past, far)
    return bucket + side * (distance > 0) if bidirectional else bucket


def check_t5_buckets(call: str, bidirectional: bool, num_buckets: int, max_distance: int) -> None:
    """Refuse T5 bucket settings whose logarithm has no range to cover."""
    errors.positive_int(call, num_buckets=num_buckets, max_distance=max_distance)
    errors.flags(call, bidirectional=bidirectional)
    least = 4 if bidirectional else 2
    if num_buckets < least or (bidirectional and num_buckets % 2):
        even = "even and " if bidirectional else ""
        raise errors.value(
            call,
            f"num_buckets={num_buckets} with bidirectional={bidirectional}",
            f"{even}at least {least}",
            "raise num_buckets.",
        )
    exact = (num_buckets // 2 if bidirectional else num_buckets) // 2
    if max_distance <= exact:
        raise errors.value(
            call,
            f"max_distance={max_distance} with num_buckets={num_buckets}, bidirectional={bidirectional}",
            f"max_distance > {exact}, since distances below {exact} have a bucket each",
            "raise max_distance or lower num_buckets.",
        )


def deberta_bucket(distance: Int[Tensor, "*shape"], *, num_buckets: int, max_distance: int) -> Int[Tensor, "*shape"]:
    r"""Signed logarithmic bucket of DeBERTa v2/v3, odd in its argument.

    With `mid = num_buckets // 2` and `a = abs(distance)`: the distance itself for `a <= mid`, else

        sign(distance) * (mid + ceil(log(a / mid) / log((max_distance - 1) / mid) * (mid - 1)))

    The table row is `span + deberta_bucket(query - key)`, that is `span - deberta_bucket(distance)`, clamped to
    the table by the scheme (distances past `max_distance` give buckets past `num_buckets - 1`).

    Args:
        distance: any integer dtype, any shape; the function is odd, so either sign convention may be used.
        num_buckets: buckets of one side (`position_buckets` of the checkpoint), at least 2.
        max_distance: `max_relative_positions` of the checkpoint; `max_distance - 1 > num_buckets // 2`.

    Returns:
        int64, same shape.

    Source: microsoft/DeBERTa `da_utils.py`, `make_log_bucket_position`; Hugging Face `deberta_v2`.
    Raises: TypeError for distances that are not integers; ValueError for a `max_distance` inside the exact range.

    >>> deberta_bucket(torch.tensor([129, -300, 5]), num_buckets=256, max_distance=512)
    tensor([ 129, -207,    5])
    """
    check_deberta_buckets("deberta_bucket", num_buckets, max_distance)
    errors.integers("deberta_bucket", distance=distance)
    distance = distance.long()
    mid = num_buckets // 2
    size = distance.abs()
    # log((max - 1) / mid) is itself a float32 logarithm in the source, unlike T5's.
    span = torch.log(torch.tensor((max_distance - 1) / mid, dtype=torch.float32, device=distance.device))
    far = torch.ceil(torch.log(size.clamp(min=1).float() / mid) / span * (mid - 1)).long() + mid
    return torch.where(size <= mid, distance, far * distance.sign())


def deberta_row(
    distance: Int[Tensor, "*shape"], *, num_buckets: int | None, max_distance: int
) -> Int[Tensor, "*shape"]:
    r"""Row of DeBERTa's table of `2 span` positions: `clamp(span - bucket(distance), 0, 2 span - 1)`.

    `bucket` is `deberta_bucket` and `span` is `num_buckets` (v2, v3); with `num_buckets=None` distances are counted one
    by one and `span` is `max_distance` (v1).

    Args:
        distance: key minus query, any integer dtype, any shape.
        num_buckets, max_distance: `position_buckets` and `max_relative_positions` of the checkpoint.

    Returns:
        int64, same shape: the row that c2p and p2c alike read.

    Source: Hugging Face `deberta` (v1) and `deberta_v2`, which write distances as query minus key.
    Raises: as `deberta_bucket`.

    >>> deberta_row(torch.tensor([-129, 300]), num_buckets=256, max_distance=512)
    tensor([385,  49])
    """
    if num_buckets is None:
        errors.positive_int("deberta_row", max_distance=max_distance)
        errors.integers("deberta_row", distance=distance)
        span, distance = max_distance, distance.long()
    else:
        span, distance = num_buckets, deberta_bucket(distance, num_buckets=num_buckets, max_distance=max_distance)
    return (span - distance).clamp(0, 2 * span - 1)


def check_deberta_buckets(call: str, num_buckets: int, max_distance: int) -> None:
    """Refuse DeBERTa bucket settings whose logarithm has no range to cover."""
    errors.positive_int(call, num_buckets=num_buckets, max_distance=max_distance)
    if num_buckets < 2 or max_distance - 1 <= num_buckets // 2:
        raise errors.value(
            call,
            f"num_buckets={num_buckets}, max_distance={max_distance}",
            f"num_buckets >= 2 and max_distance > {num_buckets // 2 + 1}, since distances up to "
            f"{num_buckets // 2} have a bucket each",
            "raise max_distance, or lower num_buckets (None counts distances one by one, as DeBERTa v1).",
        )


def shaw_index(distance: Int[Tensor, "*shape"], max_distance: int | tuple[int, int]) -> Int[Tensor, "*shape"]:
    r"""Row of a clipped distance: `clip(distance, -left, right) + left`.

    Args:
        distance: key minus query, any integer dtype, any shape.
        max_distance: `k` for both sides, or `(left, right)`: how far back and how far ahead rows reach.

    Returns:
        int64 in `[0, left + right]`, same shape; row 0 is the most negative distance.

    Source: Shaw, Uszkoreit and Vaswani 2018, section 3.2.
    Raises: TypeError for distances that are not integers; ValueError for a negative limit.

    >>> shaw_index(torch.arange(6), 3)
    tensor([3, 4, 5, 6, 6, 6])
    """
    left, right = sides("shaw_index", max_distance)
    errors.integers("shaw_index", distance=distance)
    return distance.long().clamp(-left, right) + left


def sides(call: str, max_distance: int | tuple[int, int]) -> tuple[int, int]:
    """`(left, right)` of a clipping distance given as one number or as two."""
    pair = max_distance if isinstance(max_distance, tuple) else (max_distance, max_distance)
    if len(pair) != 2 or not all(isinstance(side, int) and not isinstance(side, bool) for side in pair):
        raise errors.wrong_type(
            call, f"max_distance={max_distance!r}", "an int, or two ints (left, right)", "pass whole numbers."
        )
    if min(pair) < 0 or max(pair) < 1:
        raise errors.value(
            call, f"max_distance={max_distance!r}", "limits >= 0, one of them >= 1", "pass how far rows reach."
        )
    return pair
