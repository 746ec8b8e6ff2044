"""ALiBi as transformers write it, by key index, and by distance; the two differ by a constant for each query."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from relpos import functional
from relpos.hf.patched import Options
from relpos.positions import Positions
from relpos.schemes.alibi import ALiBi
from relpos.terms import DistanceBias, KeyBias, Term


def bias(
    options: Options,
    alibi: Tensor,
    heads: int,
    key: Float[Tensor, "B G Tk D"],
    mask: Tensor | None,
    scale: float = 1.0,
) -> Term:
    """The bias of a model that rounds its own, `alibi`, at the precision that was asked for."""
    batch, _, keys, _ = key.shape
    if options.precision == "model":
        return of_model(alibi, mask, batch, keys, scale)
    return exact(heads, mask, keys, key.device, scale)


def of_model(alibi: Tensor, mask: Tensor | None, batch: int, keys: int, scale: float = 1.0) -> KeyBias:
    """The numbers that a model made and rounded, `[B * H, 1, n]` or `[B, H, 1, n]`, times `scale` in float32.

    Keys past the last of them are those of a static cache that no query sees yet.
    """
    values = alibi.view(batch, -1, alibi.shape[-1])
    if _is_unpadded(mask):
        values = values[:1]
    values = values.to(torch.promote_types(values.dtype, torch.float32)) * scale
    return KeyBias(torch.nn.functional.pad(values, (0, keys - values.shape[-1])))


def exact(heads: int, mask: Tensor | None, keys: int, device: torch.device, scale: float = 1.0) -> Term:
    """The published slopes times distance in float32; times the key's index where a matrix says who sees whom, since a
    model that biases by index favours keys ahead."""
    if mask is None or mask.dim() == 2:
        return _by_distance(heads, scale)
    slopes = functional.alibi_slopes(heads).to(device)
    return KeyBias((slopes * scale)[None, :, None] * torch.arange(1 - keys, 1, device=device))


def _is_unpadded(mask: Tensor | None) -> bool:
    """Whether all rows of the batch count alike, as far as looking is cheap."""
    if torch.compiler.is_compiling() or mask is None or mask.dim() != 2 or mask.device.type != "cpu":
        return False
    return bool(mask.all())


@lru_cache(maxsize=32)
def _scheme(heads: int, scale: float) -> ALiBi:
    return ALiBi(heads, bias_scale=scale)


def _by_distance(heads: int, scale: float) -> DistanceBias:
    make = _scheme.__wrapped__ if torch.compiler.is_compiling() else _scheme  # a recorded graph keeps nothing
    (term,) = make(heads, scale).terms(Positions.arange(1))
    assert isinstance(term, DistanceBias)
    return term
