"""The sinusoidal position table."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos import errors

LAYOUTS = ("interleaved", "concatenated")


def sinusoidal_table(
    positions: Int[Tensor, "*shape"],
    embed_dim: int,
    base: float = 10000.0,
    layout: str = "interleaved",
    *,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*shape E"]:
    r"""Sines and cosines of positions, `angle_m = position * base^(-2 m / embed_dim)`.

    Args:
        positions: whole numbers, any shape; negative ones give the sines' mirror image (sine odd, cosine even).
        embed_dim: width E, at least 1; an odd width has one sine more than it has cosines.
        base: 10000 in the paper, no unit.
        layout: `"interleaved"`: sine m at channel 2m and cosine m at 2m + 1, as in the paper; `"concatenated"`:
            all sines, then all cosines, as in Marian.
        dtype: of the result; computed in float64 and rounded once.

    Returns:
        `[*shape, embed_dim]` on the device of `positions`.

    Source: Vaswani et al. 2017, section 3.5. Differs from it: none. tensor2tensor (and with it Whisper, M2M100 and
    Speech2Text) divides by `h - 1` instead of `h = E / 2` in the exponent: for even widths from 4 its table is
    `base=10000 ** (h / (h - 1))` with the concatenated layout.
    Raises: TypeError for positions that are not integers; ValueError for an unknown layout.

    >>> sinusoidal_table(torch.arange(1), 7)
    tensor([[0., 1., 0., 1., 0., 1., 0.]])
    """
    check_sinusoids("sinusoidal_table", embed_dim, base, layout)
    errors.integers("sinusoidal_table", positions=positions)
    channel = torch.arange(0, embed_dim, 2, dtype=torch.float64, device=positions.device)
    angle = positions[..., None].double() * base ** (-channel / embed_dim)
    sine, cosine = angle.sin(), angle.cos()[..., : embed_dim // 2]
    if layout == "concatenated":
        return torch.cat((sine, cosine), dim=-1).to(dtype)
    table = torch.empty(*positions.shape, embed_dim, dtype=torch.float64, device=positions.device)
    table[..., 0::2] = sine
    table[..., 1::2] = cosine
    return table.to(dtype)


def check_sinusoids(call: str, embed_dim: int, base: float, layout: str) -> None:
    """Refuse settings that no sinusoidal table has."""
    errors.positive_int(call, embed_dim=embed_dim)
    errors.finite(call, base=base)
    if not base > 0:
        raise errors.value(call, f"base={base}", "a positive number", "10000.0 is the paper's.")
    if layout not in LAYOUTS:
        raise errors.unknown_name(call, "layout", layout, LAYOUTS)
