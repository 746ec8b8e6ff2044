"""Memory for blocks of numbers that live no longer than a block or a part: the same again and again.

Fresh memory costs a page fault for every 4 KiB when it is first written, which takes longer than the product that is
written there. So each thread keeps some from call to call.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

#: Numbers kept for each purpose.
KEPT = 2**21


class Scratch(threading.local):
    """Memory by purpose: what was taken before for the same purpose is overwritten."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, purpose: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Numbers of any value, contiguous."""
        size = math.prod(shape)
        memory = self.kept.get((purpose, dtype))
        if memory is None or memory.numel() < size:
            with torch.inference_mode(False):  # a tensor made in that mode could not be written to outside of it
                memory = torch.empty(size, dtype=dtype)
            if size <= KEPT:
                self.kept[purpose, dtype] = memory
        return memory[:size].view(shape)


SCRATCH = Scratch()
