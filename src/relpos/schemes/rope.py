"""Rotary position embedding."""

from __future__ import annotations

import torch

from relpos import errors, functional
from relpos.functional.rotary import LAYOUTS, check_rotary
from relpos.positions import Positions
from relpos.schemes.scheme import Scheme
from relpos.terms import Rotation, Term


class Rotary(Scheme, name="rope"):
    r"""Rotates pairs of channels of query and key by their positions, so that the product depends on the distance.

        angle_m = position * base^(-2 m / rotary_dim)      for pair m of rotary_dim / 2

    Args:
        head_dim: head width D.
        rotary_dim: channels that rotate, the first ones; all of them if None (GPT-NeoX, GPT-J: a part).
        base: 10000 in the paper, no unit.
        layout: `"half"` pairs channel m with m + rotary_dim / 2 (Llama, GPT-NeoX); `"interleaved"` pairs 2m with
            2m + 1 (the paper, GPT-J). Checkpoints need the one that they were trained with.
        scaling: None. (Frequency scalings for longer inputs are not part of this version.)

    State: none; frequencies are computed from the configuration.
    Numerics: angles in float64 from int64 positions, the rotation in float32 (float64 for float64 input).
    Cost: no parameters; `O(T D)` time.
    Valid: defined at any length; perplexity rises beyond the trained one.
    Source: Su et al. 2021, section 3.2.
    Raises: ValueError for an odd `rotary_dim`, one wider than the head, or an unknown layout.

    >>> Rotary(head_dim=64)
    Rotary(head_dim=64, rotary_dim=64, base=10000.0, layout='half')
    """

    encodes = "distance"
    injects_at = "query and key"

    def __init__(
        self,
        head_dim: int,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        layout: str = "half",
        scaling: None = None,
    ) -> None:
        super().__init__()
        errors.positive_int("Rotary", head_dim=head_dim)
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        check_rotary("Rotary", rotary_dim, base, scaling)
        if rotary_dim > head_dim:
            raise errors.value(
                "Rotary", f"rotary_dim={rotary_dim}", f"at most head_dim={head_dim}", "rotate fewer channels."
            )
        if layout not in LAYOUTS:
            raise errors.unknown_name("Rotary", "layout", layout, LAYOUTS)
        self.head_dim, self.rotary_dim, self.base, self.layout = head_dim, rotary_dim, base, layout

    def reset_parameters(self) -> None:
        """Nothing is learned."""

    def terms(self, positions: Positions) -> tuple[Term, ...]:
        """One rotation."""
        inv_freq, _ = functional.rope_inv_freq(self.rotary_dim, self.base, dtype=torch.float64)
        return (Rotation(inv_freq.to(positions.query.device), self.layout),)
