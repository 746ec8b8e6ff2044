"""ALiBi's slopes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relpos import errors


def alibi_slopes(
    num_heads: int, max_exponent: float = 8.0, *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, " H"]:
    r"""Slopes of ALiBi for any number of heads, in the published order.

    With `n` the largest power of two not above `num_heads` and `M = max_exponent`: heads `h < n` take
    `2^(-M (h + 1) / n)`; the rest take every second slope of the list for `2 n` heads, `2^(-M (2 i + 1) / (2 n))`
    for `i = h - n`. So the list is not monotone where `num_heads` is no power of two, and must not be sorted:
    checkpoints were trained in this order.

    Args:
        num_heads: number of attention heads, at least 1.
        max_exponent: 8 as published; MPT calls it `alibi_bias_max`.
        dtype: of the result; computed in float64 and rounded once.

    Returns:
        `[num_heads]` on the CPU, positive, per token of distance.

    Source: Press, Smith and Lewis 2022, section 3, and their fairseq code (`get_slopes`). Differs from it: none.
    Raises: TypeError or ValueError for a `num_heads` that is not a positive whole number.

    >>> alibi_slopes(6).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    errors.positive_int("alibi_slopes", num_heads=num_heads)
    errors.finite("alibi_slopes", max_exponent=max_exponent)
    if max_exponent <= 0:
        raise errors.value("alibi_slopes", f"max_exponent={max_exponent}", "a positive number", "8.0 is the paper's.")
    power = 2 ** (num_heads.bit_length() - 1)
    exponents = [(head + 1) / power for head in range(power)]
    exponents += [(2 * extra + 1) / (2 * power) for extra in range(num_heads - power)]
    # device="cpu": a module that is built under torch.device("meta") needs real numbers all the same.
    return torch.tensor([2.0 ** (-max_exponent * exponent) for exponent in exponents], dtype=dtype, device="cpu")
