"""What the DeBERTa families share: embeddings, and a stack that makes no matrix of pairs, of distances or of masks."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from relpos import errors
from relpos.hf.absolute import refuse_past_table
from relpos.hf.patched import Patched


class DisentangledEmbeddings(Patched):
    """Embeddings of tokens and, by `position_biased_input`, of their places."""

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """What has no end is left as it is; what `talking_head` leaves alone stays whole."""
        if module.position_embeddings is None:
            return "it adds no positions"
        return "talking_head mixes the scores of heads" if getattr(module.config, "talking_head", False) else None

    def forward(
        self: Any,
        input_ids: Int[Tensor, "B T"] | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Int[Tensor, "... T"] | None = None,
        mask: Tensor | None = None,
        inputs_embeds: Float[Tensor, "B T E"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """As the class that this one replaces, up to the end of its table."""
        given = inputs_embeds if input_ids is None else input_ids
        if given is not None:
            refuse_past_table(self, given, position_ids)
        return self.replaces.forward(self, input_ids, token_type_ids, position_ids, mask, inputs_embeds)  # type: ignore[no-any-return]


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
