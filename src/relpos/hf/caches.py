"""What a patched module asks of a cache of transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def seen(cache: Any, layer: int | None) -> int | Tensor:
    """Tokens in the cache before this call, in a tensor of their own where the cache counts in one."""
    count: int | Tensor = 0 if cache is None else cache.get_seq_length(layer)
    return count.clone() if isinstance(count, Tensor) else count
