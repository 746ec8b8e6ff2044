"""ALiBi: a penalty that grows linearly with distance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relpos import errors, functional
from relpos.functional.tables import Kept
from relpos.positions import Positions
from relpos.schemes.scheme import Scheme
from relpos.terms import DistanceBias, Term


class ALiBi(Scheme, name="alibi"):
    r"""Adds `-bias_scale * slopes[h] * abs(key - query)` to the score, symmetric where attention is not causal.

    Args:
        num_heads: heads H.
        slopes: H numbers in place of `functional.alibi_slopes(num_heads, max_exponent)`; a negative slope rewards
            distance.
        learned: makes the slopes a parameter that starts from these values.
        max_exponent: 8 as published; MPT's `alibi_bias_max`.
        bias_scale: factor on the bias, `1 / sqrt(D)` for Falcon, which scales ALiBi with the scores.

    State: none, or `slopes [H]` if `learned`. Fixed slopes are computed from the configuration and not stored.
    Numerics: distance times slope in float32 (float64 for float64 queries) whatever the model's dtype: bfloat16 merges
        94% of neighbouring distances at 4096 tokens.
    Cost: no parameters; `slopes` is per token of distance.
    Valid: any length.
    Source: Press, Smith and Lewis 2022, section 3. Bias by key index, as BLOOM and MPT write it, differs by a constant
        for each row, which softmax removes where attention is causal.
    Raises: ValueError for a list of slopes that is not one finite number for each head.

    >>> ALiBi(num_heads=2).bias(3)[0].tolist()
    [[0.0, -0.0625, -0.125], [-0.0625, 0.0, -0.0625], [-0.125, -0.0625, 0.0]]
    """

    encodes = "distance"
    injects_at = "scores"
    head_tables = ("slopes", "initial_slopes")

    def __init__(
        self,
        num_heads: int,
        slopes: Sequence[float] | Tensor | None = None,
        learned: bool = False,
        max_exponent: float = 8.0,
        bias_scale: float = 1.0,
    ) -> None:
        super().__init__()
        errors.positive_int("ALiBi", num_heads=num_heads)
        errors.flags("ALiBi", learned=learned)
        errors.finite("ALiBi", bias_scale=bias_scale)
        self.num_heads, self.learned, self.max_exponent, self.bias_scale = num_heads, learned, max_exponent, bias_scale
        # A plain float64 CPU tensor is configuration: `.to(dtype)` does not round it and no state dict holds it.
        self.initial_slopes = _slopes(num_heads, slopes, max_exponent)
        self.slopes: Tensor = nn.Parameter(torch.empty(num_heads)) if learned else self.initial_slopes.float()
        self._penalties = Kept()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Learned slopes back to the published ones (or to those given)."""
        if self.learned:
            with torch.no_grad():
                self.slopes.copy_(self.initial_slopes)

    def terms(self, positions: Positions) -> tuple[Term, ...]:
        """One distance bias."""
        return (DistanceBias(self._values, None if self.learned else self._between),)

    def _between(self, first: int, end: int, dtype: torch.dtype) -> Float[Tensor, "H n"]:
        if torch.compiler.is_compiling():  # which cannot read the slopes
            return self._values(torch.arange(first, end), dtype)
        config = (self.bias_scale, tuple(self.initial_slopes.tolist()), dtype)
        return self._penalties.between(first, end, config, lambda distance: self._values(distance, dtype))

    def _values(self, distance: Int[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "H *shape"]:
        slopes = (self.slopes if self.learned else self.initial_slopes).to(device=distance.device, dtype=dtype)
        return (slopes * -self.bias_scale).view(-1, *[1] * distance.dim()) * distance.abs()


def _slopes(num_heads: int, slopes: Sequence[float] | Tensor | None, max_exponent: float) -> Float[Tensor, " H"]:
    if slopes is None:
        return functional.alibi_slopes(num_heads, max_exponent, dtype=torch.float64)
    given = slopes.tolist() if isinstance(slopes, Tensor) else list(slopes)
    allowed = f"{num_heads} finite numbers, one for each head"
    if len(given) != num_heads:
        raise errors.value("ALiBi", f"slopes={given}", allowed, "pass them in the order of the heads.")
    errors.finite("ALiBi", **{f"slopes[{head}]": slope for head, slope in enumerate(given)})
    return torch.tensor(given, dtype=torch.float64, device="cpu")
