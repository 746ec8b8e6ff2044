"""What the two absolute schemes share: they act on the input, and attention refuses them."""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos import errors
from relpos.positions import Positions
from relpos.schemes.scheme import Scheme
from relpos.terms import Term


class Absolute(Scheme):
    """A scheme that is added to the input embedding: it has `embed`, and attention refuses it."""

    encodes = "position"
    injects_at = "input"
    embed_dim: int

    @abstractmethod
    def embed(self, x: Float[Tensor, "B T E"], positions: Positions | None = None) -> Float[Tensor, "B T E"]:
        """`x` plus what stands for each token's position (counted from 0 where none are given), in the dtype of `x`."""

    def terms(self, positions: Positions) -> tuple[Term, ...]:
        """Refused: it acts on the input."""
        raise refuse_in_attention(self, f"{type(self).__name__}.terms")


def refuse_in_attention(scheme: Absolute, call: str) -> ValueError:
    """The error for an absolute scheme handed to attention, where it would do nothing in silence."""
    name = type(scheme).__name__
    return errors.value(
        call,
        f"scheme {name}, an absolute scheme, which acts on the input and not on the scores",
        "relative schemes and None",
        f"add it to the embeddings, x = scheme.embed(x), and leave {name} out of the attention call.",
    )


def positions_of(scheme: Absolute, x: Float[Tensor, "B T E"], positions: Positions | None) -> Int[Tensor, "*b T"]:
    """The position of each token of `x`, on its device; counted from 0 where none are given."""
    call, embed_dim = f"{type(scheme).__name__}.embed", scheme.embed_dim
    errors.floats(call, x=x)
    if x.dim() != 3 or x.shape[-1] != embed_dim:
        raise errors.value(call, f"x of shape {list(x.shape)}", f"[B, T, {embed_dim}]", "pass the token embeddings.")
    if positions is None:
        return torch.arange(x.shape[1], device=x.device)
    if not isinstance(positions, Positions):
        raise errors.wrong_type(
            call, f"positions of {type(positions).__name__}", "Positions or None", "use Positions.explicit(p, p)."
        )
    if positions.query_len != x.shape[1] or (positions.query.dim() == 2 and len(positions.query) not in (1, len(x))):
        raise errors.value(
            call,
            f"positions of shape {list(positions.query.shape)} for x of shape {list(x.shape)}",
            f"[{x.shape[1]}] or [{x.shape[0]}, {x.shape[1]}]",
            "pass one position for each token.",
        )
    return positions.query.to(x.device)
