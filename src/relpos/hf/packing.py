"""Padded batches without their padding: a stack of layers computes all texts end to end, in one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers.utils import output_capturing

from relpos.hf.masks import IMPLEMENTATION
from relpos.hf.patched import Patched, hooks

#: Arguments of a stack that speak of the padded batch.
OF_THE_BATCH = ("query_states", "relative_pos", "encoder_hidden_states", "cache")


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
    has holes, where probabilities are asked for, where a hook inside watches, where a layer has attention of another
    kind, on other devices, and where a graph is recorded.
    """

    def forward(
        self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **options: Any
    ) -> Any:
        """As the class that this one replaces; padding gives zeros where it is left out."""
        packing = None if args else packing_of(self.layer, hidden_states, attention_mask, options)
        if packing is None:
            return self.replaces.forward(self, hidden_states, attention_mask, *args, **options)
        output = self.replaces.forward(self, packing.pack(hidden_states), packing.cu_seqlens, **options)
        return tree_map_only(Tensor, packing.unpack, output)


class PackedTextStack(Patched):
    """The same of a stack that starts from the numbers of tokens, as T5's encoders do."""

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """A decoder has a cache."""
        return "it decodes" if module.is_decoder else None

    def forward(
        self: Any,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        *args: Any,
        inputs_embeds: Float[Tensor, "B T E"] | None = None,
        **options: Any,
    ) -> Any:
        """As the class that this one replaces; padding gives zeros where it is left out."""
        packing, given = None, input_ids if inputs_embeds is None else inputs_embeds
        is_clear = (input_ids is None) is not (inputs_embeds is None)
        # a configuration that another model took over makes transformers' masks
        if given is not None and is_clear and not args and self.config._attn_implementation == IMPLEMENTATION:
            packing = packing_of(self.block, given, attention_mask, options)
        if packing is None:
            options["inputs_embeds"] = inputs_embeds
            return self.replaces.forward(self, input_ids, attention_mask, *args, **options)
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        output = self.replaces.forward(
            self, inputs_embeds=packing.pack(x), attention_mask=packing.cu_seqlens, **options
        )
        return tree_map_only(Tensor, packing.unpack, output)


def packing_of(
    layers: nn.ModuleList, x: Shaped[Tensor, "B T *E"], mask: Tensor | None, options: dict[str, Any]
) -> Packing | None:
    """What a stack of layers can leave out, called with these other arguments; None where it has to compute all."""
    if mask is None or mask.device.type != "cpu" or mask.dim() != 2 or mask.shape != x.shape[:2]:
        return None
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():
        return None
    shown = mask.bool()
    if bool(shown.all()) or not bool(shown.any()) or any(options.get(name) is not None for name in OF_THE_BATCH):
        return None
    starts = shown[:, :1].sum(-1) + (shown[:, 1:] > shown[:, :-1]).sum(-1)
    if bool((starts > 1).any()) or options.get("output_attentions") or not all(map(_packs, layers)):
        return None
    return Packing.of(shown)


def longest(x: Float[Tensor, "B T E"], mask: Tensor | None) -> int:
    """Tokens of the longest text in `x`, which is one row where the mask is `cu_seqlens`."""
    return x.shape[1] if mask is None or mask.dim() != 1 else int(mask.diff().max())


def _packs(layer: nn.Module) -> bool:
    """Whether its attention reads `cu_seqlens`, and nobody looks at what passes.

    Transformers' own hooks, which collect outputs, take any shape.
    """
    seen = [hook for module in layer.modules() for hook in hooks(module)]
    is_watched = any(getattr(hook, "__module__", "") != output_capturing.__name__ for hook in seen)
    return not is_watched and any(isinstance(module, Patched) for module in layer.modules())
