"""What the DeBERTa families share: a stack that makes no matrix of pairs, of distances or of masks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relpos import errors
from relpos.hf.patched import Patched


class DisentangledEncoder(Patched):
    """The stack around the attention."""

    def get_attention_mask(self, attention_mask: Tensor) -> Tensor:
        """The padding mask as it is, and pairs with an axis for the heads."""
        return attention_mask.unsqueeze(1) if attention_mask.dim() == 3 else attention_mask

    def get_rel_pos(self, hidden_states: Tensor, query_states: Any = None, relative_pos: Any = None) -> Any:
        """None, which stands for the distances between tokens in their order."""
        return relative_pos


def refuse_distances(relative_pos: Tensor | None) -> None:
    """Refuse distances of the caller's own."""
    if relative_pos is not None:
        raise errors.value(
            "DisentangledSelfAttention",
            f"relative_pos of shape {list(relative_pos.shape)}",
            "None: distances between tokens in their order",
            "restore the model for distances of your own.",
        )
