"""Learned absolute positions, as in BERT, GPT-2 and OPT."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relpos import errors
from relpos.positions import Positions
from relpos.schemes.absolute import Absolute, positions_of


class LearnedAbsolute(Absolute, name="learned"):
    r"""Adds row `position + offset` of a learned table to the input embedding.

    Args:
        embed_dim: width E of the embeddings.
        max_len: rows of the table. The last usable position is `max_len - 1 - offset`.
        offset: rows before position 0: 2 for OPT and BART, padding id + 1 for RoBERTa.

    State: `table [max_len, E]`, normal with standard deviation 0.02.
    Cost: `max_len * E` parameters.
    Valid: up to the table's end and never past it; positions past it raise.
    Source: Devlin et al. 2019, section 3 (BERT); Hugging Face `opt`, `bart`, `roberta` for the offsets.

    >>> LearnedAbsolute(embed_dim=8, max_len=16).embed(torch.zeros(1, 4, 8)).shape
    torch.Size([1, 4, 8])
    """

    def __init__(self, embed_dim: int, max_len: int, offset: int = 0) -> None:
        super().__init__()
        errors.positive_int("LearnedAbsolute", embed_dim=embed_dim, max_len=max_len)
        errors.whole("LearnedAbsolute", offset=offset)
        if not 0 <= offset < max_len:
            raise errors.value(
                "LearnedAbsolute", f"offset={offset}", f"0 <= offset < max_len={max_len}", "use 2 for OPT and BART."
            )
        self.embed_dim, self.max_len, self.offset = embed_dim, max_len, offset
        self.table = nn.Parameter(torch.empty(max_len, embed_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small random rows."""
        nn.init.normal_(self.table, std=0.02)

    def embed(self, x: Float[Tensor, "B T E"], positions: Positions | None = None) -> Float[Tensor, "B T E"]:
        """`x` plus the row of each token's position (counted from 0 where none are given), in the dtype of `x`.

        Raises: ValueError naming the position and the table's size where one lies outside it.
        """
        rows = positions_of(self, x, positions) + self.offset
        self._check_rows(rows)
        return x + nn.functional.embedding(rows, self.table).to(x.dtype)

    def _check_rows(self, rows: Tensor) -> None:
        if rows.numel() == 0 or rows.is_meta:
            return
        low, high = int(rows.min()), int(rows.max())
        if low < 0 or high >= self.max_len:
            outside = (low if low < 0 else high) - self.offset
            raise errors.value(
                "LearnedAbsolute.embed",
                f"position {outside} for a table of {self.max_len} rows with offset {self.offset}",
                f"positions {-self.offset} to {self.max_len - 1 - self.offset}",
                "shorten the input or train a longer table; a learned table knows nothing beyond its end.",
            )
