"""Sinusoidal absolute positions, as in the first Transformer."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from relpos import functional
from relpos.functional.sinusoids import check_sinusoids
from relpos.positions import Positions
from relpos.schemes.absolute import Absolute, positions_of


class Sinusoidal(Absolute, name="sinusoidal"):
    r"""Adds sines and cosines of each token's position to its input embedding; see `functional.sinusoidal_table`.

    Args:
        embed_dim: width E, odd ones too.
        base: 10000 in the paper, no unit.
        layout: `"interleaved"` (the paper) or `"concatenated"` (Marian).

    State: none; computed in float64 for the positions at hand and rounded to the dtype of the input.
    Cost: `T E` numbers a call.
    Valid: defined at any length; a model is only good at positions that it was trained on.
    Source: Vaswani et al. 2017, section 3.5.

    >>> import torch
    >>> Sinusoidal(embed_dim=4).embed(torch.zeros(1, 1, 4))
    tensor([[[0., 1., 0., 1.]]])
    """

    def __init__(self, embed_dim: int, base: float = 10000.0, layout: str = "interleaved") -> None:
        super().__init__()
        check_sinusoids("Sinusoidal", embed_dim, base, layout)
        self.embed_dim, self.base, self.layout = embed_dim, base, layout

    def reset_parameters(self) -> None:
        """Nothing is learned."""

    def embed(self, x: Float[Tensor, "B T E"], positions: Positions | None = None) -> Float[Tensor, "B T E"]:
        """`x` plus the sinusoids of each token's position (counted from 0 where none are given), in its dtype."""
        rows = positions_of(self, x, positions)
        return x + functional.sinusoidal_table(rows, self.embed_dim, self.base, self.layout, dtype=x.dtype)
