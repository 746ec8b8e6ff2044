"""No position encoding at all."""

from __future__ import annotations

from relpos.positions import Positions
from relpos.schemes.scheme import Scheme
from relpos.terms import Term


class NoPE(Scheme, name="nope"):
    """Adds nothing: a causal model still learns order from its mask, an encoder sees a bag of tokens.

    Valid: any length.
    Source: Haviv et al. 2022; Kazemnejad et al. 2023 (the name).

    >>> NoPE()
    NoPE()
    """

    encodes = "nothing"
    injects_at = "nowhere"

    def __init__(self) -> None:
        super().__init__()

    def terms(self, positions: Positions) -> tuple[Term, ...]:
        """Nothing."""
        return ()

    def reset_parameters(self) -> None:
        """Nothing is learned."""
