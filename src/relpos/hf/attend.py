"""From what a patched module has (projected heads, a mask of transformers) to one call of `relpos.attention`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relpos.attention import Window, attention, attention_weights
from relpos.errors import wrong_type
from relpos.hf.patched import Patched
from relpos.positions import Positions
from relpos.terms import Term


def refuse_trace() -> None:
    """Before a trace meets lengths that are no whole numbers, or keeps a mask."""
    if torch._C._get_tracing_state() is not None:
        raise wrong_type(
            "a patched model",
            "a call that is traced",
            "a call, or torch.compile: a trace keeps the lengths and masks of its example",
            "relpos.hf.restore(model) before tracing or exporting it.",
        )


def split_heads(x: Float[Tensor, "B T E"], width: int) -> Float[Tensor, "B H T D"]:
    """Heads of `width` channels each."""
    refuse_trace()
    return x.view(*x.shape[:-1], -1, width).transpose(1, 2)


def attend(
    module: Patched,
    query: Float[Tensor, "B H Tq D"],
    key: Float[Tensor, "B G Tk D"],
    value: Float[Tensor, "B G Tk Dv"],
    terms: Sequence[Term],
    *,
    mask: Tensor | None,
    scale: float,
    is_self: bool = True,
    is_causal: bool = False,
    query_start: int | Tensor = 0,
    window: Window | None = None,
    dropout_p: float = 0.0,
    needs_weights: bool = False,
) -> tuple[Float[Tensor, "B Tq E"], Float[Tensor, "B H Tq Tk"] | None]:
    """The output of attention with its heads side by side, and the probabilities where they are needed.

    Args:
        mask: `[B, Tk]`, True or 1 = a token; or `[n + 1]`, the `cu_seqlens` of n texts end to end; or four dimensions,
            bool with True = may attend, or numbers of which 0 shows and the dtype's minimum hides; or None.
        is_self: whether queries and keys are the same tokens, as far as both are there.
        is_causal: hides keys after their query, unless a mask of four dimensions has said who sees whom.
        query_start: where the first query stands among the keys.
        window: as in `relpos.attention`.
        needs_weights: whether to compute all probabilities too, by the reference backend, without dropout.
    """
    refuse_trace()
    key_mask, attn_mask, lengths = None, None, None
    if mask is not None and mask.dim() == 1:
        positions = Positions.packed(mask)
    else:
        positions = Positions.arange(query.shape[2], key.shape[2], query_start, device=query.device)
    if mask is not None and mask.dim() == 2:
        key_mask, lengths = _tokens(mask.bool(), is_self and query.shape[2] == key.shape[2])
    elif mask is not None and mask.dim() == 4:
        attn_mask = _pairs(mask)[..., : key.shape[2]]
    arguments = {
        "scheme": terms,
        "is_causal": is_causal and attn_mask is None,
        "positions": positions,
        "attn_mask": attn_mask,
        "key_mask": key_mask,
        "lengths": lengths,
        "window": window,
        "scale": scale,
    }
    options = {"backend": module.relpos_options.backend, "dropout_p": dropout_p}
    output = attention(query, key, value, **arguments, **options)  # type: ignore[arg-type]
    weights = attention_weights(query, key, value, **arguments) if needs_weights else None  # type: ignore[arg-type]
    return output.transpose(1, 2).flatten(2), weights


def _tokens(mask: Bool[Tensor, "B T"], is_self: bool) -> tuple[Tensor | None, Tensor | None]:
    """`(key_mask, lengths)`: neither where nothing is hidden, and lengths, which also skip the queries of the padding,
    where all padding of self-attention stands at the end. A recorded graph does not look."""
    if torch.compiler.is_compiling() or mask.device.type != "cpu":
        return mask, None
    if bool(mask.all()):
        return None, None
    if is_self and not bool((mask[:, 1:] > mask[:, :-1]).any()):
        return None, mask.sum(-1)
    return mask, None


def _pairs(mask: Tensor) -> Bool[Tensor, "B H Tq Tk"]:
    """A 4-D mask as booleans: a bias in it would be lost, so numbers that are neither 0 nor a minimum are refused."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        return mask != 0
    shown = mask == 0
    lowest = torch.finfo(mask.dtype).min / 2
    if not torch.compiler.is_compiling() and bool((~shown & (mask > lowest)).any()):
        raise wrong_type(
            "a patched model",
            "a 4-D attention_mask with other numbers than 0 and the minimum of its dtype",
            "a mask that shows or hides",
            "pass a bool mask, True = may attend; relpos.hf.restore(model) takes masks with numbers.",
        )
    return shown
