"""Padded batches without their padding: a stack of layers computes all texts end to end, in one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map_only

from relpos.hf.patched import Patched


@dataclass(frozen=True, eq=False)
class Packing:
    """Where the tokens of a padded batch stand, each text one unbroken stretch of its row.

    Attributes:
        batch, length: of the padded batch.
        token: places of the tokens in `[batch * length]`.
        cu_seqlens: cumulative lengths of the texts.
    """

    batch: int
    length: int
    token: Int[Tensor, " N"]
    cu_seqlens: Int[Tensor, " batch_plus_1"]

    @classmethod
    def of(cls, mask: Bool[Tensor, "B T"]) -> Packing:
        """Of the mask of a batch, True = a token."""
        cu_seqlens = torch.nn.functional.pad(mask.sum(-1).cumsum(0), (1, 0))
        batch, length = mask.shape
        return cls(batch, length, mask.flatten().nonzero()[:, 0], cu_seqlens)

    def pack(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "1 N E"]:
        """The vectors of the tokens."""
        return x.flatten(0, 1).index_select(0, self.token)[None]

    def unpack(self, x: Float[Tensor, "1 N E"]) -> Float[Tensor, "B T E"]:
        """The vectors in their places, zeros for padding."""
        padded = x.new_zeros(self.batch * self.length, x.shape[-1]).index_copy(0, self.token, x[0])
        return padded.view(self.batch, self.length, -1)


class PackedStack(Patched):
    """A stack of layers that each look at single tokens, attention aside: for them padding is left out.

    The layers get `cu_seqlens` in the place of the mask. Nothing is left out where no text has padding, where a mask
    has holes, where probabilities are asked for, where a hook inside watches, on other devices, and where a graph is
    recorded.
    """

    def forward(
        self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **options: Any
    ) -> Any:
        """As the class that this one replaces; padding gives zeros where it is left out."""
        if args or attention_mask is None or not self._packs(hidden_states, attention_mask, options):
            return self.replaces.forward(self, hidden_states, attention_mask, *args, **options)
        packing = Packing.of(attention_mask.bool())
        output = self.replaces.forward(self, packing.pack(hidden_states), packing.cu_seqlens, **options)
        return tree_map_only(Tensor, packing.unpack, output)

    def _packs(self: Any, hidden_states: Tensor, mask: Tensor, options: dict[str, Any]) -> bool:
        if mask.device.type != "cpu" or torch.compiler.is_compiling() or torch._C._get_tracing_state():
            return False
        shown = mask.bool()
        if mask.shape != hidden_states.shape[:2] or bool(shown.all()):
            return False
        if options.get("output_attentions") or any(options.get(name) is not None for name in _OF_THE_BATCH):
            return False
        starts = shown[:, :1].sum(-1) + (shown[:, 1:] > shown[:, :-1]).sum(-1)
        return bool((starts <= 1).all()) and not any(map(_is_watched, self.modules()))


#: Arguments of a stack that speak of the padded batch.
_OF_THE_BATCH = ("query_states", "relative_pos")


def longest(x: Float[Tensor, "B T E"], mask: Tensor | None) -> int:
    """Tokens of the longest text in `x`, which is one row where the mask is `cu_seqlens`."""
    return x.shape[1] if mask is None or mask.dim() != 1 else int(mask.diff().max())


def _is_watched(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
