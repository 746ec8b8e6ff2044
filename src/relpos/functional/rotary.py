"""Rotary position embedding: its frequencies, and the rotation."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos import errors

LAYOUTS = ("half", "interleaved")


def rope_inv_freq(
    rotary_dim: int,
    base: float = 10000.0,
    scaling: None = None,
    length: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, " pairs"], float]:
    r"""Frequencies of RoPE, `inv_freq_m = base^(-2 m / rotary_dim)`, and the factor on the rotated vectors.

    Args:
        rotary_dim: number of rotated channels, even; not the head's width where rotation is partial.
        base: 10000 in the paper, no unit.
        scaling: None. (Frequency scalings for longer inputs are not part of this version.)
        length: the length that a scaling may depend on; unused without one.
        dtype: of the result; computed in float64 and rounded once.

    Returns:
        `(inv_freq [rotary_dim / 2] in radians per token, on the CPU; attention_factor 1.0)`.

    Source: Su et al. 2021, section 3.2.2.
    Raises: ValueError for an odd `rotary_dim`, a base that is not positive, or a scaling.

    >>> rope_inv_freq(4)
    (tensor([1.0000, 0.0100]), 1.0)
    """
    check_rotary("rope_inv_freq", rotary_dim, base, scaling)
    channel = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device="cpu")
    return (base ** (-channel / rotary_dim)).to(dtype), 1.0


def apply_rotary(
    x: Float[Tensor, "*batch T D"],
    positions: Int[Tensor, "*b T"],
    inv_freq: Float[Tensor, " pairs"],
    layout: str,
) -> Float[Tensor, "*batch T D"]:
    r"""Rotate pairs of channels of each token by `angle = position * inv_freq`.

        (a, b) -> (a cos(angle) - b sin(angle), a sin(angle) + b cos(angle))

    Args:
        x: `[..., T, D]`, floating point. The first `2 * len(inv_freq)` channels rotate, the rest pass through.
        positions: whole numbers, `[T]`, or `[B, T]` where the first axis of `x` is a batch of B.
        inv_freq: radians per token, one for each pair.
        layout: `"half"`: channel m pairs with m + rotary_dim / 2 (Llama, GPT-NeoX); `"interleaved"`: 2m with 2m + 1
            (the paper, GPT-J). The two differ by a fixed permutation of channels.

    Returns:
        Same shape and dtype as `x`.

    Numerics: angles in float64, so that position 1 000 000 turns by the right angle; the rotation itself in float32
    (float64 for float64 input), rounded once at the end.
    Source: Su et al. 2021, section 3.4.2 (interleaved); GPT-NeoX and Llama code (half).
    Raises: TypeError for positions that are not integers; ValueError for an unknown layout, more pairs than channels,
        or positions that do not fit the tokens.

    >>> apply_rotary(torch.tensor([[1.0, 0, 0, 0]]), torch.tensor([1]), torch.tensor([1.0, 0.1]), "interleaved")
    tensor([[0.5403, 0.8415, 0.0000, 0.0000]])
    """
    _check_fit(x, positions, inv_freq, layout)
    rotary_dim = 2 * inv_freq.shape[-1]
    if positions.dim() == 2:
        positions = positions.view(len(positions), *[1] * (x.dim() - 3), -1)
    work = torch.promote_types(x.dtype, torch.float32)
    angle = positions[..., None].double() * inv_freq.to(device=x.device, dtype=torch.float64)
    cosine, sine = angle.cos().to(work), angle.sin().to(work)
    turned, rest = x[..., :rotary_dim].to(work), x[..., rotary_dim:]
    if layout == "half":
        a, b = turned.chunk(2, dim=-1)
        turned = torch.cat((a * cosine - b * sine, a * sine + b * cosine), dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * cosine - b * sine, a * sine + b * cosine), dim=-1).flatten(-2)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)


def check_rotary(call: str, rotary_dim: int, base: float, scaling: object) -> None:
    """Refuse settings that no rotation has."""
    errors.positive_int(call, rotary_dim=rotary_dim)
    errors.finite(call, base=base)
    if rotary_dim % 2:
        raise errors.value(call, f"rotary_dim={rotary_dim}", "an even number", "channels rotate in pairs.")
    if not base > 0:
        raise errors.value(call, f"base={base}", "a positive number", "10000.0 is the paper's.")
    if scaling is not None:
        raise errors.value(
            call, f"scaling={scaling!r}", "None", "this version has no frequency scalings: leave it out."
        )


def _check_fit(x: Tensor, positions: Tensor, inv_freq: Tensor, layout: str) -> None:
    if layout not in LAYOUTS:
        raise errors.unknown_name("apply_rotary", "layout", layout, LAYOUTS)
    errors.floats("apply_rotary", x=x, inv_freq=inv_freq)
    errors.integers("apply_rotary", positions=positions)
    if 2 * inv_freq.shape[-1] > x.shape[-1]:
        raise errors.value(
            "apply_rotary",
            f"{inv_freq.shape[-1]} frequencies for {x.shape[-1]} channels",
            "two channels for each frequency",
            "build inv_freq with rotary_dim no larger than the head.",
        )
    one_row = positions.shape == x.shape[-2:-1]
    batch = positions.dim() == 2 and x.dim() > 2 and positions.shape[1] == x.shape[-2]
    if not one_row and not (batch and len(positions) in (1, len(x))):
        raise errors.value(
            "apply_rotary",
            f"positions of shape {list(positions.shape)} for x of shape {list(x.shape)}",
            "[T], or [B, T] for x of shape [B, ..., T, D]",
            "pass one position for each token.",
        )
